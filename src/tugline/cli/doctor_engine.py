"""`tugline doctor engine E`: what an engine can do, found out by asking it, and the flag to add."""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import msgspec
import typer

from tugline.cli import output
from tugline.cli.wiring import engine_for
from tugline.config.load import load
from tugline.core.columns import Ids, count, ids
from tugline.core.contracts import Engine, Generation
from tugline.core.errors import EngineError, TuglineError
from tugline.core.turn import Sampling
from tugline.engines import shown_url
from tugline.engines.remote.abilities import Abilities, Line, verdict
from tugline.engines.remote.frame import Frame

PATIENCE = 10.0
"""Seconds for an engine that does not answer."""
LONG = Sampling(temperature=1.0, max_tokens=512, seed=1)
"""Of the generation that is aborted."""


def judge_engine(spec: str, model: str | None, *, as_json: bool) -> NoReturn:
    """Print the verdict and exit: 0 it serves, 1 it does not."""
    flags: dict[str, object] = {"engine.spec": spec}
    if model is not None:
        flags["engine.model"] = model
    try:
        loaded = load(None, dict(os.environ), flags)
        settings = loaded.settings
        if "engine.patience" not in loaded.sources:  # who asks sits in front of it
            settings = replace(settings, engine=replace(settings.engine, patience=PATIENCE))
        with tempfile.TemporaryDirectory(prefix="tugline-doctor-") as scratch:
            found, lines = asyncio.run(_judge(engine_for(settings, Path(scratch))))
    except TuglineError as err:
        found, lines = None, [Line(False, shown_url(spec), err.message)]
    ok = all(line.ok is not False for line in lines)
    if as_json:
        facts = msgspec.to_builtins(found) if found is not None else None
        output.emit({"ok": ok, "engine": shown_url(spec), "abilities": facts, "checks": lines})
    else:
        console = output.console()
        for line in lines:
            mark = {True: "[green]ok[/]  ", None: "[yellow]part[/]", False: "[red]no[/]  "}[line.ok]
            console.print(f"{mark} ", end="")
            console.print(line.what + (f" -> {line.hint}" if line.hint else ""), markup=False)
    raise typer.Exit(output.OK if ok else output.FAILED)


async def _judge(engine: Engine) -> tuple[Abilities | None, list[Line]]:
    try:
        await engine.start()
        if not isinstance(engine, Frame) or engine.abilities is None:
            return None, [await _sampled(engine)]
        lines = verdict(engine.abilities)
        if engine.abilities.token_in is not None:
            lines.append(await _sampled(engine))
            lines.append(await _aborts(engine))
        return engine.abilities, lines
    finally:
        await engine.close()


async def _sampled(engine: Engine) -> Line:
    """One generation, checked as every other is."""
    from tugline.forest.check import check_sample

    request = Generation("doctor-1", "doctor", _prompt(engine), Sampling(max_tokens=8, seed=1))
    sample = await engine.generate(request)
    wrong = check_sample(request, sample, engine.info)
    if wrong is not None:
        return Line(False, "a sample of 8 tokens would not train", wrong)
    version = sample.version_runs[-1][1]
    return Line(True, f"a sample of {count(sample.ids)} tokens, checked: {engine.info.level}, version {version}")


async def _aborts(engine: Engine) -> Line:
    request = Generation("doctor-2", "doctor", _prompt(engine), LONG)
    task = asyncio.ensure_future(engine.generate(request))
    await asyncio.sleep(0.05)
    begun = asyncio.get_running_loop().time()
    await engine.abort(request.request_id)
    try:
        sample = await task
    except EngineError as err:
        return Line(False, "an abort ends in an error", err.message)
    seconds = asyncio.get_running_loop().time() - begun
    if sample.finish != "abort":
        return Line(None, f"an abort came too late: {count(sample.ids)} tokens were there already")
    return Line(True, f"an abort ended a generation after {count(sample.ids)} tokens, in {seconds:.2f} s")


def _prompt(engine: Engine) -> Ids:
    return ids(range(min(16, engine.info.vocab)))
