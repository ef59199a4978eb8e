"""Responses input items to core items. Prefix-stable: the first n wire items give a prefix of the items of n + 1.

The API splits a model turn into items: reasoning, messages, calls. They are one turn again here. Ids of ours say which
items belong together; clients may strip them, so the order decides as well: a turn reasons once, at its beginning, and
a message behind a call is the next turn's. What no policy here could have said or can read is left out and named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256

import msgspec

from tugline.core.errors import BadRequest, Unsupported
from tugline.core.items import Assistant, Item, System, ToolCall, ToolResult, UserMedia, UserText
from tugline.dialects.responses_fields import Decoders, Fields, Ignored
from tugline.dialects.responses_wire import MARK, unseal
from tugline.dialects.wire import decode, inline_media, linked_media

TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
MEDIA_PARTS = ("input_image", "input_file", "input_audio")
REASONING, MESSAGE, CALL = range(3)

_OWN_ID = re.compile(rf"(?:rs|msg|fc|ctc){MARK}([0-9a-zA-Z-]+)(?:_\d+)?")

REFUSED: Mapping[str, str] = {
    "item_reference": "input items are not stored here; send the item itself, or previous_response_id",
    "compaction": "a compacted conversation of another server cannot be read; send the items themselves",
    "compaction_summary": "a compacted conversation of another server cannot be read; send the items themselves",
    "context_compaction": "a compacted conversation of another server cannot be read; send the items themselves",
    "compaction_trigger": "the conversation cannot be compacted here; ask the model for a summary in a message",
    "mcp_approval_response": "no MCP tools are run here",
}
"""Items whose meaning would be lost."""


@dataclass(slots=True)
class _Turn:
    """A model turn under construction."""

    reply: str | None
    stage: int
    reasoning: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def ends_before(self, stage: int, reply: str | None) -> bool:
        if self.reply is not None and reply is not None:
            return self.reply != reply
        return stage < self.stage or stage == REASONING

    def assistant(self) -> Assistant:
        return Assistant("".join(self.text) or None, "".join(self.reasoning) or None, tuple(self.calls))


class Reader:
    """Reads the items of one request. `tools` are declarations found among them."""

    def __init__(self, decoders: Decoders, ignored: Ignored) -> None:
        self._decoders = decoders
        self._ignored = ignored
        self._items: list[Item] = []
        self._turn: _Turn | None = None
        self._bare = False
        self.tools: list[Fields] = []
        self._readers: dict[str, Callable[[Fields], None]] = {
            "message": self._message,
            "reasoning": self._reasoning,
            "function_call": self._function_call,
            "custom_tool_call": self._custom_call,
            "function_call_output": self._result,
            "custom_tool_call_output": self._result,
            "local_shell_call": lambda f: self._hosted_call(f, "local_shell", "action"),
            "shell_call": lambda f: self._hosted_call(f, "shell", "action"),
            "apply_patch_call": lambda f: self._hosted_call(f, "apply_patch", "operation"),
            "local_shell_call_output": self._hosted_result,
            "shell_call_output": self._hosted_result,
            "apply_patch_call_output": self._hosted_result,
            "mcp_call": self._mcp_call,
            "additional_tools": self._declarations,
            "tool_search_output": self._declarations,
        }

    def read(self, data: bytes) -> tuple[Item, ...]:
        """Items of an `input`: a string, or a list of objects. Raises BadRequest or Unsupported with the path."""
        if data.startswith(b'"'):
            return (UserText(decode(self._decoders.text, data, "input") or ""),)
        rows: list[dict[str, msgspec.Raw]] = decode(self._decoders.rows, data, "input")
        for i, row in enumerate(rows):
            self._read(Fields(self._decoders, row, f"input[{i}]", "input[]"))
        self._close()
        return tuple(self._items)

    def _read(self, fields: Fields) -> None:
        kind = fields.text("type")
        if kind is None:
            kind = "message" if "role" in fields else "item_reference" if "id" in fields else None
        if kind is None:
            raise BadRequest("an input item needs its type", path=f"{fields.at}.type")
        if kind in REFUSED:
            raise Unsupported(REFUSED[kind], path=f"{fields.at}.type")
        if kind == "input_text" or kind in MEDIA_PARTS:
            self._bare_part(fields, kind)
            return
        reader = self._readers.get(kind)
        if reader is None:
            self._ignored.add(f"input[]:{kind}")
            return
        reader(fields)
        self._bare = False
        fields.name_unused(self._ignored)

    def _add(self, *items: Item) -> None:
        self._close()
        self._items.extend(items)

    def _close(self) -> None:
        """A turn of which only reasoning is there that cannot be read has nothing to show."""
        if self._turn is not None:
            said = self._turn.assistant()
            if self._turn.stage > REASONING or said.reasoning:
                self._items.append(said)
            self._turn = None

    def _speak(self, fields: Fields, stage: int) -> _Turn:
        """The turn that an item belongs to."""
        item_id = fields.text("id") or ""
        own = _OWN_ID.fullmatch(item_id) if MARK in item_id else None
        reply = own.group(1) if own else None
        if self._turn is not None and self._turn.ends_before(stage, reply):
            self._close()
        if self._turn is None:
            self._turn = _Turn(reply, stage)
        self._turn.reply = self._turn.reply or reply
        self._turn.stage = max(self._turn.stage, stage)
        return self._turn

    # ------------------------------------------------------------------------------------ what users say

    def _message(self, fields: Fields) -> None:
        role = fields.need("role", "a message")
        if role == "assistant":
            self._speak(fields, MESSAGE).text.append(self._text(fields, "content"))
            return
        if fields.raw("content") == b"null":
            raise BadRequest(f"a {role[:40]} message needs content", path=f"{fields.at}.content")
        if role == "user":
            self._add(*self._user(fields))
        elif role in ("system", "developer"):
            self._add(System(self._text(fields, "content"), role))
        else:
            raise BadRequest(f"unknown role {role[:40]!r}", path=f"{fields.at}.role")

    def _user(self, fields: Fields) -> list[Item]:
        """Text parts of one message are one item; media stand between them."""
        items: list[Item] = []
        run: list[str] = []
        for part in self._parts(fields, "content"):
            if isinstance(part, str):
                run.append(part)
                continue
            if run:
                items.append(UserText("".join(run), joined=bool(items)))
                run = []
            items.append(replace(part, joined=bool(items)))
        if run or not items:
            items.append(UserText("".join(run), joined=bool(items)))
        return items

    def _bare_part(self, fields: Fields, kind: str) -> None:
        """A part without a message around it. Parts in a row are one message, which may still grow: an item each."""
        part = self._part(fields, kind)
        if isinstance(part, str):
            self._add(UserText(part, joined=self._bare))
        elif part is not None:
            self._add(replace(part, joined=self._bare))
        self._bare = True

    def _parts(self, fields: Fields, key: str, *, media: bool = True) -> Iterator[str | UserMedia]:
        """A string, or the parts of a list that mean something here."""
        said = fields.said(key)
        if isinstance(said, str):
            yield said
            return
        for row in said:
            kind = row.need("type", "a content part")
            if kind in MEDIA_PARTS and not media:
                self._ignored.add(f"{row.where}:{kind}")
                continue
            part = self._part(row, kind)
            if part is not None:
                yield part

    def _part(self, row: Fields, kind: str) -> str | UserMedia | None:
        if kind in TEXT_PARTS:
            part: str | UserMedia = row.need("text", "a text part")
        elif kind == "refusal":
            part = row.text("refusal") or ""
        elif kind in MEDIA_PARTS:
            part = _media(row, kind)
        else:
            self._ignored.add(f"{row.where}:{kind}")
            return None
        row.name_unused(self._ignored)
        return part

    def _text(self, fields: Fields, key: str) -> str:
        """Text parts joined; others are named."""
        return "".join([part for part in self._parts(fields, key, media=False) if isinstance(part, str)])

    # ------------------------------------------------------------------------------- what the model said

    def _reasoning(self, fields: Fields) -> None:
        """Plain text counts before the token, which only mends blanks that a client has trimmed."""
        turn = self._speak(fields, REASONING)
        content, summary = self._text(fields, "content"), self._text(fields, "summary")
        if content and summary and content.strip() != summary.strip():
            self._ignored.add(f"{fields.where}.summary")
        plain, token = content or summary, fields.text("encrypted_content")
        sealed = unseal(token) if token else None
        if sealed is not None and (not plain or plain.strip() == sealed.strip()):
            plain = sealed
        elif token:
            self._ignored.add(f"{fields.where}.encrypted_content")
        turn.reasoning.append(plain)

    def _function_call(self, fields: Fields) -> None:
        name = _full_name(fields, fields.need("name", "a function call"))
        turn = self._speak(fields, CALL)
        turn.calls.append(ToolCall(_call_id(fields), name, self._arguments(fields)))

    def _arguments(self, fields: Fields) -> str:
        """The JSON text as sent. An object in its place is written compactly, its numbers as they were spelled."""
        data = fields.raw("arguments")
        if data.startswith(b"{"):
            self._ignored.add(f"{fields.where}.arguments:object")
            return fields.json("arguments")
        return fields.text("arguments") or ""

    def _custom_call(self, fields: Fields) -> None:
        name = _full_name(fields, fields.need("name", "a custom tool call"))
        turn = self._speak(fields, CALL)
        arguments = msgspec.json.encode({"input": fields.text("input") or ""}).decode()
        turn.calls.append(ToolCall(_call_id(fields), name, arguments))

    def _hosted_call(self, fields: Fields, name: str, key: str) -> None:
        """A call of a tool that the API itself defines, in the history of another model."""
        turn = self._speak(fields, CALL)
        turn.calls.append(ToolCall(_call_id(fields), name, fields.json(key)))

    def _mcp_call(self, fields: Fields) -> None:
        """A call that another server has made and answered."""
        label = fields.text("server_label")
        name = fields.need("name", "an MCP call")
        turn = self._speak(fields, CALL)
        call_id = _call_id(fields)
        turn.calls.append(ToolCall(call_id, f"{label}__{name}" if label else name, self._arguments(fields)))
        self._add(ToolResult(call_id, fields.text("output") or fields.json("error")))

    # ---------------------------------------------------------------------------------- what tools answer

    def _result(self, fields: Fields) -> None:
        call_id = fields.need("call_id", "a tool's output")
        name = fields.text("name")
        inner = fields.inner("output") if fields.raw("output").startswith(b"{") else None
        said = list(self._parts(inner or fields, "content" if inner else "output"))
        if inner is not None:
            inner.name_unused(self._ignored)
        text = "".join([part for part in said if isinstance(part, str)])
        media = tuple([replace(part, joined=True) for part in said if isinstance(part, UserMedia)])
        self._add(ToolResult(call_id, text, _full_name(fields, name) if name else None, media))

    def _hosted_result(self, fields: Fields) -> None:
        call_id = fields.text("call_id") or fields.need("id", "a tool's output")
        text = fields.text("output") if fields.raw("output").startswith(b'"') else fields.json("output")
        self._add(ToolResult(call_id, text or fields.text("status") or ""))

    def _declarations(self, fields: Fields) -> None:
        """Tools declared in the conversation: they are offered from the beginning, for there is one list of tools."""
        self._close()
        for key in ("role", "call_id", "execution"):
            fields.raw(key)
        self.tools.extend(fields.rows("tools"))
        self._ignored.add(f"input[]:{fields.text('type')}")


def _call_id(fields: Fields) -> str:
    return fields.text("call_id") or fields.text("id") or ""


def _full_name(fields: Fields, name: str) -> str:
    """A namespaced tool has its namespace in front."""
    namespace = fields.text("namespace")
    return f"{namespace}__{name}" if namespace else name


def _media(row: Fields, kind: str) -> UserMedia:
    """`joined` is the caller's to say."""
    if kind == "input_audio":
        return UserMedia("audio/*", sha256(row.raw("input_audio")).hexdigest())
    if kind == "input_image":
        if row.raw("image_url").startswith(b"{"):
            raise BadRequest("expected a string", path=f"{row.at}.image_url")
        source = row.text("image_url") or row.text("file_id")
        if not source:
            raise BadRequest("an image part needs image_url or file_id", path=f"{row.at}.image_url")
        return linked_media("image/*", source, joined=False)
    data = row.text("file_data")
    if data and not data.startswith("data:"):
        return inline_media("application/octet-stream", data, joined=False)
    source = data or row.text("file_url") or row.text("file_id")
    if not source:
        raise BadRequest("a file part needs file_data, file_url or file_id", path=f"{row.at}.file_data")
    return linked_media("application/octet-stream", source, joined=False)
