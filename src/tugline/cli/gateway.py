"""`tugline gateway`: an engine and a gateway for agents that you run yourself."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from tugline.cli import output, sessions
from tugline.cli.flags import RunFlags, load_settings
from tugline.cli.fresh import nothing_left
from tugline.cli.runner import Rescored, orderly_end, rescore, run_dir
from tugline.cli.serving import ControlAddress, Serving, control_plane, serving
from tugline.cli.show import show_proof, show_summary
from tugline.cli.wiring import journal_of, level_note
from tugline.config.load import Loaded, dump_toml
from tugline.core.errors import ConfigError, TuglineError
from tugline.rollout.control_file import Control
from tugline.rollout.endpoints import OpenedSession
from tugline.rollout.options import SessionOptions
from tugline.rollout.proof import prove_run
from tugline.rollout.summary import summarise
from tugline.store import RunStore

HELP = """Serve agents that you run yourself, and record their traces.

Starts the engine, the gateway and a control plane, opens a first session and prints the environment that points an
agent to it. ^C or SIGTERM ends it: open sessions end as cancelled, then the run is proven.

[bold]Examples[/]

  tugline gateway --engine embedded --out runs/mine
  tugline gateway --engine scripted:script.jsonl --port 8080 --json
  eval "$(tugline gateway session new --group first)" && ./my-agent
  tugline gateway session end --reward 1.0
"""

app = typer.Typer(help=HELP, invoke_without_command=True, rich_markup_mode="rich")
app.add_typer(sessions.app, name="session")


@dataclass(frozen=True, slots=True)
class GatewayRequest:
    """What to serve. `first`: open a session at once."""

    loaded: Loaded
    control: ControlAddress
    first: bool = True
    until_stdin_closes: bool = False


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(app, name="gateway")


@app.callback(help=HELP)
def gateway(
    ctx: typer.Context,
    engine: Annotated[str | None, typer.Option(help="embedded or scripted:FILE.")] = None,
    model: Annotated[str | None, typer.Option(help="Model directory; default: the shipped pilot policy.")] = None,
    template: Annotated[str | None, typer.Option(help="Chat template file, or one of the model's own by name.")] = None,
    parser: Annotated[str | None, typer.Option(help="Reply format; default: told by the model's files.")] = None,
    port: Annotated[int | None, typer.Option(help="Port for agents; default 0, a free one.")] = None,
    control_port: Annotated[int, typer.Option(help="Port of the control plane; 0 = a free one.")] = 0,
    control_host: Annotated[str, typer.Option(help="Address of the control plane.")] = "127.0.0.1",
    config: Annotated[Path | None, typer.Option(help="TOML settings file.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; default runs/<time>-gateway.")] = None,
    sampling: Annotated[str | None, typer.Option(help="k=v,... e.g. temperature=0.7,max_tokens=256")] = None,
    max_turns: Annotated[int | None, typer.Option(help="Model turns per session.")] = None,
    max_tokens_per_session: Annotated[int | None, typer.Option(help="Sampled tokens per session.")] = None,
    seed: Annotated[int | None, typer.Option(help="Sampling seed.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any setting, key=value.")] = None,
    no_session: Annotated[bool, typer.Option("--no-session", help="Open no first session.")] = False,
    until_stdin_closes: Annotated[
        bool, typer.Option("--until-stdin-closes", help="Also end when standard input closes, for programs.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on one line of stdout when ready.")] = False,
) -> None:
    """See HELP."""
    if ctx.invoked_subcommand is not None:
        return
    extra = (*(set_ or ()), *(() if port is None else (f"gateway.port={port}",)))
    try:
        _check_port("--port", port)
        _check_port("--control-port", control_port)
        flags = RunFlags(
            engine=engine,
            model=model,
            template=template,
            parser=parser,
            out=out,
            sampling=sampling,
            max_turns=max_turns,
            max_tokens_per_session=max_tokens_per_session,
            seed=seed,
            extra=extra,
        )
        loaded = load_settings(config, flags, name="gateway")
        request = GatewayRequest(loaded, ControlAddress(control_host, control_port), not no_session, until_stdin_closes)
        code = serve_and_prove(request, as_json=as_json)
    except TuglineError as err:
        output.fail(err, as_json=as_json)
    raise typer.Exit(code)


def _check_port(flag: str, port: int | None) -> None:
    if port is not None and not 0 <= port <= 65_535:
        raise ConfigError(f"{port} is outside 0 .. 65535", where=flag)


def serve_and_prove(request: GatewayRequest, *, as_json: bool) -> int:
    """Serve until asked to stop. Exit status: 0 when the run's own proofs hold, 1 when one fails."""
    path = run_dir(request.loaded)
    console = output.console()
    with nothing_left(path):
        store = RunStore.open_or_create(path, dump_toml(request.loaded.settings))
        for warning in store.warnings:
            console.print(warning, markup=False, style="yellow")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, orderly_end():
            rescored = runner.run(_serve(request, store, as_json=as_json))
    with RunStore.open(path, write=False) as reader:
        proof = prove_run(reader, journal_of(path))
        summary = summarise(reader)
    # a gateway that nobody called has nothing to prove and nothing wrong
    ok = not proof.findings and not proof.rewarded_without_tokens and (rescored is None or rescored.ok)
    show_summary(console, summary)
    if proof.calls_total:
        show_proof(console, proof, rescored)
    else:
        console.print("nothing to prove: no call was answered")
    console.print(f"[bold]{path}[/]", highlight=False)
    return output.OK if ok else output.FAILED


