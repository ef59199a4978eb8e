"""Real Pi in a real sandbox against a small scripted model server behind the sandbox's own listener."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import msgspec
import pytest

from tugline.core.clock import Deadline
from tugline.core.contracts import Bundle, Command, Gateway, Launch, Limits, Mount
from tugline.core.task import Environment
from tugline.harnesses import bundles, harness
from tugline.harnesses.pi import INSIDE, NODE_INSIDE, PACKAGE
from tugline.sandboxes import provider as find

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
PORT = 8000


class Model:
    """Answers Chat requests with scripted turns as an event stream; `fail` = an HTTP status instead."""

    def __init__(self, *turns: dict[str, object], fail: int = 0) -> None:
        self.turns, self.fail, self.bodies = list(turns), fail, []

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
        assert "authorization: bearer tug-key" in head
        if self.fail:
            writer.write(
                f"HTTP/1.1 {self.fail} no\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n".encode()
            )
            writer.write(b'{"error":{"message":"nothing here","type":"invalid_request_error"}}')
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
            turn = self.turns.pop(0)
            reason = "tool_calls" if "tool_calls" in turn else "stop"
            base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "policy"}
            for choice in ({"index": 0, "delta": turn}, {"index": 0, "delta": {}, "finish_reason": reason}):
                writer.write(b"data: " + msgspec.json.encode({**base, "choices": [choice]}) + b"\n\n")
            writer.write(b"data: [DONE]\n\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()


def call(name: str, **arguments: str) -> dict[str, object]:
    function = {"name": name, "arguments": msgspec.json.encode(arguments).decode()}
    return {
        "role": "assistant",
        "tool_calls": [{"index": 0, "id": f"c_{name}", "type": "function", "function": function}],
    }


def launch(instruction: str, box, url: str = f"http://127.0.0.1:{PORT}") -> Launch:
    home = "/home/agent"
    return Launch(instruction, url, "tug-key", box.workdir, home, 32768, 1024, box.isolated)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Bundle:
    """TUGLINE_TEST_PI names an installation; without it Pi is installed for real, once."""
    given = os.environ.get("TUGLINE_TEST_PI")
    if given:
        return Bundle((Mount(Path(given), INSIDE), Mount(bundles.node_dir(), NODE_INSIDE)), PACKAGE.version)
    cache = Path(os.environ.get("TUGLINE_CACHE") or tmp_path_factory.mktemp("cache"))
    return asyncio.run(harness("pi").install(cache, print))


@pytest.fixture
async def boxes(tmp_path):
    provider = find("bubblewrap", tmp_path / "state", "test")
    if missing := await provider.check():
        pytest.skip(missing[0])
    yield provider
    await provider.close()


async def run_pi(boxes, bundle, model, instruction, tmp_path, seconds=90.0):
    box = await boxes.start(Environment(image="", workdir="/app"), "s", Limits(memory=2 << 30, disk=64 << 20))
    plan = harness("pi").plan(launch(instruction, box), bundle)
    for path, data in plan.files:
        await box.write(path, data)
    out, err = tmp_path / "out", tmp_path / "err"
    command = plan.command
    command = Command(
        command.argv, command.env, command.cwd, command.stdin, stdout=out, stderr=err, mounts=command.mounts
    )
    end = await box.run(command, Deadline.after(seconds), Gateway(PORT, model.serve))
    log = out.read_bytes()
    return box, end, log, err.read_text()


async def test_writes_a_file_and_ends(boxes, bundle, tmp_path):
    model = Model(
        call("write", path="hello.txt", content="hi\n"),
        call("bash", command="sleep 1000 >/dev/null 2>&1 & wc -c hello.txt; pwd; id -un"),
        {"role": "assistant", "content": "Done."},
    )
    box, end, log, err = await run_pi(boxes, bundle, model, "- Make hello.txt\nwith @hi in it\n", tmp_path)
    assert end.code == 0, (log[-2000:], err)
    assert harness("pi").failure(end, log) is None
    assert await box.read("/app/hello.txt") == b"hi\n"
    first, last = model.bodies[0], model.bodies[-1]
    assert [t["function"]["name"] for t in first["tools"]] == ["read", "bash", "edit", "write"]
    assert first["messages"][0]["role"] == "system"
    assert INSIDE in first["messages"][0]["content"]
    said = first["messages"][1]["content"]
    assert (said if isinstance(said, str) else said[0]["text"]) == "- Make hello.txt\nwith @hi in it"
    assert first["max_tokens"] == 1024
    assert "3 hello.txt\n/app\nagent" in str(last["messages"][-1]["content"])
    print(f"pi: {end.seconds:.2f} s for 3 turns")
    await box.close()


async def test_in_a_local_sandbox(bundle, tmp_path):
    boxes = find("local", tmp_path / "state", "test")
    box = await boxes.start(Environment(image="", workdir="/app"), "s", Limits())
    model = Model(call("write", path="hello.txt", content="hi\n"), {"role": "assistant", "content": "Done."})
    listener = socket.create_server(("127.0.0.1", 0))
    close = await model.serve(listener)
    plan = harness("pi").plan(launch("go", box, f"http://127.0.0.1:{listener.getsockname()[1]}"), bundle)
    for path, data in plan.files:
        await box.write(path, data)
    end = await box.run(plan.command, Deadline.after(60))
    assert end.code == 0
    assert await box.read("/app/hello.txt") == b"hi\n"
    await close()
    await boxes.close()


async def test_a_fatal_api_error_is_a_failure_although_pi_ends_with_0(boxes, bundle, tmp_path):
    box, end, log, _ = await run_pi(boxes, bundle, Model(fail=400), "x", tmp_path)
    assert end.code == 0
    assert "nothing here" in (harness("pi").failure(end, log[-20_000:]) or "")
    await box.close()


async def test_a_huge_instruction_that_looks_like_a_file_argument(boxes, bundle, tmp_path):
    text = "@/etc/passwd -- --help " + "word " * 60_000
    model = Model({"role": "assistant", "content": "ok"})
    box, end, log, _ = await run_pi(boxes, bundle, model, text, tmp_path)
    assert end.code == 0, log[-1000:]
    said = model.bodies[0]["messages"][1]["content"]
    assert (said if isinstance(said, str) else said[0]["text"]) == text.strip()
    await box.close()


async def test_the_deadline_ends_pi_and_its_tool(boxes, bundle, tmp_path):
    model = Model(call("bash", command="setsid sleep 1000; sleep 1000"))
    box, end, log, _ = await run_pi(boxes, bundle, model, "x", tmp_path, seconds=6)
    assert end.timed_out and len(model.bodies) == 1, log[-1000:]
    await box.close()
