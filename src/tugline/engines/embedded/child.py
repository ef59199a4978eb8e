"""One life of the engine process: start, talk, notice its death, end it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

import tugline
from tugline.core.errors import EngineError, boundary
from tugline.engines.embedded import wire
from tugline.engines.journal import next_boot
from tugline.engines.modeldir import Asked

_TAIL = 2000
"""Bytes of the process's log that an error carries."""

_LINGER = 5.0


@dataclass(frozen=True, slots=True)
class Spec:
    """What every life of the process is started with."""

    model_dir: Path
    journal_dir: Path
    device: str
    threads: int
    slots: int
    seed: int | None
    asked: Asked = Asked()


class Child:
    """A running engine process. Made by `start`."""

    def __init__(self, process: asyncio.subprocess.Process, sock: socket.socket, log: Path) -> None:
        self.process = process
        self.log = log
        self._sock = sock
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @classmethod
    async def start(cls, spec: Spec, weights: tuple[Path, int] | None) -> Child:
        """Spawned, not ready yet. Raises EngineError."""
        boot, log, out = await asyncio.to_thread(_prepare, spec.journal_dir)
        ours, theirs = socket.socketpair()
        with theirs:
            options = wire.Options(
                fd=theirs.fileno(),
                parent=os.getpid(),
                model_dir=str(spec.model_dir),
                journal_dir=str(spec.journal_dir),
                boot=boot,
                device=spec.device,
                threads=spec.threads,
                slots=spec.slots,
                seed=spec.seed,
                asked=spec.asked,
                weights=str(weights[0]) if weights else None,
                version=weights[1] if weights else 0,
            )
            try:
                with boundary(EngineError, "start the engine process"):
                    process = await asyncio.create_subprocess_exec(
                        sys.executable,
                        "-m",
                        "tugline.engines.embedded.server",
                        msgspec.json.encode(options).decode(),
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=out,
                        pass_fds=(theirs.fileno(),),
                        env=_environment(spec.threads),
                    )
            except BaseException:
                ours.close()
                raise
            finally:
                os.close(out)
        child = cls(process, ours, log)
        try:
            child._reader, child._writer = await asyncio.open_unix_connection(sock=ours, limit=1 << 20)
        except BaseException:
            ours.close()
            await child.end(0.0)
            raise
        return child

    def send(self, message: wire.ToChild) -> None:
        """Queue a message. To a dead process it is lost; its death fails whoever waits."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(wire.frame(message))

    async def drain(self) -> None:
        """Wait while much is queued."""
        with suppress(ConnectionError):
            if self._writer is not None:
                await self._writer.drain()

    async def receive(self) -> wire.FromChild | None:
        """The next message, or None when the process has closed its end."""
        if self._reader is None:
            return None
        try:
            head = await self._reader.readexactly(wire.LENGTH.size)
            return wire.from_child(await self._reader.readexactly(wire.LENGTH.unpack(head)[0]))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def listen(self, handle: Callable[[wire.FromChild], None]) -> None:
        """Give each message to `handle` until the process has closed its end."""
        while (message := await self.receive()) is not None:
            handle(message)

    async def post_mortem(self) -> str:
        """How the process ended, with the end of its log. It has closed its end; it is killed if it lingers."""
        try:
            async with asyncio.timeout(_LINGER):
                code = await self.process.wait()
        except TimeoutError:
            self.process.kill()
            code = await self.process.wait()
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        tail = await asyncio.to_thread(_tail, self.log)
        return f"the engine process ended ({how}); log {self.log}{': ' + tail if tail else ' is empty'}"

    async def end(self, grace: float) -> None:
        """Ask it to stop, kill it after `grace` seconds. No process is left when this returns, cancelled or not."""
        try:
            self.send(wire.Stop())
            if self._writer is not None:
                self._writer.close()  # flushes first; the process also stops at end of file
            async with asyncio.timeout(grace):
                await self.process.wait()
        except TimeoutError:
            pass
        finally:
            if self.process.returncode is None:
                with suppress(ProcessLookupError):
                    self.process.kill()
            await self.process.wait()
            if self._writer is not None:
                self._writer.close()
                with suppress(ConnectionError):
                    await self._writer.wait_closed()


def _prepare(journal_dir: Path) -> tuple[str, Path, int]:
    """A name for the process's life, its log and the log's descriptor."""
    with boundary(EngineError, "create the engine's directory"):
        journal_dir.mkdir(parents=True, exist_ok=True)
        boot = next_boot(journal_dir)
        log = journal_dir / f"engine-{boot}.log"
        return boot, log, os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _environment(threads: int) -> dict[str, str]:
    root = str(Path(tugline.__file__).parent.parent)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }


def _tail(log: Path) -> str:
    try:
        return log.read_bytes()[-_TAIL:].decode(errors="replace").strip()
    except OSError:
        return ""
