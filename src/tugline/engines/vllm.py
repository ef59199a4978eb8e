"""The driver of vLLM servers: ids in by `/inference/v1/generate`, else by `/v1/completions`. See `vllm_wire`."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Literal, cast
from urllib.parse import urlencode

import msgspec

from tugline.core.columns import NO_IDS, Floats, Ids, count, floats, ids, take
from tugline.core.contracts import EngineLoad, Generation
from tugline.core.errors import EngineError
from tugline.core.turn import Sampling
from tugline.engines import vllm_wire as wire
from tugline.engines.api import InFlight
from tugline.engines.modeldir import ModelFiles
from tugline.engines.remote.abilities import Abilities, Kind
from tugline.engines.remote.client import Answer, Remote, refusal_text, refused
from tugline.engines.remote.driver import LOOK, SPELLING, UPDATE, RemoteEngine, Room, kind_of
from tugline.engines.remote.reply import Taken, all_known, decode_json, runs_of
from tugline.engines.streaming import Say

METRICS = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "cache_usage": "vllm:kv_cache_usage_perc",
    "prefix_queries": "vllm:prefix_cache_queries",
    "prefix_hits": "vllm:prefix_cache_hits",
    "prompt_tokens": "vllm:prompt_tokens",
    "sampled_tokens": "vllm:generation_tokens",
    "preemptions": "vllm:num_preemptions",
}
"""Fields of EngineLoad by vLLM's names."""


