"""Hand-written Gemini requests, what the dialect makes of them, and the bytes that it answers with."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tugline.core.items import Assistant, Item, Reply, ToolCall, Usage
from tugline.dialects import GeminiDialect

SIGNATURE = re.compile(r'("thoughtSignature":")[^"]+')
"""Left out: it holds what zlib makes of the reasoning, and there are several."""
HERE = Path(__file__).parent / "gemini"
DIALECT = GeminiDialect()

EVENTS = {"model": "gemini-2.5-pro", "stream": "1", "?alt": "sse"}
ARRAY = {"model": "gemini-2.5-pro", "stream": "1"}
WHOLE = {"model": "models/gemini-2.5-pro"}

ANSWERS: dict[str, tuple[dict[str, str], Assistant, str]] = {
    "plain": (WHOLE, Assistant("Four."), "stop"),
    "tool_loop": (
        EVENTS,
        Assistant(
            "  Now the file.\n",
            "Two results, \u2028 one failed. ",
            (ToolCall("c3", "read", '{"path" :  "b", "n": 1.0}'), ToolCall("c4", "read", '{"path": "c", }')),
        ),
        "tool_calls",
    ),
    "no_ids": (EVENTS, Assistant(None, "Enough.", (ToolCall("c1", "done", ""),)), "tool_calls"),
    "chunks": (ARRAY, Assistant("And so on", "Hm."), "length"),
    "pictures": (WHOLE, Assistant("A cat."), "stop"),
    "structured": (WHOLE, Assistant('{"n":1}'), "stop"),
    "unserved": (EVENTS, Assistant(), "stop"),
}
"""By name of the request: the path's parameters, what the model says, how it ends."""


def requests() -> dict[str, bytes]:
    return {path.name.removesuffix(".request.json"): path.read_bytes() for path in sorted(HERE.glob("*.request.json"))}


def shown(item: Item) -> dict[str, Any]:
    return {type(item).__name__: asdict(item)}


def transcript(name: str, body: bytes) -> dict[str, Any]:
    """The request as decoded, and the answer as a stream or as one body, as the request asks."""
    params, said, finish = ANSWERS[name]
    request = DIALECT.decode(body, params)
    reply = Reply("0a1b", request.model, 1_790_000_000, said, finish, Usage(1200, 40, 1024, 7), request)
    parts, terminal = DIALECT.stream(reply)
    answer = b"".join([*parts, terminal]) if request.options.stream else DIALECT.encode(reply)
    return {
        "tools": [asdict(tool) for tool in request.head.tools],
        "items": [shown(item) for item in request.items],
        "options": asdict(request.options),
        "ignored": list(request.ignored),
        "answer": SIGNATURE.sub(r"\1(ours)", answer.decode()).split("\n"),
        "echo": shown(DIALECT.echo(reply)),
    }


def expected_path(name: str) -> Path:
    return HERE / f"{name}.expected.json"


if __name__ == "__main__":
    for each, data in requests().items():
        text = json.dumps(transcript(each, data), indent=1, ensure_ascii=True)
        expected_path(each).write_text(text + "\n")
