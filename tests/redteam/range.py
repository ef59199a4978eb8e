"""Where the attacks are tried: a sandbox provider, a task with secrets, services on the host that nobody may reach."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from redteam.attacks import BAD, GOOD, SECRET, Attack
from service.gateway_kit import Kit, gateway
from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Exit, Gateway, Limits, Sandbox, SandboxProvider
from tugline.core.ident import new_id
from tugline.core.task import PYTHON_RESTORE, Carry, Copy, Environment, Task
from tugline.rollout.judging import Judged, Judging
from tugline.verifiers import verifier_for

LIMITS = Limits(memory=256 << 20, disk=64 << 20, pids=64)
ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/agent", "LANG": "C.UTF-8"}
HIDDEN = f"""from calc import add, total

# {SECRET}


def test_add():
    assert add(1, 2) == 3


class TestTotal:
    def test_total(self):
        assert total([1, 2, 3]) == 6
"""
MORE = """import unittest

from calc import add


class More(unittest.TestCase):
    def test_negative(self):
        self.assertEqual(add(-4, 1), -3)
"""
SCRIPT = f"""#!/bin/sh
# {SECRET}
echo 0 > /logs/verifier/reward.txt
[ "$(cat /app/base.txt)" = base ] && cmp -s /app/answer.txt /tests/expected.txt && echo 1 > /logs/verifier/reward.txt
exit 0
"""


def make_task(top: Path, verifier: str) -> Task:
    """A task whose work directory holds `calc` undone, base.txt and keep.txt."""
    tree = top / "environment" / "files"
    (tree / "calc").mkdir(parents=True)
    (tree / "calc" / "__init__.py").write_text(BAD)
    (tree / "base.txt").write_text("base\n")
    (tree / "keep.txt").write_text("keep\n")
    tests = top / "tests"
    tests.mkdir()
    if verifier == "pytest":
        (tests / "test_calc.py").write_text(HIDDEN)
        (tests / "test_more.py").write_text(MORE)
    else:
        (tests / "test.sh").write_text(SCRIPT)
        (tests / "expected.txt").write_text(f"{SECRET}\n")
    (top / "solution").mkdir()
    (top / "solution" / "solve.sh").write_text(f"echo {SECRET} > /app/answer.txt\n")
    environment = Environment("", "/app", steps=(Copy(tree, "/app"),), digest=secrets.token_hex(8))
    carry = Carry(restore=PYTHON_RESTORE) if verifier == "pytest" else None
    return Task("calc", "calc", "Make calc right.", environment, top, tests, verifier=verifier, carry=carry,
                solution_dir=top / "solution")  # fmt: skip


class Sink(asyncio.DatagramProtocol):
    """What arrived at the host's services, which must be nothing."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.heard.append((addr, data))

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard.append(writer.get_extra_info("peername"))
        writer.close()


@dataclass
class Range:
    """What an attack meets."""

    provider: SandboxProvider
    judging: Judging
    top: Path
    said: list[str] = field(default_factory=list)
    n: int = 0

    async def attack(
        self,
        task: Task,
        attack: Attack,
        env: dict[str, str] | None = None,
        listener: Gateway | None = None,
        seconds: float = 20.0,
    ) -> tuple[Sandbox, Exit, str]:
        """Run an attack as an agent: (its box, not closed; how it ended; everything that it printed)."""
        self.n += 1
        folder = self.top / "run" / "sessions" / f"ses_{self.n}"
        await asyncio.to_thread(folder.mkdir, parents=True)
        box = await self.provider.start(task.environment, new_id("ses"), LIMITS)
        for path, text in attack.files.items():
            argv = ("/bin/sh", "-c", 'mkdir -p "$(dirname "$1")" && cat > "$1"', "sh", path)
            await box.run(Command(argv, ENV, task.environment.workdir, stdin=text.encode()), Deadline.after(20))
        command = Command(
            ("/bin/sh", "-c", attack.script), ENV | (env or {}), task.environment.workdir, stdout=folder / "agent.log",
            stderr=folder / "agent.err",
        )  # fmt: skip
        ended = await box.run(command, Deadline.after(seconds), listener)
        printed = await asyncio.to_thread(lambda: b"".join(p.read_bytes() for p in sorted(folder.iterdir())))
        return box, ended, printed.decode(errors="replace")

    async def judge(self, task: Task, box: Sandbox, seconds: float = 150.0) -> Judged:
        """Score what an attack left."""
        return await self.judging.judge(task, box, seconds, self.top / "run" / "sessions" / f"ses_{self.n}")


@asynccontextmanager
async def shooting_range(provider: SandboxProvider, top: Path) -> AsyncIterator[Range]:
    """Judging over a provider; the provider stays the caller's."""
    said: list[str] = []
    yield Range(provider, Judging(provider, verifier_for, LIMITS, said.append), top, said)
    assert not said or all("cannot be judged again" in line for line in said)


@dataclass
class Host:
    """A gateway with a victim's session, and services of the host that no agent may reach."""

    kit: Kit
    sink: Sink
    env: dict[str, str]

    def listener(self, session_id: str) -> Gateway:
        """What the attacker's sandbox gets."""
        return Gateway(8000, lambda sock: self.kit.gateway.serve(session_id, sock))


@asynccontextmanager
async def host(top: Path) -> AsyncIterator[Host]:
    """Everything an attacker might want, listening."""
    loop, sink = asyncio.get_running_loop(), Sink()
    async with gateway(top, [{"text": "hello"}] * 50) as kit:
        victim, own = await kit.session("ses_victim"), await kit.session("ses_attacker")
        tcp = await asyncio.start_server(sink.connected, "0.0.0.0", 0)
        port = tcp.sockets[0].getsockname()[1]
        udp, _ = await loop.create_datagram_endpoint(lambda: sink, local_addr=("0.0.0.0", port))
        abstract, path = f"sink-{port}", top / "sink.sock"
        raw = socket.socket(socket.AF_UNIX)
        raw.bind(f"\0{abstract}")
        hidden = await asyncio.start_unix_server(sink.connected, sock=raw)
        named = await asyncio.start_unix_server(sink.connected, path)
        path.chmod(0o777)
        env = {
            "URL": "http://127.0.0.1:8000", "KEY": own.secret, "VICTIM_KEY": victim.secret, "CONTROL_PORT": str(port),
            "SINK_PORT": str(port), "SINK_ABSTRACT": abstract, "SINK_PATH": str(path), "HOST_ADDRESS": address(),
        }  # fmt: skip
        try:
            yield Host(kit, sink, env)
        finally:
            udp.close()
            for server in (tcp, hidden, named):
                server.close()


def address() -> str:
    """This machine's own address; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def solved(attack: Attack) -> Attack:
    """The same attack around work that is right."""
    return replace(attack, files={**attack.files, "calc/__init__.py": GOOD})
