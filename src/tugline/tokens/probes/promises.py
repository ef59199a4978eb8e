"""From probe results to the four promises, in words."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tugline.tokens.fallback import Trial
from tugline.tokens.probes.verdict import FATAL, Clock, Promise, Result, Switch, Tools, Verdict


def choose_bridge(results: Sequence[Result]) -> tuple[str, str]:
    """(splice | none, why)."""
    fatal = [r for r in results if r.name in FATAL and r.status == "fail"]
    if not fatal:
        return "splice", "the template says itself what stands behind a turn; all probes that this needs have passed"
    because = "; ".join(f"{r.name}: {r.what}" for r in fatal)
    return "none", f"no tail splice ({because}); every prompt is rendered anew (level L2)"


def with_hand(verdict: Verdict, hand: Trial) -> Verdict:
    """The verdict where no tail can be spliced, with what the family's bridge in `renderers` can do."""
    because = verdict.why.partition("; every prompt")[0]
    if not hand.usable:
        return replace(verdict, why=f"{verdict.why}; the renderer {hand.name!r} does not serve: {hand.why}")
    found = f"{hand.equal} of {hand.compared} turns as the template writes them"
    why = f"{because}; the renderer {hand.name!r} of the family serves behind {', '.join(sorted(hand.kinds))}: {found}"
    differs = Promise("F", "counted" if hand.differs else "always", f"bridged by {hand.name!r}: {found}")
    promises = (verdict.promises[0], _continuous("renderers", sorted(hand.kinds)), differs, verdict.promises[3])
    return replace(verdict, bridge="renderers", why=why, appendable=tuple(sorted(hand.kinds)), promises=promises)


def promises(
    bridge: str,
    appendable: Sequence[str],
    append_only: bool,
    found: Sequence[Switch],
    seen: tuple[Tools, Clock, Collection[str]],
) -> tuple[Promise, ...]:
    """One sentence for each of E, C, F, S. `seen`: calls, the clock, and what the template leaves out."""
    exact = Promise("E", "always", "what is trained is what the engine read and sampled")
    return exact, _continuous(bridge, appendable), _format(bridge, append_only, found), _meaning(*seen)


def _continuous(bridge: str, appendable: Sequence[str]) -> Promise:
    if bridge == "none":
        return Promise("C", "no", "no bridge: each call is a row of its own, counted `no_bridge`")
    left = [r for r in ("user", "tool", "system", "assistant") if r not in appendable]
    if left:
        return Promise("C", "counted", f"prompts extend the turn before, but not behind: {', '.join(left)}")
    return Promise("C", "always", "prompts extend the turn before, whatever role comes next")


def _format(bridge: str, append_only: bool, found: Sequence[Switch]) -> Promise:
    if bridge == "none":
        return Promise("F", "always", "every prompt is the template's own render")
    if append_only:
        return Promise("F", "always", "a bridged prompt is what the template would write (C = F)")
    good = [s.kwargs for s in found if s.append_only]
    advice = f"with {good[0]} C = F" if good else "no template argument changes that"
    return Promise("F", "counted", f"a user message makes the template rewrite turns that a bridge keeps; {advice}")


_UNSEEN = {
    "tools": "which tools there are (`tools_unseen`)",
    "text": "the text of a turn that also calls a tool (`text_unseen`)",
}


def _meaning(tools: Tools, clock: Clock, unseen: Collection[str]) -> Promise:
    if not tools.representable:
        return Promise("S", "no", f"conversations with tools are not shown as they were: {tools.why}")
    left_out = [what for name, what in _UNSEEN.items() if name in unseen]
    if left_out:
        return Promise("S", "counted", f"the template does not show {' and '.join(left_out)}")
    if clock.varies:
        return Promise("S", "counted", "the prompt holds the date; a session keeps the one it began with")
    return Promise("S", "always", "the harness's words reach the model")
