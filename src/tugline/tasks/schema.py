"""task.toml as Harbor defines it (schema 1.4 and its older spellings), typed.

Unknown keys are errors except in [metadata]: a misspelt limit that silently means "no limit" costs days.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

Seconds = Annotated[float, Meta(gt=0, le=30 * 86400)]
Env = dict[str, str]


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    pass


class Author(msgspec.Struct):
    name: str
    email: str | None = None


class TaskTable(Strict):
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    version: str | None = None
    description: str = ""
    authors: list[Author] = []
    keywords: list[str] = []


class AgentTable(Strict):
    timeout_sec: Seconds | None = None
    user: str | int | None = None
    network_mode: str | None = None
    allowed_hosts: list[str] | None = None


class Healthcheck(Strict):
    command: str
    interval_sec: float = 5
    timeout_sec: float = 30
    start_period_sec: float = 0
    start_interval_sec: float = 5
    retries: int = 3


class EnvironmentTable(Strict):
    build_timeout_sec: Seconds | None = None
    docker_image: str | None = None
    os: str = "linux"
    cpus: Annotated[float, Meta(gt=0, le=4096)] | None = None
    memory_mb: Annotated[int, Meta(gt=0)] | None = None
    storage_mb: Annotated[int, Meta(gt=0)] | None = None
    gpus: int | None = None
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] = []
    env: Env = {}
    skills_dir: str | None = None
    workdir: str | None = None
    healthcheck: Healthcheck | None = None
    network_mode: str = "public"
    allowed_hosts: list[str] = []
    allow_internet: bool | None = None
    memory: str | None = None
    storage: str | None = None


class Collect(Strict):
    command: str
    service: str = "main"
    timeout_sec: Seconds = 60
    user: str | None = None


class VerifierTable(Strict):
    timeout_sec: Seconds | None = None
    env: Env = {}
    user: str | int | None = None
    environment_mode: str | None = None
    environment: EnvironmentTable | None = None
    collect: list[Collect] = []
    network_mode: str | None = None
    allowed_hosts: list[str] | None = None


class SolutionTable(Strict):
    env: Env = {}


class Artifact(Strict):
    source: str
    destination: str | None = None
    exclude: list[str] = []
    service: str | None = None


class TaskFile(Strict):
    """The whole file."""

    schema_version: str = "1.4"
    version: str | None = None
    source: str | None = None
    multi_step_reward_strategy: str | None = None
    artifacts: list[str | Artifact] = []
    task: TaskTable | None = None
    metadata: dict[str, Any] = {}
    agent: AgentTable = msgspec.field(default_factory=AgentTable)
    verifier: VerifierTable = msgspec.field(default_factory=VerifierTable)
    environment: EnvironmentTable = msgspec.field(default_factory=EnvironmentTable)
    solution: SolutionTable = msgspec.field(default_factory=SolutionTable)
    steps: list[dict[str, Any]] = []
