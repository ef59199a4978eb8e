"""Gemini `contents` to items.

All parts of one model content are one `Assistant`. Two model contents in a row are two turns, save for what the
official SDKs' chat sessions make of a stream: a content per chunk. Chunks of one reply of ours carry the same
signature, and a chunk that says nothing belongs to the turn before it. A turn of ours behind plain text that nobody
has signed goes on with that text: it was the end of the request that the turn answers.

Calls and results are matched by their ids. Clients may leave ids out: a call without one has its name for an id, the
second call of that name in its turn `<name>#2`, and so on. A result without an id answers the first call of its name
in the turns since the last user content that is not answered yet; so does one whose id no call has, if that call came
without an id. A result that answers nothing keeps its own id, or has its name.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import msgspec
from msgspec import Raw

from tugline.core.errors import BadRequest
from tugline.core.items import Assistant, Item, Prefill, ToolCall, ToolResult, UserMedia, UserText
from tugline.dialects.gemini_fields import Decoders, Fields, first
from tugline.dialects.gemini_wire import RAW_ARGUMENTS, Seal, unseal
from tugline.dialects.wire import compact, decode, inline_media, linked_media

MAX_UNPACKED = 16 << 20
"""Of all signatures of one request: a forged one may unpack to a thousand times its size."""
USERS = ("user", "function", "tool", "")
SPOKEN = ("executableCode", "code"), ("codeExecutionResult", "output")
"""What the real API's own tools leave in a history: (part, the field that is text)."""


class Turn:
    """A model turn under way."""

    __slots__ = ("_sealed_at", "calls", "mark", "plain", "sealed", "text", "thoughts")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[ToolCall] = []
        self.mark: bytes | None = None
        """Of our signature, if it has one."""
        self.sealed: str | None = None
        """The reasoning in our signature."""
        self._sealed_at: Fields | None = None
        self.plain = True
        """Nothing but text that nobody has signed."""

    def sign(self, seal: Seal, part: Fields) -> None:
        """A signature of ours, which stands in `part`."""
        self.mark = self.mark or seal.mark
        if self.sealed is None and seal.reasoning is not None:
            self.sealed, self._sealed_at = seal.reasoning, part

    def empty(self) -> bool:
        """Whether it says nothing."""
        return not (self.calls or self.sealed or any(self.text) or any(self.thoughts))

    def goes_on(self, other: Turn) -> bool:
        """Whether the model content behind it is the same turn."""
        ours = other.mark is not None
        return other.empty() or (ours and (other.mark == self.mark or (self.plain and any(self.text))))

    def extend(self, other: Turn) -> None:
        """Go on with a later part of the same turn."""
        self.text += other.text
        self.thoughts += other.thoughts
        self.calls += other.calls
        self.mark = self.mark or other.mark
        self.plain = self.plain and other.plain
        if self.sealed is None:
            self.sealed, self._sealed_at = other.sealed, other._sealed_at

    def item(self) -> Assistant:
        """Absent and "" are the same. Sealed reasoning counts where the thoughts are gone or have lost blanks only."""
        reasoning = "".join(self.thoughts)
        if self.sealed is not None and self._sealed_at is not None:
            if not reasoning or reasoning.strip() == self.sealed.strip():
                reasoning = self.sealed
            else:
                self._sealed_at.drop(".thoughtSignature")
        return Assistant("".join(self.text) or None, reasoning or None, tuple(self.calls))


class _Open:
    """Calls of the model turns since the last user content, and which of them wait for a result."""

    __slots__ = ("_answered", "_nameless", "_seen", "_waiting", "_wire")

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self._wire: set[str] = set()
        self._nameless: set[str] = set()
        self._answered: set[str] = set()
        self._waiting: dict[str, deque[str]] = {}

    def call(self, name: str, given: str) -> str:
        """The id of a call."""
        self._seen[name] += 1
        own = given or (name if self._seen[name] == 1 else f"{name}#{self._seen[name]}")
        (self._wire if given else self._nameless).add(own)
        self._waiting.setdefault(name, deque()).append(own)
        return own

    def result(self, name: str | None, given: str) -> str:
        """The id of the call that a result answers."""
        if given in self._wire:
            self._answered.add(given)
            return given
        waiting = self._waiting.get(name or "", deque())
        while waiting and waiting[0] in self._answered:
            waiting.popleft()
        if waiting and (not given or waiting[0] in self._nameless):
            return waiting.popleft()
        return given or name or ""


