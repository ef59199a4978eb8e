"""Content blocks of the Anthropic Messages API, to items and back to the JSON that clients echo."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from hashlib import blake2b

import msgspec

from tugline.core.errors import BadRequest
from tugline.core.items import Assistant, Item, System, ToolCall, ToolResult, UserMedia, UserText
from tugline.dialects import anthropic_wire as wire
from tugline.dialects.anthropic_names import BlockNames
from tugline.dialects.wire import compact, decode, inline_media, linked_media

MAX_DEPTH = 3
"""Containers in containers: a tool result may hold a document, a document a list of blocks."""
ROOM = 200
"""Nesting left free around a tool input, so that a body which echoes it can still be read."""


class BlockReader:
    """Reads the content of messages. Immutable, shared by threads."""

    __slots__ = ("_content", "_source", "_string", "_value", "_wrapped")

    def __init__(self) -> None:
        self._content: msgspec.json.Decoder[wire.Content] = msgspec.json.Decoder(wire.Content)
        self._source = msgspec.json.Decoder(wire.Source)
        self._string = msgspec.json.Decoder(str)
        self._value = msgspec.json.Decoder()
        self._wrapped = msgspec.json.Decoder(wire.Wrapped)

    def system(self, content: wire.Content, path: str, names: BlockNames) -> list[Item]:
        """One item per block of text."""
        if content is None or isinstance(content, str):
            return [] if content is None else [System(content)]
        items: list[Item] = []
        where = "system[]:" if path == "system" else "messages[].content[]:"
        for i, block in enumerate(content):
            if block.type == "text":
                items.append(System(_required(block.text, f"{path}[{i}].text")))
            else:
                names.add(where, block.type)
        return items

    def user(self, content: wire.Content, path: str, names: BlockNames) -> list[Item]:
        """Text between other blocks is one item; media and results stand where they stood."""
        if content is None:
            raise BadRequest("Field required", path=f"{path}.content")
        if isinstance(content, str):
            return [UserText(content)]
        items: list[Item] = []
        run: list[str] = []

        def flush() -> None:
            if any(run):
                items.append(UserText("".join(run), _joins(items)))
            run.clear()

        for i, block in enumerate(content):
            where = f"{path}.content[{i}]"
            if block.type == "tool_result":
                flush()
                items.append(self._result(block, where, names))
                continue
            if block.type in ("tool_use", "thinking", "redacted_thinking"):
                raise BadRequest(f"{block.type} blocks stand in assistant messages only", path=f"{where}.type")
            for part in self._parts(block, where, "messages[].content[]", names):
                if isinstance(part, str):
                    run.append(part)
                else:
                    flush()
                    items.append(UserMedia(part.media_type, part.digest, _joins(items)))
        flush()
        return items or [UserText("")]

    def assistant(self, content: wire.Content, path: str, names: BlockNames) -> Assistant:
        """One model turn. null, "", [] and absent are the same."""
        if content is None or isinstance(content, str):
            return Assistant(text=content or None)
        text: list[str] = []
        reasoning: list[str] = []
        calls: list[ToolCall] = []
        for i, block in enumerate(content):
            where = f"{path}.content[{i}]"
            if block.type == "text":
                text.append(_required(block.text, f"{where}.text"))
            elif block.type == "thinking":
                thought = block.thinking or ""
                reasoning.append(thought)
                if block.signature and block.signature != signature(thought):
                    names.add("messages[].content[].signature")
            elif block.type == "tool_use":
                calls.append(self._call(block, where))
            elif block.type == "tool_result":
                raise BadRequest("tool_result blocks stand in user messages only", path=f"{where}.type")
            elif block.type in ("image", "document"):
                names.add("messages[].content[]:", block.type)  # a model of this API shows none
            else:
                text.extend(p for p in self._parts(block, where, "messages[].content[]", names) if isinstance(p, str))
        return Assistant("".join(text) or None, "".join(reasoning) or None, tuple(calls))

    def _call(self, block: wire.Block, path: str) -> ToolCall:
        name = _required(block.name, f"{path}.name")
        return ToolCall(_required(block.id, f"{path}.id"), name, self._arguments(block.input, f"{path}.input"))

    def _arguments(self, raw: msgspec.Raw, path: str) -> str:
        """The input as compact JSON text, its numbers as they were spelled; the text that a wrapper holds."""
        data = bytes(raw)
        if data.startswith(b"{"):
            if wire.UNPARSED.encode() in data[:40]:
                held = self._unwrap(data)
                if held is not None and not is_object(held):
                    return held if held.strip() else "{}"
            decode(self._value, data, path)
            return compact(data)
        if data.startswith(b'"'):
            return decode(self._string, data, path)
        if data == b"null":
            return "{}"
        raise BadRequest("expected an object", path=path)

    def _unwrap(self, data: bytes) -> str | None:
        try:
            return self._wrapped.decode(data).unparsed.raw
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def _result(self, block: wire.Block, path: str, names: BlockNames) -> ToolResult:
        """Its text joined, its media behind. That it is an error no chat template can show."""
        call_id = block.tool_use_id
        if not call_id:
            raise BadRequest("Field required", path=f"{path}.tool_use_id")
        if block.is_error:
            names.add("messages[].content[].is_error")
        content = decode(self._content, block.content, f"{path}.content")
        if content is None or isinstance(content, str):
            return ToolResult(call_id, content or "")
        text: list[str] = []
        media: list[UserMedia] = []
        for i, inner in enumerate(content):
            for part in self._parts(inner, f"{path}.content[{i}]", "messages[].content[].content[]", names):
                if isinstance(part, str):
                    text.append(part)
                else:
                    media.append(part)
        return ToolResult(call_id, "".join(text), None, tuple(media))

    def _parts(
        self, block: wire.Block, path: str, where: str, names: BlockNames, depth: int = 0
    ) -> Iterator[str | UserMedia]:
        """What a block shows, text and media in order. A block that shows nothing is named."""
        kind = block.type
        if kind == "text":
            yield _required(block.text, f"{path}.text")
        elif kind == "image":
            yield self._media(decode(self._source, block.source, f"{path}.source"), "image/*", f"{path}.source")
        elif kind == "tool_reference":
            yield f"[tool_reference: {_required(block.tool_name, f'{path}.tool_name')}]"
        elif kind == "document" and depth < MAX_DEPTH:
            yield from self._titled(path, title=block.title, context=block.context)
            source = decode(self._source, block.source, f"{path}.source")
            if source.type == "text":
                yield _required(source.data, f"{path}.source.data")
            elif source.type == "content":
                yield from self._inner(source.content, f"{path}.source.content", where, names, depth)
            else:
                yield self._media(source, "application/octet-stream", f"{path}.source")
        elif kind == "search_result" and depth < MAX_DEPTH:
            yield from self._titled(path, title=block.title, source=block.source)
            yield from self._inner(block.content, f"{path}.content", where, names, depth)
        elif kind == "compaction" and bytes(block.content).startswith(b'"'):
            yield decode(self._string, block.content, f"{path}.content")
        elif block.text:
            yield block.text
        else:
            names.add(f"{where}:", kind)

    def _inner(
        self, raw: msgspec.Raw, path: str, where: str, names: BlockNames, depth: int
    ) -> Iterator[str | UserMedia]:
        content = decode(self._content, raw, path)
        if isinstance(content, str):
            yield content
        elif content is not None:
            for i, block in enumerate(content):
                yield from self._parts(block, f"{path}[{i}]", where, names, depth + 1)

    def _titled(self, path: str, **lines: msgspec.Raw) -> Iterator[str]:
        """A line each of what is said about a document."""
        for key, raw in lines.items():
            if bytes(raw) != b"null":
                yield decode(self._string, raw, f"{path}.{key}") + "\n"

    def _media(self, source: wire.Source, kind: str, path: str) -> UserMedia:
        if source.type == "base64":
            return inline_media(source.media_type or kind, _required(source.data, f"{path}.data"), joined=True)
        if source.type == "url":
            return linked_media(source.media_type or kind, _required(source.url, f"{path}.url"), joined=True)
        if source.type == "file":
            return linked_media(source.media_type or kind, _required(source.file_id, f"{path}.file_id"), joined=True)
        raise BadRequest(f"unknown source {source.type[:40]!r}", path=f"{path}.type")


def signature(thinking: str) -> str:
    """Our signature of a thinking block. It says that nobody changed the text, and nothing about who wrote it."""
    digest = blake2b(thinking.encode("utf-8", "surrogatepass"), digest_size=24, person=b"tugline-think").digest()
    return "tug1" + base64.b64encode(digest).decode()


def blocks(said: Assistant) -> list[wire.OutBlock]:
    """A model turn as the API shows it: thinking, text, calls."""
    out: list[wire.OutBlock] = []
    if said.reasoning:
        out.append(wire.OutThinking(said.reasoning, signature(said.reasoning)))
    if said.text:
        out.append(wire.OutText(said.text))
    out.extend(wire.OutToolUse(c.id, c.name, msgspec.Raw(input_json(c.arguments).encode())) for c in said.calls)
    return out


def input_json(arguments: str) -> str:
    """A call's arguments as the JSON object that this API has in their place. No text is {}; text that is no object
    goes into the wrapper that decoding undoes."""
    if is_object(arguments):
        return arguments
    if not arguments.strip():
        return "{}"
    held = {wire.UNPARSED: {"raw": arguments, "len": len(arguments.encode("utf-16-le", "surrogatepass")) // 2}}
    return msgspec.json.encode(held).decode()


def is_object(text: str) -> bool:
    """Whether text is a JSON object that our own decoder, and any other, reads back."""
    data = text.strip(" \t\r\n").encode("utf-8", "surrogatepass")
    if not data.startswith(b"{"):
        return False
    try:
        msgspec.json.decode(b"[" * ROOM + data + b"]" * ROOM)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _joins(items: list[Item]) -> bool:
    """Whether what follows continues the user's words of the same wire message."""
    return bool(items) and not isinstance(items[-1], ToolResult)


def _required(text: str | None, path: str) -> str:
    if text is None:
        raise BadRequest("Field required", path=path)
    return text