async def _serve(request: GatewayRequest, store: RunStore, *, as_json: bool) -> Rescored | None:
    console = output.console()
    async with store, serving(request.loaded.settings, store) as parts:
        if parts.lost:
            console.print(f"{parts.lost} sessions of a dead process ended as node_lost", style="yellow")
        async with control_plane(parts, request.control) as control:
            if note := level_note(parts.engine):
                console.print(note, markup=False, style="yellow")
            first = await parts.sessions.open(SessionOptions(name="first")) if request.first else None
            with _stop_asked(watch_stdin=request.until_stdin_closes) as stop:
                _say_ready(parts, control, first, as_json=as_json)
                await stop.wait()
        left = await parts.sessions.close()
        if left:
            console.print(f"{left} open sessions ended as cancelled")
        return await _rescore(parts)


async def _rescore(parts: Serving) -> Rescored | None:
    states = await asyncio.to_thread(parts.store.page, 1000)
    return await rescore(parts.engine, parts.store, [state.key.session_id for state, _ in states])


@contextmanager
def _stop_asked(*, watch_stdin: bool) -> Iterator[asyncio.Event]:
    """An event that ^C, SIGTERM and (if watched) the end of standard input set. A second ^C ends us at once."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def asked() -> None:
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked)
    if watch_stdin:
        # a thread: standard input may be a file or a terminal, which event loops cannot watch
        threading.Thread(target=_wait_for_eof, args=(loop, stop.set), daemon=True).start()
    yield stop


def _wait_for_eof(loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
    fd = sys.stdin.fileno()
    while True:
        select.select([fd], [], [])
        if not os.read(fd, 4096):
            break
    if not loop.is_closed():
        loop.call_soon_threadsafe(ended)


def _say_ready(parts: Serving, control: Control, first: OpenedSession | None, *, as_json: bool) -> None:
    run = parts.store.path
    if as_json:
        told: dict[str, object] = dict.fromkeys(("session", "key", "openai", "anthropic", "gemini")) | {"env": {}}
        if first is not None:
            told = {name: getattr(first, name) for name in told}
        output.emit({**told, "control": control.url, "token_file": control.token_file, "run": str(run)})
        return
    console = output.console()
    console.print(f"gateway [bold]{control.gateway}[/] · control plane {control.url} · run [bold]{run}[/]")
    if first is not None:
        typer.echo(sessions.environment(first.session, first.env, run))
    console.print("another session: tugline gateway session new · ^C ends the run", style="dim")
