"""Start-up trials of a (template, tokenizer, stop set) triple: what may be bridged, and proof that bridging is right.

P1 close is one control token · P2 cutting at control tokens changes no id · P3 the last word survives in text,
reasoning and the last argument of one, two and three calls · P4 text, call, result keep this order · P5 the generation
prompt is how an assistant turn begins · P6 the tail does not depend on the history · P7 which roles can be appended ·
P10 how arguments are given · P13 a user message leaves earlier turns alone · P14 random conversations: bridge =
one-pass render.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from tugline.core.columns import NO_IDS, Ids, concat, ids, last, take
from tugline.core.errors import TuglineError, Unsupported
from tugline.core.items import Assistant, Head, Item, System, Tool, ToolCall, ToolResult, UserText
from tugline.tokens.codec import positions
from tugline.tokens.render import Ask, Renderer
from tugline.tokens.splice import Bridge, BridgeRefused, Rules, bridge, inner_tokens, tail_of

_S = "zQprobEQz"
_SYSTEM, _USER = System("Be brief."), UserText("What is here?")
_TOOLS = tuple(
    Tool(
        name,
        msgspec.json.encode(
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": f"{name} something",
                    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}},
                },
            }
        ).decode(),
    )
    for name in ("run", "read")
)
_HEAD = Head(_TOOLS)
_KWARGS = ("{}", '{"enable_thinking":false}', '{"enable_thinking":true}')
_Compare = Callable[[Rules, list[Item], Assistant, list[Item]], str | None]
_REFUSED = ("sentinel_lost", "template_error", "parallel_calls")
"""Reasons of shapes that P3 and P7 name."""
_FATAL = ("P1", "P2", "P3_text", "P4", "P14")


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """`failures` are "name: what". `splice`: bridges are made; roles outside `appendable` still refuse one by one."""

    passed: tuple[str, ...]
    failures: tuple[str, ...]
    splice: bool
    appendable: tuple[str, ...] = ()
    """Of user, tool, system, assistant."""
    independent: tuple[str, ...] = ()
    """Template arguments (JSON) under which the history need not be rendered for a bridge."""
    arguments: str = "string"
    """`string` or `dict`."""
    append_only: bool = False
    """A user message leaves earlier turns untouched, so that a bridged prompt is also the template's own."""
    compared: int = 0
    """Turns compared by P14."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What is on trial. Ids of the reasoning and call markers where they are single tokens."""

    renderer: Renderer
    stop: frozenset[int]
    reasoning: tuple[int | None, int | None] = (None, None)
    calls: tuple[tuple[int | None, int | None], ...] = ()


def run_probes(bench: Bench) -> tuple[ProbeReport, Rules]:
    """Run all trials. Never raises."""
    trial = _Trial(bench)
    rules = trial.rules()
    fixed = [kwargs for kwargs in _KWARGS if trial.independent(rules, kwargs)]
    trial.note("P6", "" if fixed else "the tail depends on the history")
    rules = _with_context(rules, frozenset(fixed))
    trial.order(rules)
    append_only = trial.begins()
    compared = trial.fuzz(rules)
    failures = tuple(f"{name}: {what}" for name, what in trial.results if what)
    passed = tuple(name for name, what in trial.results if not what)
    splice = not any(name in _FATAL and what for name, what in trial.results)
    report = ProbeReport(
        passed,
        tuple(sorted(failures, key=lambda f: f.partition(":")[0] not in _FATAL)),
        splice,
        tuple(sorted(rules.appendable)),
        tuple(fixed),
        bench.renderer.shape.arguments,
        append_only,
        compared,
    )
    return report, rules


def _with_context(rules: Rules, fixed: frozenset[str]) -> Rules:
    return replace(rules, fixed_context=fixed)


