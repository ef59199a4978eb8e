"""Plays a harness against a gateway, one request after the other, and writes down what both ends saw."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tugline.core.errors import EngineError, RunError, boundary
from tugline.core.items import Assistant, System, Tool, ToolResult, UserText
from tugline.engines.script import Step
from tugline.testing.exactness.clients import Client
from tugline.testing.exactness.fake import FakeEngine, Made
from tugline.testing.exactness.reach import Got, not_json, refusal
from tugline.testing.exactness.reach import ask as reach
from tugline.testing.exactness.talk import Ask, Echo, Entry, Heard, Outgoing

NOT_SERVED = (404, 405, 501)
"""Statuses of an API that a gateway does not have."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One request, as the harness, and the engine behind the gateway, saw it."""

    dialect: str
    scene: str
    stream: bool
    session: str
    turn: int
    """From 1, in its session."""
    ask: Ask
    heard: Heard | None = None
    generation: int | None = None
    """Number of the generation that the harness received."""
    reached: tuple[int, ...] = ()
    """All that the request caused."""
    problem: str = ""
    """Why there is no reply."""
    status: int = 0
    cut: bool = False
    """The harness went away on purpose."""
    hostile: bool = False
    """Texts of this conversation spell control tokens."""

    @property
    def served(self) -> bool:
        """Whether the gateway has this API at all."""
        return self.heard is not None or self.status not in NOT_SERVED


class Stopped(Exception):
    """A scene cannot go on: the gateway gave no usable reply."""


@dataclass(frozen=True, slots=True)
class Line:
    """How an agent reaches a gateway. `bases`: URL of each dialect, without the API's own path."""

    bases: Mapping[str, str]
    key: str
    model: str
    patience: float = 30.0
    """Seconds for one reply."""


@dataclass
class Agent:
    """One session of a harness. Scenes edit `talk` and `tools` as they like between requests."""

    client: Client
    engine: FakeEngine
    http: httpx.AsyncClient
    line: Line
    session: str
    scene: str
    stream: bool
    moments: list[Moment]
    hostile: bool = False
    talk: list[Entry] = field(default_factory=list)
    tools: tuple[Tool, ...] = ()
    _turns: int = 0
    _since: int = 0
    """Generations before this one cannot be what the next reply is."""

    def system(self, text: str) -> None:
        """Append a system text."""
        self.talk.append(System(text))

    def user(self, text: str) -> None:
        """Append a user text."""
        self.talk.append(UserText(text))

    def results(self, echo: Echo, *texts: str, order: Sequence[int] | None = None) -> None:
        """Append results of an echo's calls; `order`: which first. Raises Stopped when the reply had other calls."""
        if len(echo.said.calls) != len(texts):
            raise Stopped
        for n in order or range(len(texts)):
            call = echo.said.calls[n]
            self.talk.append(ToolResult(call.id, texts[n], call.name))

    def put(self, old: Echo, new: Echo) -> Echo:
        """An edit: `new` in the place of `old`."""
        self.talk[self.talk.index(old)] = new
        return new

    async def say(self, *steps: Step, retry: bool = False) -> Echo:
        """Ask; the model says `steps[0]` (asked once more by the gateway, steps[1], ...). The reply is appended as it
        came. `retry`: say that this is the request before again, as SDKs do. Raises Stopped when there is no reply."""
        ask, before = self._ask(steps)
        status, heard, problem = 0, None, ""
        try:
            url, got = await self._send(self.client.write(ask), self.line.patience, retry=retry)
            status = got.status
            if status == 200:
                heard, problem = self._read(got)
            else:
                problem = refusal("POST", url, got)
        except RunError as err:
            problem = err.message
        number = self._note(ask, before, heard=heard, problem=problem, status=status)
        if heard is None:
            raise Stopped
        echo = Echo(heard.said, number, raw=heard.raw)
        self.talk.append(echo)
        return echo

    async def leave(self, *steps: Step, after: float) -> None:
        """Ask, and be gone `after` seconds later, before the reply."""
        ask, before = self._ask(steps)
        with contextlib.suppress(RunError):
            await self._send(self.client.write(ask), after)
        self._turns += 1
        self.moments.append(self._moment(ask, reached=self._numbers(before), cut=True))

    def _ask(self, steps: Sequence[Step]) -> tuple[Ask, int]:
        self.engine.plan(*steps, tools=self.tools)
        ask = Ask(tuple(self.talk), self.tools, self.stream, self.line.model, self.line.key)
        return ask, len(self.engine.made)

    async def _send(self, out: Outgoing, seconds: float, *, retry: bool = False) -> tuple[str, Got]:
        base = self.line.bases[self.client.name].rstrip("/")
        path = out.path.removeprefix("/v1") if base.endswith("/v1") else out.path
        path = out.path.removeprefix("/v1beta") if base.endswith("/v1beta") else path
        headers = {"content-type": "application/json", **out.headers}
        if self.client.name != "gemini":  # the SDKs of the other APIs number their attempts
            headers["x-stainless-retry-count"] = "1" if retry else "0"
        url = base + path
        return url, await reach(self.http, "POST", url, headers=headers, content=out.body, seconds=seconds)

    def _read(self, got: Got) -> tuple[Heard | None, str]:
        """(what was heard, why it was not)."""
        page = not_json(got)
        if page:
            return None, page
        try:
            with boundary(EngineError, "the reply has a shape of its own"):
                return self.client.read(got.data, stream=self.stream), ""
        except EngineError as err:
            return None, err.message

    def _note(self, ask: Ask, before: int, *, heard: Heard | None, problem: str, status: int) -> int | None:
        self._turns += 1
        made = [self.engine.made[n] for n in range(self._since, len(self.engine.made))]
        number = None if heard is None else _received(heard.said, made)
        if heard is not None:
            self._since = len(self.engine.made)
        reached = self._numbers(before)
        self.moments.append(
            self._moment(ask, heard=heard, generation=number, reached=reached, problem=problem, status=status)
        )
        return number

    def _moment(self, ask: Ask, **seen: Any) -> Moment:
        where = (self.client.name, self.scene, self.stream, self.session, self._turns)
        return Moment(*where, ask=ask, hostile=self.hostile, **seen)

    def _numbers(self, before: int) -> tuple[int, ...]:
        return tuple(range(before, len(self.engine.made)))


def _received(said: Assistant, made: Sequence[Made]) -> int | None:
    """Which generation a reply is: the one of the same text and calls, else the newest."""
    planned = [m for m in made if m.planned]
    for one in reversed(planned):
        same_calls = [c.name for c in said.calls] == [c.name for c in one.said.calls]
        if same_calls and (said.text or "").strip() == (one.said.text or "").strip():
            return one.number
    return planned[-1].number if planned else None
