"""task.toml as Harbor defines it (schema 1.4 and its older spellings), typed.

Unknown keys are errors except in [metadata]: a misspelt limit that silently means "no limit" costs days.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Seconds = Annotated[float, Meta(gt=0, le=30 * 86400)]
Megabytes = Annotated[int, Meta(gt=0, le=1 << 30)]
Size = Annotated[str, Meta(pattern=r"^\s*\d{1,12}(\.\d{1,6})?[KMGkmg]\s*$")]
PackageName = Annotated[
    str, Meta(max_length=200, pattern=r"^[a-zA-Z0-9](?!.*\.\.)[a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*$")
]
Version = Annotated[str, Meta(pattern=r"^1(\.\d+)*$")]
Network = Literal["public", "no-network", "allowlist"]
Plain = Annotated[str, Meta(pattern=r"^[^\x00]*$")]
Env = dict[Annotated[str, Meta(pattern=r"^[^=\x00]+$")], Plain]


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """A table whose keys are all known."""


class Author(msgspec.Struct):
    """Who wrote it. Not used."""

    name: str
    email: str | None = None


class TaskTable(Strict):
    """[task]: the package."""

    name: PackageName
    version: Annotated[str, Meta(min_length=1)] | None = None
    description: str = ""
    authors: list[Author] = []
    keywords: list[str] = []


class AgentTable(Strict):
    """[agent]."""

    timeout_sec: Seconds | None = None
    user: str | int | None = None
    network_mode: Network | None = None
    allowed_hosts: list[str] | None = None


class Healthcheck(Strict):
    """[environment.healthcheck]."""

    command: Annotated[str, Meta(min_length=1)]
    interval_sec: Seconds = 5
    timeout_sec: Seconds = 30
    start_period_sec: Annotated[float, Meta(ge=0, le=86400)] = 0
    start_interval_sec: Seconds = 5
    retries: Annotated[int, Meta(ge=1, le=1000)] = 3


class EnvironmentTable(Strict):
    """[environment]. `memory`, `storage` and `allow_internet` are older spellings."""

    build_timeout_sec: Seconds | None = None
    docker_image: Annotated[str, Meta(min_length=1)] | None = None
    os: str = "linux"
    cpus: Annotated[float, Meta(gt=0, le=4096)] | None = None
    memory_mb: Megabytes | None = None
    storage_mb: Megabytes | None = None
    gpus: Annotated[int, Meta(ge=0)] | None = None
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] = []
    env: Env = {}
    skills_dir: str | None = None
    workdir: Plain | None = None
    healthcheck: Healthcheck | None = None
    network_mode: Network | None = None
    allowed_hosts: list[str] | None = None
    allow_internet: bool | None = None
    memory: Size | None = None
    storage: Size | None = None


class Collect(Strict):
    """[[verifier.collect]]."""

    command: str
    service: str = "main"
    timeout_sec: Seconds = 60
    user: str | int | None = None


class VerifierTable(Strict):
    """[verifier]."""

    timeout_sec: Seconds | None = None
    env: Env = {}
    user: str | int | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: EnvironmentTable | None = None
    collect: list[Collect] = []
    network_mode: Network | None = None
    allowed_hosts: list[str] | None = None


class SolutionTable(Strict):
    """[solution]."""

    env: Env = {}


class Artifact(Strict):
    """One of `artifacts`, in its long form."""

    source: str
    destination: str | None = None
    exclude: list[str] = []
    service: str | None = None


class TuglineTable(Strict):
    """[metadata.tugline]: what Harbor has no word for. `models`: pattern of a model's name -> name of an engine;
    `verifier` with `options`: another verifier than test.sh; `accept` and `restore`: see `Carry` in core.task."""

    models: dict[Annotated[str, Meta(min_length=1, max_length=200)], Annotated[str, Meta(min_length=1)]] = {}
    verifier: Annotated[str, Meta(min_length=1, max_length=500)] = "harbor"
    options: dict[str, Any] = {}
    accept: list[Annotated[str, Meta(min_length=1)]] = []
    restore: list[Annotated[str, Meta(min_length=1)]] = []


class StepTable(Strict):
    """One of [[steps]]."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
    agent: AgentTable = msgspec.field(default_factory=AgentTable)
    verifier: VerifierTable = msgspec.field(default_factory=VerifierTable)
    min_reward: float | dict[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: list[str | Artifact] = []


class TaskFile(Strict):
    """The whole file."""

    schema_version: Version = "1.4"
    version: Version | None = None
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    artifacts: list[str | Artifact] = []
    task: TaskTable | None = None
    metadata: dict[str, Any] = {}
    agent: AgentTable = msgspec.field(default_factory=AgentTable)
    verifier: VerifierTable = msgspec.field(default_factory=VerifierTable)
    environment: EnvironmentTable = msgspec.field(default_factory=EnvironmentTable)
    solution: SolutionTable = msgspec.field(default_factory=SolutionTable)
    steps: list[StepTable] = []


def megabytes(size: str) -> int:
    """Older sizes: 512M, 2G, 1.5G, 1024K."""
    text = size.strip().upper()
    number = float(text[:-1])
    return int(number * 1024 if text[-1] == "G" else number / 1024 if text[-1] == "K" else number)
