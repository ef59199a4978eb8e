"""Boot, run and judge one session. Each stage has its own limit; whatever happens, nothing survives the session."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from tugline.core.clock import Deadline
from tugline.core.contracts import Access, Bundle, Command, Egress, Exit, Gateway, Launch, Sandbox, SessionCalls
from tugline.core.errors import HarnessError, SandboxError, TuglineError, describe
from tugline.core.session import Ended, Outcome, SessionKey
from tugline.core.task import Task
from tugline.rollout.judging import Judged
from tugline.rollout.spec import Parts, RolloutSpec
from tugline.rollout.steps import enough, set_up, step_task, together
from tugline.rollout.transitions import AgentEnd, agent_end

CLOSE_SECONDS = 30.0
"""A sandbox that cannot be removed in this time is reported, not waited for."""
LOG_TAIL = 64 * 1024
HOME = "/home/agent"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


async def boot(spec: RolloutSpec, parts: Parts, task: Task, key: SessionKey) -> Sandbox:
    """A sandbox ready for the agent. Raises SandboxError, also when the boot limit passes."""
    limit = task.budgets.boot or spec.limits.boot
    box: Sandbox | None = None
    try:
        async with asyncio.timeout(limit):
            box = await parts.sandboxes.start(task.environment, key.session_id, spec.sandbox_limits)
            await become_healthy(task, box)
            return box
    except BaseException as err:
        if box is not None:
            await dispose(parts, box)
        if isinstance(err, TimeoutError):
            raise SandboxError(f"the sandbox was not ready within {limit:g} s") from err
        raise


async def become_healthy(task: Task, box: Sandbox) -> None:
    """Wait for the task's health check. Raises SandboxError when its tries are used up."""
    health = task.environment.health
    if health is None:
        return
    begun, failed = asyncio.get_running_loop().time(), 0
    env = {"PATH": PATH, **task.environment.env}
    while True:
        command = Command(("/bin/sh", "-c", health.command), env, box.workdir)
        ended = await box.run(command, Deadline.after(health.timeout))
        if ended.code == 0 and not ended.timed_out:
            return
        early = asyncio.get_running_loop().time() - begun < health.start_period
        failed += not early
        if failed >= health.retries:
            raise SandboxError(f"the health check `{health.command[:100]}` failed {failed} times")
        await asyncio.sleep(health.start_interval if early else health.interval)


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of the agents of a session. `judged`: of a task in steps, which are judged as they end."""

    end: AgentEnd
    calls: SessionCalls
    judged: Judged | None = None


async def run(spec: RolloutSpec, parts: Parts, task: Task, key: SessionKey, box: Sandbox, bundle: Bundle) -> Ran:
    """Run the agent to its end or limit, in steps where the task has some. The session's secret is dead when this
    returns. Raises VerifierError when a step could not be judged."""
    out = await asyncio.to_thread(session_dir, parts, key)
    hosts = hosts_of(task, spec.egress)
    policy = replace(
        spec.policy,
        routes=task.routes + spec.policy.routes,
        egress=Egress(hosts, out / "egress.jsonl") if hosts else None,
    )
    access = await parts.gate.open(key.session_id, policy)
    seat = Seat(spec, parts, key, box, bundle, access)
    exit, failed, log, judged = Exit(-1, 0.0), None, b"", None
    try:
        if task.steps:
            exit, log, judged = await _in_steps(task, seat)
        else:
            exit, log = await agent(task, seat)
    except HarnessError as err:
        failed = describe(err)
    finally:
        calls = await asyncio.shield(parts.gate.close(key.session_id))
    if failed is not None:
        return Ran(AgentEnd(Outcome.BOOT_FAILED, judge=False, reason=failed), calls)
    return Ran(agent_end(exit, parts.harness.failure(exit, log), calls), calls, judged)


@dataclass(frozen=True, slots=True)
class Seat:
    """What one session's agents share."""

    spec: RolloutSpec
    parts: Parts
    key: SessionKey
    box: Sandbox
    bundle: Bundle
    access: Access


