"""The driver of OpenAI-compatible APIs, commercial ones included: messages in, messages out. See `openai_wire`.

For teachers, judges and SFT data. What such an API says of ids decides the level: L2 where replies carry the ids of
prompt and sample (as vLLM's do), else L0, which never trains.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from tugline.core.columns import NO_IDS, count
from tugline.core.contracts import Conversation, Generation, Reading, Said, Sample
from tugline.core.errors import ContextOverflow, EngineError, boundary
from tugline.core.items import Head, Options, UserText
from tugline.core.turn import Sampling
from tugline.engines import openai_wire as wire
from tugline.engines.modeldir import ModelFiles
from tugline.engines.remote.abilities import Abilities
from tugline.engines.remote.client import Answer, Remote, refused
from tugline.engines.remote.frame import LOOK, Frame, Work
from tugline.engines.remote.reply import Taken
from tugline.engines.spending import FILE, Prices, Spent, UsageLine, append_line

CONTEXT = 128_000
"""Tokens of a window that nobody has told."""
EVERY_ID = (1 << 31) - 1
"""Vocabulary of a tokenizer that nobody knows."""
PROBE = Conversation(
    "tugline-probe", "tugline-probe", Head(), (UserText("Say ok."),), Options(), Sampling(max_tokens=1)
)
REMEMBERED = 4096
"""Names of replies that are known, to find one that comes twice."""
NAME = 200
"""Characters of a reply's name that count."""
REFUSALS = 8
"""Fields that a model may refuse, one after the other."""


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
        super().__init__(replace(remote, url=base_url(remote.url)), files, journal_dir, "openai")
        self.spent = Spent()
        self._prices = prices
        self._bills = threading.Lock()
        self._limit: wire.Limit = "max_completion_tokens" if "api.openai.com" in remote.url else "max_tokens"
        self._without: set[str] = set()
        self._more: dict[str, object] = {}
        self._seen: OrderedDict[str, bytes] = OrderedDict()
        """Digests of ids by the name of the reply that brought them."""

    async def greet(self) -> Abilities:
        """One token is asked for, with ids; where that is refused, without."""
        self._more = dict(wire.IDS)
        answer, _ = await self._exchange(PROBE)
        if answer.status in wire.REFUSED:
            self._more = {}
            answer, _ = await self._exchange(PROBE)
        if answer.status != 200:
            raise refused(answer)
        found = wire.decode_chat(answer.body).taken
        self._bill(PROBE.session_id, answer.body, "", "probe")
        ids = found.prompt_ids is not None
        if not ids:
            self._more = {}
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
        answered: list[tuple[wire.Answered, bytes]] = []
        drift: list[str] = []

        async def work() -> Work:
            answer, left_out = await self._exchange(request)
            if answer.status == 400 and (window := wire.too_long(answer.body, self._info.context)) is not None:
                raise ContextOverflow(*window)
            if answer.status != 200:
                raise refused(answer)
            reply = await self._read(request, answer.body)
            reply = replace(reply, taken=self._as_asked(reply.taken, left_out))
            answered.append((reply, answer.body))
            drift.extend(left_out)
            return reply.taken, ((0, 0),) if reply.taken.ids else ()

        taken, runs = await self.run(request.request_id, work)
        if not answered:
            raise EngineError("the call was aborted", retryable=False, fault="aborted")
        reply, body = answered[0]
        usage = reply.usage
        if taken.ids and not usage.completion:
            usage = replace(usage, completion=count(taken.ids))
        sample = await self.recorded(request.session_id, taken.prompt_ids or NO_IDS, (taken, runs))
        await self._billed(request.session_id, body, sample.engine_ref or "", None)
        return Said(reply.assistant, reply.finish, usage, sample, tuple(drift))

    async def _read(self, request: Conversation, body: bytes) -> wire.Answered:
        """The reply in a body. What is of no use is paid for all the same. Raises EngineError."""
        try:
            reply = wire.decode_chat(body)
            if reply.blank:
                raise EngineError("the engine answered nothing", fault="empty_reply")
        except EngineError as err:
            await self._billed(request.session_id, body, "", err.fault)
            raise
        return replace(reply, taken=self._once(reply))

    def _as_asked(self, taken: Taken, left_out: tuple[str, ...]) -> Taken:
        """What was drawn otherwise than the turn's sampling says is no training data."""
        other = taken.ids and taken.fault is None and any(f"not_sent_{name}" in left_out for name in wire.SHAPING)
        return replace(taken, fault="sampling_not_sent") if other else taken

    def _once(self, reply: wire.Answered) -> Taken:
        """The sample of a reply; marked when a reply of this name has brought the same ids before. Some servers give
        few names, so that the name alone says nothing."""
        taken, name = reply.taken, reply.reply_id
        if not taken.ids or not name:
            return taken
        digest, name = hashlib.sha256(taken.ids).digest(), name[:NAME]
        known = self._seen.get(name)
        self._seen[name] = digest
        self._seen.move_to_end(name)
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        twice = known == digest and taken.fault is None
        return replace(taken, fault="duplicated_reply") if twice else taken

    async def _exchange(self, request: Conversation) -> tuple[Answer, tuple[str, ...]]:
        """The answer, and what was not sent. A field that this model refuses is left out from then on, counted, once an
        answer without it has proven that it was the field: errors repeat what agents say."""
        limit, without = self._limit, set(self._without)
        refused_here: list[str] = []
        for _ in range(REFUSALS):
            body, drift = wire.chat_body(request, self._info.model, limit, without, self._more)
            answer = await self.http.post("/chat/completions", body)
            name = wire.refused_field(answer.body) if answer.status in wire.REFUSED else None
            if name is None or name not in msgspec.json.decode(body):
                break
            refused_here.append(name)
            if name == "max_tokens":
                limit = "max_completion_tokens"
            else:
                without.add(name)
        if answer.status == 200 and refused_here:
            self._limit = limit
            self._without |= without
            self.faults.update(f"refused_{name}" for name in refused_here)
        return answer, drift

    async def _billed(self, session_id: str, body: bytes, engine_ref: str, fault: str | None) -> None:
        await asyncio.to_thread(self._bill, session_id, body, engine_ref, fault)

    def _bill(self, session_id: str, body: bytes, engine_ref: str, fault: str | None) -> None:
        """Write down what an answer cost, and add it up."""
        usage, name, model = wire.usage_of(body)
        line = UsageLine(
            ref=engine_ref,
            session=session_id,
            id=name,
            model=model,
            prompt=usage.prompt,
            cached=usage.cached,
            completion=usage.completion,
            reasoning=usage.reasoning,
            cost=self._prices.of(usage),
            fault=fault,
        )
        try:
            with self._bills, boundary(EngineError, "write what a call cost"):
                self.spent.add(line)
                append_line(self._journal_dir / FILE, line)
        except EngineError as err:  # to ask again would cost again
            raise EngineError(err.message, retryable=False, fault="no_record") from err

    def readings(self) -> tuple[Reading, ...]:
        """See Observed."""
        return super().readings() + self.spent.readings()


def base_url(url: str) -> str:
    """Where `/chat/completions` hangs: as in the clients of such APIs, but `/v1` may be left away behind a host."""
    return url if urlsplit(url).path.strip("/") else f"{url}/v1"
