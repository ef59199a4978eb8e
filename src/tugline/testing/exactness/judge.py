"""Which promises hold: E exact, C continuous, F faithful format, S faithful meaning. Pure.

E  what the gateway recorded of a reply are the ids that the engine consumed and sampled, with its log-probabilities
C  a prompt begins with prompt and sample of the turn that it goes on from, wherever the harness kept the meaning
F  a prompt is what the model's chat template gives for the conversation; assistant turns may stand as sampled
S  the model reads what the harness said, edits included, and the harness reads what the model said
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import msgspec

from tugline.core.columns import common_prefix, count, take
from tugline.core.items import Assistant, ToolResult
from tugline.testing.exactness.agent import Moment
from tugline.testing.exactness.fake import FakeEngine, Made
from tugline.testing.exactness.prompts import Format, escaped, format_problem, out_of_place, tokens_of
from tugline.testing.exactness.records import EMPTY, Kept, call_problem, of_reply, untrue
from tugline.testing.exactness.talk import Ask, Echo, Entry

PROMISES = ("E", "C", "F", "S")
NOTHING_LOST: Mapping[str, str] = MappingProxyType({})
COUNTED: Mapping[str, tuple[str, ...]] = MappingProxyType({"F": ("format_differs",), "S": ("tools_unseen",)})
"""Deviations by the names under which records of ours count them, by the promise that they are an exception of."""
BY_TEMPLATE = "the template drops the reasoning of the turn before"
BY_HARNESS = "the harness left out the reasoning of a turn before"


@dataclass(frozen=True, slots=True)
class Finding:
    """One place where a promise does not hold."""

    promise: str
    dialect: str
    scene: str
    stream: bool
    turn: int
    message: str

    def text(self) -> str:
        """For people."""
        return f"{self.scene}, {'streamed' if self.stream else 'whole'}, request {self.turn}: {self.message}"


@dataclass(slots=True)
class Score:
    """Of how many places a promise held. `why` there is nothing to score, when there is not."""

    held: int = 0
    of: int = 0
    why: str = ""
    by_template: int = 0
    """C only: of those that did not hold, where the template itself writes the turn without its reasoning: who follows
    it there keeps F and gives up C."""
    by_harness: int = 0
    """C only: where the harness did not send reasoning back that it had been given: who honours that gives up C."""
    counted: int = 0
    """F and S: of those that did not hold, where the gateway's own record names the deviation. That is no fault."""
    none: str = ""
    """E only: the gateway keeps nothing to compare, and why. Not a wrong record, none."""


@dataclass(slots=True)
class Verdict:
    """One dialect."""

    dialect: str
    served: bool = True
    calls: int = 0
    answered: int = 0
    scores: dict[str, Score] = field(default_factory=lambda: {p: Score() for p in PROMISES})
    findings: list[Finding] = field(default_factory=list)
    counted: list[Finding] = field(default_factory=list)
    """Deviations that the gateway itself counts."""
    failures: list[Finding] = field(default_factory=list)
    """Requests without a usable reply; their promise is "-"."""

    @property
    def ok(self) -> bool:
        """Every request was answered and every promise that could be looked at held."""
        return self.served and self.answered == self.calls > 0 and not self.findings