async def agent(task: Task, seat: Seat) -> tuple[Exit, bytes]:
    """One run of the harness with the task's instruction: (how it ended, the end of its log)."""
    spec, parts, box, key = seat.spec, seat.parts, seat.box, seat.key
    out = await asyncio.to_thread(session_dir, parts, key)
    port = spec.gateway_port
    launch = Launch(
        instruction=task.instruction,
        base_url=f"http://127.0.0.1:{port}" if box.isolated else seat.access.url,
        key=seat.access.secret,
        workdir=box.workdir,
        home=HOME,
        context=spec.context,
        max_tokens=spec.max_tokens,
        isolated=box.isolated,
    )
    plan = parts.harness.plan(launch, seat.bundle)
    for path, data in plan.files:
        await box.write(path, data)
    command = _with_logs(plan.command, out)
    if hosts_of(task, spec.egress) and box.isolated:
        proxy = f"http://127.0.0.1:{port}"
        names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
        away = {"no_proxy": "127.0.0.1,localhost", "NO_PROXY": "127.0.0.1,localhost"}
        command = replace(command, env={**dict.fromkeys(names, proxy), **away, **command.env})
    deadline = Deadline.after(task.budgets.agent or spec.limits.agent)
    gateway = Gateway(port, lambda sock: parts.gate.serve(key.session_id, sock)) if box.isolated else None
    exit = await box.run(command, deadline, gateway)
    return exit, await asyncio.to_thread(_tail, out / "agent.log") or await asyncio.to_thread(_tail, out / "agent.err")


async def _in_steps(task: Task, seat: Seat) -> tuple[Exit, bytes, Judged | None]:
    """Each step: set-up, agent, judgement. A step below its least reward, or without a proper end, is the last."""
    out = await asyncio.to_thread(session_dir, seat.parts, seat.key)
    exit, log, seen = Exit(-1, 0.0), b"", list[Judged]()
    for number, step in enumerate(task.steps):
        mine = step_task(task, number)
        if step.setup is not None and not await set_up(seat.box, step.setup):
            if not seen:
                raise SandboxError(f"setup.sh of the first step, {step.name}, failed")
            break
        exit, log = await agent(mine, seat)
        judged = await seat.parts.judge(
            mine, seat.box, mine.budgets.judge or seat.spec.limits.judge, out / "steps" / step.name
        )
        for name in ("agent.log", "agent.err"):
            await asyncio.to_thread(_keep_log, out / name, out / "steps" / step.name / name)
        seen.append(judged)
        if exit.timed_out or exit.code != 0 or not enough(judged.verdict, step):
            break
    return exit, log, together(task, seen)


def hosts_of(task: Task, egress: tuple[str, ...]) -> tuple[str, ...]:
    """What the task's agent may reach: its own list where it has one, else the operator's."""
    match task.environment.network:
        case "no-network":
            return ()
        case "allowlist":
            return task.environment.hosts
        case "public":
            return egress


async def judge(spec: RolloutSpec, parts: Parts, task: Task, key: SessionKey, box: Sandbox) -> Judged:
    """Score what the agent left, in a sandbox that the agent never saw. Raises VerifierError (infra)."""
    out = await asyncio.to_thread(session_dir, parts, key)
    judged = await parts.judge(task, box, task.budgets.judge or spec.limits.judge, out)
    if await asyncio.to_thread(_denied, out / "egress.jsonl"):
        judged = replace(judged, marks=tuple(sorted({*judged.marks, "egress_denied"})))
    return judged


async def dispose(parts: Parts, box: Sandbox) -> None:
    """Remove a sandbox within a bounded time; a leak is said, never waited for."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await asyncio.shield(box.close())
    except (TimeoutError, TuglineError) as err:
        parts.say(f"a sandbox could not be removed ({describe(err)}); `tugline gc` will try again")


def ended(key: SessionKey, end: AgentEnd, judged: Judged | None) -> Ended:
    """The final state of a session whose agent phase ended with `end`."""
    if judged is None:
        return Ended(key, end.outcome, reason=end.reason)
    verdict = judged.verdict
    return Ended(key, end.outcome, verdict.reward, tuple(sorted(verdict.parts.items())), end.reason, judged.marks)


def session_dir(parts: Parts, key: SessionKey) -> Path:
    """Where a session's logs and artifacts lie."""
    path = parts.sessions_dir / key.session_id
    path.mkdir(parents=True, exist_ok=True)
    return path


def _keep_log(source: Path, target: Path) -> None:
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _denied(log: Path) -> bool:
    """Whether the agent asked for a host that it may not reach."""
    return log.is_file() and b'"allowed":false' in log.read_bytes()


def _with_logs(command: Command, out: Path) -> Command:
    return replace(command, stdout=out / "agent.log", stderr=out / "agent.err")


def _tail(path: Path) -> bytes:
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_TAIL))
        return file.read()
