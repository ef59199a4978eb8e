"""What a prompt should be: the template's own text around assistant turns, compared id by id."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tugline.core.columns import Ids, common_prefix, count, ids, ids_list
from tugline.core.errors import BadRequest
from tugline.core.items import System, ToolResult, UserText
from tugline.testing.exactness.fake import FakeEngine, Made, parsed_arguments
from tugline.testing.exactness.talk import Ask, Echo, Entry, as_messages, function_of

_SHOWN = 60
"""Characters of a difference that a finding shows."""


@dataclass(frozen=True, slots=True)
class Split:
    """A prompt, cut at its assistant turns. `outside` has one piece more than `bodies`."""

    outside: tuple[Ids, ...]
    bodies: tuple[Ids, ...]
    """From behind the header to the stop token, which is not in it."""


class Format:
    """The format of one model, as its template writes it."""

    def __init__(self, engine: FakeEngine) -> None:
        """Raises BadRequest when the template cannot render a plain question."""
        self._engine = engine
        plain = [{"role": "user", "content": "zQplainQz"}]
        whole = engine.template.render(plain, None)
        without = engine.template.render(plain, None, generation=False)
        prompt = whole.removeprefix(without)
        opener = engine.reasoning()[0]
        header = prompt.partition(opener)[0] if opener and opener in prompt else prompt
        self._header = ids_list(engine.model.encode(header))
        self._opened = ids(ids_list(engine.model.encode(prompt))[len(self._header) :])
        self._stops = frozenset(engine.files.stop_ids)
        self._controls = engine.model.controls
        self.known = bool(self._header) and self._tells_turns()
        """Whether assistant turns can be told from the rest."""

    def _tells_turns(self) -> bool:
        """Try it: a call, its result, a text. Formats that begin or end turns in several ways fail."""
        call = {"id": "call00000", "type": "function", "function": {"name": "zQcallQz", "arguments": {"command": "x"}}}
        talk = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call00000", "name": "zQcallQz", "content": "y"},
            {"role": "assistant", "content": "zQtextQz"},
            {"role": "user", "content": "z"},
        ]
        try:
            text = self._engine.template.render(talk, None)
        except BadRequest:
            return False
        bodies = [self.decode(body) for body in self.split(self._engine.model.encode(text)).bodies]
        return len(bodies) == 2 and "zQcallQz" in bodies[0] and "zQtextQz" in bodies[1]

    def own(self, sampled: Ids) -> tuple[Ids, Ids]:
        """How a sample stands in later prompts: as it is, and behind what the generation prompt had opened."""
        bare = self.without_stop(sampled)
        return bare, Ids(bytes(self._opened) + bytes(bare))

    def split(self, prompt: Ids) -> Split:
        """Cut at every assistant header; the last one, of the generation prompt, opens no body."""
        column, header = ids_list(prompt), self._header
        outside: list[Ids] = []
        bodies: list[Ids] = []
        if not header:
            return Split((prompt,), ())
        at, n = 0, 0
        while n < len(column):
            if column[n : n + len(header)] != header:
                n += 1
                continue
            begin = n + len(header)
            end = next((i for i in range(begin, len(column)) if column[i] in self._stops), None)
            if end is None:
                break
            outside.append(ids(column[at:begin]))
            bodies.append(ids(column[begin:end]))
            at = n = end
        return Split((*outside, ids(column[at:])), tuple(bodies))

    def expected(self, ask: Ask, spelling: int = 0) -> list[Split]:
        """What the template gives for the conversation as the harness tells it: with call arguments as objects, as
        text, as the compact text that an object is sent as; and with results as objects, which some APIs have. Empty
        when the template refuses it. `spelling`: of the tools, one of SPELLINGS."""
        messages = as_messages(ask.talk)
        tools = [SPELLINGS[spelling](function_of(tool)) for tool in ask.tools] or None
        found: list[Split] = []
        for form in (parsed_arguments, list, compact_arguments, result_objects):
            try:
                text = self._engine.template.render(list(form(messages)), tools)
            except BadRequest:
                continue
            found.append(self.split(self._engine.model.encode(text)))
        return found

    def without_stop(self, sampled: Ids) -> Ids:
        """A sample without the stop token at its end."""
        column = ids_list(sampled)
        return ids(column[:-1]) if column and column[-1] in self._stops else sampled

    def decode(self, column: Ids) -> str:
        """Text with control tokens shown."""
        return self._engine.decode(column)

    def controls(self, column: Ids) -> int:
        """How many ids are control tokens."""
        return sum(token in self._controls for token in ids_list(column))

    def shown(self, ours: Ids, theirs: Ids) -> str:
        """Where two columns part, in words."""
        at = common_prefix(ours, theirs)
        decode = self._engine.decode
        there, here = (decode(ids(ids_list(c)[at : at + 12]))[:_SHOWN] for c in (ours, theirs))
        same = " (the same text in other ids)" if decode(ours) == decode(theirs) else ""
        return f"at token {at}: {here!r} instead of {there!r}{same}"


def _spelled(order: tuple[str, ...], *, strict: bool, wrapped: bool) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def spell(function: dict[str, Any]) -> dict[str, Any]:
        made = {key: function[key] for key in order} | ({"strict": False} if strict else {})
        return {"type": "function", "function": made} if wrapped else made

    return spell


SPELLINGS = tuple(
    _spelled(order, strict=strict, wrapped=wrapped)
    for order in (
        ("name", "description", "parameters"),
        ("description", "name", "parameters"),
        ("name", "parameters", "description"),
    )
    for strict in (False, True)
    for wrapped in (True, False)
)
"""Ways in which gateways and engines write the tools that they were told of: the first is as the suite's Chat client
does. APIs other than Chat have no order of their own for a template to keep."""


def compact_arguments(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages with call arguments as text without blanks."""
    out = parsed_arguments(messages)
    for message in out:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = msgspec.json.encode(call["function"]["arguments"]).decode()
    return out


