"""`tugline doctor template TARGET`: one chat template judged, and the verdict in words that say what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec
import typer
from rich.table import Table

from tugline.cli import output
from tugline.cli.judge import Answer, Judgement, Request
from tugline.cli.wiring import PILOT
from tugline.config.load import load
from tugline.core.errors import ConfigError, TuglineError
from tugline.core.paths import expanded
from tugline.tokens.probes.verdict import Result, Verdict

_LIMIT = 60
"""Seconds for one template; fuzzing has one more per conversation."""
SHIPPED = {"pilot": PILOT}
"""Models that can be judged by name."""


@dataclass(frozen=True, slots=True)
class Options:
    """Flags of `doctor template TARGET`."""

    tokenizer: Path | None = None
    template: str | None = None
    parser: str | None = None
    stop: tuple[str, ...] = ()
    fuzz: int = 0
    as_json: bool = False


def judge_template(target: str, options: Options) -> NoReturn:
    """Exit 0: tools can be shown. 1: they cannot, no reply format fits, or a conversation differed silently. 2: there
    is nothing to judge."""
    try:
        found = _judged(target, options)
    except TuglineError as err:
        output.fail(err, as_json=options.as_json)
    silent = found.fuzz is not None and found.fuzz.silent > 0
    ok = found.verdict.tools.representable and found.format_known and not silent
    if options.as_json:
        output.emit({"ok": ok, "target": target, **msgspec.to_builtins(found)})
    else:
        _show(target, found)
    raise typer.Exit(output.OK if ok else output.FAILED)


def _judged(target: str, options: Options) -> Judgement:
    """The verdict, made in a process of its own: a template is somebody else's program."""
    path = SHIPPED.get(target) or expanded(target, "doctor template")
    if not path.exists():
        known = ", ".join(SHIPPED)
        told = f"{target} is no file, no directory and no shipped model ({known}); nothing is downloaded"
        raise ConfigError(told, where="doctor template")
    if options.tokenizer is not None and not options.tokenizer.exists():
        raise ConfigError(f"{options.tokenizer} is not there", where="--tokenizer")
    if path.is_dir() and options.tokenizer is not None:
        raise ConfigError("a model directory has its own tokenizer", where="--tokenizer")
    if options.template is not None and not path.is_dir():
        raise ConfigError("goes with a model directory", where="--template")
    cache = expanded(load(None, dict(os.environ), {}).settings.cache.dir, "cache.dir")
    request = Request(
        str(path.absolute()),
        str(options.tokenizer.absolute()) if options.tokenizer else None,
        options.parser,
        list(options.stop),
        options.fuzz,
        str(cache),
        options.template,
    )
    limit = _LIMIT + options.fuzz
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tugline.cli.judge"],
            input=msgspec.json.encode(request),
            capture_output=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        told = f"judging it takes longer than {limit} s: the template may never end, or this machine is too busy"
        raise ConfigError(told, where=target) from None
    try:
        answer = msgspec.json.decode(done.stdout, type=Answer)
    except msgspec.DecodeError:
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
        raise ConfigError(f"judging it ended by {how}: the template asks for too much", where=target) from None
    if answer.judgement is None:
        raise ConfigError(answer.error or "it cannot be judged")
    return answer.judgement


# --------------------------------------------------------------------------------------------------------------- words


def _show(target: str, found: Judgement) -> None:
    console, verdict = output.console(), found.verdict
    table = Table.grid(padding=(0, 2))
    for left, right in _rows(found):
        table.add_row(left, output.printable(right))
    how = "structure only" if found.structure_only else found.tokenizer
    console.print(f"{target}  (reply format {found.parser}; tokenizer: {how}; {found.seconds:.1f} s)", markup=False)
    console.print(table, markup=False)
    bad = [r for r in verdict.results if r.status == "fail"]
    notes = [r for r in verdict.results if r.status == "note"]
    for title, results in (("breaks", bad), ("worth knowing", notes)):
        if results:
            console.print(title)
            _show_results(results, verdict)
    if verdict.tools.representable and not found.format_known:
        what = "a start refuses this: no reply format fits. Choose one with --parser (settings: engine.parser)"
        console.print(f"no  {what}; plain reads text and no calls", markup=False)
        return
    last = "can be used with tools" if verdict.tools.representable else "cannot show tools"
    console.print(f"{'ok' if verdict.tools.representable else 'no'}  {last}: {verdict.tools.why}", markup=False)