class _Trial:
    def __init__(self, bench: Bench) -> None:
        self.results: list[tuple[str, str]] = []
        self._bench = bench
        self._renderer = bench.renderer
        self._codec = bench.renderer.codec

    def note(self, name: str, what: str) -> None:
        """Record a result; "" is a pass."""
        self.results.append((name, what))

    def text(self, items: Sequence[Item], *, generation: bool = True, head: Head = _HEAD) -> str:
        """Template output, or "" when the template refuses."""
        try:
            return self._renderer.compose(Ask(head, tuple(items), generation=generation)).text
        except Unsupported:
            return ""

    def ids(self, items: Sequence[Item], head: Head = _HEAD) -> Ids | None:
        """Encoded prompt, or None when the template refuses."""
        try:
            return self._renderer.encode(self._renderer.compose(Ask(head, tuple(items))))[0]
        except Unsupported:
            return None

    # ------------------------------------------------------------------------------------------- P1, P2, P3, P7

    def rules(self) -> Rules:
        """Close token, roles and separators."""
        written = self._close()
        self._cuts()
        self._survival()
        closes = frozenset(self._bench.stop | ({written} if written is not None else set()))
        bench, inner = self._bench, inner_tokens(self._renderer, closes, _HEAD)
        return Rules(
            bench.stop, closes, self._roles(), frozenset(), bench.reasoning, bench.calls, self._separator(), inner
        )

    def _close(self) -> int | None:
        text = self.text([_SYSTEM, _USER, Assistant(_S), UserText("Go on.")])
        match = self._codec.pattern.search(text, text.rfind(_S)) if _S in text else None
        self.note("P1", "" if match else "no control token ends an assistant turn")
        return self._codec.control_id(match.group()) if match else None

    def _cuts(self) -> None:
        """Encoding piece by piece must equal one pass."""
        text = self.text([_SYSTEM, UserText("  a\n\nb é\n"), Assistant("\n x ", "r\n"), UserText(" 1 2\n")])
        try:
            same = self._codec.encode_marked(text, str) == self._codec.encode(text)
        except TuglineError:
            same = False
        self.note("P2", "" if same and text else "cutting at control tokens changes the ids")

    def _survival(self) -> None:
        def calls(n: int) -> Assistant:
            made = [ToolCall(f"c{i}", "run", '{"cmd": "ls"}') for i in range(n - 1)]
            return Assistant(calls=(*made, ToolCall(f"c{n - 1}", "run", f'{{"cmd": "{_S}"}}')))

        cases: list[tuple[str, list[Item]]] = [
            ("P3_text", [Assistant(_S), UserText("Go on.")]),
            ("P3_reasoning", [Assistant(None, _S, (ToolCall("c0", "run", "{}"),)), ToolResult("c0", "ok")]),
        ]
        for n in (1, 2, 3):
            results = [ToolResult(f"c{i}", "ok") for i in range(n)]
            cases.append((f"P3_calls_{n}", [calls(n), *results]))
        for name, items in cases:
            survived = _S in self.text([_SYSTEM, _USER, *items])
            if name in ("P3_calls_2", "P3_calls_3") and self._renderer.shape.split_calls:
                survived = False  # only because each stands in a message of its own
            self.note(name, "" if survived else "the template drops it")

    def _roles(self) -> frozenset[str]:
        """Kinds whose text appears behind the last assistant turn."""
        mark = "zAturnA"
        talk: list[Item] = [_SYSTEM, _USER, Assistant(mark)]
        called: list[Item] = [_SYSTEM, _USER, Assistant(calls=(ToolCall("c1", "run", f'{{"cmd": "{mark}"}}'),))]
        trials: dict[str, list[Item]] = {
            "user": [*talk, UserText(_S)],
            "tool": [*called, ToolResult("c1", _S)],
            "system": [*called, ToolResult("c1", "ok"), System(_S)],
            "assistant": [*talk, UserText("more"), Assistant(_S), UserText("again")],
        }
        good = set()
        for kind, items in trials.items():
            text = self.text(items)
            ok = mark in text and text.rfind(_S) > text.rfind(mark)
            self.note(f"P7_{kind}", "" if ok else "cannot be appended")
            if ok:
                good.add(kind)
        return frozenset(good)

    def _separator(self) -> Ids:
        """What stands between the end of reasoning and the text."""
        unthink = self._bench.reasoning[1]
        items: list[Item] = [_SYSTEM, _USER, Assistant(_S, "hm"), UserText("Go on.")]
        text = self.text(items[:3], generation=False) or self.text(items)
        if unthink is None or _S not in text:
            return NO_IDS
        head = text[: text.rfind(_S)]
        ends = [m.end() for m in self._codec.pattern.finditer(head) if self._codec.control_id(m.group()) == unthink]
        return self._codec.encode(head[ends[-1] :]) if ends else NO_IDS

    # ------------------------------------------------------------------------------------------- P4, P5, P6, P13

    def order(self, rules: Rules) -> None:
        """Text before call before result, or the spliced tail would lack the moved part."""
        turn = Assistant("zAtextA", None, (ToolCall("c1", "run", '{"cmd": "zBcallB"}'),))
        text = self.text([_SYSTEM, _USER, turn, ToolResult("c1", "zCresultC")])
        found = [text.find(w) for w in ("zAtextA", "zBcallB", "zCresultC")]
        if "tool" not in rules.appendable or found[1] < 0:
            return
        self.note("P4", "" if 0 <= found[0] < found[1] < found[2] else "the template moves the parts of a turn")

    def begins(self) -> bool:
        """P5 and P13; returns P13."""
        turn = Assistant("zAtextA", "hm", ())
        prompt, inside = self.text([_SYSTEM, _USER]), self.text([_SYSTEM, _USER, turn], generation=False)
        same = bool(prompt) and inside.startswith(prompt)
        self.note("P5", "" if same else "an assistant turn does not begin with the generation prompt")
        after = self.text([_SYSTEM, _USER, turn, UserText("Go on.")])
        kept = bool(inside) and after.startswith(inside)
        self.note("P13", "" if kept else "a user message changes how earlier turns are written")
        return kept

    def independent(self, rules: Rules, kwargs: str) -> bool:
        """P6 for one set of template arguments: the tail is the same behind every history."""
        fixed = _with_context(rules, frozenset((kwargs,)))
        for ending, tail in _tails(rules.appendable):
            expected = self._tail(fixed, Head((), kwargs), [ending], tail)
            if expected is None or any(
                self._tail(rules, Head(tools, kwargs), [*history, ending], tail) != expected
                for history in _histories()
                for tools in ((), _TOOLS)
            ):
                return False
        return True

    def _tail(self, rules: Rules, head: Head, history: Sequence[Item], tail: Sequence[Item]) -> str | None:
        try:
            composed, start = tail_of(self._renderer, rules, head, history, tail)
        except BridgeRefused:
            return None
        return composed.literal(start)

    # ------------------------------------------------------------------------------------------------------ P14

    def fuzz(self, rules: Rules, conversations: int = 16, turns: int = 4) -> int:
        """Random conversations, sampled as the template itself writes them. Returns how many turns were compared.

        Where the template never writes what its generation prompt says (P5), only what comes behind a turn can be.
        """
        for compare in (self._compare, self._compare_tail):
            compared, verdict = self._converse(rules, compare, conversations, turns)
            if compared or verdict:
                break
        self.note("P14", verdict if compared or verdict else "no turn could be compared")
        return compared

    def _converse(self, rules: Rules, compare: _Compare, conversations: int, turns: int) -> tuple[int, str]:
        """(turns compared, the first difference)."""
        compared = 0
        for seed in range(conversations):
            rng = random.Random(seed)
            history: list[Item] = [_SYSTEM, _USER]
            for step in range(turns):
                turn, tail = _random_step(rng, f"{seed}x{step}", rules.appendable)
                verdict = compare(rules, history, turn, tail)
                if verdict is not None and verdict:
                    return compared, verdict
                compared += verdict is not None
                history += [turn, *tail]
        return compared, ""

    def _compare(self, rules: Rules, history: list[Item], turn: Assistant, tail: list[Item]) -> str | None:
        """ "" when bridge = one pass, None when the template does not let us compare, else what differs."""
        prompt, whole = self.ids(history), self.ids([*history, turn, *tail])
        if prompt is None or whole is None or not whole.startswith(prompt):
            return None
        rest = Ids(whole[len(prompt) :])
        ends = positions(rest, rules.closes)
        if not len(ends):
            return None
        sampled = take(rest, 0, int(ends[0]) + 1)
        try:
            made: Bridge = bridge(
                self._renderer, rules, (_HEAD, [*history, turn], tail), (last(sampled), "stop", sampled)
            )
        except BridgeRefused as err:
            # Shapes that P3 and P7 already named are refused again and again: no proof of anything.
            return None if err.reason in _REFUSED else err.reason
        joined = concat([prompt, take(sampled, 0, -made.drop or None), made.ids])
        return "" if joined == whole else f"the bridge differs from the one-pass render behind {len(tail)} item(s)"

    def _compare_tail(self, rules: Rules, history: list[Item], turn: Assistant, tail: list[Item]) -> str | None:
        """As `_compare`, of what follows a close token that the turn is said to have ended with."""
        whole = self.ids([*history, turn, *tail])
        if whole is None:
            return None
        for close in rules.closes & rules.stop:
            sampled = ids((close,))
            try:
                made = bridge(self._renderer, rules, (_HEAD, [*history, turn], tail), (close, "stop", sampled))
            except BridgeRefused as err:
                return None if err.reason in _REFUSED else err.reason
            if made.drop == 0 and whole.endswith(concat([sampled, made.ids])):
                return ""
        return f"the bridge is not how the one-pass render ends behind {len(tail)} item(s)"


