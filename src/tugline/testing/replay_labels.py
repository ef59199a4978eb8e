"""What recorded conversations are, held against what was written down of them: `replay --labels FILE`.

FILE is TOML. `[plain]`, `[faulty]` and `[silent]` list runs by harness: one main conversation, the same with an
injected fault, no reply at all. `[run."HARNESS/RUN"]` has `roots` ("ROLE REASON" of each sampled turn that begins a
conversation, in order), `inline` (roles of sampled turns that continue a conversation in another role), `links` (turns
by name of their link) and `faults`.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tugline.core.errors import ConfigError
from tugline.core.items import Assistant
from tugline.core.turn import Turn


@dataclass(slots=True)
class Found:
    """The conversations of one run, as `Label` has them."""

    roots: list[str] = field(default_factory=list)
    inline: list[str] = field(default_factory=list)
    links: Counter[str] = field(default_factory=Counter)
    roles: Counter[str] = field(default_factory=Counter)
    faulty: bool = False
    """The recording says that a fault was injected, or a request has no reply."""
    unattached: int = 0
    """Sampled turns whose requests carry assistant turns of which none is known."""

    @property
    def unknown(self) -> int:
        """Roots that nothing explains."""
        return sum(root.endswith(" root_unknown") for root in self.roots)

    def add(self, turn: Turn, reason: str | None, parent: Turn | None) -> None:
        """Account for a sampled turn."""
        self.roles[turn.role] += 1
        self.links.update(name for name, _ in turn.links)
        if parent is None:
            self.roots.append(f"{turn.role} {reason}")
            lost = reason in ("root_unknown", "root_history_changed")
            self.unattached += lost and any(isinstance(item, Assistant) for item in turn.items)
        elif parent.role != turn.role:
            self.inline.append(turn.role)


class Label(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run is."""

    roots: tuple[str, ...] = ("main root_first",)
    inline: tuple[str, ...] = ()
    links: dict[str, int] = {}
    faults: bool = False


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    plain: dict[str, tuple[str, ...]] = {}
    faulty: dict[str, tuple[str, ...]] = {}
    silent: dict[str, tuple[str, ...]] = {}
    run: dict[str, Label] = {}


def load_labels(path: Path) -> dict[str, Label]:
    """By "HARNESS/RUN". Raises ConfigError for a file that is none, and for a run listed twice."""
    try:
        read = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _File)
    except (OSError, ValueError) as err:
        raise ConfigError(f"{path} holds no labels: {err}", where="--labels") from err
    kinds = ((read.plain, Label()), (read.faulty, Label(faults=True)), (read.silent, Label(roots=(), faults=True)))
    pairs = [(f"{h}/{name}", label) for lists, label in kinds for h, names in lists.items() for name in names]
    labels = dict(pairs + list(read.run.items()))
    if len(labels) != len(pairs) + len(read.run):
        raise ConfigError(f"{path} lists a run twice", where="--labels")
    return labels


def differences(label: Label, found: Found) -> list[str]:
    """Where a run is not what was written down."""
    pairs: tuple[tuple[str, object, object], ...] = (
        ("roots", list(label.roots), found.roots),
        ("inline", list(label.inline), found.inline),
        ("links", label.links, dict(found.links)),
    )
    return [f"{what}: expected {expected}, found {got}" for what, expected, got in pairs if expected != got]


def compared(labels: Mapping[str, Label], runs: Mapping[str, Found]) -> tuple[str, bool]:
    """A table of roles and reasons by harness, expected and found, then every difference; and whether there is none."""
    lines, same = [], True
    for name in sorted({run.partition("/")[0] for run in runs}):
        mine = {run: found for run, found in runs.items() if run.startswith(f"{name}/")}
        expected = Counter(root for run in mine for root in labels.get(run, Label()).roots)
        found = Counter(root for one in mine.values() for root in one.roots)
        lines += [
            f"{name}  {root}  expected {expected[root]}  found {found[root]}" for root in sorted(expected | found)
        ]
        turns = sum((one.roles for one in mine.values()), Counter[str]())
        lines.append(f"{name}  turns  " + "  ".join(f"{role} {n}" for role, n in turns.most_common()))
    for run in sorted({*labels, *runs}):
        if run not in labels or run not in runs:
            problems = ["is not among the labels" if run not in labels else "was not recorded"]
        else:
            problems = differences(labels[run], runs[run])
        lines += [f"{run}  {problem}" for problem in problems]
        same = same and not problems
    clean = [found for run, found in runs.items() if run in labels and not labels[run].faults]
    unknown = sum(found.unknown for found in clean)
    lines.append(f"{len(clean)} of {len(runs)} runs without faults: {unknown} roots that nothing explains")
    return "\n".join(lines) + "\n", same and not unknown
