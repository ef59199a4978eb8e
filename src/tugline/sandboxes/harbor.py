"""Harbor's environment back ends (Modal, Daytona, E2B, Kubernetes, ...) as sandboxes. NOT PROVEN with any of them.

`--sandbox harbor:modal`, or `harbor:module:Class` for an environment class of one's own. Harbor itself (the package
`harbor`, Python 3.12 or later) must be installed beside Tugline, with the back end's account set up as Harbor wants it.
What a remote machine cannot promise: agents reach the gateway over the network, by their session's key, so
`gateway.host` and `gateway.advertise` must be reachable from there and the back end decides what else is; a harness
must be in the image; output arrives when its command has ended; a process that hides its environment outlives its
command until the sandbox is closed. Judging happens in an environment of its own.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib
import logging
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Exit, Gateway, Limits, Sandbox
from tugline.core.errors import SandboxError, boundary
from tugline.core.ident import new_id
from tugline.core.task import Copy, Environment
from tugline.sandboxes import files, layout
from tugline.sandboxes.client import uninterrupted
from tugline.sandboxes.runtimes import quote

OUTPUT_LIMIT = 64 << 20
TOOL_SECONDS = 120
KILL = (
    "for r in 1 2 3; do for p in /proc/[0-9]*; do "
    "tr '\\0' '\\n' < $p/environ 2>/dev/null | grep -qx TUGLINE_JOB={job} && kill -9 ${{p#/proc/}} 2>/dev/null; "
    "done; done; true"
)


class Result(Protocol):
    """What an environment says of a command."""

    stdout: str | None
    stderr: str | None
    return_code: int


class Remote(Protocol):
    """The slice of Harbor's BaseEnvironment that is used."""

    async def start(self, force_build: bool) -> None: ...

    async def stop(self, delete: bool) -> None: ...

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> Result: ...

    async def upload_file(self, source_path: Path | str, target_path: str) -> None: ...

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None: ...

    async def download_file(self, source_path: str, target_path: Path | str) -> None: ...


Make = Callable[[Environment, str, Path], Remote]
"""An environment that is not started: (what it is made from, a name, a directory of its own on the host)."""


class HarborProvider:
    """Sandboxes from a back end. One scratch directory per provider."""

    isolating = False

    def __init__(self, name: str, state_dir: Path, make: Make) -> None:
        self.name = name
        self._place = state_dir / new_id("harbor")
        self._make = make
        self._open: set[HarborSandbox] = set()

    async def check(self) -> list[str]:
        """Whether Harbor and the back end's client can be loaded; what a sandbox costs is not spent."""
        try:
            with boundary(SandboxError, "load Harbor"):
                await asyncio.to_thread(self._make, Environment(""), "check", self._place)
        except SandboxError as err:
            return [f"{err.message}. Install it in a Python of 3.12 or later: pip install harbor"]
        finally:
            await asyncio.to_thread(shutil.rmtree, self._place, ignore_errors=True)
        return []

    async def describe(self) -> str:
        """One line, with the warning."""
        return f"{self.name}: remote; agents reach the gateway over the network; the back end decides what else"

    async def start(self, environment: Environment, session_id: str, limits: Limits) -> HarborSandbox:
        """See SandboxProvider. The back end prepares; sizes are the task's own."""
        place = self._place / new_id("s")
        with boundary(SandboxError, f"start a sandbox of {self.name}"):
            await asyncio.to_thread(write_context, environment, place / "environment")
            remote = await asyncio.to_thread(self._make, environment, session_id, place)
            box = HarborSandbox(self, remote, environment, place)
            self._open.add(box)
            try:
                await remote.start(False)
                await box.tool(f"mkdir -p {quote(environment.workdir)} {layout.HOME} /logs/agent /logs/verifier")
            except BaseException:
                await uninterrupted(box.close())
                raise
        return box

    def forget(self, box: HarborSandbox) -> None:
        """It is closed."""
        self._open.discard(box)

    async def reap(self) -> int:
        """Nothing here: back ends end what nobody uses by their own rules."""
        return 0

    async def close(self) -> None:
        """See SandboxProvider."""
        for box in list(self._open):
            await uninterrupted(box.close())
        await asyncio.to_thread(shutil.rmtree, self._place, ignore_errors=True)


