"""A client of all four APIs on a bare socket: reads so many bytes, leaves how it likes, keeps what it read."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from dataclasses import dataclass
from typing import Any

from contract.kits import kits
from tugline.core.items import Assistant

PATHS = {
    "chat": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "responses": "/v1/responses",
    "gemini": "/v1beta/models/m:generateContent",
}
TOOL = {"type": "object", "properties": {}}
SMALL = 4096
"""Bytes of a receive buffer that makes the other side wait for us."""


def request_of(api: str, text: str, *, stream: bool, **more: Any) -> tuple[str, bytes]:
    """(path, body) of a request with the tools bash and write."""
    path, names = PATHS[api], ("bash", "write")
    body: dict[str, Any]
    if api == "gemini":
        path = path.replace("generate", "streamGenerate") + "?alt=sse" if stream else path
        tools = [{"functionDeclarations": [{"name": n, "parametersJsonSchema": TOOL} for n in names]}]
        body = {"contents": [{"role": "user", "parts": [{"text": text}]}], "tools": tools}
    elif api == "responses":
        tools = [{"type": "function", "name": n, "parameters": TOOL} for n in names]
        body = {"model": "m", "input": text, "tools": tools, "stream": stream}
    elif api == "anthropic":
        tools = [{"name": n, "input_schema": TOOL} for n in names]
        body = {"model": "m", "max_tokens": 4000, "tools": tools, "stream": stream}
        body["messages"] = [{"role": "user", "content": text}]
    else:
        tools = [{"type": "function", "function": {"name": n, "parameters": TOOL}} for n in names]
        body = {"model": "m", "tools": tools, "stream": stream, "messages": [{"role": "user", "content": text}]}
    return path, json.dumps(body | more).encode()


@dataclass
class Answer:
    """What was read of a response: its head and its raw body, chunk framing included."""

    head: bytes
    raw: bytes

    @property
    def chunked(self) -> bool:
        return b"transfer-encoding: chunked" in self.head.lower()

    @property
    def whole(self) -> bool:
        """Whether the response has its end."""
        if self.chunked:
            return self.raw.endswith(b"0\r\n\r\n")
        length = self.head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        return bool(self.head) and len(self.raw) >= int(length)

    @property
    def body(self) -> bytes:
        if not self.chunked:
            return self.raw
        out, rest = b"", self.raw
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            n = int(size or b"0", 16)
            out, rest = out + rest[:n], rest[n + 2 :]
        return out

    def said(self, api: str, *, stream: bool) -> Assistant:
        """As a strict client of the API reads it."""
        kit = kits()[api]
        return kit.assemble(self.body) if stream else kit.read(self.body)


class RawClient:
    """One connection. All methods block: run them in threads."""

    def __init__(self, url: str, key: str, *, small: bool = False, close: bool = False) -> None:
        self._sock = socket.socket()
        if small:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        self._sock.settimeout(20)
        self._sock.connect(("127.0.0.1", int(url.rpartition(":")[2])))
        self._key, self._close = key, close
        self._data = b""

    def ask(self, path: str, body: bytes) -> None:
        """Send a request."""
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self._key}\r\n"
        head += ("connection: close\r\n" if self._close else "") + f"content-length: {len(body)}\r\n\r\n"
        self._sock.sendall(head.encode() + body)

    def read(self, limit: int | None = None) -> Answer:
        """Exactly `limit` bytes of a response from its first on, or all of it, or what comes before its cut."""
        while not self.answer.whole if limit is None else len(self._data) < limit:
            # no byte too many: what is read here has left the kernel
            got = self._sock.recv(65536 if limit is None else min(65536, limit - len(self._data)))
            if not got:
                break
            self._data += got
        answer = self.answer
        if answer.whole:
            self._data = b""
        return answer

    def until(self, mark: bytes, size: int = 65536) -> None:
        """Read until it is there, at most `size` bytes at a time: with 1, not one byte more."""
        while mark not in self._data[-size - len(mark) :]:
            got = self._sock.recv(size)
            assert got, f"the response ended without {mark!r}"
            self._data += got

    @property
    def answer(self) -> Answer:
        """What was read so far."""
        head, end, raw = self._data.partition(b"\r\n\r\n")
        return Answer(head + end, raw)

    def leave(self, *, reset: bool = False) -> None:
        """Close the connection; `reset`: without a farewell."""
        if reset:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()


async def call(url: str, key: str, api: str, text: str, *, stream: bool, small: bool = False, **more: Any) -> Answer:
    """One whole exchange on a connection of its own."""

    def exchange() -> Answer:
        client = RawClient(url, key, small=small)
        try:
            client.ask(*request_of(api, text, stream=stream, **more))
            return client.read()
        finally:
            client.leave()

    return await asyncio.to_thread(exchange)