class Judge:
    """Looks at the requests of all sessions."""

    def __init__(
        self,
        engine: FakeEngine,
        moments: Sequence[Moment],
        records: Mapping[str, Sequence[Kept] | None],
        lost: Mapping[str, str] = NOTHING_LOST,
    ) -> None:
        """`records`: by session; None = the gateway shows none. `lost`: why a session's could not be read."""
        self._engine = engine
        self._moments = moments
        self._records = records
        self._lost = lost
        self._made: dict[int, Made] = {m.number: m for m in engine.made}
        self._format = Format(engine)
        self._asked: dict[int, Ask] = {}
        self._heard = {m.generation: m.heard.said for m in moments if m.generation is not None and m.heard is not None}
        for moment in moments:
            for number in moment.reached:
                self._asked[number] = moment.ask

    def verdict(self, dialect: str) -> Verdict:
        """Score one dialect."""
        out = Verdict(dialect)
        mine = [m for m in self._moments if m.dialect == dialect]
        out.served = not mine or any(m.served for m in mine)
        for moment in mine:
            if moment.cut:
                continue
            out.calls += 1
            if moment.heard is None:
                out.failures.append(_finding("-", moment, moment.problem))
                continue
            out.answered += 1
            self._look(out, moment)
        if out.served:
            self._sessions(out, mine)
        wrong = [f.message for f in out.findings if f.promise == "E"]
        if out.scores["E"].of == len(wrong) > 0 and set(wrong) <= set(EMPTY):
            out.scores["E"].none = " and ".join(sorted(set(wrong)))
        for promise, why in (("E", "no records to look at"), ("F", "this format's turns cannot be told apart")):
            if not out.scores[promise].of and out.answered:
                out.scores[promise].why = why
        return out

    def _look(self, out: Verdict, moment: Moment) -> None:
        if moment.generation is None:
            out.scores["S"].of += 1
            out.findings.append(_finding("S", moment, "a reply came and the engine was not asked"))
            return
        made = self._made[moment.generation]
        found: dict[str, str | None] = {
            "E": self._exact(moment, made),
            "C": self._continuous(moment, made),
            "F": self._faithful(moment, made),
            "S": self._meaning(moment, made),
        }
        for promise, problem in found.items():
            if problem is None:
                continue
            score = out.scores[promise]
            score.of += 1
            score.held += not problem
            score.by_template += problem.startswith(BY_TEMPLATE)
            score.by_harness += problem.startswith(BY_HARNESS)
            told = self._told(promise, moment) if problem else ""
            score.counted += bool(told)
            if told:
                out.counted.append(_finding(promise, moment, f"counted as {told}: {problem}"))
            elif problem:
                out.findings.append(_finding(promise, moment, problem))

    def _told(self, promise: str, moment: Moment) -> str:
        """The name under which the session's own record counts such a deviation, or ""."""
        kept = self._records.get(moment.session) or ()
        return next((word for word in COUNTED.get(promise, ()) if any(word in k.counted for k in kept)), "")

    # --------------------------------------------------------------------------------------------------------- E

    def _exact(self, moment: Moment, made: Made) -> str | None:
        if moment.session in self._lost:
            return f"its records cannot be read: {self._lost[moment.session]}"
        kept = self._records.get(moment.session)
        if kept is not None:
            return call_problem(made, kept)
        if moment.heard is None or moment.heard.ids is None:
            return None
        told = [of_reply(moment.heard.ids)]
        return call_problem(made, told) or untrue(told, self._engine.made)

    def _sessions(self, out: Verdict, mine: Sequence[Moment]) -> None:
        """What a session's records say beyond the replies that were received."""
        for session in dict.fromkeys(m.session for m in mine):
            kept = self._records.get(session)
            message = untrue(kept, self._engine.made) if kept else ""
            if message:
                moment = next(m for m in mine if m.session == session)
                out.scores["E"].of += 1
                out.findings.append(_finding("E", replace(moment, turn=0), message))

    # --------------------------------------------------------------------------------------------------------- C

    def _continuous(self, moment: Moment, made: Made) -> str | None:
        """None: there is no turn that the request must go on from."""
        parent = self._parent(moment.ask)
        if parent is None:
            return None
        full = parent.full
        if made.prompt.startswith(full):
            return ""
        trimmed = take(full, 0, count(full) - 1)
        if parent.finish == "stop" and made.prompt.startswith(trimmed):
            return ""  # the stop token was replaced by the one that the template writes
        at, start = common_prefix(made.prompt, full), count(parent.prompt)
        where = f"prompt token {at}" if at < start else f"sampled token {at - start} of {count(parent.sampled)}"
        shown = self._format.shown(take(full, 0), made.prompt)
        reason = "does not go on from the turn before"
        if self._dropped_by_template(moment.ask, parent):
            reason = BY_TEMPLATE
        elif self._dropped_by_harness(moment.ask):
            reason = BY_HARNESS
        return f"{reason}: differs from {where} on, {shown}"

    def _dropped_by_template(self, ask: Ask, parent: Made) -> bool:
        """The harness sends the last turn's reasoning and the template writes the turn without it."""
        last = next(e for e in reversed(ask.talk) if isinstance(e, Echo))
        thought = (last.said.reasoning or "").strip()
        return any(thought not in self._format.decode(want) for want in self._format.expected(ask)[:1] if thought)

    def _dropped_by_harness(self, ask: Ask) -> bool:
        """Reasoning that the harness was given is not in what it sends."""
        echoes = [e for e in ask.talk if isinstance(e, Echo) and e.of in self._heard and e.meaning]
        return any(self._heard[e.of].reasoning and not e.said.reasoning for e in echoes if e.of is not None)

    def _parent(self, ask: Ask) -> Made | None:
        """The generation that the last model turn of a conversation is, when all in front of it is as it was."""
        at = next((n for n in range(len(ask.talk) - 1, -1, -1) if isinstance(ask.talk[n], Echo)), None)
        if at is None:
            return None
        echo = ask.talk[at]
        if not isinstance(echo, Echo) or echo.of is None or not echo.meaning:
            return None
        before = self._asked.get(echo.of)
        if before is None or before.tools != ask.tools or _identity(before.talk) != _identity(ask.talk[:at]):
            return None
        return self._made[echo.of]

    # ----------------------------------------------------------------------------------------------------- F and S

    def _faithful(self, moment: Moment, made: Made) -> str | None:
        if not self._format.known:
            return None
        return format_problem(self._format, moment.ask, made, self._made, text_only=moment.hostile)

    def _meaning(self, moment: Moment, made: Made) -> str:
        return (
            self._read_by_model(moment.ask, made)
            or (self._forged(moment, made) if moment.hostile else "")
            or _read_by_harness(moment, made)
        )

    def _read_by_model(self, ask: Ask, made: Made) -> str:
        """What the model does not read. What the template itself never shows cannot be asked of a gateway."""
        decode = self._engine.decode
        problem = _unread(decode(made.prompt), ask)
        wanted = self._format.expected(ask) if problem else []
        shows_less = bool(wanted) and all(_unread(decode(want), ask) for want in wanted)
        return "" if shows_less else problem

    def _forged(self, moment: Moment, made: Made) -> str:
        """Control tokens where the words of a tool's result stand."""
        text = self._engine.decode(made.prompt)
        for result in (e for e in moment.ask.talk if isinstance(e, ToolResult)):
            words = result.text.strip()
            found = next((w for w in (words, escaped(words)) if w in text), "")
            start = text.find(found)
            forged = self._format.controls(tokens_of(self._engine, made.prompt, start, start + len(found)))
            if found and forged:
                return f"words of a tool's result became {forged} control tokens"
        return ""


