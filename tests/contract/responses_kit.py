"""A client of the OpenAI Responses API, as small as one can be: stdlib json, its own event reader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tugline.core.items import Assistant, Item, Options, System, ToolCall, ToolResult, UserText
from tugline.dialects.responses import ResponsesDialect
from tugline.testing.dialect_suite import Credential, DialectKit

TOOLS = [{"type": "function", "name": "bash", "parameters": {"type": "object"}, "strict": False}]
FRAMES = ("response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed")


def wire_assistant(said: Assistant, reply: str | None = None) -> list[dict[str, Any]]:
    """A turn echoed verbatim; with the ids of `reply` as they left, or without ids as some clients echo it."""

    def named(prefix: str, tail: str = "") -> dict[str, str]:
        return {"id": f"{prefix}_tug_{reply}{tail}"} if reply else {}

    out: list[dict[str, Any]] = []
    if said.reasoning is not None:
        summary = [{"type": "summary_text", "text": said.reasoning}]
        out.append({"type": "reasoning", "summary": summary} | named("rs"))
    if said.text is not None or not (said.reasoning or said.calls):
        content = [{"type": "output_text", "text": said.text or "", "annotations": [], "logprobs": []}]
        message = {"type": "message", "role": "assistant", "status": "completed", "content": content}
        out.append(message | named("msg"))
    for i, call in enumerate(said.calls):
        item = {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
        out.append(item | named("fc", f"_{i}"))
    return out


def wire_items(item: Item, reply: str | None = None) -> list[dict[str, Any]]:
    match item:
        case System():
            return [{"type": "message", "role": item.role, "content": item.text}]
        case UserText():
            return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": item.text}]}]
        case ToolResult():
            return [{"type": "function_call_output", "call_id": item.call_id, "output": item.text}]
        case Assistant():
            return wire_assistant(item, reply)
    raise TypeError(item)


def body(items: Sequence[dict[str, Any]], **more: Any) -> bytes:
    return json.dumps({"model": "m", "input": list(items), **more}, ensure_ascii=False).encode()


def write(items: Sequence[Item], options: Options) -> bytes:
    wire = [part for i, item in enumerate(items) for part in wire_items(item, f"r{i}")]
    return body(wire, stream=options.stream, tools=TOOLS, include=["reasoning.encrypted_content"], store=False)


def said(output: Sequence[dict[str, Any]]) -> Assistant:
    """The turn that a client makes of output items: it reads the summary, or the plain reasoning."""
    texts: dict[str, list[str]] = {"reasoning": [], "message": []}
    calls = []
    for item in output:
        if item["type"] == "reasoning":
            texts["reasoning"] += [part["text"] for part in item.get("content") or item["summary"]]
        elif item["type"] == "message":
            assert item["role"] == "assistant"
            texts["message"] += [part["text"] for part in item["content"]]
        elif item["type"] == "custom_tool_call":
            calls.append(ToolCall(item["call_id"], item["name"], json.dumps({"input": item["input"]})))
        else:
            assert item["type"] == "function_call", item
            name = f"{item['namespace']}__{item['name']}" if item.get("namespace") else item["name"]
            calls.append(ToolCall(item["call_id"], name, item["arguments"]))
    return Assistant("".join(texts["message"]) or None, "".join(texts["reasoning"]) or None, tuple(calls))


def checked(response: dict[str, Any]) -> dict[str, Any]:
    """A finished response object; asserts what every client relies on."""
    assert response["object"] == "response" and response["id"].startswith("resp_")
    cut = response["status"] == "incomplete"
    assert cut or response["status"] == "completed", response["status"]
    assert (response["incomplete_details"] is not None) == cut and response["error"] is None
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    order = [("reasoning", "message", "call").index(i["type"].split("_")[-1]) for i in response["output"]]
    assert order == sorted(order), "reasoning, text, calls, in this order"
    return response


def read(data: bytes) -> Assistant:
    return said(checked(json.loads(data))["output"])


def events(stream: bytes) -> list[dict[str, Any]]:
    """Events by the rules of the HTML standard; asserts that each is named as it calls itself."""
    out: list[dict[str, Any]] = []
    name, data = "", []
    for line in stream.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if line.startswith("event:"):
            name = line[6:].removeprefix(" ")
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        else:
            assert not line or line.startswith(":"), line
            if not line and data:
                out.append(json.loads("\n".join(data)))
                assert out[-1]["type"] == name, "an event is named as its data says"
                name, data = "", []
    return out


class Assembler:
    """Follows a stream as a strict client; asserts the order of its events."""

    def __init__(self) -> None:
        self.response: dict[str, Any] | None = None
        self.items: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._texts: dict[tuple[str, int], str] = {}
        self._id = ""

    def feed(self, event: dict[str, Any], n: int) -> None:
        kind = event["type"].removeprefix("response.")
        assert event["sequence_number"] == n, f"{kind} is number {event['sequence_number']}, not {n}"
        assert self.response is None, "nothing follows the terminal event"
        if event["type"] in FRAMES:
            self._frame(kind, event["response"], n)
        elif kind.startswith("output_item."):
            self._item(kind, event)
        else:
            assert self._open is not None and event["item_id"] == self._open["id"]
            assert event["output_index"] == len(self.items)
            self._inside(kind, event)

    def _frame(self, kind: str, response: dict[str, Any], n: int) -> None:
        assert (kind == "created") == (n == 0), "created comes first and once"
        self._id = self._id or response["id"]
        assert response["id"] == self._id, "one stream is one response"
        if kind in ("created", "in_progress"):
            assert not self.items and response["status"] == "in_progress" and response["output"] == []
            return
        assert kind == response["status"] and self._open is None
        self.response = checked(response)
        assert response["output"] == self.items, "the whole reply has other items than the stream"

    def _item(self, kind: str, event: dict[str, Any]) -> None:
        assert event["output_index"] == len(self.items)
        item = event["item"]
        if kind == "output_item.added":
            assert self._open is None
            self._open, self._texts = item, {}
            return
        assert self._open is not None and (item["id"], item["type"]) == (self._open["id"], self._open["type"])
        whole = {
            "reasoning": lambda: "".join(p["text"] for p in item["summary"]),
            "message": lambda: "".join(p["text"] for p in item["content"]),
            "function_call": lambda: item["arguments"],
            "custom_tool_call": lambda: item["input"],
        }[item["type"]]()
        assert "".join(self._texts.values()) == whole, "the deltas do not add up to the item"
        self.items.append(item)
        self._open = None

    def _inside(self, kind: str, event: dict[str, Any]) -> None:
        index = event.get("content_index", event.get("summary_index", 0))
        name, _, step = kind.rpartition(".")
        place = (name.removesuffix("_part").removesuffix("_text"), index)
        place = ("output", index) if place[0] == "content" else place
        if step == "added":
            assert place not in self._texts and event["part"]["text"] == ""
            self._texts[place] = ""
        elif step == "delta":
            self._texts[place] = self._texts.get(place, "") + event["delta"]
        else:
            assert step == "done", kind
            final = event["part"]["text"] if "part" in event else event.get("text", event.get("arguments"))
            final = event["input"] if final is None else final
            assert self._texts.setdefault(place, "") == final, "a part's end does not repeat its deltas"


def assemble(stream: bytes) -> Assistant:
    assembler = Assembler()
    for n, event in enumerate(events(stream)):
        assembler.feed(event, n)
    assert assembler.response is not None, "the stream has no end"
    return said(assembler.response["output"])


def credentials(secret: str) -> list[Credential]:
    return [
        ({"authorization": f"Bearer {secret}"}, {}),
        ({"authorization": f"bearer  {secret} "}, {}),
        ({"api-key": secret}, {}),
        ({"x-api-key": secret}, {}),
    ]


def responses_kit() -> DialectKit:
    return DialectKit(ResponsesDialect(), write, read, assemble, credentials, {})
