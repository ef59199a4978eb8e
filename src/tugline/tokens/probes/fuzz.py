"""P14: random conversations, sampled as the template itself writes them: bridge = one-pass render."""

from __future__ import annotations

import random
from collections.abc import Callable

from tugline.core.columns import Ids, concat, ids, last, take
from tugline.core.items import Assistant, Item, ToolCall, ToolResult, UserText
from tugline.tokens.codec import positions
from tugline.tokens.probes.trial import HEAD, Trial, differ
from tugline.tokens.splice import Bridge, BridgeRefused, Rules, bridge

_Compare = Callable[[Trial, Rules, list[Item], Assistant, list[Item]], tuple[str, str] | None]
"""("", "") when equal, (what, around the difference) when not, None when the template does not let us compare."""
_NAMED_ALREADY = ("sentinel_lost", "template_error", "parallel_calls", "parts_moved")
"""Refusals of shapes that P3, P4 and P7 have named: no proof of anything."""
_ENDS = 6
"""A token that ends a turn may also end its parts: so many are tried."""


def fuzz(trial: Trial, rules: Rules, conversations: int = 16, turns: int = 4) -> int:
    """Returns how many turns were compared.

    Where the template never writes what its generation prompt says (P5), only what comes behind a turn can be.
    """
    compared, what, example = 0, "", ""
    for compare in (_compare, _compare_tail):
        compared, what, example = _converse(trial, rules, compare, (conversations, turns))
        if compared or what:
            break
    trial.say("P14", what if compared or what else "no turn could be compared", example)
    return compared


def _converse(trial: Trial, rules: Rules, compare: _Compare, size: tuple[int, int]) -> tuple[int, str, str]:
    """(turns compared, the first difference, around it)."""
    compared = 0
    for seed in range(size[0]):
        rng = random.Random(seed)
        history: list[Item] = [*trial.start]
        for step in range(size[1]):
            turn, tail = _random_step(rng, f"{seed}x{step}", rules.appendable)
            verdict = compare(trial, rules, history, turn, tail)
            if verdict is not None and verdict[0]:
                return compared, *verdict
            compared += verdict is not None
            history += [turn, *tail]
    return compared, "", ""


def _compare(
    trial: Trial, rules: Rules, history: list[Item], turn: Assistant, tail: list[Item]
) -> tuple[str, str] | None:
    prompt, whole = trial.ids(history), trial.ids([*history, turn, *tail])
    if prompt is None or whole is None or not whole.startswith(prompt):
        return None
    rest = Ids(whole[len(prompt) :])
    ends = positions(rest, rules.closes)
    if not len(ends):
        return None
    differing = ""
    for end in ends[:_ENDS]:
        sampled = take(rest, 0, int(end) + 1)
        try:
            made: Bridge = bridge(
                trial.renderer, rules, (HEAD, [*history, turn], tail), (last(sampled), "stop", sampled)
            )
        except BridgeRefused as err:
            return None if err.reason in _NAMED_ALREADY else (err.reason, "")
        joined = concat([prompt, take(sampled, 0, -made.drop or None), made.ids])
        if joined == whole:
            return "", ""
        differing = differing or differ(trial.codec.decode(whole), trial.codec.decode(joined))
    return f"the bridge differs from the one-pass render behind {len(tail)} item(s)", differing


def _compare_tail(
    trial: Trial, rules: Rules, history: list[Item], turn: Assistant, tail: list[Item]
) -> tuple[str, str] | None:
    """As `_compare`, of what follows a close token that the turn is said to have ended with."""
    whole = trial.ids([*history, turn, *tail])
    if whole is None:
        return None
    differing = ""
    for close in rules.closes & rules.stop:
        sampled = ids((close,))
        try:
            made = bridge(trial.renderer, rules, (HEAD, [*history, turn], tail), (close, "stop", sampled))
        except BridgeRefused as err:
            return None if err.reason in _NAMED_ALREADY else (err.reason, "")
        end = concat([sampled, made.ids])
        if made.drop == 0 and whole.endswith(end):
            return "", ""
        differing = differ(trial.codec.decode(Ids(whole[-len(end) :])), trial.codec.decode(end))
    return f"the bridge is not how the one-pass render ends behind {len(tail)} item(s)", differing


def _random_step(rng: random.Random, tag: str, appendable: frozenset[str]) -> tuple[Assistant, list[Item]]:
    def words() -> str:
        return rng.choice(("say", "1", "\n", "a  b", "é", "{", "x\n\ny")) + f" {tag}"

    calls = tuple(
        ToolCall(f"c{tag}_{i}", rng.choice(("run", "read")), f'{{"cmd": "x{rng.randrange(99)}"}}')
        for i in range(rng.choice((0, 1, 1, 2)) if "tool" in appendable else 0)
    )
    reasoning = f"because {tag}" if rng.random() < 0.8 else None
    text = f"Well {words()}." if not calls or rng.random() < 0.5 else None
    tail: list[Item] = [ToolResult(c.id, words()) for c in calls]
    if not calls or ("user" in appendable and rng.random() < 0.2):
        tail.append(UserText(words()))
    return Assistant(text, reasoning, calls), tail
