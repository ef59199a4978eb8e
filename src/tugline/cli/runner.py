"""Running a rollout from the command line: pre-flight, progress, the proofs that end it, the report."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import uvloop

from tugline.cli import output
from tugline.cli.fresh import nothing_left
from tugline.cli.progress import Progress
from tugline.cli.show import show_proof, show_summary
from tugline.cli.wiring import journal_of, wired
from tugline.config.load import Loaded, dump_toml
from tugline.core.columns import concat, count, floats_array, take_floats
from tugline.core.contracts import Engine
from tugline.core.errors import ConfigError, EngineError
from tugline.core.paths import expanded
from tugline.core.session import Ended
from tugline.core.task import Task
from tugline.engines import Scorer
from tugline.forest.forest import Forest
from tugline.rollout.proof import Proof, prove_run
from tugline.rollout.summary import Summary, summarise
from tugline.store import RunStore
from tugline.tasks import load_tasks

TASKS_META = "tasks"
"""Where a run's tasks lie, for those who judge it again."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to run."""

    tasks: tuple[str, ...]
    loaded: Loaded
    next_steps: bool = False


@dataclass(frozen=True, slots=True)
class Rescored:
    """A random part of the calls, scored again by the engine. `worst` is the largest difference in nats."""

    calls: int
    worst: float
    tolerance: float = 5e-3

    @property
    def ok(self) -> bool:
        return self.worst <= self.tolerance


def run_and_report(request: RunRequest, *, as_json: bool) -> int:
    """Exit status: 0 when the run's own proofs hold, 1 when one fails."""
    tasks = tuple(load_tasks(list(request.tasks), env=dict(os.environ)))
    path = run_dir(request.loaded)
    console = output.console()
    settings = request.loaded.settings
    total = len(tasks) * settings.run.n
    if not as_json:
        console.print(f"run [bold]{path}[/]: {len(tasks)} tasks x {settings.run.n} sessions of {settings.harness.name}")
    begun = time.monotonic()
    with nothing_left(path):
        rescored = _run_all(request, tasks, path, quiet=as_json)
    with RunStore.open(path, write=False) as reader:
        proof = prove_run(reader, journal_of(path))
        summary = summarise(reader)
    seconds = time.monotonic() - begun
    ok = proof.ok and (rescored is None or rescored.ok) and summary.total == total
    if as_json:
        output.emit(_json(path, proof, summary, rescored, seconds, ok=ok))
    else:
        show_summary(console, summary)
        show_proof(console, proof, rescored)
        console.print(f"{seconds:.0f} s · [bold]{path}[/]", highlight=False)
        if request.next_steps:
            console.print(_next_steps(path), markup=False)
    return output.OK if ok else output.FAILED


def _run_all(request: RunRequest, tasks: tuple[Task, ...], path: Path, *, quiet: bool) -> Rescored | None:
    settings, console = request.loaded.settings, output.console()
    store = RunStore.open_or_create(path, dump_toml(settings))
    for warning in store.warnings:
        console.print(warning, markup=False, style="yellow")
    with (
        Progress(console, len(tasks) * settings.run.n, quiet=quiet) as progress,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        orderly_end(),
    ):
        return runner.run(_run(request, tasks, store, progress))


@contextmanager
def orderly_end() -> Iterator[None]:
    """SIGTERM (docker stop, Slurm, systemd) ends a run like ^C: sandboxes are removed before the process ends.

    Shell scripts start background jobs with ^C ignored, and then a SIGTERM turned into one would do nothing.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_dir(loaded: Loaded) -> Path:
    """--out, or runs/<time>-<name> in the working directory."""
    if loaded.settings.run.out:
        return expanded(loaded.settings.run.out, "run.out").absolute()
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Path("runs").absolute() / f"{stamp}-{loaded.settings.run.name or 'rollout'}"


async def _run(request: RunRequest, tasks: tuple[Task, ...], store: RunStore, progress: Progress) -> Rescored | None:
    settings = request.loaded.settings
    try:
        async with wired(settings, tasks, store, progress.say, progress.seen) as parts:
            if not tasks:
                raise ConfigError("no tasks", where="TASKS")
            await store.put_meta(TASKS_META, [{"task": t.task_id, "path": str(t.path), "name": t.name} for t in tasks])
            ended: list[Ended] = []
            async for group in parts.service.run():
                ended.extend(group.sessions)
            return await rescore(parts.engine, store, [s.key.session_id for s in ended])
    finally:
        await store.close()


async def rescore(engine: Engine, store: RunStore, session_ids: list[str], share: float = 0.01) -> Rescored | None:
    """Score turns of a few sessions in a teacher-forced pass: `share` of the sessions, around three in a small run,
    the same ones each time. None when the engine cannot score."""
    if not isinstance(engine, Scorer):
        return None
    rng = random.Random(0)
    picked = [s for s in session_ids if rng.random() < max(share, 3 / max(1, len(session_ids)))][:50]
    worst, calls = 0.0, 0
    for session_id in picked or session_ids[:3]:
        turns = [turn for turn in await store.load_turns(session_id) if not turn.engine]  # the policy's own
        if not turns:
            continue
        forest = Forest.restore(session_id, b"", turns)
        turn = rng.choice(turns)
        prompt = forest.prompt(turn.turn_id)
        try:
            scored = await engine.score(concat([prompt, turn.sampled]), turn.sampling)
        except EngineError as err:
            if err.fault != "score":
                raise
            continue  # this engine cannot score what was drawn with this sampling
        apart = abs(floats_array(take_floats(scored, count(prompt))) - floats_array(turn.logprobs))
        known = apart[np.isfinite(apart)]
        worst = max(worst, float(known.max(initial=0.0)))
        calls += bool(len(known))
    return Rescored(calls, worst, engine.score_tolerance) if calls else None


def _json(
    path: Path, proof: Proof, summary: Summary, rescored: Rescored | None, seconds: float, *, ok: bool
) -> dict[str, object]:
    return {
        "ok": ok,
        "run": str(path),
        "seconds": round(seconds, 1),
        "report": summary.as_json(),
        "verify": proof.as_json(),
        "rescored": {"calls": rescored.calls, "max_abs_diff": rescored.worst} if rescored else None,
    }


def _next_steps(path: Path) -> str:
    return (
        "\nNext:\n"
        f"  tugline verify {path}            prove every call against the engine's own journal again\n"
        f"  tugline report {path} --drift    where meaning or format deviated, and why\n"
        "  tugline rollout files -n 8       all shipped tasks\n"
        "  tugline rollout ./my-task --harness 'command:./agent.sh {instruction}'   your own task and agent\n"
    )
