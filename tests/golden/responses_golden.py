"""Responses transcripts: requests written by hand, and what the dialect makes of them and of the reply."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tugline.core.items import Assistant, Pending, Reply, Request, ToolCall, Usage
from tugline.dialects.responses import ResponsesDialect

HERE = Path(__file__).parent / "responses"
DIALECT = ResponsesDialect()
TOKEN = re.compile(rb'"tug1\.[^"]*"')
"""Sealed reasoning: its bytes depend on the zlib of the machine."""


def cases() -> list[Path]:
    return [p for p in sorted(HERE.glob("*.json")) if p.name.count(".") == 1]


def decoded(case: dict[str, Any]) -> Request:
    return DIALECT.decode(json.dumps(case["request"]).encode(), {})


def reply_of(case: dict[str, Any]) -> Reply:
    said = case["reply"]
    calls = tuple(ToolCall(**call) for call in said.get("calls", ()))
    turn = Assistant(said.get("text"), said.get("reasoning"), calls)
    usage = Usage(prompt=120, completion=30, cached=100, reasoning=8)
    return Reply("01hgolden", "policy", 1_790_000_000, turn, said["finish"], usage, decoded(case))


def streamed(reply: Reply, beats: int) -> bytes:
    pending = Pending(reply.id, reply.model, reply.created, reply.request)
    parts, terminal = DIALECT.stream(reply, beats)
    return b"".join([*[DIALECT.keepalive(pending, n) for n in range(beats)], *parts, terminal])


def outcome(path: Path) -> dict[str, bytes]:
    """Name of each expected file and its content."""
    case = json.loads(path.read_text())
    request, reply = decoded(case), reply_of(case)
    items = [{"kind": type(item).__name__, **asdict(item)} for item in request.items]
    read = {**asdict(request), "items": items, "echo": asdict(DIALECT.echo(reply))}
    files = {
        f"{path.stem}.items.json": json.dumps(read, indent=1, ensure_ascii=False).encode() + b"\n",
        f"{path.stem}.reply.json": json.dumps(json.loads(DIALECT.encode(reply)), indent=1).encode() + b"\n",
        f"{path.stem}.sse": streamed(reply, case["beats"]),
    }
    return {name: TOKEN.sub(b'"tug1.(sealed)"', content) for name, content in files.items()}


def captured(root: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Recorded request bodies by run. One word that the recordings mask is put back."""
    for path in sorted(root.glob("*/*.requests.jsonl.gz")):
        found = []
        for line in gzip.decompress(path.read_bytes()).split(b"\n"):
            record = json.loads(line) if line else {}
            body = record.get("body")
            if str(record.get("path", "")).partition("?")[0].endswith("/responses") and isinstance(body, dict):
                if isinstance(body.get("tool_choice"), str):
                    body["tool_choice"] = "auto"
                found.append(body)
        if found:
            yield f"{path.parent.name}/{path.name}", found


if __name__ == "__main__":
    for case in cases():
        for name, content in outcome(case).items():
            (HERE / name).write_bytes(content)
