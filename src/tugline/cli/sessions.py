"""`tugline gateway session new|end|show|list|delete`: the control plane of a running gateway."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from tugline.cli import output
from tugline.cli.flags import SAMPLING_KEYS
from tugline.cli.session_text import described, listed
from tugline.config.values import CHOICES, convert
from tugline.core.contracts import EditPolicy
from tugline.core.errors import ConfigError, TuglineError
from tugline.core.paths import expanded
from tugline.core.session import Outcome
from tugline.rollout.control_client import ControlClient
from tugline.rollout.control_file import newest_control
from tugline.rollout.trajectory_json import encode_trajectory
from tugline.rollout.views import STATES

app = typer.Typer(no_args_is_help=True, help="Sessions of a running gateway: new, end, show, list, delete.")

Run = Annotated[
    Path | None, typer.Option("--run", help="Run directory of the gateway; default: the newest running one in runs/.")
]
OwnRun = Annotated[
    Path | None,
    typer.Option(
        "--run", envvar="TUGLINE_RUN", help="Run directory of the gateway; default: the newest running one in runs/."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Id = Annotated[str, typer.Argument(envvar="TUGLINE_SESSION", help="Session id.", metavar="SESSION")]

WHO = {
    "OPENAI_BASE_URL": "Codex, Qwen Code, OpenCode, mini-swe-agent, aider (OPENAI_API_BASE), OpenAI SDKs",
    "ANTHROPIC_BASE_URL": "Claude Code, Anthropic SDKs",
    "GOOGLE_GEMINI_BASE_URL": "Gemini CLI, Google Gen AI SDKs",
}
"""Which programs read which variable."""


@app.command("new")
def new(
    run: Run = None,
    name: Annotated[str | None, typer.Option(help="For people.")] = None,
    group: Annotated[str | None, typer.Option(help="Sessions to compare with each other.")] = None,
    task: Annotated[str | None, typer.Option(help="What is to be solved.")] = None,
    sampling: Annotated[str | None, typer.Option(help="k=v,... e.g. temperature=0.7,max_tokens=256")] = None,
    max_turns: Annotated[int | None, typer.Option(help="Model turns.")] = None,
    max_tokens_per_session: Annotated[int | None, typer.Option(help="Sampled tokens.")] = None,
    ttl: Annotated[str | None, typer.Option(help="End it as agent_timeout after this time, e.g. 10m.")] = None,
    engine: Annotated[str | None, typer.Option(help="Another engine of the run, for all calls; never trained.")] = None,
    media: Annotated[str | None, typer.Option(help="omit or refuse what the policy cannot see.")] = None,
    constraints: Annotated[str | None, typer.Option(help="ignore or refuse structured output.")] = None,
    streaming: Annotated[str | None, typer.Option(help="buffered or live.")] = None,
    history_reasoning: Annotated[str | None, typer.Option(help="keep or template.")] = None,
    edits: Annotated[str | None, typer.Option(help="k=v,... of [edits], e.g. text_changed=retain")] = None,
    metadata: Annotated[str | None, typer.Option(help="JSON object kept with the session.")] = None,
    as_json: Json = False,
) -> None:
    """Open a session and print its environment, as lines for a shell. Its key is shown only now.

    The lines also set TUGLINE_SESSION and TUGLINE_RUN: `end`, `show` and `delete` then need no id and no --run.

    Example: eval "$(tugline gateway session new --group first --ttl 10m)"
    """
    with _client(run, as_json=as_json) as (client, place):
        _one_of("--media", media, CHOICES["gateway.media"])
        _one_of("--constraints", constraints, CHOICES["gateway.constraints"])
        _one_of("--streaming", streaming, CHOICES["gateway.streaming"])
        _one_of("--history-reasoning", history_reasoning, CHOICES["edits.history_reasoning"])
        options: dict[str, Any] = {
            "name": name,
            "group": group,
            "task": task,
            **_sampling(sampling),
            "max_turns": max_turns,
            "max_tokens_per_session": max_tokens_per_session,
            "ttl": _seconds(ttl),
            "engine": engine,
            "media": media,
            "constraints": constraints,
            "streaming": streaming,
            "history_reasoning": history_reasoning,
            "edits": _edits(edits),
            "metadata": _object(metadata),
        }
        made = client.open(**{key: value for key, value in options.items() if value is not None})
        if as_json:
            output.emit(made)
        else:
            typer.echo(environment(made["session"], made["env"], place))


@app.command("end")
def end(
    session: Id,
    run: OwnRun = None,
    reward: Annotated[float | None, typer.Option(help="What the verifier said.")] = None,
    part: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, a part of the reward; repeatable.")] = None,
    outcome: Annotated[str, typer.Option(help=f"One of {', '.join(Outcome)}.")] = "completed",
    reason: Annotated[str | None, typer.Option(help="One line: why it did not complete.")] = None,
    as_json: Json = False,
) -> None:
    """End a session: its key dies, its rows are built. Exit 1 when its reward was not kept: no call was answered.

    Without SESSION it is the one of TUGLINE_SESSION, on the run of TUGLINE_RUN.

    Example: tugline gateway session end --reward 1.0 --part tests=1
    """
    with _client(run, as_json=as_json) as (client, _):
        _one_of("--outcome", outcome, tuple(Outcome))
        judged = reward is not None or bool(part)
        view = client.end(session, reward, parts=_parts(part or []), outcome=outcome, reason=reason)
        _show(view, as_json=as_json)
        if view["outcome"] == Outcome.ENGINE_FAILED and outcome != Outcome.ENGINE_FAILED:
            output.console().print(_not_kept(client.show(session), judged=judged), markup=False, style="yellow")
            if judged:
                raise typer.Exit(output.FAILED)


@app.command("show")
def show(
    session: Id,
    run: OwnRun = None,
    trajectory: Annotated[bool, typer.Option("--trajectory", help="Its training rows as JSON instead.")] = False,
    as_json: Json = False,
) -> None:
    """State, calls by outcome, turns and tokens of a session.

    Example: tugline gateway session show ses_... --json
    """
    with _client(run, as_json=as_json) as (client, _):
        if trajectory:
            typer.echo(encode_trajectory(client.trajectory(session)))
        else:
            _show(client.show(session), as_json=as_json)


@app.command("list")
def list_(
    run: Run = None,
    state: Annotated[str | None, typer.Option(help="open, queued, booting, ready, running, judging or ended.")] = None,
    group: Annotated[str | None, typer.Option(help="Of one group.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many.")] = 100,
    after: Annotated[str | None, typer.Option(help="Behind this session id.")] = None,
    as_json: Json = False,
) -> None:
    """Sessions in order of creation.

    Example: tugline gateway session list --state open
    """
    with _client(run, as_json=as_json) as (client, _):
        _one_of("--state", state, ("open", *STATES))
        page = client.list(state=state, group=group, limit=limit, after=after)
        if as_json:
            output.emit(page)
            return
        typer.echo(listed(page["sessions"], time.time()))
        if page["next"]:
            output.console().print(f"more: --after {page['next']}")


@app.command("delete")
def delete(session: Id, run: OwnRun = None, as_json: Json = False) -> None:
    """Cancel an open session, or remove the records of one that has ended.

    Example: tugline gateway session delete ses_...
    """
    with _client(run, as_json=as_json) as (client, _):
        removed = client.delete(session)
        if as_json:
            output.emit({"session": session, "removed": removed})
        else:
            typer.echo(f"{session} {'removed' if removed else 'cancelled; delete it again to remove its records'}")


def environment(session: str, env: Mapping[str, str], run: Path) -> str:
    """Lines to paste into a shell. The last two are for `end`, `show` and `delete`."""
    lines = [f"# session {session}"]
    for key, value in env.items():
        if key in WHO:
            lines.append(f"# {WHO[key]}")
        lines.append(f"export {key}={shlex.quote(value)}")
    lines += [f"export TUGLINE_SESSION={shlex.quote(session)}", f"export TUGLINE_RUN={shlex.quote(str(run))}"]
    return "\n".join(lines)


@contextmanager
def _client(run: Path | None, *, as_json: bool) -> Iterator[tuple[ControlClient, Path]]:
    """The control plane of a running gateway, and its run directory; its refusals end the command."""
    client = None
    try:
        place = expanded(run or newest_control(Path("runs").absolute()), "run").absolute()
        client = ControlClient.of_run(place)
        yield client, place
    except TuglineError as err:
        output.fail(err, as_json=as_json)
    finally:
        if client is not None:
            client.close()


def _not_kept(shown: Mapping[str, Any], *, judged: bool) -> str:
    """Why a session that its opener called done has no part in training."""
    why, usage = str(shown["reason"]), shown["usage"]
    if not usage["calls"] and not usage["turns"] and why.endswith("the agent made no call"):
        why = "the agent made no call: check the URL that it used, e.g. OPENAI_BASE_URL"
    return f"warning: {why}{'; the reward was not kept' if judged else ''}"


def _show(view: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.emit(view)
        return
    typer.echo(output.table(described(view, time.time())))


def _one_of(flag: str, value: str | None, choices: Sequence[str]) -> None:
    if value is not None and value not in choices:
        raise ConfigError(f"{value!r} is not one of {', '.join(choices)}", where=flag)


def _seconds(ttl: str | None) -> float | None:
    if ttl is None:
        return None
    try:
        found = convert("limits.agent_timeout", float, ttl, "--ttl")  # a duration like this one
    except ConfigError as err:
        raise ConfigError(f"{ttl!r} is not a duration above 0 such as 90, 90s or 10m", where="--ttl") from err
    return found if isinstance(found, float) else None


def _sampling(text: str | None) -> dict[str, object]:
    found: dict[str, object] = {}
    for part in filter(None, (text or "").split(",")):
        key, sep, value = part.partition("=")
        if not sep or key.strip() not in SAMPLING_KEYS:
            raise ConfigError(f"{part!r} is not one of {', '.join(SAMPLING_KEYS)} with =VALUE", where="--sampling")
        kind = float if key.strip() in ("temperature", "top_p") else int
        found[key.strip()] = convert(f"sampling.{key.strip()}", kind, value.strip(), "--sampling")
    return found


def _edits(text: str | None) -> dict[str, object] | None:
    known = {f.name: bool if isinstance(f.default, bool) else str for f in fields(EditPolicy)}
    found: dict[str, object] = {}
    for part in filter(None, (text or "").split(",")):
        key, sep, value = (side.strip() for side in part.partition("="))
        if not sep or key not in known:
            raise ConfigError(f"{part!r} is not one of {', '.join(known)} with =VALUE", where="--edits")
        found[key] = convert(f"edits.{key}", known[key], value, "--edits")
    return found or None


def _parts(given: list[str]) -> dict[str, float]:
    parts: dict[str, float] = {}
    for part in given:
        name, sep, value = part.rpartition("=")
        try:
            parts[name] = float(value)
        except ValueError:
            sep = ""
        if not sep:
            raise ConfigError(f"{part!r} is not NAME=NUMBER", where="--part")
    return parts


def _object(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as err:
        raise ConfigError(f"is not a JSON object: {err}", where="--metadata") from err
