"""Recorded Chat requests and a summary of what the dialect makes of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from tugline.core.items import Assistant, Item, Request, System, ToolResult, UserText
from tugline.dialects import ChatDialect

HERE = Path(__file__).parent / "chat"
EXPECTED = HERE / "expected.json"


def bodies(path: Path) -> list[bytes]:
    return [line for line in gzip.decompress(path.read_bytes()).split(b"\n") if line]


def kind(item: Item) -> str:
    match item:
        case System():
            return item.role
        case UserText():
            return "user"
        case ToolResult():
            return "result"
        case Assistant():
            return f"assistant{'+r' if item.reasoning else ''}{'+t' if item.text else ''}+{len(item.calls)}"
    raise TypeError(item)


def digest(value: Any) -> str:
    return sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:16]


def extended(requests: Sequence[Request], n: int) -> int | None:
    """The latest earlier request whose items are a proper prefix of those of request n."""
    items = requests[n].items
    for k in range(n - 1, -1, -1):
        before = requests[k].items
        if len(before) < len(items) and items[: len(before)] == before:
            return k
    return None


def summary(requests: Sequence[Request]) -> list[dict[str, Any]]:
    return [
        {
            "kinds": [kind(i) for i in r.items],
            "items": digest([(type(i).__name__, i) for i in r.items]),
            "tools": [len(r.head.tools), digest(r.head)],
            "options": digest(r.options),
            "ignored": list(r.ignored),
            "extends": extended(requests, n),
        }
        for n, r in enumerate(requests)
    ]


def summaries() -> dict[str, Any]:
    dialect = ChatDialect()
    return {
        path.name.removesuffix(".jsonl.gz"): summary([dialect.decode(b, {}) for b in bodies(path)])
        for path in sorted(HERE.glob("*.jsonl.gz"))
    }


def messages_extend(before: bytes, after: bytes) -> bool:
    """Whether the wire messages of one body are a proper prefix of another's."""
    a, b = json.loads(before)["messages"], json.loads(after)["messages"]
    return len(a) < len(b) and b[: len(a)] == a


if __name__ == "__main__":
    EXPECTED.write_text(json.dumps(summaries(), indent=1) + "\n")
