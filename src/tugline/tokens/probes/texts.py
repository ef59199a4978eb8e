"""P10 how a call's spelling reaches the model, P11 which texts lose white space, P12 whether part boundaries show; and
how an image is shown."""

from __future__ import annotations

from tugline.core.items import Assistant, Item, System, ToolCall, ToolResult, UserText
from tugline.tokens.marks import JSON
from tugline.tokens.messages import Message
from tugline.tokens.probes.trial import USER, WORD, Trial, called, differ, shown
from tugline.tokens.probes.verdict import Media

_GO_ON = UserText("Go on.")


def spelling(trial: Trial) -> tuple[str, ...]:
    """P10: sentences. Fails only where a call that is no JSON could not be shown at all."""

    def call(arguments: str) -> tuple[str, str]:
        turn = Assistant(calls=(ToolCall("c1", "run", arguments),))
        text, refused = trial.tried([*trial.start, turn, ToolResult("c1", "ok")])
        return text[text.rfind(USER.text) :], refused

    if WORD not in call(f'{{"cmd": "{WORD}"}}')[0]:
        trial.say("P10", "the template shows no calls", status="na")
        return ()
    found = [_form(trial)]
    odd = f'{{"cmd" :  "{WORD}"}}'
    found.append("kept verbatim" if odd in call(odd)[0] else "blanks are the template's own")
    two = call('{"zz": 1, "aa": 2}')[0]
    found.append("key order kept" if two.find("zz") < two.find("aa") else "keys are sorted")
    found.append("non-ASCII kept" if "é" in call('{"cmd": "é"}')[0] else "non-ASCII is escaped or lost")
    text, refused = call(f'{{"cmd": "{WORD}')
    broken = "" if WORD in text else f"a call with broken JSON cannot be shown: {refused or 'it is dropped'}"
    if not broken:
        wrapped = trial.renderer.shape.arguments == "dict"
        found.append("broken JSON is given as one text argument" if wrapped else "broken JSON kept verbatim")
    trial.say("P10", broken, text)
    return tuple(found)


def _form(trial: Trial) -> str:
    """What the template makes of arguments given as text and as an object."""

    def given(arguments: JSON) -> str:
        call: JSON = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": arguments}}
        plan: list[Message] = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "ok", "tool_call_id": "c1", "name": "run"},
        ]
        return trial.raw(plan)

    text, parsed = given(f'{{"cmd":"{WORD}"}}'), given({"cmd": WORD})
    if WORD not in text:
        return "arguments only as an object"
    if WORD not in parsed:
        return "arguments only as text"
    return (
        "arguments as text or object alike" if text == parsed else "arguments as text and as object are written apart"
    )


def blanks(trial: Trial) -> None:
    """P11: white space around a text that is taken off. The bridge does as the template does; text is lost to the
    model, not to the record."""
    odd = f" \n{WORD}\n "
    trials: dict[str, list[Item]] = {
        "user": [*trial.start[:-1], UserText(odd)],
        "tool": [*trial.start, called("x"), ToolResult("c0", odd)],
        "system": [System(odd), USER],
        "assistant": [*trial.start, Assistant(odd), _GO_ON],
        "reasoning": [*trial.start, Assistant(None, odd, (ToolCall("c0", "run", "{}"),)), ToolResult("c0", "ok")],
    }
    stripped, example = [], ""
    for kind, items in trials.items():
        text = trial.text(items)
        if WORD in text and odd not in text:
            stripped.append(kind)
            at = text.rfind(WORD)
            example = example or text[max(0, at - 20) : at + len(WORD) + 20]
    what = f"white space around text is taken off: {', '.join(stripped)}" if stripped else ""
    trial.say("P11", what, example, status="note")


def parts(trial: Trial) -> None:
    """P12: a message of two text parts against the same text in one piece. Ours are always in one piece."""

    def user(content: JSON) -> str:
        return trial.raw([{"role": "user", "content": content}])

    whole = user("ab" + WORD)
    split = user([{"type": "text", "text": "a"}, {"type": "text", "text": "b" + WORD}])
    if WORD not in whole and WORD in split:
        trial.say("P12", "the template takes text only as parts, never as one string", split[-200:])
    elif WORD not in split or "'text'" in split or '"text"' in split:
        trial.say("P12", "the template takes no parts; text is given in one piece", split[-200:], status="note")
    elif split != whole:
        trial.say("P12", "boundaries between parts show", differ(whole, split), status="note")
    else:
        trial.say("P12")


def media(trial: Trial) -> Media:
    """How the template shows an image in front of text."""
    plain = trial.raw([{"role": "user", "content": WORD}])
    text = trial.raw([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": WORD}]}])
    at = text.rfind(WORD)
    head = plain[: plain.rfind(WORD)]
    same = 0
    while same < min(len(head), at) and head[same] == text[same]:
        same += 1
    placeholder = text[same:at].strip() if at >= 0 else ""
    if not placeholder or "'type'" in placeholder or '"type"' in placeholder:
        return Media("", False, "the template shows no images: they are named in the text, or refused")
    if trial.bench.carries_media:
        return Media(shown(placeholder), True, "images are carried with their placeholders")
    return Media(shown(placeholder), False, "the template shows images; none are carried: they are named, or refused")