def _rows(found: Judgement) -> Iterator[tuple[str, str]]:
    verdict = found.verdict
    yield "bridge", f"{verdict.bridge}: {verdict.why}"
    for promise in verdict.promises:
        yield f"  {promise.code} {promise.kept}", promise.why
    yield "roles", _roles(verdict)
    yield "tools", f"{verdict.tools.why} (calls in one turn: {_calls(verdict.tools.parallel)})"
    yield "arguments", "; ".join((f"given as {verdict.arguments}", *verdict.spelling))
    yield "thinking", _thinking(verdict)
    yield "ends with", f"{verdict.close or 'no token of its own'}; stop tokens: {', '.join(verdict.stops) or 'none'}"
    if verdict.media.placeholder:
        yield "images", f"{verdict.media.why} ({verdict.media.placeholder})"
    if verdict.clock.prints:
        yield "clock", f"{', '.join(verdict.clock.prints)}: a session keeps the time at which it began"
    if found.fuzz is not None:
        classes = ", ".join(f"{name} {n}" for name, n in sorted(found.fuzz.classes.items())) or "no other"
        told = f"{found.fuzz.conversations} conversations: {found.fuzz.equal} of {found.fuzz.compared} prompts equal"
        yield "fuzz", f"{told}; counted: {classes}; silent differences: {found.fuzz.silent}"
        for example in found.fuzz.examples:
            yield "", example
    for what, source in found.sources.items():
        yield what, source if source.startswith(("the template", "nothing")) else f"from {source}"
    for note in found.notes:
        yield "note", note


def _calls(parallel: int) -> str:
    return "any number" if parallel == 3 else str(parallel)


def _roles(verdict: Verdict) -> str:
    may = ", ".join(verdict.appendable) or "none"
    bad = [f"{' then '.join(f.roles)}: {f.why or f.outcome}" for f in verdict.follows if f.outcome != "kept"]
    return f"behind a turn may stand {may}" + (f"; not {'; '.join(bad)}" if bad else "")


def _thinking(verdict: Verdict) -> str:
    if verdict.faithful:
        with_what = " or ".join("no arguments" if k == "{}" else k for k in verdict.faithful)
        told = f"C = F with {with_what}"
    else:
        told = "no template argument makes C = F"
    seen = [f"{s.kwargs} changes the {' and the '.join(s.changes)}" for s in verdict.switches]
    return "; ".join([told, *seen])


_ADVICE = {
    "P1": "name the token that ends a turn with --stop (settings: engine.stop)",
    "P2": "use the tokenizer that belongs to this template",
    "P2_tokens": "use the tokenizer that belongs to this template",
    "P3_reasoning": "earlier reasoning is not shown again; what was sampled stays in bridged prompts",
    "P3_calls": "use a template of this family that shows tool calls (settings: engine.template)",
    "P3_noargs": "use a template of this family that shows tool calls (settings: engine.template)",
    "P3_offered": "tell of them in the system message, or use a template that does (settings: engine.template)",
    "P4": "use a template of this family that keeps the order (settings: engine.template)",
    "P5": "nothing: bridged prompts keep what was sampled",
    "P6": "nothing: the whole history is rendered for each bridge",
    "P7": "what cannot stand there is rendered anew, and counted",
    "P14": "every prompt is rendered anew; please report the template",
    "P15": "use the tokenizer that belongs to this template",
    "P16": "harness text that spells control tokens is refused",
}
_SPLIT = "several calls of a turn are given one by one"
"""As probe P7_shape says it."""


def _advice(result: Result, verdict: Verdict) -> str:
    """What to do about a probe that failed. It depends on what serves in its place."""
    name = result.name
    shows_one = name.startswith(("P3_calls", "P3_noargs")) and verdict.tools.parallel > 0 and not name.endswith("_1")
    if shows_one and any(_SPLIT in r.what for r in verdict.results if r.name == "P7_shape"):
        return "nothing for a model that calls one tool per turn; more are given one by one, counted calls_split"
    if name == "P13":
        if verdict.faithful:
            return f"set engine.template_kwargs to {verdict.faithful[0]}"
        return "nothing: what was sampled stays; edits.history_reasoning = 'template' renders it anew instead"
    if name == "P6" and verdict.bridge != "splice":
        return ""
    if name == "P14" and verdict.bridge == "renderers":
        return "nothing: the bridge of the renderers package serves in its place"
    if name == "P14" and not verdict.close:
        return ""
    stem, start = name.rpartition("_")[0], name.partition("_")[0]
    return _ADVICE.get(name) or _ADVICE.get(stem) or _ADVICE.get(start) or ""


def _grouped(results: Sequence[Result], verdict: Verdict) -> Iterator[tuple[list[Result], str]]:
    """Results that say the same and ask for the same, together; with what they ask for."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        asks = result.status == "fail" or result.name == "P3_offered"
        advice = _advice(result, verdict) if asks else ""
        groups.setdefault((result.what, advice), []).append(result)
    yield from ((group, advice) for (_, advice), group in groups.items())


def _show_results(results: Sequence[Result], verdict: Verdict) -> None:
    console = output.console()
    for group, advice in _grouped(results, verdict):
        first, *others = group
        also = f" (also {', '.join(r.name for r in others)})" if others else ""
        console.print(f"  {first.name:<16} {output.printable(first.what)}{also}", markup=False)
        if first.example:
            console.print(f"  {'':<16} e.g. {output.printable(first.example)!r}", markup=False)
        if advice:
            console.print(f"  {'':<16} do: {advice}", markup=False)
