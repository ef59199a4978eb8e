"""What the checks of the sandbox suite work with."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Exit, Gateway, Limits, Sandbox, SandboxProvider
from tugline.core.ident import new_id
from tugline.core.task import Copy, Environment

WAIT = 30.0


@dataclass(frozen=True, slots=True)
class Bench:
    """What a check works with. `scratch` is a host directory of its own."""

    provider: SandboxProvider
    scratch: Path

    async def start(self, steps: tuple[Copy | str, ...] = (), limits: Limits | None = None) -> Sandbox:
        """A sandbox with /app as its work directory."""
        digest = new_id("env") if steps else ""
        environment = Environment(image="", workdir="/app", steps=steps, digest=digest)
        return await self.provider.start(environment, new_id("s"), limits or Limits(disk=64 << 20))

    async def sh(
        self, box: Sandbox, script: str, *, deadline: float = WAIT, gateway: Gateway | None = None
    ) -> tuple[Exit, str]:
        """Run a bash script; (how it ended, its output)."""
        log = self.scratch / new_id("log")
        command = Command(("bash", "-c", script), env={"PATH": "/usr/bin:/bin"}, stdout=log, stderr=log)
        end = await box.run(command, Deadline.after(deadline), gateway)
        return end, await asyncio.to_thread(log.read_text, errors="replace")


@dataclass(frozen=True, slots=True)
class Check:
    """One promise. `isolating` = asked only of providers that isolate."""

    run: Callable[[Bench], Awaitable[None]]
    isolating: bool = False

    @property
    def name(self) -> str:
        """The promise in words."""
        return self.run.__name__.removeprefix("check_")


def expect(condition: bool, otherwise: str) -> None:
    """Raise AssertionError in words."""
    if not condition:
        raise AssertionError(otherwise)


def marked() -> str:
    """A name of its own for a process to carry."""
    return "tugmark" + new_id("m")[2:]


async def appear(mark: str, count: int) -> None:
    """Wait until so many processes carry the mark."""
    async with asyncio.timeout(WAIT):
        while len(await alive(mark)) < count:  # noqa: ASYNC110 - another process's start has no event here
            await asyncio.sleep(0.02)


async def alive(mark: str) -> list[int]:
    """Host pids of processes whose command line starts with `mark`."""

    def look() -> list[int]:
        out = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    line = Path(f"/proc/{entry}/cmdline").read_bytes()
                except OSError:
                    continue
                if line.startswith(mark.encode()):
                    out.append(int(entry))
        return out

    return await asyncio.to_thread(look)


def tree(path: Path) -> None:
    """A small directory with a script and a link."""
    (path / "sub/deep").mkdir(parents=True)
    (path / "sub/deep/x.txt").write_text("deep")
    (path / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (path / "run.sh").chmod(0o755)
    (path / "link").symlink_to("sub/deep/x.txt")


def talk(port: int) -> str:
    """A line of bash that prints what a port of 127.0.0.1 says."""
    return f"exec 5<>/dev/tcp/127.0.0.1/{port} && cat <&5; exec 5>&-\n"


def greet(
    text: str, seen: list[int] | None = None
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if seen is not None:
            seen.append(1)
        writer.write(f"{text}\n".encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    return greet


def server(
    text: str, seen: list[int] | None = None
) -> Callable[[socket.socket], Awaitable[Callable[[], Awaitable[None]]]]:
    async def serve(listener: socket.socket) -> Callable[[], Awaitable[None]]:
        server = await asyncio.start_server(greet(text, seen), sock=listener)

        async def close() -> None:
            server.close()
            await server.wait_closed()

        return close

    return serve
