"""P1 close is one control token, P2 cutting at control tokens changes no id, P3 what survives, P4 order within a turn,
P5 an assistant turn begins with the generation prompt."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tugline.core.columns import NO_IDS, Ids
from tugline.core.errors import TuglineError
from tugline.core.items import Assistant, Head, Item, Tool, ToolCall, ToolResult, UserText
from tugline.tokens.probes.trial import HEAD, SYSTEM, USER, WORD, Trial, behind, called
from tugline.tokens.probes.verdict import Tools

_GO_ON = UserText("Go on.")
_NAME = "zQnameQz"
_ASKED = "zAaskedA"
_PIPED = re.compile(r"<[|\uff5c][^|\uff5c<>\s'\"{}]{1,40}[|\uff5c]>")
"""Strings of a template's source that every family means as one token."""


def close(trial: Trial) -> tuple[str, int | None]:
    """P1: what the template writes behind an assistant turn, and its id where it is a control token.

    A turn may end its parts with control tokens too: the first one in front of the next message that is a stop token
    is the turn's, else the first of all.
    """
    text, refused = trial.tried([*trial.start, Assistant(WORD), _GO_ON])
    said, after = text.rfind(WORD), text.rfind(_GO_ON.text)
    found = list(trial.codec.pattern.finditer(text, said, max(said, after))) if said >= 0 else []
    ends = [m for m in found if trial.codec.control_id(m.group()) in trial.bench.stop]
    match = next(iter((*ends, *found)), None)
    what = "" if match else f"the template refuses: {refused}" if refused else "no control token ends an assistant turn"
    trial.say("P1", what, behind(text, WORD))
    if match is None:
        return "", None
    closes, close_id = match.group().strip(), trial.codec.control_id(match.group())
    alias = "" if close_id in trial.bench.stop else f"{closes} is no stop token: a turn that the model ended is kept so"
    trial.say("P1_stop", alias, behind(text, WORD), status="note")
    return closes, close_id


def cuts(trial: Trial) -> None:
    """P2: encoding piece by piece must equal one pass, and what looks like a token must be one."""
    text = trial.text([SYSTEM, UserText("  a\n\nb é\n"), Assistant("\n x ", "r\n"), UserText(" 1 2\n")]) or trial.text(
        [UserText("  a\n\nb é\n"), Assistant("\n x "), UserText(" 1 2\n")]
    )
    try:
        same = trial.codec.encode_marked(text, str) == trial.codec.encode(text)
    except TuglineError:
        same = False
    what = "" if same else "cutting at control tokens changes the ids"
    trial.say("P2", what if text else "the template refuses a plain conversation", text)
    strange = sorted({s for s in _PIPED.findall(text) if trial.codec.token(s) is None})
    what = f"the tokenizer does not know {', '.join(strange)}, which the template writes" if strange else ""
    trial.say("P2_tokens", what, strange[0] if strange else "")


def survival(trial: Trial) -> Tools:
    """P3: text, reasoning, and calls: the last argument of one to three, and calls that have none."""
    text, refused = trial.tried([*trial.start, Assistant(WORD), _GO_ON])
    trial.say("P3_text", "" if WORD in text else _lost(refused), text)
    thought = Assistant(None, WORD, (ToolCall("c0", "run", "{}"),))
    text, refused = trial.tried([*trial.start, thought, ToolResult("c0", "ok")])
    trial.say("P3_reasoning", "" if WORD in text else _lost(refused), text)
    lost: list[str] = []
    raised: list[str] = []
    for n in (1, 2, 3):
        for kind in ("calls", "noargs"):
            text, refused, whole = _calls(trial, n, kind)
            trial.say(f"P3_{kind}_{n}", "" if whole else _lost(refused), behind(text, _ASKED))
            if not whole:
                (raised if refused else lost).append(f"{kind}_{n}")
    _bare_tools(trial)
    plain, why = trial.tried([*trial.start, Assistant(WORD), _GO_ON])
    if not plain:
        return Tools(False, 0, f"refuses every conversation: {why}")
    return _tools(lost, raised, split=trial.renderer.shape.split_calls)