class History:
    """Items of contents, read one after the other."""

    def __init__(self, decoders: Decoders) -> None:
        self._decoders = decoders
        self._items: list[Item] = []
        self._turn: Turn | None = None
        self._open = _Open()
        self._unpacked_left = MAX_UNPACKED

    def add(self, content: Fields) -> None:
        """One content. Raises BadRequest."""
        role = content.text("role") or ""
        parts = content.objects("parts")
        content.rest()
        if role == "model":
            self._model(parts)
        elif role in USERS:
            self._close()
            self._items += self._user(parts)
        else:
            raise BadRequest(f"valid roles are user and model, not {role[:40]!r}", path=f"{content.path}.role")

    def finish(self) -> list[Item]:
        """All items. A last turn of plain text is one that the model goes on with, as the real API does."""
        turn = self._turn
        if turn is not None and turn.plain and any(turn.text):
            self._turn = None
            self._items.append(Prefill("".join(turn.text)))
        self._close()
        return self._items

    def _close(self) -> None:
        if self._turn is not None:
            self._items.append(self._turn.item())
            self._turn = None

    def _model(self, parts: Sequence[Fields]) -> None:
        if self._turn is None:
            self._open = _Open()
        said = self._said(parts)
        if self._turn is not None and self._turn.goes_on(said):
            self._turn.extend(said)
            return
        self._close()
        self._turn = said

    def _said(self, parts: Sequence[Fields]) -> Turn:
        turn = Turn()
        for part in parts:
            thought = part.flag("thought")
            signed = part.text("thoughtSignature")
            if signed:
                self._sign(turn, signed, part)
            text = part.text("text")
            if text is not None:
                (turn.thoughts if thought else turn.text).append(text)
            call = part.object("functionCall")
            if call is not None:
                turn.calls.append(self._call(call))
            if part.raw("functionResponse") is not None:
                raise BadRequest("a result stands in a user content", path=part.at("functionResponse"))
            turn.text += _spoken(part)
            turn.plain = turn.plain and not (thought or signed or call)
            part.rest()
        return turn

    def _sign(self, turn: Turn, signed: str, part: Fields) -> None:
        seal = unseal(signed, self._unpacked_left)
        if seal is None:
            part.drop(".thoughtSignature")
            return
        self._unpacked_left -= len(seal.reasoning or "")
        turn.sign(seal, part)

    def _call(self, call: Fields) -> ToolCall:
        name = call.text("name")
        if not name:
            raise BadRequest("a call needs the name of its function", path=call.at("name"))
        given, args = call.text("id") or "", call.raw("args")
        call.rest()
        text = "" if args is None else arguments(self._decoders, args, call.at("args"))
        return ToolCall(self._open.call(name, given), name, text)

    def _user(self, parts: Sequence[Fields]) -> list[Item]:
        """Text parts of one content are one item; media and results stand between them."""
        items: list[Item] = []
        run: list[str] = []
        joined = False
        for part in parts:
            if (text := part.text("text")) is not None:
                run.append(text)
            run += _spoken(part)
            media, response, call = _media(part), part.object("functionResponse"), part.raw("functionCall")
            if call is not None:
                raise BadRequest("a call stands in a model content", path=part.at("functionCall"))
            part.rest()
            if run and (media or response):
                items.append(UserText("".join(run), joined))
                run, joined = [], True
            if media is not None:
                items.append(UserMedia(media.media_type, media.digest, joined))
                joined = True
            if response is not None:
                items.append(self._result(response))
                joined = False
        if run or not items:
            items.append(UserText("".join(run), joined))
        return items

    def _result(self, response: Fields) -> ToolResult:
        name, given, answer = response.text("name") or None, response.text("id") or "", response.raw("response")
        if not (name or given):
            raise BadRequest("a result needs the name or the id of its call", path=response.at("name"))
        media = []
        for part in response.objects("parts"):
            found = _media(part)
            part.rest()
            if found is not None:
                media.append(UserMedia(found.media_type, found.digest, True))
        text = "" if answer is None else self._answer(response, answer)
        response.rest()
        return ToolResult(self._open.result(name, given), text, name, tuple(media))

    def _answer(self, response: Fields, raw: Raw) -> str:
        """{"output": text} is that text, as are `result` and `error`; any other object is its JSON as sent."""
        path = response.at("response")
        if first(raw) == b'"':
            return decode(self._decoders.text, raw, path)
        if first(raw) == b"{":
            row = decode(self._decoders.row, raw, path)
            key = next(iter(row), "")
            if len(row) == 1 and key in ("output", "result", "error") and first(row[key]) == b'"':
                if key == "error":
                    response.drop(".response:error")  # that it was one; other APIs' results cannot say so either
                return decode(self._decoders.text, row[key], f"{path}.{key}")
        decode(self._decoders.value, raw, path)
        return compact(bytes(raw))


def arguments(decoders: Decoders, raw: Raw, path: str) -> str:
    """Arguments as text, numbers as they were spelled. Undoes the form of those that are no object; some clients
    send the text itself in place of the object."""
    if first(raw) == b'"':
        return decode(decoders.text, raw, path)
    value = decode(decoders.value, raw, path)
    if isinstance(value, dict) and len(value) == 1 and isinstance(value.get(RAW_ARGUMENTS), str):
        return str(value[RAW_ARGUMENTS])
    return compact(bytes(raw))


def spelled(decoders: Decoders, text: str) -> Raw | None:
    """`args` on the wire for a call's arguments; None = left out. `arguments` undoes it, up to blanks."""
    if not text:
        return None
    try:
        value = decoders.value.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        value = None
    wrapper = isinstance(value, dict) and len(value) == 1 and isinstance(value.get(RAW_ARGUMENTS), str)
    if isinstance(value, dict) and not wrapper:
        return Raw(compact(text.encode()).encode())
    return Raw(msgspec.json.encode({RAW_ARGUMENTS: text}))


def _media(part: Fields) -> UserMedia | None:
    if (inline := part.object("inlineData")) is not None:
        kind, data = inline.text("mimeType"), inline.text("data")
        inline.rest()
        return inline_media(kind or "application/octet-stream", data or "", joined=False)
    if (linked := part.object("fileData")) is not None:
        kind, url = linked.text("mimeType"), linked.text("fileUri")
        linked.rest()
        if not url:
            raise BadRequest("needs a URI", path=linked.at("fileUri"))
        return linked_media(kind or "application/octet-stream", url, joined=False)
    return None


def _spoken(part: Fields) -> list[str]:
    """Text of code that the real API ran, named too: it is here as text only."""
    texts = []
    for kind, key in SPOKEN:
        block = part.object(kind)
        if block is not None:
            part.drop(f":{kind}")
            text = block.text(key)
            if text:
                texts.append(text)
    return texts
