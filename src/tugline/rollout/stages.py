"""Boot, run and judge one session. Each stage has its own limit; whatever happens, nothing survives the session."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from tugline.core.clock import Deadline
from tugline.core.contracts import Bundle, Command, Exit, Gateway, Launch, Sandbox, SessionCalls
from tugline.core.errors import HarnessError, SandboxError, TuglineError, describe
from tugline.core.session import Ended, Outcome, SessionKey
from tugline.core.task import Task
from tugline.rollout.judging import Judged
from tugline.rollout.spec import Parts, RolloutSpec
from tugline.rollout.transitions import AgentEnd, agent_end

CLOSE_SECONDS = 30.0
"""A sandbox that cannot be removed in this time is reported, not waited for."""
LOG_TAIL = 64 * 1024
HOME = "/home/agent"


async def boot(spec: RolloutSpec, parts: Parts, task: Task, key: SessionKey) -> Sandbox:
    """A sandbox ready for the agent. Raises SandboxError, also when the boot limit passes."""
    limit = task.budgets.boot or spec.limits.boot
    try:
        async with asyncio.timeout(limit):
            return await parts.sandboxes.start(task.environment, key.session_id, spec.sandbox_limits)
    except TimeoutError as err:
        raise SandboxError(f"the sandbox was not ready within {limit:g} s") from err


async def run(
    spec: RolloutSpec, parts: Parts, task: Task, key: SessionKey, box: Sandbox, bundle: Bundle
) -> tuple[AgentEnd, SessionCalls]:
    """Run the agent to its end or limit. The session's secret is dead when this returns."""
    access = await parts.gate.open(key.session_id, replace(spec.policy, routes=task.routes + spec.policy.routes))
    exit, failed = Exit(-1, 0.0), None
    try:
        out = await asyncio.to_thread(session_dir, parts, key)
        port = spec.gateway_port
        launch = Launch(
            instruction=task.instruction,
            base_url=f"http://127.0.0.1:{port}" if box.isolated else access.url,
            key=access.secret,
            workdir=box.workdir,
            home=HOME,
            context=spec.context,
            max_tokens=spec.max_tokens,
            isolated=box.isolated,
        )
        plan = parts.harness.plan(launch, bundle)
        for path, data in plan.files:
            await box.write(path, data)
        command = _with_logs(plan.command, out)
        deadline = Deadline.after(task.budgets.agent or spec.limits.agent)
        gateway = Gateway(port, lambda sock: parts.gate.serve(key.session_id, sock)) if box.isolated else None
        exit = await box.run(command, deadline, gateway)
    except HarnessError as err:
        failed = describe(err)
    finally:
        calls = await asyncio.shield(parts.gate.close(key.session_id))
    if failed is not None:
        return AgentEnd(Outcome.BOOT_FAILED, judge=False, reason=failed), calls
    log = await asyncio.to_thread(_tail, out / "agent.log") or await asyncio.to_thread(_tail, out / "agent.err")
    return agent_end(exit, parts.harness.failure(exit, log), calls), calls


async def judge(spec: RolloutSpec, parts: Parts, task: Task, key: SessionKey, box: Sandbox) -> Judged:
    """Score what the agent left, in a sandbox that the agent never saw. Raises VerifierError (infra)."""
    out = await asyncio.to_thread(session_dir, parts, key)
    return await parts.judge(task, box, task.budgets.judge or spec.limits.judge, out)


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


def _with_logs(command: Command, out: Path) -> Command:
    return replace(command, stdout=out / "agent.log", stderr=out / "agent.err")


def _tail(path: Path) -> bytes:
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_TAIL))
        return file.read()
