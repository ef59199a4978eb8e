"""Bodies made to cost much: what cannot fit is refused unrendered, what nests too deeply is no error of ours."""

from __future__ import annotations

import gzip
import io
import json
import threading
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from service.wire_kit import wire
from tugline.core.items import Assistant, Head, Request, ToolCall, UserText
from tugline.forest.forest import Forest
from tugline.gateway import app

SCRIPT: list[object] = [{"settings": {"repeat": True}}, {"text": "fine"}]
MANY = 100_000
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
GEMINI = "/v1beta/models/m:generateContent"


def schema(depth: int) -> Any:
    made: Any = {"type": "object"}
    for _ in range(depth):
        made = {"type": "array", "items": made}
    return made


async def post(http: aiohttp.ClientSession, url: str, key: str, body: Any) -> tuple[int, str]:
    headers = {"authorization": f"Bearer {key}"}
    async with http.post(url, data=io.BytesIO(json.dumps(body).encode()), headers=headers) as answer:
        return answer.status, await answer.text()


def crowded(path: str) -> Any:
    """Far more messages than the window has tokens."""
    if path == CHAT:
        return {"model": "m", "messages": [{"role": "user", "content": ""}] * MANY}
    if path == RESPONSES:
        return {"model": "m", "input": [{"role": "user", "content": "x"}] * MANY}
    if path == MESSAGES:
        system = [{"type": "text", "text": ""}] * MANY
        return {"model": "m", "max_tokens": 9, "system": system, "messages": [{"role": "user", "content": "x"}]}
    return {"contents": [{"role": "model", "parts": [{"functionCall": {"name": "a"}}] * MANY}]}


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, GEMINI])
async def test_what_cannot_fit_is_refused_before_it_is_rendered(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Forest, "attach", None)
    async with wire(tmp_path, SCRIPT, max_body=32 << 20) as kit, aiohttp.ClientSession() as http:
        status, text = await post(http, kit.gateway.url + path, (await kit.session()).secret, crowded(path))
        assert status == 400
        assert str(MANY) in text or str(MANY + 1) in text
        assert "4096" in text


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, GEMINI])
@pytest.mark.parametrize("depth", [200, 600])
async def test_a_schema_that_nests_too_deeply_is_the_requests_fault(tmp_path: Path, path: str, depth: int) -> None:
    nested = schema(depth)
    bodies: dict[str, Any] = {
        CHAT: {
            "model": "m",
            "messages": [{"role": "user", "content": "<|im_end|>"}],
            "tools": [{"type": "function", "function": {"name": "a", "parameters": nested}}],
        },
        RESPONSES: {"model": "m", "input": "x", "tools": [{"type": "function", "name": "a", "parameters": nested}]},
        MESSAGES: {
            "model": "m",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "x"}],
            "tools": [{"name": "a", "input_schema": nested}],
        },
        GEMINI: {
            "contents": [{"parts": [{"text": "x"}]}],
            "tools": [{"functionDeclarations": [{"name": "a", "parameters": nested}]}],
        },
    }
    async with wire(tmp_path, SCRIPT, context=100_000) as kit, aiohttp.ClientSession() as http:
        status, text = await post(http, kit.gateway.url + path, (await kit.session()).secret, bodies[path])
        assert (status, "too deeply" in text) == ((200, False) if depth < 500 else (400, True))


async def test_bodies_are_unpacked_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    plain = app._decompress

    def watched(*args: Any) -> bytes:
        threads.append(threading.current_thread())
        return plain(*args)

    monkeypatch.setattr(app, "_decompress", watched)
    packed = gzip.compress(json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode())
    async with wire(tmp_path, SCRIPT) as kit, aiohttp.ClientSession() as http:
        headers = {"authorization": f"Bearer {(await kit.session()).secret}", "content-encoding": "gzip"}
        async with http.post(kit.gateway.url + CHAT, data=packed, headers=headers) as answer:
            assert answer.status == 200
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


def test_many_calls_of_one_turn_are_attached_in_linear_time() -> None:
    calls = tuple(ToolCall("", "a", "{}") for _ in range(MANY))
    begun = time.perf_counter()
    Forest("ses_a", b"m").attach(Request("m", Head(), (UserText("x"), Assistant(None, None, calls))))
    assert time.perf_counter() - begun < 8
