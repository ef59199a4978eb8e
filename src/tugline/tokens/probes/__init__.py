"""Start-up trials of a (template, tokenizer, stop set) triple: what may be bridged, and proof that bridging is right.

P1 close is one control token · P2 cutting at control tokens changes no id · P3 the last word survives in text,
reasoning, and in one, two and three calls with and without arguments · P4 text, call, result keep this order · P5 the
generation prompt is how an assistant turn begins · P6 the tail does not depend on the history · P7 which roles may
follow, alone and in pairs · P8 results are grouped · P9 a result shows its call's name or id · P10 how a call's
spelling reaches the model · P11 white space taken off · P12 part boundaries · P13 a user message leaves earlier turns
alone, and under which template arguments · P14 random conversations: bridge = one-pass render · P15 tokens beside a
control token stay what they are · P16 harness text makes no control token · P17 clock and chance.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, cast

from tugline.core.columns import Ids
from tugline.tokens.probes import fuzz, history, roles, shape, spelled, texts, thinking
from tugline.tokens.probes.promises import choose_bridge, promises, with_hand
from tugline.tokens.probes.static import read_source
from tugline.tokens.probes.trial import HEAD, Bench, Trial
from tugline.tokens.probes.verdict import SCHEMA, Verdict
from tugline.tokens.splice import Rules, inner_tokens

__all__ = ["SCHEMA", "Bench", "ProbeReport", "Verdict", "run_probes", "with_hand"]

ProbeReport = Verdict


def run_probes(bench: Bench) -> tuple[Verdict, Rules]:
    """Run all trials. Never raises."""
    trial = Trial(bench)
    source = read_source(bench.renderer.template)
    close, close_id = shape.close(trial)
    shape.cuts(trial)
    tools = shape.survival(trial)
    good, follows = roles.alone(trial)
    follows += roles.pairs(trial, good)
    rules = _rules(bench, close_id, good, shape.separator(trial))
    append_only, found = thinking.switches(trial, source)
    rules = replace(
        rules, fixed_context=frozenset(history.independent(trial, rules, source, [s.kwargs for s in found]))
    )
    tools, moves = shape.order(trial, tools, close)
    rules = replace(rules, moves=moves)
    shown = shape.begins(trial)
    shape.blank_turns(trial, close)
    roles.grouping(trial, good)
    roles.naming(trial, good)
    spelling = texts.spelling(trial)
    texts.blanks(trial)
    texts.parts(trial)
    clock = thinking.clock(trial, source)
    spelled.beside(trial, close)
    spelled.forged(trial)
    compared = fuzz.fuzz(trial, rules)
    chosen, why = choose_bridge(trial.results)
    codec = bench.renderer.codec
    names = {i: content for content, i in codec.control.items()}
    return (
        Verdict(
            results=tuple(sorted(trial.results, key=lambda r: _number(r.name))),
            bridge=cast('Literal["splice", "renderers", "none"]', chosen),
            why=why,
            promises=promises(chosen, sorted(good), append_only, found, (tools, clock, bench.renderer.shape.unseen)),
            appendable=tuple(sorted(good)),
            follows=follows,
            arguments=bench.renderer.shape.arguments,
            spelling=spelling,
            independent=tuple(sorted(rules.fixed_context)),
            append_only=append_only,
            shows_prompt=shown,
            switches=found,
            control=tuple(names[i] for i in sorted(names)),
            stops=tuple(names.get(i, str(i)) for i in sorted(bench.stop)),
            close=close,
            tools=tools,
            media=texts.media(trial),
            clock=clock,
            compared=compared,
        ),
        rules,
    )


def _rules(bench: Bench, close_id: int | None, good: frozenset[str], separator: Ids) -> Rules:
    closes = frozenset(bench.stop | ({close_id} if close_id is not None else set()))
    inner = inner_tokens(bench.renderer, closes, HEAD)
    return Rules(bench.stop, closes, good, frozenset(), bench.reasoning, bench.calls, separator, inner)


def _number(name: str) -> int:
    return int(name[1:].partition("_")[0])
