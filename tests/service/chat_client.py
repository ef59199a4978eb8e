"""A plain streaming chat agent for tests: stdlib only, writes one line per reply whose last byte it has seen.

usage: chat_client.py TURNS [PAUSE_SECONDS]; OPENAI_BASE_URL and OPENAI_API_KEY from the environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request

TURNS = int(sys.argv[1]) if len(sys.argv) > 1 else 6
PAUSE = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0


def call(messages: list[dict[str, object]]) -> dict[str, object]:
    """One streamed call, retried on 5xx and broken connections. Returns the assistant message with its reply id."""
    body = json.dumps({"model": "policy", "messages": messages, "stream": True, "max_tokens": 24}).encode()
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"].rstrip("/") + "/chat/completions",
        data=body,
        headers={"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    for attempt in range(20):
        try:
            return read_stream(urllib.request.urlopen(request, timeout=60))
        except urllib.error.HTTPError as err:
            if err.code < 500:
                raise
        except (OSError, ValueError, EOFError):
            pass
        time.sleep(0.1 * (attempt + 1))
    raise SystemExit(3)


def read_stream(response: object) -> dict[str, object]:
    """Assemble the message; only a stream that ends with [DONE] counts."""
    message: dict[str, object] = {"role": "assistant", "content": ""}
    for raw in response:  # type: ignore[attr-defined]
        line = raw.decode().strip()
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return message
        event = json.loads(data)
        if "error" in event:
            raise ValueError(event["error"])
        message["id"] = event["id"]
        for choice in event["choices"]:
            delta = choice["delta"]
            message["content"] = str(message["content"]) + (delta.get("content") or "")
            if delta.get("reasoning_content"):
                message["reasoning_content"] = str(message.get("reasoning_content", "")) + delta["reasoning_content"]
            for piece in delta.get("tool_calls") or []:
                add_call(message, piece)
    raise EOFError("stream ended without [DONE]")


def add_call(message: dict[str, object], piece: dict[str, object]) -> None:
    """Merge one tool-call delta."""
    calls = message.setdefault("tool_calls", [])
    assert isinstance(calls, list)
    while len(calls) <= int(piece["index"]):  # type: ignore[call-overload]
        calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
    slot = calls[int(piece["index"])]  # type: ignore[call-overload]
    slot["id"] = piece.get("id") or slot["id"]
    function = piece.get("function") or {}
    assert isinstance(function, dict)
    slot["function"]["name"] += function.get("name") or ""
    slot["function"]["arguments"] += function.get("arguments") or ""


def main() -> None:
    """TURNS turns; tool calls are answered, plain text is followed by another request."""
    messages: list[dict[str, object]] = [{"role": "user", "content": "Create a.txt with the text hello."}]
    for turn in range(TURNS):
        reply = call(messages)
        print(json.dumps({"seen": str(reply.pop("id")).removeprefix("chatcmpl-")}), flush=True)
        messages.append(reply)
        for made in reply.get("tool_calls") or []:  # type: ignore[attr-defined]
            messages.append({"role": "tool", "tool_call_id": made["id"], "content": f"ok {turn}"})
        if not reply.get("tool_calls"):
            messages.append({"role": "user", "content": f"Go on {turn}."})
        time.sleep(PAUSE)


main()
