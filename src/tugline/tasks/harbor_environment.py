"""Our sandboxes as an environment of Harbor (the package `harbor`, Python 3.12 or later, not a dependency).

    harbor run -p TASKS -a oracle --env tugline.tasks.harbor_environment:TuglineEnvironment
    ... --ek sandbox=container --ek runtime=podman

Import it only where Harbor is installed. Sandboxes have no network: a task that asks for a public one gets none, and
the log says so. Sidecar services, GPUs and health checks of compose files are not there.
"""

from __future__ import annotations

import asyncio
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Limits, Sandbox, SandboxProvider
from tugline.core.task import Environment
from tugline.sandboxes import SandboxOptions, provider
from tugline.tasks.dockerfile import read_dockerfile

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LONGEST = 24 * 3600.0
"""Seconds of a command for which Harbor names no limit."""
LARGEST = 60 << 20
"""Bytes of a file or a packed directory that can be fetched."""
ROOT = (None, "root", 0, "0")


class TuglineEnvironment(BaseEnvironment):  # type: ignore[misc]  # Harbor is not there when types are checked
    """One sandbox per environment. `sandbox`, `runtime`, `image`: as the settings of these names; `cache`: a directory
    for prepared snapshots and unpacked images, for other trials too."""

    def __init__(
        self,
        *args: Any,
        sandbox: str = "bubblewrap",
        runtime: str = "auto",
        image: str = "host",
        cache: str | None = None,
        **kwargs: Any,
    ) -> None:
        self._sandbox = sandbox
        self._options = SandboxOptions(Path(cache) if cache else None, runtime, {}, image)
        self._scratch: Path | None = None
        self._provider: SandboxProvider | None = None
        self._box: Sandbox | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        """Harbor's name of this kind of environment."""
        return "tugline"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """No network is what these environments can promise."""
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities | None:
        """Memory and disk are always limited; there is nothing to negotiate."""
        return None

    def _validate_definition(self) -> None:
        self._environment()

    def _environment(self) -> Environment:
        config = self.task_env_config
        file = Path(self.environment_dir, "Dockerfile")
        made = Environment(config.docker_image or "")
        if file.is_file():
            made = read_dockerfile(file, str(file))
        return Environment(
            image=made.image,
            workdir=config.workdir or made.workdir,
            env=made.env,
            steps=made.steps,
            digest=made.digest,
            cpus=config.cpus,
            memory_mb=config.memory_mb,
            storage_mb=config.storage_mb,
        )

    async def start(self, force_build: bool) -> None:
        """Prepare (once per task and cache) and open the sandbox. Raises SandboxError, TaskError."""
        if self._network_is_public:
            self.logger.warning("tugline sandboxes have no network; this task asks for a public one")
        self._scratch = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="tugline-harbor-"))
        self._provider = provider(self._sandbox, self._scratch / "state", "harbor", options=self._options)
        self._box = await self._provider.start(self._environment(), self.session_id, Limits())
        await self.ensure_dirs(["/logs/agent", "/logs/verifier", "/logs/artifacts"])
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:
        """Everything is removed, whatever `delete` says: nothing of a sandbox can be kept."""
        if self._provider is not None:
            await self._provider.close()
        if self._scratch is not None:
            await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)
        self._provider = self._box = self._scratch = None

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a bash command; every process that it started is dead when this returns.

        Raises RuntimeError at the time limit, as Harbor's own environments do.
        """
        root = self._resolve_user(user) in ROOT
        with tempfile.TemporaryDirectory(dir=self._there) as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            asked = Command(
                ("bash", "-c", command),
                env={"PATH": PATH, **self._environment().env, **(self._merge_env(env) or {})},
                cwd=cwd or self.task_env_config.workdir,
                stdout=out,
                stderr=err,
                root=root,
            )
            end = await self._opened.run(asked, Deadline.after(timeout_sec or LONGEST))
            if end.timed_out:
                raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
            texts = [await asyncio.to_thread(path.read_text, errors="replace") for path in (out, err)]
        return ExecResult(stdout=texts[0], stderr=texts[1], return_code=end.code if end.code >= 0 else 128 - end.code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a host file in."""
        await self._opened.upload(Path(source_path), str(target_path))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy a host directory's content in."""
        await self._opened.upload(Path(source_dir), str(target_dir))

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out. Raises FileNotFoundError."""
        data = await self._opened.read(str(source_path), LARGEST)
        if data is None:
            raise FileNotFoundError(source_path)
        await asyncio.to_thread(_put, Path(target_path), data)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy a directory's content out; links that lead out of it, and devices, are left behind."""
        with tempfile.TemporaryDirectory(dir=self._there) as folder:
            packed = Path(folder, "packed")
            asked = Command(("tar", "-czf", "-", "-C", str(source_dir), "."), {"PATH": PATH}, stdout=packed, root=True)
            end = await self._opened.run(asked, Deadline.after(600))
            if end.code != 0:
                raise FileNotFoundError(source_dir)
            await asyncio.to_thread(_unpack, packed, Path(target_dir))

    @property
    def _opened(self) -> Sandbox:
        if self._box is None:
            raise RuntimeError("the environment is not started")
        return self._box

    @property
    def _there(self) -> Path:
        if self._scratch is None:
            raise RuntimeError("the environment is not started")
        return self._scratch


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _unpack(packed: Path, into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    with tarfile.open(packed, mode="r:gz") as tar:
        for member in tar.getmembers():
            try:
                tar.extract(member, into, filter="data")
            except tarfile.FilterError:
                continue
