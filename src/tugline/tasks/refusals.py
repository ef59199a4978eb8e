"""What of Harbor's tasks cannot be honoured here and would silently make another task of them: refused by name."""

from __future__ import annotations

from pathlib import Path
from posixpath import normpath

from tugline.tasks.problems import Findings
from tugline.tasks.schema import Artifact, EnvironmentTable, StepTable, TaskFile

ROOT = ("root", "0", 0)
FILES = {
    "trajectory.json": "a conversation that already began is not supported",
    "tests/docker-compose.yaml": "compose files are not supported",
    "environment/docker-compose.yaml": "compose files are not supported",
    "environment/docker-compose.yml": "compose files are not supported",
    "environment/.dockerignore": "ignore files are not supported",
    ".harborignore": "ignore files are not supported",
    "tests/.harborignore": "ignore files are not supported",
    "solution/.harborignore": "ignore files are not supported",
}


def refuse(spec: TaskFile, root: Path, name: str, findings: Findings) -> None:
    """Note everything in the task that has no equal here."""
    for file, why in FILES.items():
        if (root / file).exists():
            findings.add(why, where=f"{name}/{file}")
    if (root / "steps").exists() and not spec.steps:
        findings.add("is there, but task.toml has no [[steps]]", where=f"{name}/steps")
    apart = spec.verifier.environment_mode == "separate" or spec.verifier.environment is not None
    if (root / "tests" / "Dockerfile").exists() and not apart:
        findings.add("is for separate verifiers only", where=f"{name}/tests/Dockerfile")
    for begun in sorted(root.glob("steps/*/trajectory.json")):
        findings.add(FILES["trajectory.json"], where=f"{name}/{begun.relative_to(root).as_posix()}")
    found = [*_environment(spec.environment), *_phases(spec)]
    if spec.verifier.environment is not None:
        own = _environment(spec.verifier.environment)
        found += [(bad, f"verifier.{field}", why) for bad, field, why in own]
    found += [problem for step in spec.steps for problem in _step(step)]
    for bad, field, why in found:
        if bad:
            findings.add(why, where=f"{name}/task.toml", field=field)


def _environment(box: EnvironmentTable) -> list[tuple[object, str, str]]:
    hosts = box.allowed_hosts and box.network_mode != "allowlist"
    return [
        (box.os.lower() != "linux", "environment.os", f"only linux is supported, not {box.os[:40]!r}"),
        (box.gpus, "environment.gpus", "no sandbox here has a GPU"),
        (box.tpu, "environment.tpu", "no sandbox here has a TPU"),
        (box.mcp_servers, "environment.mcp_servers", "MCP servers are not supported"),
        (box.skills_dir, "environment.skills_dir", "skills are not supported"),
        (hosts, "environment.allowed_hosts", "is only valid with network_mode = \"allowlist\""),
    ]  # fmt: skip


def _phases(spec: TaskFile) -> list[tuple[object, str, str]]:
    agent, verifier = spec.agent, spec.verifier
    lists = "allow-lists are for agents; verifiers have no network"
    return [
        (agent.user in ROOT, "agent.user", "no sandbox here runs an agent as root"),
        (
            agent.allowed_hosts and agent.network_mode not in (None, "allowlist"),
            "agent.allowed_hosts",
            'is only valid with network_mode = "allowlist"',
        ),
        (verifier.network_mode == "allowlist" or verifier.allowed_hosts, "verifier.network_mode", lists),
        (verifier.network_mode == "public", "verifier.network_mode", "verifiers here have no network"),
        (verifier.user not in (None, *ROOT), "verifier.user", "verifiers here run as root of their own sandbox only"),
        (any(c.service != "main" for c in verifier.collect), "verifier.collect", "there is one service only: main"),
        (any(c.user in ROOT for c in verifier.collect), "verifier.collect", "collect steps run as the agent"),
        (any(_service(a) for a in spec.artifacts), "artifacts", "there is one service only: main"),
    ]


def _step(step: StepTable) -> list[tuple[object, str, str]]:
    """What a step may not say for itself: its sandbox and its artifacts are the task's."""
    where, agent, verifier = f"steps.{step.name}", step.agent, step.verifier
    separate = verifier.environment is not None or verifier.environment_mode == "separate" or verifier.collect
    return [
        (agent.user in ROOT, f"{where}.agent.user", "no sandbox here runs an agent as root"),
        (agent.network_mode not in (None, "no-network") or agent.allowed_hosts, f"{where}.agent.network_mode",
         "a step's own network is not supported"),
        (verifier.user not in (None, *ROOT), f"{where}.verifier.user", "verifiers run as root of their own sandbox"),
        (separate, f"{where}.verifier", "a step is judged as the task says, not in a way of its own"),
        (step.artifacts, f"{where}.artifacts", "artifacts are the task's"),
        (step.healthcheck, f"{where}.healthcheck", "health checks are the task's"),
    ]  # fmt: skip


def _service(artifact: str | Artifact) -> bool:
    return not isinstance(artifact, str) and artifact.service not in (None, "main")


def below(artifacts: tuple[str, ...], workdir: str) -> tuple[str, ...]:
    """The artifacts as patterns below the work directory; one that holds all of it is `*`. Others do not count."""
    work, found = normpath(workdir), list[str]()
    for artifact in artifacts:
        top = normpath(artifact if artifact.startswith("/") else f"{work}/{artifact}")
        if work == top or work.startswith(f"{top.rstrip('/')}/"):
            found.append("*")
        elif top.startswith(f"{work}/"):
            inner = top.removeprefix(f"{work}/")
            found += [f"./{inner}", f"./{inner}/*"]
    return tuple(found)
