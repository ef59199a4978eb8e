"""Replaying recorded traffic of real harnesses: `python -m tugline.testing.replay DIR`.

DIR holds `HARNESS/RUN.requests.jsonl` (or .gz), one JSON object per line: {"seq", "method", "path", "headers": [[name,
value]], "body"}; and beside it, where there is one, `RUN.responses.jsonl`: {"seq", "what": "stream", "sse"} or {"seq",
"what": "json", "body"}. Every request is decoded in its dialect and attached to a forest that grows by the recorded
replies, as in a gateway.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from tugline.core.columns import concat, count, floats, ids
from tugline.core.contracts import Dialect
from tugline.core.errors import BadRequest, ConfigError, NotFound, TuglineError, VerifyError, boundary, describe
from tugline.core.items import Assistant, Request
from tugline.core.roles import first_hint
from tugline.core.turn import Sampling, Turn
from tugline.dialects import DIALECTS
from tugline.forest.attach import Attachment
from tugline.forest.forest import Forest
from tugline.forest.roles import Place, links_at_commit, place
from tugline.gateway.app import Router
from tugline.harnesses.roles import RULES
from tugline.testing.replay_labels import Found, compared, load_labels
from tugline.testing.replay_leaves import unexplained
from tugline.testing.replay_report import listed, markdown
from tugline.testing.replay_said import as_echoed, as_quoted, said

Overrides = Mapping[str, str]
NONE: Overrides = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Recorded:
    """A generate or count request and the dialect that it speaks."""

    seq: int
    dialect: Dialect
    params: dict[str, str]
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Tally:
    """What became of the requests of one harness."""

    requests: int = 0
    elsewhere: Counter[str] = field(default_factory=Counter)
    """Requests to routes without a body to decode, and to unknown ones."""
    decoded: int = 0
    items: int = 0
    matches: Counter[str] = field(default_factory=Counter)
    """exact, lenient: goes on behind a recorded reply. prefix: goes on behind an earlier request whose recorded reply
    says something else, or is missing. repeat, root."""
    roots: Counter[str] = field(default_factory=Counter)
    drift: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    silent: Counter[str] = field(default_factory=Counter)
    """Places of strings that were dropped without being named."""
    crashes: list[str] = field(default_factory=list)
    slowest_ms: float = 0.0
    runs: dict[str, Found] = field(default_factory=dict)
    """The conversations of each recording, by its name."""


@dataclass(frozen=True, slots=True)
class How:
    """For recordings whose words were replaced by others of equal length. `overrides` replace top-level strings of
    bodies, which may hold no valid option any more. `masked`: replies say what their echoes say."""

    overrides: Overrides = field(default_factory=dict)
    masked: bool = False


PLAIN = How()


def replay(folder: Path, how: How = PLAIN) -> dict[str, Tally]:
    """Every recording below `folder`, by harness (its sub-folder). Raises ConfigError when there is none."""
    tallies: dict[str, Tally] = {}
    for path in _recordings(folder):
        tally = tallies.setdefault(path.parent.name if path.parent != folder else path.name.split(".")[0], Tally())
        try:
            _replay_run(path, tally, how)
        except (msgspec.MsgspecError, OSError) as err:
            tally.crashes.append(f"{path.name} cannot be read: {describe(err)}")
    return tallies


def captured_bodies(folder: Path, dialect: Dialect, overrides: Overrides = NONE) -> list[Recorded]:
    """Every recorded request of one dialect."""
    return [r for path in _recordings(folder) for r in _requests(path, Tally(), overrides) if r.dialect is dialect]


def _recordings(folder: Path) -> list[Path]:
    found = sorted(p for p in folder.rglob("*.requests.jsonl*") if p.name.endswith((".jsonl", ".jsonl.gz")))
    if not found:
        raise ConfigError(f"{folder} holds no *.requests.jsonl", where="folder")
    return found


class _Line(msgspec.Struct):
    kind: str = "request"
    seq: int = 0
    method: str = "POST"
    path: str = ""
    headers: list[tuple[str, str]] = []
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Scenario(msgspec.Struct):
    faults: list[msgspec.Raw] = []


class _Answer(msgspec.Struct):
    kind: str = "response"
    seq: int = 0
    what: str = ""
    sse: str = ""
    body: Any = None
    scenario: _Scenario | None = None
    """Of the line that describes the run."""


def _lines(path: Path) -> list[bytes]:
    data = path.read_bytes()
    return [line for line in (gzip.decompress(data) if path.suffix == ".gz" else data).split(b"\n") if line.strip()]


def _requests(path: Path, tally: Tally, overrides: Overrides) -> Iterator[Recorded]:
    router = Router(DIALECTS)
    decoder = msgspec.json.Decoder(_Line)
    for line in map(decoder.decode, _lines(path)):
        if line.kind != "request":
            continue
        tally.requests += 1
        headers = {name.lower(): value for name, value in line.headers}
        try:
            matched = _find(router, line.method, line.path.partition("?")[0], headers)
        except NotFound:
            tally.elsewhere[f"{line.method} {line.path}"] += 1
            continue
        if matched.route.kind not in ("generate", "count"):
            tally.elsewhere[f"{line.method} {matched.route.path}"] += 1
            continue
        yield Recorded(line.seq, matched.dialect, matched.params, _overridden(bytes(line.body), overrides), headers)


def _overridden(body: bytes, overrides: Overrides) -> bytes:
    if not overrides:
        return body
    keys = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    for key, value in overrides.items():
        if bytes(keys.get(key, b"")).startswith(b'"'):
            keys[key] = msgspec.Raw(msgspec.json.encode(value))
    return msgspec.json.encode(keys)


def _find(router: Router, method: str, path: str, headers: dict[str, str]) -> Any:
    """The route of a path that may have any prefix in front. Raises NotFound."""
    starts = [at for at, char in enumerate(path) if char == "/"]
    for at in starts[:-1]:
        try:
            return router.find(method, path[at:], headers)
        except NotFound:
            continue
    return router.find(method, path[starts[-1] :] if starts else path, headers)


def _replies(path: Path) -> tuple[dict[int, _Answer], bool]:
    """The replies by the number of their request; whether the run says of itself that it had faults."""
    beside = path.with_name(path.name.replace(".requests.", ".responses."))
    decoder = msgspec.json.Decoder(_Answer)
    found = [decoder.decode(line) for line in _lines(beside)] if beside.exists() else []
    faulty = any(a.what.startswith("fault") or (a.scenario is not None and bool(a.scenario.faults)) for a in found)
    return {answer.seq: answer for answer in found if answer.what in ("stream", "json")}, faulty


def _replay_run(path: Path, tally: Tally, how: How) -> None:
    forests: dict[str, Forest] = {}
    answered: dict[bytes, str] = {}
    replies, faulty = _replies(path)
    calls = list(_decoded(path, tally, how))
    found = tally.runs.setdefault(path.name.partition(".requests.")[0], Found())
    found.faulty = faulty or any(recorded.seq not in replies for recorded, _ in calls)
    for n, (recorded, request) in enumerate(calls):
        forest = forests.setdefault(recorded.dialect.name, Forest("ses_replay", b""))
        begun = time.perf_counter()
        attached = forest.attach(request)
        placed = place(forest, request, attached, first_hint(RULES, recorded.headers, request))
        tally.slowest_ms = max(tally.slowest_ms, (time.perf_counter() - begun) * 1000)
        _place(tally, placed.attached, request, [earlier for _, earlier in calls[:n]])
        turn = _reply(recorded, request, replies, [later for _, later in calls[n + 1 :]], how)
        if turn is not None:
            placed = placed.again(answered.get(placed.attached.fingerprint))
            made = _turn(forest, placed, request, turn)
            forest.commit(made)
            answered[placed.attached.fingerprint] = made.turn_id
            found.add(made, placed.attached.root_reason, attached.parent)


def _reply(
    recorded: Recorded, request: Request, replies: Mapping[int, _Answer], later: Sequence[Request], how: How
) -> Assistant | None:
    answer = replies.get(recorded.seq)
    turn = said(recorded.dialect.name, answer.sse or answer.body or {}) if answer else None
    if turn is None or not how.masked:
        return turn
    echoed = as_echoed(turn, request, later)
    return as_quoted(turn, later) if echoed is turn else echoed


def _decoded(path: Path, tally: Tally, how: How) -> Iterator[tuple[Recorded, Request]]:
    for recorded in _requests(path, tally, how.overrides):
        begun = time.perf_counter()
        try:
            with boundary(VerifyError, "crash"):
                request = recorded.dialect.decode(recorded.body, recorded.params)
        except BadRequest as err:
            tally.refused[f"{err.path}: {err.message.removeprefix(f'{err.path}: ')[:120]}"] += 1
            continue
        except TuglineError as err:
            where = f"{path.parent.name}/{path.name} request {recorded.seq}"
            tally.crashes.append(f"{where}: {describe(err.__cause__ or err)}")
            continue
        tally.slowest_ms = max(tally.slowest_ms, (time.perf_counter() - begun) * 1000)
        tally.decoded += 1
        tally.items += len(request.items)
        tally.ignored.update(request.ignored)
        tally.silent.update(p.partition(": ")[0] for p in unexplained(recorded.body, request))
        yield recorded, request


def _place(tally: Tally, attached: Attachment, request: Request, earlier: Sequence[Request]) -> None:
    tally.drift.update(attached.drift)
    if any(e.items == request.items and e.head == request.head for e in earlier):
        tally.matches["repeat"] += 1
    elif attached.parent is not None:
        tally.matches[attached.match] += 1
    elif any(e.items and e.head == request.head and request.items[: len(e.items)] == e.items for e in earlier):
        tally.matches["prefix"] += 1
    else:
        tally.matches["root"] += 1
        tally.roots[attached.root_reason or ""] += 1


def _turn(forest: Forest, placed: Place, request: Request, turn: Assistant) -> Turn:
    """The turn that a gateway would have stored, with one made-up id per item."""
    attached = placed.attached
    exact, lenient = forest.keys(attached, turn)
    parent = attached.parent
    keep = count(forest.full(parent.turn_id)) if parent else 0
    bridge = ids(range(1, len(attached.tail) + 2))
    return Turn(
        turn_id=f"turn_{len(forest.turns)}",
        session_id=forest.session_id,
        seq=len(forest.turns),
        parent=parent.turn_id if parent else None,
        keep=keep,
        bridge=bridge,
        sampled=ids([0]),
        logprobs=floats([-1.0]),
        version_runs=((0, 0),),
        finish="stop",
        prompt_len=count(concat([forest.full(parent.turn_id), bridge])) if parent else count(bridge),
        head=request.head,
        items=attached.tail,
        echo=turn,
        key_exact=exact,
        key_lenient=lenient,
        sampling=Sampling(),
        role=placed.role,
        thread=placed.thread,
        links=links_at_commit(placed, forest),
    )


def overrides_of(pairs: Sequence[str]) -> Overrides:
    """`KEY=TEXT` pairs. Raises ConfigError for one without `=`."""
    split = [pair.partition("=") for pair in pairs]
    bad = [key for key, equals, _ in split if not equals]
    if bad:
        raise ConfigError(f"{bad[0]!r} is no KEY=TEXT", where="--set")
    return {key: text for key, _, text in split}


HEADS = ("harness", "requests", "decoded", "refused", "other", "items", "exact", "lenient", "prefix", "repeat", "root")


def table(tallies: dict[str, Tally]) -> str:
    """One line per harness, then what was refused, dropped, respelled or lost."""
    rows: list[tuple[str, ...]] = [HEADS]
    for name, t in sorted(tallies.items()):
        counts = (t.requests, t.decoded, t.refused.total(), t.elsewhere.total(), t.items)
        rows.append((name, *map(str, counts), *(str(t.matches[m]) for m in HEADS[6:])))
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for name, t in sorted(tallies.items()):
        for what in ("crashes", "refused", "silent", "ignored", "roots", "drift", "elsewhere"):
            found = getattr(t, what)
            for text, n in found.most_common() if isinstance(found, Counter) else [(f, 1) for f in found]:
                lines.append(f"{name}  {what}  {n}  {text}")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Exit status 1: a request crashed the decoder or lost text silently, a run is not as labelled, or
    nothing explains a root of a run without faults."""
    parser = argparse.ArgumentParser(prog="python -m tugline.testing.replay", description=replay.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=TEXT", help="replace a string of every body")
    parser.add_argument("--masked", action="store_true", help="words were replaced: replies say what their echoes say")
    parser.add_argument("--labels", type=Path, metavar="FILE", help="print what conversations are, expected and found")
    parser.add_argument("--markdown", action="store_true", help="print what conversations are as a Markdown table")
    asked = parser.parse_args(argv)
    try:
        labels = load_labels(asked.labels) if asked.labels else None
        tallies = replay(asked.folder, How(overrides_of(asked.set), asked.masked))
    except TuglineError as err:
        sys.stderr.write(f"{err.message}\n")
        return 2
    bad = any(t.crashes or t.silent for t in tallies.values())
    runs = {f"{h}/{run}": found for h, t in tallies.items() for run, found in t.runs.items()}
    text, same = compared(labels, runs) if labels is not None else listed(runs)
    if asked.markdown:
        text = markdown(runs, labels)
    elif labels is None:
        text = table(tallies) + text
    sys.stdout.write(text)
    return 0 if same and not bad else 1


if __name__ == "__main__":
    sys.exit(main())