class HarborSandbox:
    """See `Sandbox` in core.contracts, and the module's text for what is not promised."""

    isolated = False
    home = layout.HOME

    def __init__(self, provider: HarborProvider, remote: Remote, environment: Environment, place: Path) -> None:
        self._provider = provider
        self._remote = remote
        self._environment = environment
        self._place = place
        self._closed = False

    @property
    def workdir(self) -> str:
        """Path inside."""
        return self._environment.workdir

    async def run(self, command: Command, deadline: Deadline, gateway: Gateway | None = None) -> Exit:
        """See Sandbox.run. Output is there when the command has ended; `gateway` and `mounts` mean nothing here."""
        self._check()
        job = new_id("job")
        far = f"/tmp/.{job}"
        began = time.monotonic()
        async with self._scratch() as near:
            (near / "run").write_bytes(_script(command, self._environment, job, far))
            (near / "in").write_bytes(command.stdin)
            with boundary(SandboxError, "send the command"):
                await self._remote.upload_dir(near, far)
            left = max(1, int(deadline.at - asyncio.get_running_loop().time()) + 1)
            user = "root" if command.root else None
            code = -9
            try:
                async with asyncio.timeout_at(deadline.at):
                    code = (await self._remote.exec(f"sh {far}/run", timeout_sec=left + 5, user=user)).return_code
            except (TimeoutError, RuntimeError):
                if time.monotonic() - began < left - 2:
                    raise
            finally:
                await uninterrupted(self.tool(KILL.format(job=job)))
            timed_out = asyncio.get_running_loop().time() >= deadline.at
            for name, target in (("out", command.stdout), ("err", command.stderr)):
                if target is not None and not (name == "err" and target == command.stdout):
                    await self._fetch(f"{far}/{name}", target)
        await self.tool(f"rm -rf {far}")
        return Exit(code if not timed_out else -9, time.monotonic() - began, timed_out)

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """See Sandbox.write. A link at `path` is replaced."""
        self._check()
        place, far = quote(layout.plain(path)), f"/tmp/.{new_id('w')}"
        async with self._scratch() as near:
            (near / "data").write_bytes(data)
            with boundary(SandboxError, f"write {path}"):
                await self._remote.upload_file(near / "data", far)
        folder = f'"$(dirname -- {place})"'
        await self.tool(f"mkdir -p -- {folder} && chmod {mode & 0o7777:o} {far} && mv -fT -- {far} {place}")

    async def read(self, path: str, limit: int = 1 << 20) -> bytes | None:
        """See Sandbox.read."""
        self._check()
        script = files.READ.replace("exec head", "head") + " | base64"
        done = await self._exec(" ".join(("sh", "-c", quote(script), "sh", quote(layout.plain(path)), str(limit + 1))))
        if done.return_code == files.ABSENT:
            return None
        if done.return_code != 0:
            raise SandboxError(f"read {path}: not a regular file")
        data = base64.b64decode(done.stdout or "")
        if len(data) > limit:
            raise SandboxError(f"read {path}: larger than {limit} bytes")
        return data

    async def upload(self, source: Path, target: str) -> None:
        """See Sandbox.upload."""
        self._check()
        place = layout.plain(target)
        whole = await asyncio.to_thread(source.is_dir)
        await self.tool(f"mkdir -p -- {quote(place if whole else place.rpartition('/')[0] or '/')}")
        with boundary(SandboxError, f"upload to {target}"):
            if whole:
                await self._remote.upload_dir(source, place)
            else:
                await self._remote.upload_file(source, place)

    async def clone(self) -> Sandbox:
        """See Sandbox.clone: an environment of its own, and the work directory through this host."""
        self._check()
        fresh = await self._provider.start(self._environment, new_id("judge"), Limits())
        far, inner = f"/tmp/.{new_id('c')}", quote(self.workdir)
        try:
            await self.tool(f"tar -czf {far} -C {inner} .")
            async with self._scratch() as near:
                with boundary(SandboxError, "copy the work directory"):
                    await self._remote.download_file(far, near / "work")
                    await fresh._remote.upload_file(near / "work", far)
            await fresh.tool(f"find {inner} -mindepth 1 -delete; tar -xzf {far} --no-same-owner -C {inner} && rm {far}")
            await self.tool(f"rm {far}")
        except BaseException:
            await uninterrupted(fresh.close())
            raise
        return fresh

    async def close(self) -> None:
        """See Sandbox.close."""
        if self._closed:
            return
        self._closed = True
        self._provider.forget(self)
        with boundary(SandboxError, "remove a remote sandbox"):
            await self._remote.stop(True)
        await asyncio.to_thread(shutil.rmtree, self._place, ignore_errors=True)

    async def tool(self, script: str) -> None:
        """One of our own scripts, as root. Raises SandboxError unless it ends well."""
        done = await self._exec(script)
        if done.return_code != 0:
            raise SandboxError(f"`{script[:100]}` ended with {done.return_code}: {(done.stderr or '').strip()[-300:]}")

    async def _exec(self, script: str) -> Result:
        with boundary(SandboxError, "run a command in a remote sandbox"):
            return await self._remote.exec(script, timeout_sec=TOOL_SECONDS, user="root")

    async def _fetch(self, far: str, target: Path) -> None:
        with boundary(SandboxError, "fetch a command's output"), contextlib.suppress(FileNotFoundError):
            await self._remote.download_file(far, target)

    def _check(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox is closed")

    @asynccontextmanager
    async def _scratch(self) -> AsyncIterator[Path]:
        near = self._place / new_id("x")
        await asyncio.to_thread(near.mkdir, parents=True)
        try:
            yield near
        finally:
            await asyncio.to_thread(shutil.rmtree, near, ignore_errors=True)


def _script(command: Command, environment: Environment, job: str, far: str) -> bytes:
    env = {"PATH": layout.PATH, "HOME": layout.HOME, **command.env, "TUGLINE_JOB": job}
    words = ["env", "-i", *(f"{k}={v}" for k, v in env.items()), "/bin/sh", "-c", 'exec "$@"', "sh", *command.argv]
    err = f"{far}/out" if command.stderr is not None and command.stderr == command.stdout else f"{far}/err"
    body = f"cd {quote(command.cwd or environment.workdir)} && {' '.join(map(quote, words))}"
    lines = [f"( {body} ) <{far}/in >>{far}/out 2>>{err}", "code=$?"]
    lines += [f"[ ! -e {far}/{n} ] || truncate -c -s '<{OUTPUT_LIMIT}' {far}/{n}" for n in ("out", "err")]
    return ("\n".join([*lines, "exit $code"]) + "\n").encode()


def write_context(environment: Environment, folder: Path) -> None:
    """A directory with a Dockerfile that says what the environment is made from. Raises OSError."""
    folder.mkdir(parents=True)
    lines = [f"FROM {environment.image or 'debian:bookworm-slim'}", f"WORKDIR {environment.workdir}"]
    lines += [f"ENV {name}={_docker_word(value)}" for name, value in environment.env.items()]
    for number, step in enumerate(environment.steps):
        if isinstance(step, Copy):
            inner = folder / f"copy{number}"
            if step.source.is_dir():
                shutil.copytree(step.source, inner, symlinks=True)
                lines.append(f"COPY copy{number}/ {step.target.rstrip('/')}/")
            else:
                inner.mkdir()
                shutil.copy(step.source, inner / step.source.name)
                lines.append(f"COPY copy{number}/{step.source.name} {step.target}")
        else:
            (folder / f"step{number}.sh").write_text(step)
            lines.append(f"COPY step{number}.sh /tmp/step{number}.sh")
            lines.append(f"RUN sh /tmp/step{number}.sh && rm /tmp/step{number}.sh")
    (folder / "Dockerfile").write_text("\n".join(lines) + "\n")


def _docker_word(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("\n", "\\n")
    return f'"{escaped}"'


def maker(spec: str) -> Make:
    """Makes environments of a back end of Harbor's, by its name there or as module:Class. Imports Harbor when used."""

    def make(environment: Environment, name: str, place: Path) -> Remote:
        config = importlib.import_module("harbor.models.task.config").EnvironmentConfig(
            cpus=environment.cpus, memory_mb=environment.memory_mb, storage_mb=environment.storage_mb,
            workdir=environment.workdir,
        )  # fmt: skip
        paths = importlib.import_module("harbor.models.trial.paths").TrialPaths(place / "trial")
        (place / "trial").mkdir(parents=True, exist_ok=True)
        known: dict[str, Any] = {
            "environment_dir": place / "environment", "environment_name": "tugline", "session_id": name,
            "trial_paths": paths, "task_env_config": config, "logger": logging.getLogger("harbor"),
        }  # fmt: skip
        factory = importlib.import_module("harbor.environments.factory").EnvironmentFactory
        if ":" in spec:
            found: Remote = factory.create_environment_from_import_path(spec, **known)
        else:
            kind = importlib.import_module("harbor.models.environment_type").EnvironmentType(spec)
            found = factory.create_environment(kind, **known)
        return found

    return make
