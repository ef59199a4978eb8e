"""The driver of OpenAI-compatible APIs, commercial ones included: messages in, messages out. See `openai_wire`.

For teachers, judges and SFT data. What such an API says of ids decides the level: L2 where replies carry the ids of
prompt and sample (as vLLM's do), else L0, which never trains.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from tugline.core.columns import NO_IDS, count
from tugline.core.contracts import Conversation, Generation, Said, Sample
from tugline.core.errors import ConfigError, ContextOverflow, EngineError, boundary
from tugline.core.items import Head, Options, Usage, UserText
from tugline.core.turn import Sampling
from tugline.engines import openai_wire as wire
from tugline.engines.modeldir import ModelFiles
from tugline.engines.remote.abilities import Abilities
from tugline.engines.remote.client import Remote, refused, retry_after
from tugline.engines.remote.frame import LOOK, Frame, Work

CONTEXT = 128_000
"""Tokens of a window that nobody has told."""
EVERY_ID = (1 << 31) - 1
"""Vocabulary of a tokenizer that nobody knows."""
PROBE = Conversation(
    "tugline-probe", "tugline-probe", Head(), (UserText("Say ok."),), Options(), Sampling(max_tokens=1)
)
REFUSALS = 6
"""Fields that a model may refuse, one after the other."""


@dataclass(slots=True)
class Spent:
    """What was used so far. Tokens; `cost` in whatever the prices are in."""

    calls: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Prices:
    """Per million tokens."""

    prompt: float = 0.0
    completion: float = 0.0
    cached: float = 0.0

    def of(self, usage: Usage) -> float:
        """Cost of one call."""
        fresh = max(0, usage.prompt - usage.cached)
        return (fresh * self.prompt + usage.cached * self.cached + usage.completion * self.completion) / 1e6


def prices_of(said: tuple[str, ...], where: str) -> Prices:
    """input, output and, if it differs, cached input. Raises ConfigError."""
    try:
        numbers = [float(word) for word in said]
    except ValueError:
        numbers = [-1.0]
    if not said:
        return Prices()
    if len(numbers) not in (2, 3) or min(numbers) < 0:
        raise ConfigError(f"{', '.join(said)}: two or three prices are expected", where=f"{where}.prices")
    return Prices(numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else numbers[0])


class OpenAiEngine(Frame):
    """Core `MessageEngine` over HTTP."""

    def __init__(self, remote: Remote, model: str, journal_dir: Path, context: int | None, prices: Prices) -> None:
        files = ModelFiles(
            path=Path(),
            name=model,
            tokenizer_json=b"",
            template="",
            parser="",
            stop=(),
            stop_ids=(),
            context=context or CONTEXT,
            vocab=EVERY_ID,
        )
        url = remote.url if remote.url.endswith("/v1") else f"{remote.url}/v1"
        super().__init__(replace(remote, url=url), files, journal_dir, "openai")
        self.spent = Spent()
        self._prices = prices
        self._limit: wire.Limit = "max_completion_tokens" if "api.openai.com" in url else "max_tokens"
        self._without: set[str] = set()
        self._more: dict[str, object] = {}

    async def greet(self) -> Abilities:
        """One token is asked for, with ids; without, where that is refused."""
        body, _ = wire.chat_body(
            PROBE,
            self._info.model,
            self._limit,
            self._without,
            wire.IDS,
        )
        answer = await self.http.post("/chat/completions", body)
        found = wire.decode_chat(answer.body).taken if answer.status == 200 else None
        if answer.status in (401, 403, 404):
            raise refused(answer)
        ids = found is not None and found.prompt_ids is not None
        self._more = dict(wire.IDS) if ids else {}
        return Abilities(
            engine="openai",
            model=self._info.model,
            context=None,
            token_in=None,
            level="L2" if ids else "L0",
            echo=ids,
            logprobs=ids,
            kind=None,
            versions="none",
            abort="by_hanging_up",
            updates=False,
            cache_reset=False,
            metrics=False,
            tokenizer="unknown",
        )

    async def alive(self) -> bool:
        """Any answer but one of 5xx: not every API lists its models."""
        try:
            return (await self.http.get("/models", LOOK)).status < 500
        except EngineError:
            return False

    async def generate(self, request: Generation) -> Sample:
        """Always raises EngineError."""
        raise EngineError("this engine takes messages, no ids", retryable=False, fault="bad_request")

    async def tell_abort(self, request_id: str) -> bool:
        """See Frame: these APIs cannot be asked."""
        return False

    async def converse(self, request: Conversation) -> Said:
        """See MessageEngine."""
        answered: list[wire.Answered] = []
        drift: list[str] = []

        async def work() -> Work:
            reply, left_out = await self._ask(request)
            answered.append(reply)
            drift.extend(left_out)
            return reply.taken, ((0, 0),) if reply.taken.ids else ()

        taken, runs = await self.run(request.request_id, work)
        if not answered:
            raise EngineError("the call was aborted", retryable=False, fault="aborted")
        reply = answered[0]
        usage = reply.usage
        if taken.ids and not usage.completion:
            usage = replace(usage, completion=count(taken.ids))
        sample = await self.recorded(request.session_id, taken.prompt_ids or NO_IDS, (taken, runs))
        await self._count(request, reply, sample.engine_ref or "")
        return Said(reply.assistant, reply.finish, usage, sample, tuple(drift))

    async def _ask(self, request: Conversation) -> tuple[wire.Answered, tuple[str, ...]]:
        """The reply, and what was not sent. A field that this model refuses is left out from then on, counted."""
        for _ in range(REFUSALS):
            body, drift = wire.chat_body(request, self._info.model, self._limit, self._without, self._more)
            answer = await self.http.post("/chat/completions", body)
            if answer.status == 200:
                return wire.decode_chat(answer.body), drift
            if answer.status == 400 and wire.too_long(answer.body):
                raise ContextOverflow(self._info.context + 1, self._info.context)
            name = wire.refused_field(answer.body) if answer.status in (400, 422) else None
            if name == "max_tokens" and self._limit == "max_tokens":
                self._limit = "max_completion_tokens"
            elif name in wire.DROPPABLE and name not in self._without:
                self._without.add(name)
            else:
                break
            self.faults[f"refused_{name}"] += 1
        self.hold(retry_after(answer))
        raise refused(answer)

    async def _count(self, request: Conversation, reply: wire.Answered, engine_ref: str) -> None:
        usage, cost = reply.usage, self._prices.of(reply.usage)
        spent = self.spent
        spent.calls += 1
        spent.prompt += usage.prompt
        spent.cached += usage.cached
        spent.completion += usage.completion
        spent.cost += cost
        line = {
            "ref": engine_ref,
            "session": request.session_id,
            "id": reply.reply_id,
            "model": reply.model,
            "prompt": usage.prompt,
            "cached": usage.cached,
            "completion": usage.completion,
            "reasoning": usage.reasoning,
            "cost": cost,
        }
        await asyncio.to_thread(self._note, msgspec.json.encode(line))

    def _note(self, line: bytes) -> None:
        with boundary(EngineError, "write what a call cost"), (self._journal_dir / "usage.jsonl").open("ab") as file:
            file.write(line + b"\n")
