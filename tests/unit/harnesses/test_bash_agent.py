"""The bundled agent inside a sandbox, against a scripted model."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Gateway, Launch, Limits
from tugline.core.task import Environment
from tugline.harnesses import harness
from tugline.sandboxes import provider as find


class Model:
    def __init__(self, *replies):
        self.replies, self.bodies = list(replies), []

    async def serve(self, listener):
        server = await asyncio.start_server(self._client, sock=listener)

        async def close():
            server.close()
            await server.wait_closed()

        return close

    async def _client(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length:")[1].split("\r\n")[0])
        self.bodies.append(msgspec.json.decode(await reader.readexactly(length)))
        reply = self.replies.pop(0)
        status = reply if isinstance(reply, int) else 200
        body = msgspec.json.encode({"choices": [{"message": {} if status != 200 else reply}]})
        extra = "retry-after: 0\r\n" if status == 429 else ""
        writer.write(
            f"HTTP/1.1 {status} x\r\n{extra}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()


def bash(arguments: str):
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.fixture
async def run(tmp_path):
    boxes = find("bubblewrap", tmp_path / "state", "test")
    if missing := await boxes.check():
        pytest.skip(missing[0])

    async def start(model):
        box = await boxes.start(Environment("", "/app"), "s", Limits(disk=8 << 20))
        found = harness("bash-agent")
        launch = Launch("make x", "http://127.0.0.1:8000", "k", box.workdir, "/home/agent", 4096, 99, box.isolated)
        plan = found.plan(launch, await found.install(tmp_path, print))
        given, out = plan.command, tmp_path / "out"
        command = Command(given.argv, given.env, given.cwd, given.stdin, stdout=out, stderr=out, mounts=given.mounts)
        end = await box.run(command, Deadline.after(40), Gateway(8000, model.serve))
        return box, end, found.failure(end, out.read_bytes())

    yield start
    await boxes.close()


async def test_it_works_until_an_answer_without_a_call(run):
    model = Model(
        429, bash('{"command": "echo hi > x; cat x; exit 4"}'), bash("not json"), {"role": "assistant", "content": "ok"}
    )
    box, end, failure = await run(model)
    assert (end.code, failure) == (0, None)
    assert await box.read("/app/x") == b"hi\n"
    assert model.bodies[0] == model.bodies[1], "a retry is the same request"
    assert model.bodies[0]["messages"][1] == {"role": "user", "content": "make x"}
    assert model.bodies[0]["max_tokens"] == 99
    said = [m["content"] for m in model.bodies[-1]["messages"] if m["role"] == "tool"]
    assert said[0] == "hi\n\n[exit status 4]"
    assert said[1].startswith("error: the arguments")
    for shorter, longer in zip(model.bodies, model.bodies[1:], strict=False):
        assert longer["messages"][: len(shorter["messages"])] == shorter["messages"], "the history only grows"


async def test_a_refused_call_is_a_failure_with_the_reason(run):
    _, end, failure = await run(Model(400))
    assert end.code == 1
    assert "HTTP 400" in failure
