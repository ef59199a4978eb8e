"""`tugline engine vllm MODEL`: start a server with the flags that token-exact capture needs."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from typing import Annotated

import typer

from tugline.cli import output
from tugline.core.errors import ConfigError, EngineError, TuglineError
from tugline.core.paths import expanded
from tugline.engines.vllm_launch import VllmLaunch, command, exposed

HELP = """Start a vLLM server with every flag that the driver wants, and say when it is ready.

[bold]Examples[/]

  tugline engine vllm ./my-model
  tugline engine vllm ./my-model --port 8100 --python ~/vllm/bin/python
  tugline engine vllm ./my-model --dry-run
  tugline engine vllm ./my-model -- --dtype bfloat16 --max-model-len 8192

Everything behind -- goes to vLLM as it is. ^C ends the server. Exit status: 0 it was ended, 1 it ended by itself or
could not be started, 2 usage.
"""
WAIT = 0.5


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(help="Start an engine.", no_args_is_help=True, rich_markup_mode="rich")
    group.command("vllm", help=HELP, context_settings={"allow_extra_args": True})(vllm)
    app.add_typer(group, name="engine")


def vllm(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="Model directory, or a name that vLLM knows.", metavar="MODEL")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65_535)] = 8000,
    served: Annotated[str | None, typer.Option(help="Name to serve it under.")] = None,
    python: Annotated[str | None, typer.Option(help="Interpreter of vLLM's own environment.")] = None,
    no_updates: Annotated[bool, typer.Option("--no-updates", help="No weights, pauses or resets over HTTP.")] = False,
    experts: Annotated[bool, typer.Option("--experts", help="Replies say which experts each token went to.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the command.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on one line of stdout when ready.")] = False,
) -> None:
    """See HELP."""
    try:
        here = expanded(model, "MODEL")
    except TuglineError as err:
        output.fail(err, as_json=as_json)
    launch = VllmLaunch(
        model=str(here) if here.exists() else model,
        host=host,
        port=port,
        served=served,
        python=python,
        updates=not no_updates,
        experts=experts,
        more=tuple(ctx.args),
    )
    argv, env = command(launch)
    if exposed(launch):
        output.console().print(
            f"anybody who reaches {host}:{port} can replace the weights: --no-updates, or a network of your own",
            style="yellow",
        )
    if dry_run:
        if as_json:
            output.emit({"argv": argv, "env": env})
        else:
            typer.echo(" ".join([*(f"{k}={v}" for k, v in env.items()), *argv]))
        raise typer.Exit(output.OK)
    try:
        code = _serve(launch, argv, env, as_json=as_json)
    except TuglineError as err:
        output.fail(err, as_json=as_json)
    raise typer.Exit(code)


def _serve(launch: VllmLaunch, argv: list[str], env: Mapping[str, str], *, as_json: bool) -> int:
    try:
        # its log goes where errors go: standard output is for the line that says ready
        process = subprocess.Popen(argv, env={**os.environ, **env}, stdout=2)
    except OSError as err:
        hint = "install vLLM, or name its interpreter with --python"
        raise ConfigError(f"{argv[0]} cannot be started: {err.strerror}; {hint}", where="engine vllm") from err
    asked = False

    def stop(*_: object) -> None:
        nonlocal asked
        asked = True
        process.terminate()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        url = f"http://{launch.host if launch.host != '0.0.0.0' else '127.0.0.1'}:{launch.port}"
        while process.poll() is None and not _healthy(url):
            time.sleep(WAIT)
        if process.poll() is None:
            _say(launch, url, as_json=as_json)
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if not asked:
        raise EngineError(f"vLLM ended by itself, status {status}; its log is above", retryable=False)
    return output.OK


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _say(launch: VllmLaunch, url: str, *, as_json: bool) -> None:
    if as_json:
        output.emit({"url": url, "spec": f"vllm:{url}", "model": launch.model})
        return
    console = output.console()
    console.print(f"ready: tugline doctor engine vllm:{url} --model {launch.model}", markup=False)
    console.print(f"       tugline rollout files --engine vllm:{url} --model {launch.model}", markup=False)
