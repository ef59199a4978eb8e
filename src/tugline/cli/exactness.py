"""`tugline bench exactness`: which of the four promises a gateway keeps."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tugline.cli import output
from tugline.cli.progress import LINE_SECONDS
from tugline.cli.wiring import PILOT
from tugline.core.errors import ConfigError, TuglineError

if TYPE_CHECKING:
    import httpx

    from tugline.testing.exactness.fake import FakeEngine
    from tugline.testing.exactness.judge import Score
    from tugline.testing.exactness.subjects import Subject
    from tugline.testing.exactness.suite import Plan, Report

HELP = """Which of E, C, F, S does a gateway keep, for which API?

A fake engine with a real tokenizer and chat template stands behind the gateway, a driver that plays harnesses in front
of it. What the engine read and sampled is the truth; the gateway's prompts, replies and records are held against it.
Without --url: this version's own gateway.

[bold]Examples[/]

  tugline bench exactness
  tugline bench exactness --quick --dialects chat,anthropic --json
  tugline bench exactness --url http://127.0.0.1:4000 --engine-port 8101 --dialects chat
  tugline bench exactness --url 'http://127.0.0.1:9090/sessions/{session}/v1' --engine-port 8101 \\
      --records 'http://127.0.0.1:9090/sessions/{session}/traces'
  tugline bench exactness --list

With --url, start this command first: it opens the engine at --engine-port, then waits for the gateway.
Exit status 0: all that could be looked at holds. 1: something does not. 2: the request was wrong.
"""


@dataclass(frozen=True, slots=True)
class Target:
    """What to test. `url` None and `run` None: our own gateway."""

    url: str | None
    run: Path | None
    engine_port: int
    model_name: str | None
    key: str
    records: str | None
    opener: str | None
    wait: float
    patience: float


def register(app: typer.Typer) -> None:
    """Add the command to `tugline bench`."""
    app.command("exactness", help=HELP)(exactness)


def exactness(
    url: Annotated[str | None, typer.Option(help="Gateway; {session} and {dialect} are filled in.")] = None,
    run: Annotated[Path | None, typer.Option(help="Run directory of a running tugline gateway, instead.")] = None,
    engine_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the fake engine; 0 = a free one.")] = 0,
    dialects: Annotated[str | None, typer.Option(help="Of anthropic,chat,responses,gemini; default: all.")] = None,
    scenes: Annotated[str | None, typer.Option(help="Only these; see --list.")] = None,
    modes: Annotated[str | None, typer.Option(help="Of whole,streamed; default: both.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A choice of scenes.")] = False,
    model: Annotated[Path | None, typer.Option(help="Directory with tokenizer and template; default: pilot.")] = None,
    model_name: Annotated[str | None, typer.Option(help="Model asked for; default: the directory's name.")] = None,
    key: Annotated[str, typer.Option(help="API key; {session} is filled in.")] = "none",
    records: Annotated[str | None, typer.Option(help="URL of a session's records as JSON; {session}.")] = None,
    opener: Annotated[str | None, typer.Option("--open", help="URL to POST to for a new {session}.")] = None,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    noncanonical: Annotated[float, typer.Option(min=0, max=1, help="Share of tokens in another spelling.")] = 0.3,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the gateway.")] = 60.0,
    patience: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for a reply.")] = 30.0,
    list_: Annotated[bool, typer.Option("--list", help="Say what scenes there are.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """See HELP."""
    from tugline.testing.exactness.reach import checked_url
    from tugline.testing.exactness.suite import MODES, Plan, known_scenes, make_engine

    if list_:
        output.emit(known_scenes()) if as_json else typer.echo(output.table(known_scenes()))
        raise typer.Exit(output.OK)
    try:
        if url is not None and run is not None:
            raise ConfigError("give --url or --run, not both", where="bench exactness")
        for flag, given in (("--url", url), ("--records", records), ("--open", opener)):
            if given is not None:
                checked_url(given, flag)
        usual = Plan.small() if quick else Plan()
        plan = Plan(_words(dialects) or usual.dialects, _words(scenes) or usual.scenes, _words(modes) or MODES)
        engine = make_engine(model or PILOT, seed=seed, noncanonical=noncanonical)
        target = Target(url, run, engine_port, model_name, key, records, opener, wait, patience)
        report = asyncio.run(_test(engine, target, plan, quiet=as_json))
    except TuglineError as err:
        output.fail(err, as_json=as_json)
    output.emit(report.as_json()) if as_json else typer.echo(text(report))
    raise typer.Exit(output.OK if report.ok else output.FAILED)


def _words(given: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (given or "").split(",") if word.strip())


async def _test(engine: FakeEngine, target: Target, plan: Plan, *, quiet: bool) -> Report:
    from tugline.testing.exactness.reach import http_client, wait_for
    from tugline.testing.exactness.suite import fake_server, run_suite

    console = output.console()
    async with fake_server(engine, target.engine_port) as engine_url, http_client() as http:
        if target.url or target.run:
            console.print(f"engine {engine.name!r} at {engine_url} (its API: {engine_url}/v1)", markup=False)
        if target.url:
            await wait_for(http, target.url, target.wait)
        async with _subject(engine, target, engine_url, http) as subject:
            with _Progress(quiet=quiet) as say:
                return await run_suite(engine, subject, http, plan, say)


@asynccontextmanager
async def _subject(
    engine: FakeEngine, target: Target, engine_url: str, http: httpx.AsyncClient
) -> AsyncIterator[Subject]:
    from tugline.testing.exactness.own import own_gateway
    from tugline.testing.exactness.subjects import AnyGateway, TuglineGateway

    name = target.model_name or engine.name
    if target.url:
        yield AnyGateway(http, target.url, name, target.key, target.records, target.opener, target.patience)
    elif target.run:
        yield await TuglineGateway.when_there(target.run, name, patience=target.patience, wait=target.wait)
    else:
        async with own_gateway(engine_url, engine) as own:
            yield own


class _Progress:
    """Which session is played, of how many: a line that changes on a terminal, elsewhere one now and then."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._live = sys.stderr.isatty()
        self._begun = self._last = time.monotonic()

    def __enter__(self) -> Callable[[str, int, int], None]:
        return self._say

    def _say(self, name: str, done: int, of: int) -> None:
        now = time.monotonic()
        if self._quiet or not (self._live or now - self._last > LINE_SECONDS):
            return
        self._last = now
        full = _BAR * done // of
        shown = f"[{'#' * full}{'.' * (_BAR - full)}] {done + 1}/{of} {name}"
        sys.stderr.write(
            f"\r\x1b[2K{shown}" if self._live else f"[{now - self._begun:5.0f} s] {done + 1}/{of} {name}\n"
        )
        sys.stderr.flush()

    def __exit__(self, *_why: object) -> None:
        if self._live and not self._quiet:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