def result_objects(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages with results as the text of an object, which is how Gemini has them."""
    out = parsed_arguments(messages)
    for message in out:
        if message["role"] == "tool":
            message["content"] = json.dumps({"output": message["content"]}, ensure_ascii=False)
    return out


def format_problem(shape: Format, ask: Ask, made: Made, sampled: dict[int, Made], *, text_only: bool) -> str:
    """Why a prompt is not what the template gives, or "". Assistant turns may stand as the template writes them or as
    they were sampled. `text_only`: compare texts, because the harness's words spell control tokens."""
    wanted = shape.expected(ask)
    if not wanted:
        return ""
    if text_only:
        given = shape.decode(made.prompt)
        texts = [shape.decode(_joined(split)) for split in wanted]
        return "" if given in texts or not out_of_place(given, ask.talk) else _first_text(given, texts[0])
    have = shape.split(made.prompt)
    echoes = [e for e in ask.talk if isinstance(e, Echo)]
    problems = [_difference(shape, have, split, echoes, sampled) for split in wanted]
    if all(split.outside[0] != have.outside[0] for split in wanted):
        for spelling in range(1, len(SPELLINGS) if ask.tools else 0):
            other = shape.expected(ask, spelling)
            if any(split.outside[0] == have.outside[0] for split in other):
                problems += [_difference(shape, have, split, echoes, sampled) for split in other]
                break
    return "" if "" in problems else problems[0]


def out_of_place(text: str, talk: Sequence[Entry]) -> str:
    """Which words of a harness a prompt's text lacks, or has in another order, or "". Results of one turn's calls may
    stand in any order."""
    at = 0
    group: list[str] = []
    for entry in [*talk, None]:
        if isinstance(entry, ToolResult):
            group.append(entry.text.strip())
            continue
        words = [*group, *([entry.text.strip()] if isinstance(entry, System | UserText) else [])]
        ends: list[int] = []
        for word in filter(None, words):
            begin = at if word in group else max([at, *ends])
            found = max(text.find(word, begin), text.find(_escaped(word), begin))
            if found < 0:
                return f"the model does not read {word[:80]!r}" + (" in its place" if word in text else "")
            ends.append(found + len(word))
        at = max([at, *ends])
        group = []
    return ""


def _escaped(word: str) -> str:
    """As it stands inside JSON: an API whose results are objects has them so."""
    return json.dumps(word, ensure_ascii=False)[1:-1]


def _joined(split: Split) -> Ids:
    parts = [bytes(split.outside[0])]
    for body, outside in zip(split.bodies, split.outside[1:], strict=True):
        parts += [bytes(body), bytes(outside)]
    return Ids(b"".join(parts))


def _first_text(given: str, wanted: str) -> str:
    at = next((n for n, (a, b) in enumerate(zip(given, wanted, strict=False)) if a != b), min(len(given), len(wanted)))
    return f"at character {at}: {given[at : at + _SHOWN]!r} instead of {wanted[at : at + _SHOWN]!r}"


def _difference(shape: Format, have: Split, want: Split, echoes: list[Echo], sampled: dict[int, Made]) -> str:
    if len(have.bodies) != len(want.bodies):
        return f"{len(have.bodies)} assistant turns instead of {len(want.bodies)}"
    for n, (ours, theirs) in enumerate(zip(want.outside, have.outside, strict=True)):
        if ours != theirs:
            where = "before the first assistant turn" if n == 0 else f"behind assistant turn {n}"
            return f"{where}, {shape.shown(ours, theirs)}"
    for n, (ours, theirs) in enumerate(zip(want.bodies, have.bodies, strict=True)):
        number = echoes[n].of if n < len(echoes) else None
        origin = None if number is None else sampled.get(number)
        if theirs != ours and not (origin is not None and _stands_for(shape, theirs, origin)):
            shown = shape.shown(ours, theirs)
            return f"assistant turn {n + 1} is neither as sampled nor as the template writes it, {shown}"
    return ""


def _stands_for(shape: Format, body: Ids, origin: Made) -> bool:
    """Whether a turn's body is the sample; a sample that was cut may have closing marks behind it."""
    for own in shape.own(origin.sampled):
        if body == own:
            return True
        if origin.finish == "length" and body.startswith(own):
            rest = ids(ids_list(body)[count(own) :])
            if shape.controls(rest) == count(rest) or not shape.decode(rest).strip():
                return True
    return False