def _unread(text: str, ask: Ask) -> str:
    missing = out_of_place(text, ask.talk)
    if missing:
        return missing
    for one in ask.tools:
        if one.name not in text:
            return f"the model is not told of the tool {one.name!r}"
    for echo in (e for e in ask.talk if isinstance(e, Echo)):
        if echo.of is None and (echo.said.text or "") not in text:
            return f"the model does not read the turn that the harness wrote, {echo.said.text!r}"
        for word in echo.new:
            if word not in text:
                return f"the harness changed a turn; the model does not read its words {word!r}"
        for word in echo.gone:
            if word in text:
                return f"the harness changed a turn; the model still reads {word!r}"
    return ""


def _read_by_harness(moment: Moment, made: Made) -> str:
    heard, said = moment.heard, made.said
    if heard is None:
        return ""
    if (heard.said.text or "") != (said.text or ""):
        return f"the model said {(said.text or '')[:80]!r}, the harness reads {(heard.said.text or '')[:80]!r}"
    if (heard.said.reasoning or "").strip() != (said.reasoning or "").strip():
        thought, shown = (r.strip()[:80] for r in (said.reasoning or "", heard.said.reasoning or ""))
        return f"the model thought {thought!r}, the harness reads {shown!r}"
    ours, theirs = _calls(said), _calls(heard.said)
    if ours != theirs:
        return f"the model called {ours!r}, the harness reads {theirs!r}"[:300]
    if (heard.finish == "length") != (made.finish == "length"):
        return f"the model ended with {made.finish!r}, the harness is told {heard.finish!r}"
    return ""


def _calls(said: Assistant) -> list[tuple[str, Any]]:
    return [(call.name, _value(call.arguments)) for call in said.calls]


def _value(arguments: str) -> Any:
    try:
        return msgspec.json.decode(arguments) if arguments.strip() else {}
    except msgspec.DecodeError:
        return arguments


def _identity(talk: Sequence[Entry]) -> list[Any]:
    """A conversation up to rewordings that keep the meaning."""
    return [("own", e.of) if isinstance(e, Echo) and e.meaning and e.of is not None else _plain(e) for e in talk]


def _plain(entry: Entry) -> Any:
    return ("made up", entry.said) if isinstance(entry, Echo) else entry


def _finding(promise: str, moment: Moment, message: str) -> Finding:
    return Finding(promise, moment.dialect, moment.scene, moment.stream, moment.turn, message)
