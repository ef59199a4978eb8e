"""What was found in recordings, for people: run by run where nothing was written down of them, and as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tugline.testing.replay_labels import Found, Label

Runs = Mapping[str, Found]
"""By "HARNESS/RUN"."""


def listed(runs: Runs) -> tuple[str, bool]:
    """One line per run, then the totals; and whether every root of the runs without faults is explained."""
    lines = [
        f"{run}  {'faulty  ' if one.faulty else ''}sampled {one.roles.total()}  unattached {one.unattached}  "
        f"unknown {one.unknown}  {_told(one)}"
        for run, one in sorted(runs.items())
    ]
    clean = [one for one in runs.values() if not one.faulty]
    unknown, lost = sum(one.unknown for one in clean), sum(one.unattached for one in clean)
    total = f"{len(clean)} of {len(runs)} runs without faults: {unknown} roots that nothing explains, {lost} unattached"
    return "\n".join([*lines, total]) + "\n", unknown == 0


def markdown(runs: Runs, labels: Mapping[str, Label] | None) -> str:
    """A table per harness of what was expected and found; without labels, of the runs. No texts of the recordings."""
    return _expected(runs, labels) if labels is not None else _found(runs)


def _expected(runs: Runs, labels: Mapping[str, Label]) -> str:
    rows: list[Sequence[object]] = [("harness", "runs", "turns", "what", "expected", "found")]
    for name in sorted({run.partition("/")[0] for run in runs}):
        mine = [(labels.get(run, Label()), one) for run, one in runs.items() if run.startswith(f"{name}/")]
        counts = (len(mine), sum(one.roles.total() for _, one in mine))
        for kind, expect, find in _KINDS:
            expected = Counter(what for label, _ in mine for what in expect(label))
            found = Counter(what for _, one in mine for what in find(one))
            rows += [
                (name, *counts, kind.format(*what.split(" ")), expected[what], found[what])
                for what in sorted(expected | found)
            ]
    return _table(rows)


_KINDS: tuple[tuple[str, Callable[[Label], Sequence[str]], Callable[[Found], Sequence[str]]], ...] = (
    ("begins: {} (`{}`)", lambda label: label.roots, lambda one: one.roots),
    ("inside: {}", lambda label: label.inline, lambda one: one.inline),
    ("link `{}`", lambda label: list(Counter(label.links).elements()), lambda one: list(one.links.elements())),
)


def _found(runs: Runs) -> str:
    rows: list[Sequence[object]] = [("run", "faults", "sampled", "unattached", "unknown", "found")]
    for run, one in sorted(runs.items()):
        rows.append((run, "yes" if one.faulty else "", one.roles.total(), one.unattached, one.unknown, _told(one)))
    return _table(rows)


def _told(one: Found) -> str:
    """Roots in order, runs of the same one counted; turns in another role than their conversation; links."""
    roots: list[tuple[str, int]] = []
    for root in one.roots:
        same = roots.pop()[1] if roots and roots[-1][0] == root else 0
        roots.append((root, same + 1))
    told = ", ".join(root if n == 1 else f"{root} x{n}" for root, n in roots) or "nothing sampled"
    inside = "".join(f"; inside: {role} {n}" for role, n in sorted(Counter(one.inline).items()))
    return told + inside + "".join(f"; {name} {n}" for name, n in sorted(one.links.items()))


def _table(rows: Sequence[Sequence[object]]) -> str:
    head, *body = [" | ".join(map(str, row)) for row in rows]
    return "\n".join(f"| {line} |" for line in (head, " | ".join("---" for _ in rows[0]), *body)) + "\n"
