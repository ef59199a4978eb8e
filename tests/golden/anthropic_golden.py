"""Hand-written Anthropic requests, what the dialect makes of them, and the bytes that it answers with."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tugline.core.items import Assistant, Item, Reply, ToolCall, Usage
from tugline.dialects import AnthropicDialect

HERE = Path(__file__).parent / "anthropic"
DIALECT = AnthropicDialect()

ANSWERS: dict[str, tuple[Assistant, str, str | None]] = {
    "plain": (Assistant("Four."), "stop", None),
    "tool_loop": (
        Assistant(
            "  Now the file.\n", "Two results, \u2028 one failed. ", (ToolCall("c3", "read", '{"path" :  "b"}'),)
        ),
        "tool_calls",
        None,
    ),
    "reminders": (Assistant(calls=(ToolCall("c2", "bash", '{"command": "ls", }'),)), "tool_calls", None),
    "documents": (Assistant("The title says T", None), "length", None),
    "prefill": (Assistant('"yes"'), "stop", "}"),
    "unserved": (Assistant(), "stop", None),
}
"""By name of the request: what the model says, how it ends, and the stop string, if one ended it."""


def requests() -> dict[str, bytes]:
    return {path.name.removesuffix(".request.json"): path.read_bytes() for path in sorted(HERE.glob("*.request.json"))}


def shown(item: Item) -> dict[str, Any]:
    return {type(item).__name__: asdict(item)}


def transcript(name: str, body: bytes) -> dict[str, Any]:
    """The request as decoded, and the answer as a stream or as one body, as the request asks."""
    request = DIALECT.decode(body, {})
    said, finish, stop = ANSWERS[name]
    reply = Reply("0a1b", request.model, 1_790_000_000, said, finish, Usage(1200, 40, 1024, 7), request, stop)
    parts, terminal = DIALECT.stream(reply)
    answer = b"".join([*parts, terminal]) if request.options.stream else DIALECT.encode(reply)
    return {
        "tools": [asdict(tool) for tool in request.head.tools],
        "items": [shown(item) for item in request.items],
        "options": asdict(request.options),
        "ignored": list(request.ignored),
        "answer": answer.decode().split("\n"),
        "echo": shown(DIALECT.echo(reply)),
    }


def expected_path(name: str) -> Path:
    return HERE / f"{name}.expected.json"


if __name__ == "__main__":
    for each, data in requests().items():
        text = json.dumps(transcript(each, data), indent=1, ensure_ascii=True)
        expected_path(each).write_text(text + "\n")
