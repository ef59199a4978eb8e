"""P7 which roles may stand behind a sampled turn, alone and in pairs; P8 whether results are grouped; P9 whether a
result is printed with the name or id of its call."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Literal

from tugline.core.items import Assistant, Item, System, ToolCall, ToolResult, UserText
from tugline.tokens.messages import Shape
from tugline.tokens.probes.trial import USER, WORD, Trial, behind, called, differ
from tugline.tokens.probes.verdict import Follow

ROLES = ("user", "tool", "system", "assistant")
_MARK = "zAturnA"
_FIRST, _SECOND = "zBfirstB", "zCsecondC"


def alone(trial: Trial) -> tuple[frozenset[str], tuple[Follow, ...]]:
    """Kinds whose text appears behind the last assistant turn, and what happens to each."""
    talk: list[Item] = [*trial.start, Assistant(_MARK)]
    asked: list[Item] = [*trial.start, called(_MARK)]
    trials: dict[str, list[Item]] = {
        "user": [*talk, UserText(WORD)],
        "tool": [*asked, ToolResult("c0", WORD)],
        "system": [*asked, ToolResult("c0", "ok"), System(WORD)],
        "assistant": [*talk, UserText("more"), Assistant(WORD), UserText("again")],
    }
    good, follows = set(), []
    shape = trial.renderer.shape
    adapted = [what for what, needed in _adapted(shape) if needed]
    trial.say("P7_shape", "; ".join(adapted), status="note")
    for kind, items in trials.items():
        text, refused = trial.tried(items)
        if kind == "system" and _outcome(text, (_MARK, WORD)) != "kept":  # perhaps for the call in front of it
            text, refused = trial.tried([*talk, System(WORD)])
        outcome = _outcome(text, (_MARK, WORD))
        what = "" if outcome == "kept" else f"cannot be appended: {refused or outcome}"
        trial.say(f"P7_{kind}", what, behind(text, USER.text))
        follows.append(Follow((kind,), outcome, refused))
        if outcome == "kept":
            good.add(kind)
    return frozenset(good), tuple(follows)


def _adapted(shape: Shape) -> list[tuple[str, bool]]:
    """Shapes that the template refuses or loses, with what is given in their place (each is counted)."""
    return [
        ("a system message is given as a user's", shape.no_system),
        ("a late system message is given as a user's", shape.fold_system),
        ("user messages in a row are joined", shape.join_users),
        ("several calls of a turn are given one by one", shape.split_calls),
        ("tools without a description or parameters get empty ones", shape.full_tools),
        ("text is given in parts", shape.parts),
        ("call ids are given as nine letters and digits", shape.short_ids),
    ]


def pairs(trial: Trial, good: frozenset[str]) -> tuple[Follow, ...]:
    """Two items behind a turn. Only of kinds that can be appended alone: the others are refused anyway."""
    follows: list[Follow] = []
    example = ""
    for first, second in product(ROLES, ROLES):
        if not {first, second} <= good:
            continue
        text, refused = trial.tried(_pair(trial.start, first, second))
        outcome = _outcome(text, (_MARK, _FIRST, _SECOND))
        follows.append(Follow((first, second), outcome, refused))
        if outcome in ("dropped", "moved"):
            example = example or behind(text, USER.text)
    bad = [f"{' then '.join(f.roles)} {_VERB[f.outcome]}" for f in follows if f.outcome != "kept"]
    lost = any(f.outcome in ("dropped", "moved") for f in follows)
    trial.say("P7_pairs", ", ".join(bad), example, status="fail" if lost else "note")
    return tuple(follows)


_VERB = {"raises": "is refused", "dropped": "loses text", "moved": "changes places"}


def _pair(start: Sequence[Item], first: str, second: str) -> list[Item]:
    calls = sum(kind == "tool" for kind in (first, second)) if "assistant" not in (first, second) else 0
    if first == "tool" and second == "assistant":
        calls = 1
    turn = called(_MARK, calls) if calls else Assistant(_MARK)
    out: list[Item] = [*start, turn]
    answered = 0
    for kind, word, following in ((first, _FIRST, second), (second, _SECOND, "")):
        match kind:
            case "user":
                out.append(UserText(word))
            case "system":
                out.append(System(word))
            case "assistant":
                asks = following == "tool"
                out.append(Assistant(word, None, (ToolCall("c0", "run", '{"cmd": "ls"}'),) if asks else ()))
            case _:
                out.append(ToolResult(f"c{answered}", word))
                answered += 1
    if second == "assistant":
        out.append(UserText("again"))
    return out


def _outcome(text: str, words: Sequence[str]) -> Literal["kept", "raises", "dropped", "moved"]:
    if not text:
        return "raises"
    found = [text.rfind(w) for w in words]
    if min(found) < 0:
        return "dropped"
    return "kept" if found == sorted(found) else "moved"


def grouping(trial: Trial, good: frozenset[str]) -> None:
    """P8: two results of one turn are one block, or a block each."""
    if "tool" not in good:
        trial.say("P8", "the template shows no results", status="na")
        return
    start: list[Item] = [*trial.start, called(_MARK, 2), ToolResult("c0", _FIRST)]
    one = trial.text(start, generation=False)
    both = trial.text([*start, ToolResult("c1", _SECOND)], generation=False)
    if not both:
        trial.say("P8", "the template shows one call per turn", status="na")
    elif both.startswith(one):
        trial.say("P8")
    else:
        at = both.find(_FIRST)
        trial.say("P8", "results of one turn are written as one group", both[at:], status="note")


def naming(trial: Trial, good: frozenset[str]) -> None:
    """P9: what of the call is printed with its result. The gateway resolves both from the call that it answers."""
    if "tool" not in good:
        trial.say("P9", "the template shows no results", status="na")
        return

    def result(name: str, call_id: str) -> str:
        turn = Assistant(calls=(ToolCall(call_id, name, '{"cmd": "zQcmdQz"}'),))
        text = trial.text([*trial.start, turn, ToolResult(call_id, WORD)])
        return text[text.rfind("zQcmdQz") :]

    plain, named, numbered = result("run", "c1"), result("read", "c1"), result("run", "c2")
    seen = [what for what, text in (("its tool's name", named), ("its call's id", numbered)) if text != plain]
    example = differ(plain, named if named != plain else numbered)
    trial.say("P9", f"a result is printed with {' and '.join(seen)}" if seen else "", example, status="note")