class VllmEngine(RemoteEngine):
    """Core `StreamingEngine`, `Scorer` and `LiveWeights` over a vLLM server."""

    def __init__(self, remote: Remote, files: ModelFiles, journal_dir: Path) -> None:
        super().__init__(remote, files, journal_dir, "vllm")
        self._route = wire.GENERATE
        self._model = remote.served or ""
        self._reported = False
        self._routes = False
        self._abort = False
        self._probes = 0
        self._weights: tuple[Path, int] | None = None

    # ---------------------------------------------------------------------------------------------- finding out

    async def greet(self) -> Abilities:
        """Models, routes, what a one-token sample carries, what the best token's value does with the temperature."""
        card = await self._card()
        self._model = card.id
        prompt = ids(range(min(8, self._files.vocab)))
        self._route, why = wire.GENERATE, None
        answer = await self._probe(prompt, 1.0)
        if answer.status in (403, 404, 405):
            why = refusal_text(answer.body) if answer.status == 403 else "it has no /inference/v1/generate"
            self._route = wire.COMPLETIONS
            self.faults["fallback_completions"] += 1
            answer = await self._probe(prompt, 1.0)
        if answer.status != 200:
            raise refused(answer)
        taken = self._decode(answer.body)
        self._routes = taken.experts is not None
        self.knows_names(taken, self._probe_name())
        self._reported = await self._label() is not None
        self._abort = self._route == wire.GENERATE or self._reported
        return Abilities(
            engine="vllm",
            model=card.id,
            context=card.max_model_len,
            token_in=self._route,
            level="L4",
            echo=taken.prompt_ids is not None,
            logprobs=all_known(taken.logprobs),
            kind=await self._kind(prompt, answer),
            versions="spans" if taken.labels is not None else "reported" if self._reported else "none",
            abort="by_name" if self._abort else "by_hanging_up",
            updates=self._reported,
            cache_reset=self._reported,
            metrics=(await self.http.get("/metrics", LOOK)).status == 200,
            tokenizer=await self._tokenizer(),
            routes=self._routes,
            why=why,
        )

    async def _card(self) -> wire.ModelCard:
        answer = await self.http.get("/v1/models", LOOK)
        if answer.status != 200:
            raise refused(answer)
        cards = cast("wire.ModelList", decode_json(answer.body, wire.ModelList)).data
        wanted = self.remote.served
        card = next((c for c in cards if wanted in (None, c.id)), None)
        if card is None:
            served = ", ".join(c.id for c in cards[:20]) or "nothing"
            raise EngineError(
                f"{self.remote.url} serves no {wanted!r} but {served}", retryable=False, fault="other_model"
            )
        return card

    async def _probe(self, prompt: Ids, temperature: float, top: int = 1) -> Answer:
        self._probes += 1
        request = wire.probe(prompt, self._probe_name(), temperature)
        if self._route == wire.GENERATE:
            body = wire.generate_body(request, self._model, self._info.stop_ids, top=top)
        else:
            body = wire.completion_body(request, self._model, self._info.stop_ids, top=top)
        return await self.http.post(self._route, body)

    def _probe_name(self) -> str:
        return f"tugline-probe-{id(self):x}-{self._probes}"

    def name_there(self, request_id: str) -> str:
        """See RemoteEngine."""
        return wire.PREFIX[self._route] + request_id

    async def _kind(self, prompt: Ids, answer: Answer) -> Kind | None:
        """Whether the best token's value changes with the temperature. Raises EngineError for values that are no
        log-probabilities at all (`--logprobs-mode raw_logits`)."""
        colder = await self._probe(prompt, 0.25)
        flag = "start vLLM with --logprobs-mode processed_logprobs"
        return kind_of(wire.highest(self._route, answer.body), wire.highest(self._route, colder.body), flag)

    async def _tokenizer(self) -> Literal["same", "differs", "unknown"]:
        from tokenizers import Tokenizer

        body = msgspec.json.encode({"model": self._model, "prompt": SPELLING, "add_special_tokens": False})
        answer = await self.http.post("/tokenize", body, seconds=LOOK)
        if answer.status != 200:
            return "unknown"
        theirs = cast("wire.Tokens", decode_json(answer.body, wire.Tokens)).tokens
        own = await asyncio.to_thread(Tokenizer.from_buffer, self._files.tokenizer_json)
        return "same" if own.encode(SPELLING, add_special_tokens=False).ids == theirs else "differs"

    # ------------------------------------------------------------------------------------------------- sampling

    async def ask(self, request: Generation) -> Taken:
        """See RemoteEngine."""
        body = self._body(request, stream=False)
        answer = await self.http.post(self._route, body, {"x-session-id": request.session_id})
        if answer.status != 200:
            raise refused(answer)
        return self._decode(answer.body)

    async def ask_streamed(self, request: Generation, say: Say) -> Taken:
        """See RemoteEngine."""
        body = self._body(request, stream=True)
        parts: list[Taken] = []
        room = Room(self._info.context)
        usage: wire.Usage | None = None
        ended = False
        async with self.http.stream(self._route, body, {"x-session-id": request.session_id}) as events:
            async for data in events:
                event, more = wire.decode_event(self._route, data)
                usage = event.usage or usage
                room.took(more.ids if more is not None else NO_IDS)
                if more is not None:
                    parts.append(more)
                    ended = ended or event.ended
                    if more.ids:
                        say(more.ids)
        if not parts or not ended:
            raise EngineError("the engine's stream has no end", fault="truncated")
        return wire.joined(parts, usage)

    def _body(self, request: Generation, *, stream: bool) -> bytes:
        write = wire.generate_body if self._route == wire.GENERATE else wire.completion_body
        known = request if self._routes else replace(request, routes_from=0)
        return write(known, self._model, self._info.stop_ids, stream=stream)

    def _decode(self, body: bytes) -> Taken:
        return wire.decode_generated(body) if self._route == wire.GENERATE else wire.decode_completed(body)

    async def tell_abort(self, request_id: str) -> bool:
        """See RemoteEngine."""
        if not self._abort:
            return False
        path = wire.ABORT if self._route == wire.GENERATE else wire.ABORT_DEV
        return (await self.http.post(path, wire.abort_body(request_id, self._route), seconds=LOOK)).status == 200

    # ------------------------------------------------------------------------------------------------- versions

    async def label(self) -> str | None:
        """See RemoteEngine: asked only where replies do not say it themselves."""
        said = self.abilities is not None and self.abilities.versions == "spans"
        return None if said or not self._reported else await self._label()

    async def runs(self, taken: Taken, before: str | None) -> tuple[tuple[int, int], ...]:
        """See RemoteEngine."""
        n = count(taken.ids)
        if n == 0:
            return ()
        if taken.labels is not None:
            return runs_of(taken.labels, n)
        if not self._reported:
            return ((0, 0),)  # who cannot ask for a version cannot set one: the routes come together
        after = await self._label()
        return runs_of([(before, 0)], n) if before is not None and before == after else ()

    async def _label(self) -> str | None:
        try:
            answer = await self.http.get("/weight_info", LOOK)
        except EngineError:
            return None
        if answer.status != 200:
            return None
        return cast("wire.WeightInfo", decode_json(answer.body, wire.WeightInfo)).weight_version

    # -------------------------------------------------------------------------------------------------- control

    async def pause(self, mode: str = "keep") -> None:
        """`keep`: running requests freeze; `wait`: they end first; `abort`. Raises EngineError."""
        await self._control("/pause?" + urlencode({"mode": mode}))

    async def resume(self) -> None:
        """Raises EngineError."""
        await self._control("/resume")

    async def reset_prefix_cache(self, *, running: bool = False) -> None:
        """Forget cached keys and values; `running`: of running requests too, which are then computed again."""
        query = urlencode({"reset_running_requests": str(running).lower()})
        answer = await self._control(f"/reset_prefix_cache?{query}")
        if b"false" in answer.body:
            raise EngineError("the prefix cache was not reset: blocks are in use", fault="cache_in_use")

    async def load_weights(self, path: Path, version: int, in_flight: InFlight = "recompute") -> None:
        """Pause, load the files at `path` (absolute, of the engine's machine), name them, resume. See LiveWeights."""
        if self.abilities is None or not self.abilities.updates:
            raise EngineError(
                "vLLM takes no weights: set VLLM_SERVER_DEV_MODE=1 in its environment", retryable=False, fault="updates"
            )
        await self.pause("keep")
        try:
            call = {"method": "reload_weights", "kwargs": {"weights_path": os.fspath(path)}}
            await self._control("/collective_rpc", msgspec.json.encode(call))
            await self._control("/update_weight_version", msgspec.json.encode({"new_version": str(version)}))
            await self.reset_prefix_cache(running=in_flight == "recompute")
        finally:
            await self.resume()
        self._weights = (path, version)

    async def came_back(self) -> None:
        """See Frame: an engine that restarted has its first weights again."""
        if self._weights is not None and await self._label() != str(self._weights[1]):
            await self.load_weights(*self._weights)

    async def _control(self, path: str, body: bytes = b"") -> Answer:
        answer = await self.http.post(path, body, seconds=UPDATE)
        if answer.status != 200:
            raise refused(answer)
        return answer

    async def load(self) -> EngineLoad:
        """See Measured: out of `/metrics`, summed over its engines. Raises EngineError."""
        return await self.measured(METRICS)

    # -------------------------------------------------------------------------------------------------- scoring

    @property
    def score_tolerance(self) -> float:
        """Nats at one token: sampling in batches against one pass over the row. Logits in bfloat16 between 16 and 32
        stand 0.125 apart."""
        return 0.25

    async def score(self, row: Ids, sampling: Sampling) -> Floats:
        """See Scorer. Raises EngineError, not retryable, for another distribution than the model's own at
        temperature 1: vLLM scores prompts with that one only, and rows that fill the window."""
        plain = sampling.temperature == 1.0 and sampling.top_p == 1.0 and sampling.top_k == 0
        if self._route != wire.GENERATE or not (plain or self._info.logprob_kind == "raw"):
            raise EngineError(
                "vLLM scores at temperature 1 over the whole vocabulary only", retryable=False, fault="score"
            )
        cut = take(row, 0, self._info.context - 1)
        self._probes += 1
        body = wire.score_body(cut, self._model, f"tugline-score-{id(self):x}-{self._probes}")
        answer = await self.http.post(wire.GENERATE, body)
        if answer.status != 200:
            raise refused(answer)
        found = list(wire.decode_scores(answer.body, cut))
        return floats(found + [float("nan")] * (count(row) - count(cut)))