def _bare_tools(trial: Trial) -> None:
    """Whether tools may be declared as shortly as the wire allows, as harnesses do, and are shown at all."""
    bare = '{"type":"function","function":{"name":"run","parameters":{"type":"object","properties":{"cmd":{}}}}}'
    _, refused = trial.tried(trial.start, head=Head((Tool("run", bare),)))
    what = f"tools without descriptions are refused: {refused}" if refused else ""
    trial.say("P3_tools", what, bare)
    hidden = "the template never shows which tools there are" if "tools" in trial.renderer.shape.unseen else ""
    trial.say("P3_offered", hidden, status="note")


def _calls(trial: Trial, n: int, kind: str) -> tuple[str, str, bool]:
    """(text, refusal, all is there) of a turn with n calls."""
    marks = [f"{_NAME}{i}" for i in range(n)] if kind == "noargs" else [WORD]
    turn = called(WORD, n)
    if kind == "noargs":
        turn = Assistant(calls=tuple(ToolCall(f"c{i}", name, "{}") for i, name in enumerate(marks)))
    results = [ToolResult(f"c{i}", "ok", name="tool") for i in range(n)]
    text, refused = trial.tried([*trial.start[:-1], UserText(_ASKED), turn, *results], as_is=True)
    return text, refused, all(m in text for m in marks)


def _lost(refused: str) -> str:
    return f"the template refuses: {refused}" if refused else "the template drops it"


def _tools(lost: Sequence[str], raised: Sequence[str], *, split: bool) -> Tools:
    """What P3 says of tools. A template of one call at a time is truthful where it refuses more aloud, and where it is
    given several one by one (`split`): formats whose models stop sampling at each call are such."""
    if "calls_1" in raised:
        return Tools(False, 0, "the template refuses tool calls")
    if "calls_1" in lost:
        return Tools(False, 0, "drops calls: the model is never shown what it called")
    if {"calls_2", "calls_3"} & set(lost):
        first = "renders only the first of several calls of a turn"
        return Tools(split, 1, f"{first}; they are given one by one (counted `calls_split`)" if split else first)
    if any(name.startswith("noargs") for name in lost):
        return Tools(False, 3, "drops calls that have no arguments")
    if {"calls_2", "calls_3"} & set(raised):
        return Tools(True, 1 if "calls_2" in raised else 2, "refuses turns with more calls")
    return Tools(True, 3, "every call and its arguments are shown")


def order(trial: Trial, tools: Tools, close_text: str) -> tuple[Tools, bool]:
    """P4: text before call before result, or the spliced tail would lack the moved part (True)."""
    turn = called("zBcallB", text="zAtextA")
    text = trial.text([*trial.start, turn, ToolResult("c0", "zCresultC")])
    found = [text.find(w) for w in ("zAtextA", "zBcallB", "zCresultC")]
    if found[1] < 0 or found[2] < 0:
        trial.say("P4", "the template shows no call with its result", text, status="na")
        if found[1] >= 0 and tools.representable:
            return Tools(False, tools.parallel, "drops results: the model is never shown what a call gave"), False
        return tools, False
    ends = [m.start() for m in trial.codec.pattern.finditer(text, found[1]) if m.group().strip() == close_text]
    # A text that stands behind the calls but within the turn is in no tail: only a note.
    moved = not found[0] < min([found[2], *ends[:1]]) or found[2] < found[1]
    trial.say("P4", "the template moves the parts of a turn" if moved else "", text)
    if found[0] > found[1] and not moved:
        trial.say("P4_text", "the text of a turn is written behind its calls", text, status="note")
    beside = "" if found[0] >= 0 else "the text of a turn that also calls a tool is not shown"
    trial.say("P3_text_beside", beside, text)
    if moved:
        return Tools(False, tools.parallel, "moves text: the parts of a turn change places"), True
    return (Tools(tools.representable, tools.parallel, f"{tools.why}; {beside}") if beside else tools), False


def begins(trial: Trial) -> bool:
    """P5: with reasoning, and (notes) without, in turns that call, behind results. Returns whether all hold."""
    shown = True
    for name, case, what in _BEGINNINGS:
        holds, example = _begins(trial, HEAD, case)
        trial.say(name, "" if holds else what, example, status="fail" if name == "P5" else "note")
        shown = shown and holds
    return shown and shows_prompt(trial, "{}")