_BAR = 20
"""Characters of the progress bar."""
_NAMES = ("exact", "continuous", "format", "meaning")


def text(report: Report) -> str:
    """For people: a table, then the first counter-example of each promise that broke."""
    from tugline.testing.exactness.judge import PROMISES

    head = ["dialect", "answered", *(f"{p} {name}" for p, name in zip(PROMISES, _NAMES, strict=True))]
    rows = [head]
    examples: list[str] = []
    for dialect, verdict in report.verdicts.items():
        if not verdict.served:
            rows.append([dialect, "not served", *("" for _ in PROMISES)])
            examples.append(f"{dialect}, not served: {verdict.failures[0].message}")
            continue
        cells = [_cell(verdict.scores[promise]) for promise in PROMISES]
        rows.append([dialect, f"{verdict.answered}/{verdict.calls}", *cells])
        for promise in PROMISES:
            broken = [f for f in verdict.findings if f.promise == promise]
            if broken:
                scenes = sorted({f.scene for f in broken})
                examples.append(f"{dialect} {promise}: {broken[0].text()}\n    in: {', '.join(scenes)}")
        if verdict.failures:
            examples.append(f"{dialect}, no reply: {verdict.failures[0].text()}")
    if report.verdicts and not any(v.served for v in report.verdicts.values()):
        examples.append("no API is served there: is the path of the URL right?")
    widths = [max(len(row[n]) for row in rows) for n in range(len(head))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    prompts = ", ".join(f"{n} as {form}" for form, n in sorted(report.forms.items()))
    notes = [f"note: {note}" for note in report.notes[:5]]
    tail = ["", f"engine: {prompts or 'not asked'}; {report.unplanned} unasked for"]
    return output.printable("\n".join([*lines, *([""] if examples else []), *examples, *tail, *notes]))


def _cell(score: Score) -> str:
    if score.none:
        return f"not kept: {score.none}"
    if not score.of:
        return score.why or "nothing to see"
    parts = [(score.by_template, "by the template"), (score.by_harness, "by the harness")]
    parts.append((score.counted, "counted by itself"))
    told = ", ".join(f"{n} {what}" for n, what in parts if n)
    return f"{score.held}/{score.of}{f' ({told})' if told else ''}"
