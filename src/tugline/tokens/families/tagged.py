"""Replies with reasoning first, then text, with calls in brackets: the shape of most families.

One scan in one direction over a `Reading`. What is no valid call stays text, markers included; only the line breaks
that the family's template writes around a region are taken off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tugline.core.columns import ids_list
from tugline.core.items import Assistant, ToolCall
from tugline.tokens.codec import Codec
from tugline.tokens.families.arguments import Schemas
from tugline.tokens.families.family import Form
from tugline.tokens.families.reading import Reading
from tugline.tokens.live import LiveFamily, MarkedLive, Marks
from tugline.tokens.parse import (
    Parsed,
    PromptState,
    Sampled,
    body_of,
    common_prefix,
    common_suffix,
    finished,
    invalid_utf8,
    prompt_state,
)


@dataclass(frozen=True, slots=True)
class Block:
    """The inside of one call: `text` is masked as its `reading` is."""

    reading: Reading
    text: str
    schemas: Schemas

    def plain(self, start: int = 0, end: int | None = None) -> str:
        """text[start:end] as it was sampled."""
        return self.reading.plain(self.text[start:end])

    def char(self, marker: str) -> str:
        """See Reading."""
        return self.reading.char(marker)


ReadCall: TypeAlias = Callable[[Block], Sequence[ToolCall]]


@dataclass(frozen=True, slots=True)
class Tagged:
    """What a family writes, and where its template breaks lines."""

    read: ReadCall
    """The call of a block, or several; none where it cannot be read."""
    calls: tuple[tuple[str, str], ...]
    """One pair of markers around each call; or two: around the calls of a turn, then around each. A call without a
    closing marker ends where the next one begins."""
    bare: bool = True
    """A call counts, too, where no section stands around it."""
    header: str = ""
    """How the assistant's turn begins."""
    reasoning: tuple[str, str] = ("", "")
    spelled: bool = False
    """Reasoning markers count, too, where the tokenizer has no token for them."""
    lead: str = ""
    """Written behind the opener of reasoning."""
    trail: str = ""
    """Written before its closer."""
    behind: str = ""
    """Written behind its closer."""
    before: str = ""
    """Written between text and the first call."""
    tail: str = ""
    """Written behind text without a call."""
    inner: tuple[str, ...] = ()
    """More markers, inside a call."""
    frame: tuple[str, ...] = ()
    """Markers around text, which are no part of it."""

    @property
    def form(self) -> Form:
        """What the template writes around a reply."""
        return Form(self.header, self.lead, self.trail, self.behind)


@dataclass(frozen=True, slots=True)
class _Region:
    """Reasoning in a text: [start, end) without markers, the rest from `rest` on. `closed` by its own marker; `lead`:
    the line break that is not its own."""

    start: int
    end: int
    rest: int
    state: Literal["none", "closed", "by_call", "open"]
    lead: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """Text, or calls where there are some. `attempt`: the text looked like a call."""

    text: str
    calls: Sequence[ToolCall] = ()
    attempt: bool = False


def tagged(family: Tagged) -> Callable[[Sampled], Parsed]:
    """The parser of such a family."""
    return lambda sampled: _parse(family, sampled)


def _parse(family: Tagged, sampled: Sampled) -> Parsed:
    body = body_of(sampled)
    thinks = _can_think(family, sampled)
    pairs = (m for pair in family.calls for m in pair)
    reading = Reading(
        sampled.codec, body, [*(family.reasoning if thinks else ()), *pairs, *family.inner, *family.frame]
    )
    state = prompt_state(sampled.codec, sampled.prompt, family.reasoning if thinks else ("", ""), family.header)
    region = _region(family, (sampled.codec, body), reading, state) if thinks else _Region(0, 0, 0, "none")
    drift = invalid_utf8(sampled, body)
    reasoning = reading.plain(reading.text[region.start : region.end]).removeprefix(region.lead)
    text, calls = "", list[ToolCall]()
    if region.state == "closed":
        reasoning = reasoning.removesuffix(family.trail)
    if region.state == "open":
        drift.add("reasoning_unclosed")
    else:
        pieces = _pieces(family, sampled, (reading, Schemas(sampled.tools)), region.rest, drift)
        text, calls = joined(pieces, family.before)
        if region.state == "closed" or (region.state == "none" and state == "behind_closer"):
            text = text[common_prefix(text, family.behind) :]
        text = text if calls else text.removesuffix(family.tail)
    unknown_tools(sampled, calls, drift)
    assistant = Assistant(text or None, reasoning or None, tuple(calls))
    return finished(sampled, assistant, drift, reading.tokens(region.start, region.end))


def live(family: Tagged) -> LiveFamily:
    """Shows replies of such a family while they are sampled."""
    marks = Marks(
        header=family.header,
        reasoning=family.reasoning,
        openers=tuple(opener for opener, _ in family.calls),
        lead=family.lead,
        trail=family.trail,
        behind=family.behind,
        breaks=max(len(family.before), len(family.tail)),
        spelled=family.spelled,
    )
    return lambda opening: MarkedLive(opening, marks)


def unknown_tools(sampled: Sampled, calls: Iterable[ToolCall], drift: set[str]) -> None:
    """Notes calls of tools that were not offered."""
    offered = {t.name for t in sampled.tools}
    if any(c.name not in offered for c in calls):
        drift.add("unknown_tool")


