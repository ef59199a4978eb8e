"""A Python function of the operator's as a verifier: `function:MODULE:NAME`.

It runs on the operator's side in a process of its own, so that it can hang, crash or take all memory without harm to
other sessions, and it is given copies of the agent's files to read, never to run: whatever it executes of them runs
with the operator's rights.

    def score(work: Work) -> float | dict[str, float]: ...
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shutil
import signal
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Sandbox, Verdict
from tugline.core.errors import SandboxError, VerifierError, boundary
from tugline.core.task import Task
from tugline.verifiers.harbor import LOG_NAME, PATH
from tugline.verifiers.rewards import from_json

PACKAGES = Path(__file__).resolve().parents[2]
"""Where the child finds this package, whatever the working directory."""
MAX_WORK = 60 << 20
"""Bytes of a work directory, as a tar stream."""
MAX_ANSWER = 64 * 1024
MEMORY = 16 << 30
"""Bytes of address space."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a function judges. `files`: a copy of the work directory's regular files, links left out; `session`: the
    session's folder with agent.log, where there is one; `options`: the task's own."""

    task_id: str
    instruction: str
    files: Path
    session: Path
    metadata: dict[str, Any]
    options: dict[str, Any]


class Order(msgspec.Struct):
    """What the child process is told."""

    target: str
    task_id: str
    instruction: str
    files: str
    session: str
    metadata: dict[str, Any]
    options: dict[str, Any]
    memory: int


class FunctionVerifier:
    """Implements core Verifier."""

    name = "function"

    def __init__(self, target: str) -> None:
        self._target = target

    async def judge(self, task: Task, box: Sandbox, deadline: Deadline, out: Path) -> Verdict:
        """What the function says; an exception, a time-out or anything but finite numbers is a VerifierError."""
        await asyncio.to_thread(out.mkdir, parents=True, exist_ok=True)
        work = await asyncio.to_thread(tempfile.mkdtemp, prefix="tugline-work-")
        try:
            await _copy(box, Path(work), deadline, out)
            order = Order(
                self._target, task.task_id, task.instruction, work, str(out.parent.absolute()), dict(task.metadata),
                dict(task.verifier_options), MEMORY,
            )  # fmt: skip
            answer = await _ask(msgspec.json.encode(order, enc_hook=str), deadline, out / LOG_NAME)
        finally:
            await asyncio.to_thread(_remove, work)
        return from_json(answer, "what the function returned")


async def _ask(order: bytes, deadline: Deadline, log: Path) -> bytes:
    """Run the child to its end. Raises VerifierError."""
    answer, into = os.pipe()
    os.set_blocking(answer, False)
    try:
        said = await asyncio.to_thread(os.open, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        paths = [str(PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tugline.verifiers.function_child", str(into), stdin=asyncio.subprocess.PIPE,
                stdout=said, stderr=said, pass_fds=(into,), start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )  # fmt: skip
        finally:
            os.close(said)
        os.close(into)
        into = -1
        try:
            async with asyncio.timeout_at(deadline.at):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    await process.communicate(order)
        except TimeoutError as err:
            raise VerifierError(f"the function ran into its time limit; see verifier/{log.name}") from err
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if process.returncode != 0:
            raise VerifierError(f"the function's process ended with {process.returncode}; see verifier/{log.name}")
        with contextlib.suppress(BlockingIOError):
            return os.read(answer, MAX_ANSWER)
        raise VerifierError("the function's process said nothing")
    finally:
        os.close(answer)
        if into >= 0:
            os.close(into)


async def _copy(box: Sandbox, target: Path, deadline: Deadline, out: Path) -> None:
    """Regular files of the work directory, on the host."""
    spool = out / "work.tar"
    env = {"PATH": PATH, "LC_ALL": "C"}
    command = Command(("tar", "-c", "-f", "-", "."), env, box.workdir, stdout=spool, root=True)
    try:
        ended = await box.run(command, deadline)
        if ended.code != 0 or ended.timed_out:
            raise SandboxError(f"the work directory could not be read (tar ended with {ended.code})")
        with boundary(VerifierError, "the work directory could not be copied"):
            await asyncio.to_thread(unpack, spool, target)
    finally:
        await asyncio.to_thread(spool.unlink, missing_ok=True)


def unpack(archive: Path, target: Path) -> None:
    """Directories and regular files of a tar stream that an agent filled, and nothing outside `target`."""
    if archive.stat().st_size > MAX_WORK:
        raise VerifierError(f"the work directory has more than {MAX_WORK >> 20} MiB")
    with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir() or member.islnk()):
                continue
            at = target / path
            if member.isdir():
                at.mkdir(parents=True, exist_ok=True)
                continue
            data = tar.extractfile(member)
            if data is not None and not at.is_dir():
                at.parent.mkdir(parents=True, exist_ok=True)
                at.write_bytes(data.read())


def _remove(path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)
