"""`tugline doctor`: what works on this machine, and what each missing part would need."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from tugline import __version__
from tugline.cli import output
from tugline.cli.doctor_engine import judge_engine
from tugline.cli.doctor_sandbox import Check, sandboxes
from tugline.cli.doctor_template import Options, judge_template
from tugline.cli.wiring import PILOT, chat_model
from tugline.config.load import load
from tugline.core.errors import ConfigError, TuglineError
from tugline.core.paths import expanded
from tugline.harnesses import harness as find_harness

HELP = """Check this machine part by part. Without arguments: everything.

[bold]Examples[/]

  tugline doctor
  tugline doctor sandbox engine
  tugline doctor harness --harness pi
  tugline doctor template --model ./my-model --json
  tugline doctor template ./my-model
  tugline doctor template chat_template.jinja --tokenizer ./my-model --fuzz 200
  tugline doctor engine vllm:http://127.0.0.1:8000 --model ./my-model

With one more word, `template` judges that template: a model directory, a .jinja file (with --tokenizer; without one
only its structure), or a shipped model by name (pilot). With one more word, `engine` asks that engine what it can do.

Exit status 0: the asked parts work. 1: one does not, or tools cannot be shown; the line says what to do. 2: usage.
"""

PARTS = ("system", "sandbox", "engine", "template", "harness")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor", help=HELP)(doctor)


def doctor(
    parts: Annotated[list[str] | None, typer.Argument(help=f"Any of: {', '.join(PARTS)}.")] = None,
    model: Annotated[Path | None, typer.Option(help="Model directory; default: the shipped pilot.")] = None,
    harness: Annotated[str, typer.Option(help="Harness to check.")] = "pi",
    tokenizer: Annotated[Path | None, typer.Option(help="For a .jinja: model directory or tokenizer.json.")] = None,
    template: Annotated[str | None, typer.Option(help="For a model directory: another template.")] = None,
    parser: Annotated[str | None, typer.Option(help="For a template: its reply format.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="For a template: a token that ends a turn.")] = None,
    fuzz: Annotated[int, typer.Option(min=0, help="For a template: random conversations to compare.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """See HELP."""
    if parts and len(parts) == 2 and parts[0] == "template" and parts[1] not in PARTS:
        judge_template(parts[1], Options(tokenizer, template, parser, tuple(stop or ()), fuzz, as_json))
    if parts and len(parts) == 2 and parts[0] == "engine" and parts[1] not in PARTS:
        judge_engine(parts[1], str(model) if model is not None else None, as_json=as_json)
    if tokenizer or template or parser or stop or fuzz:
        err = ConfigError("--tokenizer, --template, --parser, --stop and --fuzz need `template TARGET`", where="doctor")
        output.fail(err, as_json=as_json)
    asked = parts or list(PARTS)
    unknown = [p for p in asked if p not in PARTS]
    if unknown:
        output.fail(
            ConfigError(f"unknown part {unknown[0]!r}; choose from {', '.join(PARTS)}", where="doctor"), as_json=as_json
        )
    makers: dict[str, Callable[[], list[Check]]] = {
        "system": _system,
        "sandbox": sandboxes,
        "engine": _engine,
        "template": lambda: _template(model or PILOT),
        "harness": lambda: _harness(harness),
    }
    checks = [check for part in asked for check in makers[part]()]
    # one working sandbox is enough; the others only say what they would need
    boxes = [c for c in checks if c.part == "sandbox"]
    ok = all(c.ok is not False for c in checks if c.part != "sandbox") and (not boxes or any(c.ok for c in boxes))
    if as_json:
        output.emit({"ok": ok, "checks": checks})
    else:
        console = output.console()
        for check in checks:
            mark = {True: "[green]ok[/]  ", None: "[yellow]part[/]", False: "[red]no[/]  "}[check.ok]
            console.print(f"{mark} {check.part:<9}", end="")
            console.print(check.what + (f" -> {check.hint}" if check.hint else ""), markup=False)
    raise typer.Exit(output.OK if ok else output.FAILED)


def _system() -> list[Check]:
    linux = sys.platform == "linux"
    what = f"tugline {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
    what += f"{os.cpu_count()} cores"
    hint = "" if linux else "running agents needs Linux; engines, templates and reading runs work here"
    return [Check("system", True if linux else None, what, hint)]


def _engine() -> list[Check]:
    missing = [m for m in ("torch", "safetensors") if importlib.util.find_spec(m) is None]
    hint = (
        "install the CPU build of torch, then `pip install 'tugline[embedded]'`; plain torch on Linux x86-64 pulls a "
        "CUDA build of several GB"
    )
    return [
        Check(
            "engine",
            not missing,
            f"embedded {'ready' if not missing else 'lacks ' + ', '.join(missing)}",
            hint if missing else "",
        ),
        Check("engine", True, "scripted (plays a file; for tests of your harness)"),
        Check("engine", True, "vllm:URL, sglang:URL, openai:URL (ask one: tugline doctor engine E --model MODEL)"),
    ]


def _template(path: Path) -> list[Check]:
    try:
        report = chat_model(path).probe()
    except TuglineError as err:
        return [Check("template", False, str(path), err.message)]
    failures = list(report.failures)
    bridge = (
        "tail splice: prompts extend token for token" if report.splice else "no bridge: every prompt is re-rendered"
    )
    return [Check("template", report.splice, f"{path.name}: {bridge}", "; ".join(map(str, failures)))]


def _harness(name: str) -> list[Check]:
    cache = expanded(load(None, dict(os.environ), {}).settings.cache.dir, "cache.dir")
    lines: list[str] = []
    try:
        bundle = asyncio.run(find_harness(name).install(cache, lines.append))
    except TuglineError as err:
        return [Check("harness", False, name, err.message)]
    return [Check("harness", True, f"{name} {bundle.version}")]