def blank_turns(trial: Trial, close: str) -> None:
    """P1 of turns that say nothing: some templates write no end, or no turn at all."""
    start, after = list(trial.start), UserText("zQafterQz")
    for reasoning in (None, "hm"):
        blank = trial.text([*start, Assistant(" ", reasoning), after])
        said = trial.text([*start, Assistant("x", reasoning), after])
        if close and blank and blank.count(close) != said.count(close):
            what = "a turn of blank text is written without its end"
            trial.say("P1_blank", what, behind(blank, USER.text), status="note")
            return
    trial.say("P1_blank")


def shows_prompt(trial: Trial, kwargs: str) -> bool:
    """Whether P5 holds in every form under these template arguments."""
    cases = [case for _, case, _ in _BEGINNINGS]
    bare = [case for case in cases if not case[1] and not case[2]]
    with_tools, without = Head(HEAD.tools, kwargs), Head((), kwargs)
    if not _past_stays(trial, without):
        return False
    return all(_begins(trial, with_tools, c)[0] for c in cases) and all(_begins(trial, without, c)[0] for c in bare)


def _past_stays(trial: Trial, head: Head) -> bool:
    """Whether results leave the turns before the last user message alone, where no tools are offered any more."""
    past: list[Item] = [*trial.start, Assistant("zAtextA", "hm"), _GO_ON]
    before = trial.text(past, generation=False, head=head)
    after = trial.text([*past, called("ls"), ToolResult("c0", "ok")], head=head)
    return not after or after.startswith(before)


_BEGINNINGS = (
    ("P5", ("hm", False, False), "an assistant turn does not begin with the generation prompt"),
    (
        "P5_plain",
        (None, False, False),
        "an assistant turn without reasoning does not begin with the generation prompt",
    ),
    ("P5_call", ("hm", True, False), "a turn that calls a tool does not begin with the generation prompt"),
    ("P5_plain_call", (None, True, False), "a call without reasoning does not begin with the generation prompt"),
    ("P5_results", ("hm", False, True), "results are written otherwise once the model has answered"),
    ("P5_plain_results", (None, True, True), "results are written otherwise once the model has called again"),
)
"""(name, (reasoning, calls a tool, stands behind results), what breaks)."""


def _begins(trial: Trial, head: Head, case: tuple[str | None, bool, bool]) -> tuple[bool, str]:
    """(whether the history begins as its prompt was, both for the eye). What a template does not show holds."""
    reasoning, calls, behind_results = case
    asked: list[Item] = [called("ls"), ToolResult("c0", "zQresultQz")] if behind_results else []
    start: list[Item] = [*trial.start, *asked]
    prompt = trial.text(start, head=head)
    if behind_results and "zQresultQz" not in prompt:
        return True, ""
    turn = Assistant("zAtextA", reasoning)
    if calls:
        turn = Assistant("zAtextA", reasoning, (ToolCall("c9", "run", '{"cmd": "ls"}'),))
    followed: list[Item] = [turn, ToolResult("c9", "ok")] if calls else [turn]
    inside = trial.text([*start, *followed], head=head, generation=calls)
    if calls and not inside:
        return True, ""
    low = max(0, len(prompt) - 60)
    return bool(prompt) and inside.startswith(prompt), f"{prompt[low:]!r} against {inside[low : low + 120]!r}"


def separator(trial: Trial) -> Ids:
    """What stands between the end of reasoning and the text."""
    unthink = trial.bench.reasoning[1]
    items: list[Item] = [*trial.start, Assistant(WORD, "hm"), _GO_ON]
    text = trial.text(items[:3], generation=False) or trial.text(items)
    if unthink is None or WORD not in text:
        return NO_IDS
    head = text[: text.rfind(WORD)]
    codec = trial.codec
    ends = [m.end() for m in codec.pattern.finditer(head) if codec.control_id(m.group()) == unthink]
    return codec.encode(head[ends[-1] :]) if ends else NO_IDS
