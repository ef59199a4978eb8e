"""Which promises hold: E exact, C continuous, F faithful format, S faithful meaning. Pure.

E  what the gateway recorded of a reply are the ids that the engine consumed and sampled, with its log-probabilities
C  a prompt begins with prompt and sample of the turn that it goes on from, wherever the harness kept the meaning
F  a prompt is what the model's chat template gives for the conversation; assistant turns may stand as sampled
S  the model reads what the harness said, edits included, and the harness reads what the model said
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from tugline.core.columns import common_prefix, count, take
from tugline.core.items import Assistant, ToolResult, UserText
from tugline.testing.exactness.agent import Moment
from tugline.testing.exactness.fake import FakeEngine, Made
from tugline.testing.exactness.prompts import Format, format_problem, out_of_place
from tugline.testing.exactness.records import Kept, call_problem, of_reply, untrue
from tugline.testing.exactness.talk import Ask, Echo, Entry

PROMISES = ("E", "C", "F", "S")
BY_TEMPLATE = "the template drops the reasoning of the turn before"


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


@dataclass(slots=True)
class Verdict:
    """One dialect."""

    dialect: str
    served: bool = True
    calls: int = 0
    answered: int = 0
    scores: dict[str, Score] = field(default_factory=lambda: {p: Score() for p in PROMISES})
    findings: list[Finding] = field(default_factory=list)
    failures: list[Finding] = field(default_factory=list)
    """Requests without a usable reply; their promise is "-"."""

    @property
    def ok(self) -> bool:
        """Every request was answered and every promise that could be looked at held."""
        return self.served and self.answered == self.calls > 0 and not self.findings


class Judge:
    """Looks at the requests of all sessions."""

    def __init__(
        self, engine: FakeEngine, moments: Sequence[Moment], records: Mapping[str, Sequence[Kept] | None]
    ) -> None:
        """`records`: by session; None = the gateway shows none."""
        self._engine = engine
        self._moments = moments
        self._records = records
        self._made: dict[int, Made] = {m.number: m for m in engine.made}
        self._format = Format(engine)
        self._asked: dict[int, Ask] = {}
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
            score.by_template += bool(problem) and problem.startswith(BY_TEMPLATE)
            if problem:
                out.findings.append(_finding(promise, moment, problem))

    # --------------------------------------------------------------------------------------------------------- E

    def _kept(self, moment: Moment) -> Sequence[Kept] | None:
        kept = self._records.get(moment.session)
        if kept is None and moment.heard is not None and moment.heard.ids is not None:
            return [of_reply(moment.heard.ids)]
        return kept

    def _exact(self, moment: Moment, made: Made) -> str | None:
        kept = self._kept(moment)
        return None if kept is None else call_problem(made, kept)

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
        reason = BY_TEMPLATE if self._dropped_by_template(moment.ask, parent) else "does not go on from the turn before"
        return f"{reason}: differs from {where} on, {shown}"

    def _dropped_by_template(self, ask: Ask, parent: Made) -> bool:
        """The harness sends the last turn's reasoning and the template writes the turn without it."""
        last = next(e for e in reversed(ask.talk) if isinstance(e, Echo))
        thought = (last.said.reasoning or "").strip()
        wanted = self._format.expected(ask) if self._format.known and thought else []
        return any(split.bodies and thought not in self._format.decode(split.bodies[-1]) for split in wanted[:1])

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
            self._read_by_model(moment, made)
            or (self._forged(moment, made) if moment.hostile else "")
            or _read_by_harness(moment, made)
        )

    def _read_by_model(self, moment: Moment, made: Made) -> str:
        text = self._engine.decode(made.prompt)
        missing = out_of_place(text, moment.ask.talk)
        if missing:
            return missing
        for one in moment.ask.tools:
            if f'"{one.name}"' not in text and one.name not in text:
                return f"the model is not told of the tool {one.name!r}"
        for echo in (e for e in moment.ask.talk if isinstance(e, Echo)):
            if echo.of is None and (echo.said.text or "") not in text:
                return f"the model does not read the turn that the harness wrote, {echo.said.text!r}"
            for word in echo.new:
                if word not in text:
                    return f"the harness changed a turn; the model does not read its words {word!r}"
            for word in echo.gone:
                if word in text:
                    return f"the harness changed a turn; the model still reads {word!r}"
        return ""

    def _forged(self, moment: Moment, made: Made) -> str:
        """Control tokens beyond those of the same conversation with harmless words."""
        plain = tuple(
            replace(e, text="harmless") if isinstance(e, ToolResult | UserText) and "<" in e.text else e
            for e in moment.ask.talk
        )
        wanted = self._format.expected(replace(moment.ask, talk=plain))
        most = max((sum(self._format.controls(c) for c in (*s.outside, *s.bodies)) for s in wanted), default=None)
        have = self._format.controls(made.prompt)
        if most is None or have <= most:
            return ""
        return f"words of a tool's result became {have - most} control tokens"


def _read_by_harness(moment: Moment, made: Made) -> str:
    heard, said = moment.heard, made.said
    if heard is None:
        return ""
    if (heard.said.text or "") != (said.text or ""):
        return f"the model said {(said.text or '')[:80]!r}, the harness reads {(heard.said.text or '')[:80]!r}"
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