def _histories() -> list[list[Item]]:
    """Different pasts: short, long, two tool cycles, with and without reasoning, without a system message."""

    def cycle(n: int, reasoning: str | None) -> list[Item]:
        turn = Assistant("Looking.", reasoning, (ToolCall(f"h{n}", "read", '{"cmd": "ls"}'),))
        return [turn, ToolResult(f"h{n}", f"listing {n}")]

    talk: list[Item] = [Assistant("Hello.", "They greet."), UserText("Now work.")]
    return [
        [_SYSTEM, _USER],
        [_USER],
        [_SYSTEM, _USER, *cycle(1, "think"), *cycle(2, "again")],
        [_SYSTEM, _USER, *cycle(1, None)],
        [_SYSTEM, _USER, *talk],
        [_SYSTEM, _USER, *talk, *cycle(3, "deep"), Assistant("There."), UserText("More.\n" * 50)],
    ]


def _tails(appendable: frozenset[str]) -> list[tuple[Assistant, list[Item]]]:
    """Turns that end a history, with what may follow."""
    calls = tuple(ToolCall(f"c{i}", name, '{"cmd": "x"}') for i, name in enumerate(("run", "read")))
    one, two, talk = Assistant(calls=calls[:1]), Assistant("Both.", "why", calls), Assistant("Done.", "so")
    result, other = ToolResult("c0", "out 0"), ToolResult("c1", "out 1")
    found: list[tuple[Assistant, list[Item]]] = []
    if "tool" in appendable:
        found += [(one, [result]), (two, [result, other])]
    if "user" in appendable:
        found.append((talk, [UserText("And now?")]))
    if {"tool", "user"} <= appendable:
        found.append((one, [result, UserText("Also this.")]))
    if {"tool", "system"} <= appendable:
        found.append((one, [result, System("Note.")]))
    if {"user", "assistant"} <= appendable:
        found.append((talk, [UserText("a"), Assistant("b", "why"), UserText("c")]))
    if {"tool", "assistant"} <= appendable:
        found.append((one, [result, Assistant("b", "why", calls[1:]), other]))
    return found


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
