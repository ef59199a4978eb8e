"""What the parent inside a judging sandbox reported, as outcomes and findings. Pure.

The report is ours only as far as the parent could vouch for it: a line that it refused, a canary that did not fail and
a restored file that changed are proofs of cheating; a test that was not reported has not passed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from tugline.core.errors import VerifierError

PASSED = "passed"
PROOFS = ("tests_changed", "patched_internals", "always_equal")
"""What a worker may see."""


class Run(msgspec.Struct):
    """One test file's worker."""

    path: str
    messages: list[dict[str, object]]
    forged: bool
    code: int
    late: bool
    strays: int
    changed: list[str]


class Report(msgspec.Struct):
    """The parent's whole line."""

    runs: list[Run]
    seconds: float
    python: str


@dataclass(slots=True)
class Results:
    """Outcome by test id, without canaries. `flags` are proofs of cheating, `marks` are suspicions."""

    outcomes: dict[str, str] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    marks: set[str] = field(default_factory=set)
    details: list[str] = field(default_factory=list)
    timed_out: bool = False
    unstable: bool = False
    """Whether a test that had passed did not pass again."""
    seconds: float = 0.0

    def of(self, path: str, name: str) -> set[str]:
        """Outcomes of a test function (`f` or `C::f`) of a file, for all its parameters."""
        module = path.removeprefix("tests/").removesuffix(".py").replace("/", ".")
        cls, _, method = name.rpartition("::")
        django = f"{method} ({module}.{cls})"
        return {
            outcome
            for node, outcome in self.outcomes.items()
            if node.partition("[")[0] == f"{path}::{name}" or node == django
        }

    def passed(self, test_id: str) -> bool:
        """Whether the test passed; an id that was cut where it held white space stands for all that begin with it."""
        if test_id in self.outcomes:
            return self.outcomes[test_id] == PASSED
        if "[" in test_id and not test_id.endswith("]"):
            found = [o for known, o in self.outcomes.items() if known.startswith(test_id)]
            return bool(found) and all(o == PASSED for o in found)
        return False


def decode(data: bytes) -> Report:
    """Raises VerifierError for anything but one report."""
    try:
        return msgspec.json.decode(data, type=Report)
    except msgspec.MsgspecError as err:
        raise VerifierError(f"the test runner's report cannot be read: {err}") from err


def judge(report: Report, canaries: Mapping[str, Collection[str]]) -> Results:
    """`canaries`: names that must fail, by test file."""
    out = Results(seconds=report.seconds)
    for run in report.runs:
        _one(run, canaries.get(run.path, ()), out)
    return out


def _one(run: Run, names: Collection[str], out: Results) -> None:
    failed, outcomes, ended = set[str](), dict[str, str](), False
    for message in run.messages:
        match message.get("t"):
            case "test":
                _test(message, names, (failed, outcomes), out)
            case "tamper":
                _flag(out, _proof(message), str(message.get("detail", "")))
            case "broken":
                out.details.append(f"{run.path}: not collected: {message.get('why', '')}")
            case "end":
                ended = True
    if not ended:  # the canaries that follow vouch for what was reported
        outcomes = {node: "unproven" if outcome == PASSED else outcome for node, outcome in outcomes.items()}
    out.outcomes.update(outcomes)
    if PASSED in outcomes.values() and failed != set(names):
        _flag(out, "canary_passed", f"{run.path}: {len(set(names) - failed)} of {len(names)} canaries did not fail")
    _ending(run, out, ended=ended)


def _test(
    message: dict[str, object], names: Collection[str], seen: tuple[set[str], dict[str, str]], out: Results
) -> None:
    failed, outcomes = seen
    node, outcome = str(message.get("id", "")), str(message.get("outcome", ""))
    if _name(node) in names:
        name = _name(node)
        if outcome == "failed":
            failed.add(name)
        else:
            _flag(out, "canary_passed", f"{node}: {outcome}")
        return
    if node in outcomes:
        _flag(out, "forged_results", f"{node} was reported twice")
    outcomes[node] = outcome


def _proof(message: dict[str, object]) -> str:
    """The worker's own words for what it saw; for any other somebody else has spoken."""
    what = str(message.get("what", ""))
    return what if what in PROOFS else "forged_results"


def _name(node: str) -> str:
    """The function's name in a::b[c] or in `b (module.Class)`."""
    if node.endswith(")") and " (" in node:
        return node.partition(" ")[0]
    return node.partition("[")[0].rpartition("::")[2]


def _ending(run: Run, out: Results, *, ended: bool) -> None:
    if run.forged:
        _flag(out, "forged_results", f"{run.path}: a line that the runner did not write")
    for path in run.changed:
        _flag(out, "tests_changed", path)
    if run.late:
        out.timed_out = True
        out.marks.add("tests_timeout")
        out.details.append(f"{run.path}: ran out of time")
    elif not ended and not run.forged:
        out.marks.add("early_exit")
        out.details.append(f"{run.path}: the test process ended with {run.code} before its last test")
    if run.strays:
        out.marks.add("processes_left")


def _flag(out: Results, name: str, detail: str) -> None:
    out.flags.add(name)
    out.details.append(f"{name}: {detail}")
