"""An OpenAI-compatible chat-completions API that plays a list of replies. See `engine_server`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tugline.core.columns import NO_IDS, floats
from tugline.core.contracts import Engine, EngineInfo, Generation, Sample
from tugline.core.errors import EngineError
from tugline.testing.engine_faults import Fault, logprobs_of, prompt_of
from tugline.testing.engine_server import EngineServer, Refused, checked, known, words

BODY = frozenset(
    words(
        """model messages max_tokens max_completion_tokens temperature top_p seed stop tools tool_choice
        parallel_tool_calls response_format n stream logprobs top_logprobs"""
    )
)
IDS = frozenset(words("return_token_ids top_k"))
MESSAGE = frozenset(words("role content tool_calls tool_call_id name"))


class _Nothing:
    """No engine is behind it."""

    info = EngineInfo("none", "none", Path(), 1, 1, ())

    async def start(self) -> None: ...

    async def generate(self, request: Generation) -> Sample:
        raise EngineError("no engine")

    async def abort(self, request_id: str) -> None: ...

    async def release(self, session_id: str) -> None: ...

    async def close(self) -> None: ...


class OpenAiServer(EngineServer):
    """Replies with `script`, one message after the other, round and round."""

    def __init__(self, script: Sequence[dict[str, Any]], **behaviour: Any) -> None:
        """`script`: messages. behaviour `ids`: whether it says ids; `refuses`: fields that its model refuses; the
        others as in `Behaviour`."""
        self.ids: bool = behaviour.pop("ids", False)
        self.refuses: frozenset[str] = frozenset(behaviour.pop("refuses", ()))
        engine: Engine = _Nothing()
        super().__init__(engine, **behaviour)
        self._script = list(script)
        self._next = 0

    async def route(self, method: str, path: str, query: str, body: bytes) -> tuple[Any, Fault | None]:
        """See EngineServer."""
        if (method, path) == ("GET", "/v1/models"):
            return {"object": "list", "data": [{"id": "teacher", "object": "model"}]}, None
        if (method, path) != ("POST", "/v1/chat/completions"):
            raise Refused(404, "Not Found")
        asked = known(body, BODY | (IDS if self.ids else frozenset()))
        for name in sorted(self.refuses & set(asked)):
            raise Refused(400, f"Unsupported parameter: '{name}' is not supported with this model.")
        for message in asked["messages"]:
            checked(message, MESSAGE, "message")
        probe = asked["messages"][-1]["content"] == "Say ok." and len(asked["messages"]) == 1
        fault = None
        if not probe:
            self.seen.generations.append(asked)
            fault = await self.next_fault()
        return self._reply(asked, probe=probe, fault=fault), fault

    def _reply(self, asked: dict[str, Any], *, probe: bool, fault: Fault | None) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "ok"}
        if not probe:
            message = {"role": "assistant", "content": None} | self._script[self._next % len(self._script)]
            message = {"role": "assistant", "content": ""} if fault == "empty" else message
            self._next += 1
        prompt = sum(len(str(m)) for m in asked["messages"]) // 4
        sampled = 0 if fault == "empty" else max(1, len(str(message)) // 4)
        choice: dict[str, Any] = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
        }
        if fault in ("no_finish", "strange_finish"):
            choice["finish_reason"] = None if fault == "no_finish" else "repetition"
        reply: dict[str, Any] = {
            "id": f"chatcmpl-{len(self.seen.generations)}",
            "object": "chat.completion",
            "model": "teacher-2026",
            "choices": [choice],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": sampled,
                "total_tokens": prompt + sampled,
                "prompt_tokens_details": {"cached_tokens": prompt // 2},
                "completion_tokens_details": {"reasoning_tokens": sampled // 2},
            },
        }
        if self.ids and asked.get("return_token_ids"):
            # a pretended tokenizer: a character is a token, and so is the end of a message
            text = "".join(f"{m['role']}:{m.get('content') or m.get('tool_calls')}\x00" for m in asked["messages"])
            said = [ord(c) for c in str(message.get("content") or message.get("tool_calls"))] + [0]
            prompt_ids = [ord(c) for c in text + "assistant:"]
            reply["prompt_token_ids"] = prompt_of(prompt_ids, fault)
            if fault in ("huge_id", "negative_id"):
                said[0] = 1 << 40 if fault == "huge_id" else -1
            choice["token_ids"] = said
            reply["usage"]["completion_tokens"] = len(said) + (fault == "wrong_usage")
            if fault != "no_logprobs":
                values = logprobs_of(Sample(NO_IDS, floats([-0.5] * len(said)), "stop", (), None), fault)
                choice["logprobs"] = {"content": [{"token": "", "logprob": value} for value in values]}
        return reply
