"""`tugline explain RUN CALL`: why a call was sampled on the ids that it was sampled on."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tugline.cli import output
from tugline.cli.wiring import chat_models
from tugline.core.errors import ConfigError, NotFound, TuglineError
from tugline.core.turn import CallOutcome
from tugline.forest.told import Edited, Parting
from tugline.rollout.audit import Rendering
from tugline.rollout.explain import Explanation, Nearest, Place, Prompt, Sampled, explain
from tugline.store import RunStore
from tugline.tokens.model import ChatModel

HELP = """Explain one call: where it attached and why, what the agent changed, the prompt and the sample at token level.

CALL is a call id, a turn id, or SESSION:N, the session's N-th call in order of arrival, from 0.
`tugline report RUN --drift` names a call for every deviation.

[bold]Examples[/]

  tugline explain runs/first call_1m8nx41hyacd9t02tnr4e
  tugline explain runs/first ses_1m8nx41hyacd9t02tnr4e:3 --json
"""

SHOWN = 4000
"""Characters of one text that people get to see; --json has them all."""
MOST = 10
"""Turns that a line names; --json has them all."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("explain", help=HELP)(explain_call)


def explain_call(
    run: Annotated[Path, typer.Argument(help="Run directory.", metavar="RUN")],
    call: Annotated[str, typer.Argument(help="Call id, turn id or SESSION:N.", metavar="CALL")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """See HELP."""
    try:
        with RunStore.open(run, write=False) as store:
            found = _explained(store, call, run)
    except NotFound as err:
        output.fail(ConfigError(err.message, where="CALL"), as_json=as_json)
    except TuglineError as err:
        output.fail(err, as_json=as_json)
    if as_json:
        output.emit(found.as_json())
    else:
        show(output.console(), found)


def _explained(store: RunStore, call: str, run: Path) -> Explanation:
    """With the run's chat model, or without it when its directory is not here."""
    models: Callable[[str], ChatModel] | None
    try:
        models = chat_models(run)
        return explain(store, call, models)
    except ConfigError:
        return explain(store, call, None)


def show(console: Console, found: Explanation) -> None:
    """For people: one section per question."""

    def say(text: str = "", style: str = "") -> None:
        printable = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
        console.print(printable, markup=False, style=style or None)

    for line in _lines(found):
        heading = line.startswith("# ")
        say(line.removeprefix("# "), "bold" if heading else "red" if line.startswith("    - ") else "")


def _lines(found: Explanation) -> Iterator[str]:
    yield from _call(found)
    if found.place is not None:
        yield from _place(found.place)
    if found.prompt is not None:
        yield from _prompt(found.prompt)
    if found.sampled is not None:
        yield from _sampled(found.sampled)
        sampling = ", ".join(f"{k} {v}" for k, v in found.sampling.items() if v is not None)
        yield f"  sampling: {sampling}"
    asked = ", ".join(f"{k} {v}" for k, v in found.asked.items() if v not in (None, "", []))
    yield "# The request"
    yield f"  asked for: {asked or 'nothing'}"
    yield f"  without effect here: {', '.join(found.ignored) or 'nothing'}"
    yield from (f"  note: {note}" for note in found.notes)


def _call(found: Explanation) -> Iterator[str]:
    call = found.call
    if call is None:
        yield f"# Turn {found.turn_id} (no call record)"
        return
    yield f"# Call {call.call_id}: {call.outcome.value}, status {call.status}, {call.duration:.3f} s"
    yield f"  session {call.session_id}, call {call.seq}, {call.dialect} {call.path}, asked for {call.asked_model!r}"
    if call.error is not None:
        yield f"  error: {call.error}"
    if found.turn_id is None:
        nothing = "was sampled" if call.outcome is CallOutcome.REJECTED else "that was sampled is kept"
        yield f"  no turn: nothing {nothing} for this call" if call.turn_id is None else f"  {call.turn_id} is missing"
        return
    yield f"  turn {found.turn_id}, role {found.role}, level {found.level}, engine {found.engine or 'the policy'}"
    others = [f"{name} ({outcome})" for name, outcome in found.calls if name != call.call_id]
    if others:
        yield f"  the same turn also answered {', '.join(others)}"


def _place(place: Place) -> Iterator[str]:
    yield "# Where it attached"
    if place.parent is not None:
        yield f"  to turn {place.parent} ({place.match}); turn {place.depth + 1} of its conversation"
    else:
        yield f"  nowhere: a conversation of its own ({place.root_reason or 'reason not recorded'})"
    yield f"  drift: {', '.join(place.drift) or 'none'}"
    yield from (f"  {name} {turn_id}" for name, turn_id in place.links)
    if place.siblings:
        what = "earlier turns in the same place" if place.parent is not None else "earlier conversations begin at"
        more = f" and {len(place.siblings) - MOST} more" if len(place.siblings) > MOST else ""
        yield f"  {what}: {', '.join(place.siblings[:MOST])}{more}"
    if place.nearest is not None:
        yield from _nearest(place.nearest)
    for edited in place.edited:
        yield from _edited(edited)
    yield from (f"  not stored: {what}" for what in place.not_stored)


def _nearest(nearest: Nearest) -> Iterator[str]:
    shared = f"the first {nearest.tokens} of {nearest.prompt_tokens} prompt tokens are the same"
    yield f"  nearest earlier turn: {nearest.turn_id}, {shared}"
    yield from (f"    {change}" for change in nearest.head)
    if nearest.parting is not None:
        yield from _parting(nearest.parting)


def _parting(at: Parting) -> Iterator[str]:
    yield f"  first item that differs: number {at.index} ({at.kind})" + ("" if at.theirs else ", which is absent now")
    yield from _diff(at.ours, at.theirs)


def _edited(edited: Edited) -> Iterator[str]:
    if edited.origin is None:
        yield "  an assistant turn that nobody here said:"
        yield from (f"    + {line}" for line in _short(edited.words).splitlines())
        return
    yield f"  turn {edited.origin} in the agent's words: {', '.join(edited.classes)}"
    for difference in edited.differences:
        yield f"    {difference.where}:"
        yield from _diff(difference.ours, difference.theirs)


def _diff(ours: str, theirs: str) -> Iterator[str]:
    """Lines that differ, ours with -, theirs with +. Escapes and blanks are visible."""
    mine, other = ([repr(line)[1:-1] for line in _short(text).splitlines(keepends=True)] for text in (ours, theirs))
    for line in difflib.unified_diff(mine, other, lineterm="", n=1):
        if not line.startswith(("---", "+++", "@@")):
            yield f"    {line[:1]} {line[1:]}"


def _prompt(prompt: Prompt) -> Iterator[str]:
    yield "# The prompt"
    yield f"  {prompt.tokens} tokens: {prompt.kept} kept from the parent, {prompt.new} new"
    if prompt.part_of is not None:
        yield f"  {prompt.part} of the new ones are the beginning of turn {prompt.part_of}, as it was sampled"
    if prompt.trimmed is not None:
        yield f"  the parent's sampled stop {prompt.trimmed!r} was replaced; it is not trained"
    yield "  new: " + (repr(_short(prompt.new_text)) if prompt.new_text is not None else _ids(prompt.new_ids))
    if prompt.refused is not None:
        yield f"  the template does not render this conversation whole: {prompt.refused}"
    elif prompt.rendering is not None:
        yield from _rendering(prompt.rendering, same_text=bool(prompt.template))
    for deviation in prompt.deviations:
        yield f"    {deviation.kind} at {deviation.position}"
        yield from _diff(deviation.prompt, deviation.rendered)


def _rendering(found: Rendering, *, same_text: bool) -> Iterator[str]:
    """What the template would have given, and where that parts from what was sent."""
    if found.parts_at is None:
        yield "  one whole render of what the agent sent gives the same tokens"
        return
    how = "reads the same in other tokens" if same_text else "reads otherwise"
    yield f"  one whole render of what the agent sent has {found.tokens} tokens and {how}, from {found.parts_at} on:"
    yield f"    - {' | '.join(repr(token)[1:-1] for token in found.ours) or '(end)'}"
    yield f"    + {' | '.join(repr(token)[1:-1] for token in found.theirs) or '(end)'}"


def _sampled(sampled: Sampled) -> Iterator[str]:
    yield "# The sample"
    yield f"  {sampled.tokens} tokens, finish {sampled.finish}, versions {list(sampled.versions)}"
    yield "  " + (repr(_short(sampled.text)) if sampled.text is not None else _ids(sampled.ids))
    if sampled.logprob_sum is None:
        yield "  log-probabilities: unknown"
    else:
        yield (
            f"  log-probabilities: sum {sampled.logprob_sum:.4f}, mean {sampled.logprob_mean:.4f}, least "
            f"{sampled.logprob_min:.4f} at token {sampled.least_position} ({sampled.least_likely!r}) nats"
        )
    if sampled.untrainable is not None:
        yield f"  not trained: {sampled.untrainable}"


def _ids(values: Sequence[int]) -> str:
    more = f" ... and {len(values) - 100} more" if len(values) > 100 else ""
    return "ids " + " ".join(map(str, values[:100])) + more


def _short(text: str) -> str:
    """The beginning and the end of a long text."""
    if len(text) <= SHOWN:
        return text
    return f"{text[: SHOWN // 2]} ... {len(text) - SHOWN} characters ... {text[-SHOWN // 2 :]}"
