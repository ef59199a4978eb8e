"""The driver of OpenAI-compatible APIs, commercial ones included: messages in, messages out. See `openai_wire`.

For teachers, judges and SFT data. What such an API says of ids decides the level: L2 where replies carry the ids of
prompt and sample (as vLLM's do), else L0, which never trains.
"""

from __future__ import annotations

import asyncio
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
from tugline.engines.spending import FILE, Prices, Spent, UsageLine

CONTEXT = 128_000
"""Tokens of a window that nobody has told."""
EVERY_ID = (1 << 31) - 1
"""Vocabulary of a tokenizer that nobody knows."""
PROBE = Conversation(
    "tugline-probe", "tugline-probe", Head(), (UserText("Say ok."),), Options(), Sampling(max_tokens=1)
)
REMEMBERED = 4096
"""Names of replies that are known, to find one that comes twice."""
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

    async def greet(self) -> Abilities:
        """One token is asked for, with ids; where that is refused, without."""
        self._more = dict(wire.IDS)
        body, _ = wire.chat_body(PROBE, self._info.model, self._limit, self._without, self._more)
        answer = await self.http.post("/chat/completions", body)
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

    def _once(self, reply: wire.Answered) -> Taken:
        """The sample of a reply; marked when a reply of this name has brought the same ids before. Some servers give
        few names, so that the name alone says nothing."""
        taken, name = reply.taken, reply.reply_id
        if not taken.ids or not name:
            return taken
        known = self._seen.get(name)
        self._seen[name] = taken.ids
        self._seen.move_to_end(name)
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        twice = known == taken.ids and taken.fault is None
        return replace(taken, fault="duplicated_reply") if twice else taken

    async def _exchange(self, request: Conversation) -> tuple[Answer, tuple[str, ...]]:
        """The answer, and what was not sent. A field that this model refuses is left out from then on, counted."""
        for _ in range(REFUSALS):
            body, drift = wire.chat_body(request, self._info.model, self._limit, self._without, self._more)
            answer = await self.http.post("/chat/completions", body)
            name = wire.refused_field(answer.body) if answer.status in wire.REFUSED else None
            if name is None or name not in msgspec.json.decode(body):  # another call may have learned it meanwhile
                break
            if name == "max_tokens":
                self._limit = "max_completion_tokens"
            else:
                self._without.add(name)
            self.faults[f"refused_{name}"] += 1
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
        with self._bills, boundary(EngineError, "write what a call cost"):
            with (self._journal_dir / FILE).open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")
            self.spent.add(line)

    def readings(self) -> tuple[Reading, ...]:
        """See Observed."""
        return super().readings() + self.spent.readings()


def base_url(url: str) -> str:
    """Where `/chat/completions` hangs: as in the clients of such APIs, but `/v1` may be left away behind a host."""
    return url if urlsplit(url).path.strip("/") else f"{url}/v1"