def _can_think(family: Tagged, sampled: Sampled) -> bool:
    markers = family.reasoning
    return bool(markers[0]) and (family.spelled or all(sampled.codec.token(m) is not None for m in markers))


def _region(family: Tagged, source: tuple[Codec, list[int]], reading: Reading, prompt: PromptState) -> _Region:
    codec, body = source
    text = reading.text
    opener, closer = (reading.char(m) for m in family.reasoning)
    opening = text.find(opener)
    # A model may repeat its header; thoughts behind it are thoughts, and begin with it.
    header = ids_list(codec.encode(family.header))
    headed = len(codec.decode(header)) if header and body[: len(header)] == header else 0
    explicit = opening >= 0 and not text[headed:opening].strip()
    if not explicit and prompt not in ("inside", "at_opener"):
        return _Region(0, 0, 0, "none")
    start = opening + 1 if explicit and not headed else 0
    lead = family.lead if start or prompt == "at_opener" else ""
    if (end := text.find(closer, start)) >= 0:
        return _Region(start, end, end + 1, "closed", lead)
    firsts = (text.find(reading.char(opener), start) for opener, _ in family.calls)
    if (end := min((i for i in firsts if i >= 0), default=-1)) >= 0:
        return _Region(start, end, end, "by_call", lead)
    return _Region(start, len(text), len(text), "open", lead)


def _pieces(
    family: Tagged, sampled: Sampled, source: tuple[Reading, Schemas], at: int, drift: set[str]
) -> Iterator[Piece]:
    """Text and calls from character `at` on. Notes in `drift` what was no call."""
    reading = source[0]
    text, pairs = reading.text, [(reading.char(o), reading.char(c) if c else "") for o, c in family.calls]
    pairs = pairs if family.bare else pairs[:1]
    for start, end, closed in regions(text, pairs, at, len(text)):
        yield Piece(_text(family, reading, text[at:start]))
        if len(family.calls) > 1 and text[start] == pairs[0][0]:
            yield from _section(family, sampled, source, (start, end, closed), drift)
        else:
            yield _unit(family, sampled, source, (start, end, closed), drift)
        at = end
    yield Piece(_text(family, reading, text[at:]))


def _text(family: Tagged, reading: Reading, text: str) -> str:
    for marker in family.frame:
        text = text.replace(reading.char(marker), "")
    return reading.plain(text)


def regions(text: str, pairs: list[tuple[str, str]], at: int, stop: int) -> Iterator[tuple[int, int, bool]]:
    """Spans in text[at:stop] from an opener to its closer, both included, and whether the closer is there."""
    closers = dict(pairs)
    openers = re.compile("|".join(map(re.escape, closers)))
    while found := openers.search(text, at, stop):
        closer = closers[found.group()]
        if closer:
            end = text.find(closer, found.end(), stop)
            closed, at = end >= 0, end + 1 if end >= 0 else stop
        else:
            following = openers.search(text, found.end(), stop)
            closed, at = True, following.start() if following else stop
        yield found.start(), at, closed


def _section(
    family: Tagged, sampled: Sampled, source: tuple[Reading, Schemas], span: tuple[int, int, bool], drift: set[str]
) -> list[Piece]:
    """The calls of a section, without its own markers. One without a call stays text as a whole."""
    reading, (start, end, closed) = source[0], span
    text, stop = reading.text, end - 1 if closed else end
    notes: set[str] = set()
    pieces: list[Piece] = []
    at = start + 1
    opener, closer = family.calls[1]
    for first, last, complete in regions(text, [(reading.char(opener), reading.char(closer))], at, stop):
        pieces.append(Piece(reading.plain(text[at:first])))
        pieces.append(_unit(family, sampled, source, (first, last, complete), notes))
        at = last
    pieces.append(Piece(reading.plain(text[at:stop])))
    if any(p.calls for p in pieces):
        drift |= notes
        return [p for p in pieces if p.calls or p.text.strip()]
    failed(sampled, drift, cut=not closed)
    return [Piece(reading.plain(text[start:end]), attempt=True)]


def _unit(
    family: Tagged, sampled: Sampled, source: tuple[Reading, Schemas], span: tuple[int, int, bool], drift: set[str]
) -> Piece:
    reading, (start, end, closed) = source[0], span
    bracketed = bool(family.calls[-1][1])
    inside = reading.text[start + 1 : end - 1 if bracketed else end]
    calls = family.read(Block(reading, inside, source[1])) if closed else ()
    if calls:
        return Piece("", calls)
    cut = not closed if bracketed else end == len(reading.text)
    failed(sampled, drift, cut=cut)
    return Piece(reading.plain(reading.text[start:end]), attempt=True)


def failed(sampled: Sampled, drift: set[str], *, cut: bool) -> None:
    """Notes why an attempt is no call. `cut`: it has no end."""
    drift.add("tool_call_cut" if cut and sampled.finish != "stop" else "tool_parse_failed")


def joined(pieces: Iterable[Piece], before: str) -> tuple[str, list[ToolCall]]:
    """The text of a reply and its calls. `before` is taken off in front of a call, and blanks between calls are."""
    text: list[str] = []
    calls: list[ToolCall] = []
    held = ""
    for piece in pieces:
        if piece.calls:
            if held.strip() or not calls:
                text.append(held[: len(held) - common_suffix(held, before)])
            calls += piece.calls
            held = ""
        elif piece.attempt:
            text += [held, piece.text]
            held = ""
        else:
            held += piece.text
    if held.strip() or not calls:
        text.append(held)
    return "".join(text), calls
