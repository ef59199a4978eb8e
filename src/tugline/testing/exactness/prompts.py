"""What a prompt should be: the template's own text around assistant turns, compared id by id."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tugline.core.columns import Ids, common_prefix, concat, count, ids, ids_list, take
from tugline.core.errors import BadRequest
from tugline.core.items import System, ToolResult, UserText
from tugline.testing.exactness.alignment import Alignment
from tugline.testing.exactness.fake import FakeEngine, Made, parsed_arguments
from tugline.testing.exactness.talk import Ask, Echo, Entry, as_messages, function_of

_SHOWN = 60
"""Characters of a difference that a finding shows."""


class Format:
    """The format of one model, as its template writes it."""

    def __init__(self, engine: FakeEngine) -> None:
        """Raises BadRequest when the template cannot render a plain question."""
        self._engine = engine
        self.header, self.opened = self._generation_prompt()
        self._controls = engine.model.controls
        closing = self._closing()
        self.closings = frozenset(engine.files.stop_ids) | ({closing} if closing is not None else frozenset())
        """Tokens behind which an assistant turn is over."""
        self.known = closing is not None and bool(self.header) and self._in_order()
        """Whether assistant turns can be told from the rest."""

    def _generation_prompt(self) -> tuple[Ids, Ids]:
        """What stands in front of an assistant turn: its header, and what the generation prompt opens besides."""
        plain = [{"role": "user", "content": "zQplainQz"}]
        whole = self._engine.template.render(plain, None)
        prompt = whole.removeprefix(self._engine.template.render(plain, None, generation=False))
        opener = self._engine.reasoning()[0]
        header = self._encoded(prompt.partition(opener)[0] if opener and opener in prompt else prompt)
        return header, take(self._encoded(prompt), count(header))

    def _closing(self) -> int | None:
        """The token that the template writes behind a turn of text; None: none that is always the same."""
        word = "zQtextQz"
        talk = [{"role": r, "content": c} for r, c in (("user", "x"), ("assistant", word), ("user", "z"))]
        try:
            behind = self._engine.template.render(talk, None).partition(word)[2]
        except BadRequest:
            return None
        first = ids_list(self._encoded(behind))[:1]
        return first[0] if first and first[0] in self._controls else None

    def _in_order(self) -> bool:
        """Whether the template writes a turn in one piece and in its place. Some write a turn's words behind the
        results of its calls. Templates without tools cannot fail here."""
        call = {"id": "call00000", "type": "function", "function": {"name": "zQcallQz", "arguments": {"command": "x"}}}
        talk = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "zQsaidQz", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call00000", "name": "zQcallQz", "content": "zQdoneQz"},
            {"role": "assistant", "content": "zQtextQz"},
            {"role": "user", "content": "zQthanksQz"},
        ]
        try:
            text = self._engine.template.render(talk, None)
        except BadRequest:
            return True
        words = ("zQsaidQz", "zQcallQz", "zQdoneQz", "zQtextQz", "zQthanksQz")
        places = [text.find(word) for word in words if word in text]
        return places == sorted(places)

    def _encoded(self, text: str) -> Ids:
        return self._engine.model.encode(text)

    def expected(self, ask: Ask, spelling: int = 0) -> list[Ids]:
        """What the template gives for the conversation as the harness tells it: with call arguments as objects, as
        text, as the compact text that an object is sent as; and with results as objects, which some APIs have. Empty
        when the template refuses it. `spelling`: of the tools, one of SPELLINGS."""
        messages = as_messages(ask.talk)
        tools = [SPELLINGS[spelling](function_of(tool)) for tool in ask.tools] or None
        found: list[Ids] = []
        for form in (parsed_arguments, list, compact_arguments, result_objects):
            try:
                prompt = self._encoded(self._engine.template.render(list(form(messages)), tools))
            except BadRequest:
                continue
            found += [prompt] if prompt not in found else []
        return found

    def own(self, sampled: Ids) -> tuple[Ids, ...]:
        """How a sample stands in later prompts: as it is, with and without its stop token, and behind what the
        generation prompt had opened."""
        column = ids_list(sampled)
        bare = ids(column[:-1]) if column and column[-1] in self._engine.files.stop_ids else sampled
        return bare, concat([self.opened, bare]), sampled, concat([self.opened, sampled])

    def decode(self, column: Ids) -> str:
        """Text with control tokens shown."""
        return self._engine.decode(column)

    def controls(self, column: Ids) -> int:
        """How many ids are control tokens."""
        return sum(token in self._controls for token in ids_list(column))

    def is_one_turn(self, column: Ids) -> bool:
        """Whether ids can be the body of one assistant turn: nothing in them ends it, but for another message of the
        same turn behind it."""
        text, header = ids_list(column), ids_list(self.header)
        ends = [n for n, token in enumerate(text) if token in self.closings]
        return all(text[n + 1 : n + 1 + len(header)] == header for n in ends)

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
        texts = [shape.decode(want) for want in wanted]
        return "" if given in texts or not out_of_place(given, ask.talk) else _first_text(given, texts[0])
    turns = [e for e in ask.talk if isinstance(e, Echo)]
    origins = [None if e.of is None else sampled.get(e.of) for e in turns]
    reached: list[tuple[int, str]] = []
    for spelling in range(len(SPELLINGS) if ask.tools else 1):
        for want in wanted if not spelling else shape.expected(ask, spelling):
            far, problem = Alignment(shape, want, made.prompt, origins).problem()
            if not problem:
                return ""
            reached.append((far, problem))
    return max(reached, key=lambda found: found[0])[1]


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
            found = max(text.find(word, begin), text.find(escaped(word), begin))
            if found < 0:
                return f"the model does not read {word[:80]!r}" + (" in its place" if word in text else "")
            ends.append(found + len(word))
        at = max([at, *ends])
        group = []
    return ""


def escaped(word: str) -> str:
    """As it stands inside JSON: an API whose results are objects has them so."""
    return json.dumps(word, ensure_ascii=False)[1:-1]


def tokens_of(engine: FakeEngine, column: Ids, start: int, end: int) -> Ids:
    """The ids whose text lies between two places of the column's text, in characters."""
    ends = [len(engine.decode(take(column, 0, n))) for n in range(count(column) + 1)]
    return ids(t for n, t in enumerate(ids_list(column)) if ends[n] < end and ends[n + 1] > start)


def _first_text(given: str, wanted: str) -> str:
    at = next((n for n, (a, b) in enumerate(zip(given, wanted, strict=False)) if a != b), min(len(given), len(wanted)))
    return f"at character {at}: {given[at : at + _SHOWN]!r} instead of {wanted[at : at + _SHOWN]!r}"
