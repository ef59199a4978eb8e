"""Fakes for tests without a sandbox provider, an engine or a clock."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import stat
from pathlib import Path

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Exit, Gateway, Sandbox
from tugline.core.errors import SandboxError

MAPPED = ("/app", "/logs", "/tests", "/solution", "/home/agent", "/root")


class FakeSandbox:
    """A host directory as a sandbox: real processes, no isolation. `/app` inside is `<top>/app` outside.

    Programs learn the real paths from their working directory and from environment variables: values that begin with
    a known sandbox path are mapped, text in scripts is not.
    """

    isolated = False

    def __init__(self, top: Path) -> None:
        self.top = top
        for name in ("app", "logs/agent", "logs/verifier", "tmp"):
            (top / name).mkdir(parents=True, exist_ok=True)

    @property
    def workdir(self) -> str:
        """A host path."""
        return self._real("/app")

    async def run(self, command: Command, deadline: Deadline, gateway: Gateway | None = None) -> Exit:
        """See Sandbox.run. The process group is killed at the end; what leaves it survives (a fake promises less)."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        outputs = await asyncio.to_thread(_outputs, command)
        try:
            process = await asyncio.create_subprocess_exec(
                *command.argv,
                env={k: self._real(v) for k, v in command.env.items()},
                cwd=self._real(command.cwd or "/app"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=outputs[0],
                stderr=outputs[1],
                start_new_session=True,
            )
        except OSError as err:
            raise SandboxError(f"{command.argv[0]} could not be started: {err.strerror}") from err
        finally:
            for fd in outputs:
                os.close(fd)
        timed_out = False
        try:
            async with asyncio.timeout_at(deadline.at):
                await process.wait()
        except TimeoutError:
            timed_out = True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        return Exit(process.returncode or 0, loop.time() - began, timed_out)

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """See Sandbox.write."""
        await asyncio.to_thread(self._write, Path(self._real(path)), data, mode)

    async def read(self, path: str, limit: int = 1 << 20) -> bytes | None:
        """See Sandbox.read. Links that leave the directory are absent."""
        return await asyncio.to_thread(self._read, path, limit)

    async def upload(self, source: Path, target: str) -> None:
        """See Sandbox.upload."""
        await asyncio.to_thread(shutil.copytree, source, self._real(target), symlinks=True, dirs_exist_ok=True)

    async def clone(self) -> Sandbox:
        """See Sandbox.clone."""
        twin = self.top.with_name(f"{self.top.name}.clone")
        await asyncio.to_thread(shutil.copytree, self.top / "app", twin / "app", symlinks=True)
        return FakeSandbox(twin)

    async def close(self) -> None:
        """See Sandbox.close."""
        await asyncio.to_thread(shutil.rmtree, self.top, ignore_errors=True)

    def _real(self, path: str) -> str:
        known = any(path == p or path.startswith(f"{p}/") for p in MAPPED)
        return f"{self.top}{path}" if known else path

    def _write(self, path: Path, data: bytes, mode: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(mode)

    def _read(self, path: str, limit: int) -> bytes | None:
        try:
            real = Path(self._real(path)).resolve()
        except (OSError, RuntimeError) as err:
            raise SandboxError(f"read {path}: a link in a circle") from err
        if not real.is_relative_to(self.top.resolve()) or not real.exists():
            return None
        if not stat.S_ISREG(real.stat().st_mode):
            raise SandboxError(f"read {path}: not a regular file")
        if real.stat().st_size > limit:
            raise SandboxError(f"read {path}: larger than {limit} bytes")
        return real.read_bytes()


def _outputs(command: Command) -> tuple[int, int]:
    """Descriptors for standard output and error; both append, so that one file can be both."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    out = os.open(command.stdout or os.devnull, flags, 0o644)
    return out, os.open(command.stderr or os.devnull, flags, 0o644)
