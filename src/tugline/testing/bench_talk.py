"""The conversations of the benchmark: prose, growing request bodies, and what the model is made to say. Deterministic.

A session is a coding agent's: system prompt, a task, then turns of one tool call and its result. Each request resends
everything, from about 8 KB at the first turn to about 124 KB at the twentieth.
"""

from __future__ import annotations

import random

import msgspec

from tugline.engines.script import Call, Step
from tugline.tasks.families.words import ALL

PATH = "/v1/chat/completions"
REPLY_WORDS = 220
"""With its tool call a reply has about 300 tokens."""
SYSTEM_BYTES, TASK_BYTES, RESULT_BYTES = 4000, 2300, 3950
"""Sizes of the texts that requests are made of."""


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _Call(msgspec.Struct):
    id: str
    function: _Function


class _Message(msgspec.Struct):
    tool_calls: list[_Call] = []


class _Choice(msgspec.Struct):
    message: msgspec.Raw


class _Reply(msgspec.Struct):
    choices: list[_Choice]


def prose(rng: random.Random, size: int) -> str:
    """About `size` bytes of English words (about 5.5 per token of the pilot's tokenizer)."""
    return " ".join(rng.choices(ALL, k=size * 2 // 13))


def step(number: int) -> Step:
    """What the canned engine says as its `number`-th different reply."""
    rng = random.Random(f"reply {number}")
    text = " ".join(rng.choices(ALL, k=REPLY_WORDS))
    arguments = msgspec.json.encode({"command": prose(rng, 160)}).decode()
    return Step(text=text, calls=(Call("bash", arguments),))


def canned_reply() -> bytes:
    """A chat completion as large as the gateway's, for the server behind the relay."""
    said = step(0)
    calls = [
        {"id": f"call_{'0' * 26}_{i}", "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
        for i, c in enumerate(said.calls)
    ]
    message = {"role": "assistant", "content": said.text, "tool_calls": calls}
    usage = {"prompt_tokens": 10000, "completion_tokens": 300, "total_tokens": 10300}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls", "logprobs": None}
    head = {"id": "chatcmpl-" + "0" * 26, "object": "chat.completion", "created": 1, "model": "bench"}
    return msgspec.json.encode({**head, "choices": [choice], "usage": usage})


class Talk:
    """One session as its harness sees it. Keeps encoded messages: making a body is one join."""

    def __init__(self, name: str) -> None:
        self._rng = random.Random(name)
        tools = [
            {"type": "function", "function": {"name": n, "description": prose(self._rng, 400), "parameters": _SCHEMA}}
            for n in ("bash", "read", "write")
        ]
        self._head = b'{"model":"bench","tools":' + msgspec.json.encode(tools) + b',"messages":['
        self._messages = [
            msgspec.json.encode({"role": "system", "content": prose(self._rng, SYSTEM_BYTES)}),
            msgspec.json.encode({"role": "user", "content": f"{name}: {prose(self._rng, TASK_BYTES)}"}),
        ]

    def body(self) -> bytes:
        """The next request."""
        return self._head + b",".join(self._messages) + b"]}"

    def heard(self, reply: bytes) -> None:
        """Echo the assistant's message byte for byte, then answer its tool calls. Raises msgspec.DecodeError."""
        message = bytes(msgspec.json.decode(reply, type=_Reply).choices[0].message)
        self._messages.append(message)
        for call in msgspec.json.decode(message, type=_Message).tool_calls:
            result = {"role": "tool", "tool_call_id": call.id, "content": prose(self._rng, RESULT_BYTES)}
            self._messages.append(msgspec.json.encode(result))


_SCHEMA = {
    "type": "object",
    "properties": {"command": {"type": "string", "description": "what to run"}},
    "required": ["command"],
}
