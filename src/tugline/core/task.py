"""Tasks: what is to be solved. Immutable; read from a Harbor task directory or a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class Copy:
    """COPY of a Dockerfile: `source` is a host path inside the task's environment/, `target` a sandbox path."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True)
class Environment:
    """How a sandbox is prepared. Steps run in order; snapshots are keyed by `digest`."""

    image: str
    """The image named by FROM or docker_image; sandboxes without images use the host's /usr and say so."""
    workdir: str = "/app"
    env: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[Copy | str, ...] = ()
    """Copies and shell commands (RUN), in order."""
    digest: str = ""
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    network: Literal["public", "no-network", "allowlist"] = "no-network"
    hosts: tuple[str, ...] = ()
    """Of an allow-list: what the agent asks to reach. The operator decides, see `sandbox.egress`."""
    health: Health | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """A command that must succeed in a fresh sandbox before an agent starts. Seconds; the first tries, up to
    `start_period`, come every `start_interval` and do not count."""

    command: str
    interval: float = 5.0
    timeout: float = 30.0
    start_period: float = 0.0
    start_interval: float = 5.0
    retries: int = 3


@dataclass(frozen=True, slots=True)
class Collect:
    """A command run in the agent's sandbox after its death, as the agent, to produce artifacts."""

    command: str
    seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """Calls that ask for a model named like `pattern` (shell wildcards) go to another engine, never trained."""

    pattern: str
    engine: str


@dataclass(frozen=True, slots=True)
class Budgets:
    """Separate limits, in seconds. None = the run's default."""

    boot: float | None = None
    agent: float | None = None
    judge: float | None = None


@dataclass(frozen=True, slots=True)
class Carry:
    """Which of an agent's changes to the work directory go into the fresh box where they are judged.

    Patterns are shell wildcards. One without a slash fits a file or directory of that name anywhere, one with a slash
    the whole path below the work directory. Whatever is not carried stands as the task has it.
    """

    accept: tuple[str, ...] = ("*",)
    restore: tuple[str, ...] = ()
    """Restored from the task, accepted or not."""


PYTHON_RESTORE = (
    "conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", "sitecustomize.py",
    "usercustomize.py", "*.pth", "pytest.py", "pluggy", "unittest", "__pycache__", "*.pyc", "*.pyo", "*.egg-info",
    "*.dist-info", ".git",
)  # fmt: skip
"""What decides how Python tests run, or hides code from readers: never taken from an agent where tests are Python."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a multi-step task; `min_reward` ends the session when the step scores below it."""

    name: str
    instruction: str
    verifier_dir: Path | None
    solution_dir: Path | None = None
    setup: Path | None = None
    """A script run in the sandbox before the step's agent."""
    agent_seconds: float | None = None
    judge_seconds: float | None = None
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    min_reward: Mapping[str, float] = field(default_factory=dict)
    """Part of the reward -> least value; `reward` is the whole."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task. `verifier_dir` holds the hidden tests: it is never mounted where an agent runs."""

    task_id: str
    """Unique in a run; safe as a file name."""
    name: str
    instruction: str
    environment: Environment
    path: Path
    verifier_dir: Path | None
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    verifier_separate: bool = False
    verifier_environment: Environment | None = None
    """A sandbox of the verifier's own, which gets whole artifacts instead of changes."""
    collect: tuple[Collect, ...] = ()
    steps: tuple[Step, ...] = ()
    """Done one after the other in one sandbox, each judged; `instruction` and `verifier_dir` are then the first's."""
    step_reward: Literal["mean", "final"] = "mean"
    solution_dir: Path | None = None
    solution_env: Mapping[str, str] = field(default_factory=dict)
    solution_patch: str = ""
    """A unified diff that solves it, where the solution is one."""
    artifacts: tuple[str, ...] = ()
    budgets: Budgets = Budgets()
    routes: tuple[ModelRoute, ...] = ()
    """Model names that do not mean the policy in this task; they come before the run's own."""
    metadata: Mapping[str, object] = field(default_factory=dict)
    verifier: str = "harbor"
    """Name of the verifier, with its argument behind a colon where it takes one."""
    verifier_options: Mapping[str, object] = field(default_factory=dict)
    carry: Carry | None = None
    """None: judged in a clone of the agent's work directory. Else in a fresh box that gets what is carried."""
    digest: str = ""
    """sha256 over the sorted (path, sha256 of content) lines, as Harbor defines it."""
