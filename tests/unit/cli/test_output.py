"""What agents and models wrote is shown to people as text: no terminal obeys it, nothing in it is hidden."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import typer
from rich.console import Console

from tugline.cli import explain, output, show
from tugline.core.errors import TuglineError
from tugline.core.turn import CallOutcome, CallRecord
from tugline.forest.told import Difference, Edited, Parting
from tugline.rollout.audit import Audit, Example
from tugline.rollout.drift_report import DriftReport, Seen
from tugline.rollout.explain import Explanation, Nearest, Place, Prompt, Sampled
from tugline.rollout.proof import Proof
from tugline.rollout.summary import Summary
from tugline.trajectory.audit import Deviation
from tugline.trajectory.verify import Finding

CONTROLS = "".join(chr(c) for c in (*range(32), *range(127, 160)) if chr(c) not in "\n\t\r")
EVIL = f"\x1b]0;title\x07\x1b[2J{CONTROLS}\u202eright\u2066\u200b\u2028\ud800[bold]b[/] :smile:"


def details(console: Console) -> None:
    seen = {EVIL: Seen(EVIL, EVIL, 1)}
    show.show_details(console, DriftReport(drift=seen, roots=seen, untrained=seen, ignored=seen, errors=seen))


def summary(console: Console) -> None:
    made = Summary(example={EVIL: EVIL})
    for counted in (made.drift, made.ignored, made.roots, made.links, made.reasons, made.engines, made.roles):
        counted[EVIL] = 1
    show.show_summary(console, made)


def proof(console: Console) -> None:
    finding = Finding(EVIL, EVIL, EVIL, EVIL, EVIL, 1, EVIL)
    show.show_proof(console, Proof(findings=[finding], rewarded_without_tokens=[EVIL]))


def audit(console: Console) -> None:
    example = Example(EVIL, EVIL, Deviation("special", 1, EVIL, EVIL))
    show.show_audit(console, Audit(prompts=1, examples={"special": example}))


def explained(console: Console) -> None:
    call = CallRecord("c", EVIL, 0, EVIL, EVIL, "t", CallOutcome.ANSWERED, 200, 0.0, 0.0, EVIL, error=EVIL)
    parting = Parting(0, EVIL, EVIL, "x" + EVIL)
    nearest = Nearest(EVIL, 1, 2, parting, (EVIL,))
    edited = (Edited(None, (), (), EVIL), Edited("t", (EVIL,), (Difference(EVIL, EVIL, "x"),), ""))
    place = Place(EVIL, EVIL, 0, EVIL, (EVIL,), ((EVIL, EVIL),), (EVIL,), edited, nearest, (EVIL,))
    prompt = Prompt(1, 0, 1, (1,), EVIL, EVIL, 1, EVIL, None, True, (Deviation("special", 0, EVIL, "x"),), EVIL)
    sampled = Sampled(1, (1,), EVIL, EVIL, -1.0, -1.0, -1.0, EVIL, 0, ((0, 1),), EVIL)
    found = Explanation(call, "t", EVIL, EVIL, EVIL, ((EVIL, EVIL),), place, prompt, sampled)
    explain.show(console, found)


def failed(console: Console, *, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "console", lambda: console)
    with pytest.raises(typer.Exit):
        output.fail(TuglineError(EVIL), as_json=False)


def shown(show_it: Callable[[Console], None]) -> str:
    console = output.console()
    console.file = io.StringIO()
    show_it(console)
    return console.file.getvalue()


@pytest.mark.parametrize("show_it", [details, summary, proof, audit, explained])
def test_nothing_that_a_terminal_obeys_leaves(show_it: Callable[[Console], None]) -> None:
    text = shown(show_it)
    assert "title" in text
    assert {c for c in text if not c.isprintable()} <= {"\n"}
    assert ":smile:" in text


def test_nor_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(lambda console: failed(console, monkeypatch=monkeypatch))
    assert "title" in text
    assert {c for c in text if not c.isprintable()} <= {"\n"}


def test_nor_in_a_table() -> None:
    assert {c for c in output.table({"reason": EVIL}) if not c.isprintable()} == set()


def test_plain_text_and_line_breaks_stay() -> None:
    assert output.printable("a\n\tb é 漢") == "a\n\tb é 漢"
