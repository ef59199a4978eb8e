"""The driver of SGLang servers: ids in by `/generate`. See `sglang_wire`. Unproven: none runs without a GPU."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Literal, cast

import msgspec

from tugline.core.columns import Floats, Ids, count, floats, ids
from tugline.core.contracts import EngineLoad, Generation
from tugline.core.errors import EngineError
from tugline.core.turn import Sampling
from tugline.engines import sglang_wire as wire
from tugline.engines.api import InFlight
from tugline.engines.modeldir import ModelFiles
from tugline.engines.remote.abilities import Abilities
from tugline.engines.remote.client import Answer, Remote, refused
from tugline.engines.remote.driver import LOOK, SPELLING, UPDATE, RemoteEngine, Room, kind_of
from tugline.engines.remote.reply import Taken, all_known, decode_json, runs_of
from tugline.engines.streaming import Say

METRICS = {
    "running": "sglang:num_running_reqs",
    "waiting": "sglang:num_queue_reqs",
    "cache_usage": "sglang:token_usage",
    "prefix_hits": "sglang:cached_tokens",
    "prompt_tokens": "sglang:prompt_tokens",
    "sampled_tokens": "sglang:generation_tokens",
    "preemptions": "sglang:num_retracted_requests",
}
"""Fields of EngineLoad by SGLang's names."""


class SglangEngine(RemoteEngine):
    """Core `StreamingEngine`, `Scorer` and `LiveWeights` over an SGLang server."""

    def __init__(self, remote: Remote, files: ModelFiles, journal_dir: Path) -> None:
        super().__init__(remote, files, journal_dir, "sglang")
        self._reported = False
        self._probes = 0
        self._weights: tuple[Path, int] | None = None

    async def greet(self) -> Abilities:
        """Model, what a one-token sample carries, what the best token's value does with the temperature."""
        model = await self._model()
        added = sorted(set(model.preferred_sampling_params or {}) - wire.WRITTEN)
        if added:
            why = f"{self.remote.url} adds {', '.join(added)} to every request"
            hint = "start it without --preferred-sampling-params"
            raise EngineError(f"{why}: {hint}", retryable=False, fault="other_sampling")
        self._reported = model.weight_version is not None
        prompt = ids(range(min(8, self._files.vocab)))
        answer = await self._probe(prompt, 1.0)
        if answer.status != 200:
            raise refused(answer)
        taken = wire.decode_generated(answer.body, count(prompt))
        self.knows_names(taken, self._probe_name())
        colder = await self._probe(prompt, 0.25)
        return Abilities(
            engine="sglang",
            model=model.served_model_name or model.model_path,
            context=await self._context(),
            token_in=wire.GENERATE,
            level="L4",
            echo=taken.prompt_ids is not None,
            logprobs=all_known(taken.logprobs),
            kind=kind_of(wire.highest(answer.body), wire.highest(colder.body), "unset any option that returns logits"),
            versions="spans" if taken.labels is not None else "reported" if self._reported else "none",
            abort="by_name",
            updates=self._reported,
            cache_reset=True,
            metrics=(await self.http.get("/metrics", LOOK)).status == 200,
            tokenizer=await self._tokenizer(),
        )

    async def _model(self) -> wire.ModelInfo:
        for path in ("/model_info", "/get_model_info"):
            answer = await self.http.get(path, LOOK)
            if answer.status == 200:
                found = cast("wire.ModelInfo", decode_json(answer.body, wire.ModelInfo))
                names = (found.served_model_name, found.model_path)
                if self.remote.served not in (None, *names):
                    why = f"{self.remote.url} serves no {self.remote.served!r} but {names[0] or names[1]}"
                    raise EngineError(why, retryable=False, fault="other_model")
                return found
        raise refused(answer)

    async def _context(self) -> int | None:
        answer = await self.http.get("/server_info", LOOK)
        if answer.status != 200:
            return None
        found = cast("wire.ServerInfo", decode_json(answer.body, wire.ServerInfo))
        return found.context_length or found.max_req_input_len

    async def _probe(self, prompt: Ids, temperature: float) -> Answer:
        self._probes += 1
        sampling = Sampling(temperature=temperature, max_tokens=1, seed=1)
        request = Generation(self._probe_name(), "tugline-probe", prompt, sampling)
        return await self.http.post(wire.GENERATE, wire.generate_body(request, self._info.stop_ids, top=1))

    def _probe_name(self) -> str:
        return f"tugline-probe-{id(self):x}-{self._probes}"

    async def _tokenizer(self) -> Literal["same", "differs", "unknown"]:
        from tokenizers import Tokenizer

        body = msgspec.json.encode({"prompt": SPELLING, "add_special_tokens": False})
        answer = await self.http.post("/v1/tokenize", body, seconds=LOOK)
        if answer.status != 200:
            return "unknown"
        theirs = cast("wire.Tokens", decode_json(answer.body, wire.Tokens)).tokens
        own = await asyncio.to_thread(Tokenizer.from_buffer, self._files.tokenizer_json)
        return "same" if own.encode(SPELLING, add_special_tokens=False).ids == theirs else "differs"

    # ------------------------------------------------------------------------------------------------- sampling

    async def ask(self, request: Generation) -> Taken:
        """See RemoteEngine."""
        answer = await self.http.post(wire.GENERATE, wire.generate_body(request, self._info.stop_ids))
        if answer.status != 200:
            raise refused(answer)
        return self._believed(wire.decode_generated(answer.body, count(request.prompt_ids)), request)

    def _believed(self, taken: Taken, request: Generation) -> Taken:
        """SGLang reports log-probabilities before top-k and top-p are applied: with these set, of another distribution
        than was sampled from."""
        s = request.sampling
        cut = (s.top_p < 1.0 or s.top_k > 0) and s.temperature > 0
        return replace(taken, fault="cut_distribution") if cut and taken.fault is None else taken

    def name_there(self, request_id: str) -> str:
        """See RemoteEngine."""
        return request_id + wire.END

    async def ask_streamed(self, request: Generation, say: Say) -> Taken:
        """See RemoteEngine."""
        body = wire.generate_body(request, self._info.stop_ids, stream=True)
        told, room = wire.Streamed(), Room(self._info.context)
        async with self.http.stream(wire.GENERATE, body, {}) as events:
            async for data in events:
                more = told.take(wire.decode_event(data))
                room.took(more)
                if more:
                    say(more)
        return self._believed(told.taken(count(request.prompt_ids)), request)

    async def tell_abort(self, request_id: str) -> bool:
        """See RemoteEngine."""
        return (await self.http.post(wire.ABORT, wire.abort_body(request_id), seconds=LOOK)).status == 200

    # ------------------------------------------------------------------------------------------------- versions

    async def label(self) -> str | None:
        """See RemoteEngine: asked only where replies do not say it token by token."""
        said = self.abilities is not None and self.abilities.versions == "spans"
        return None if said or not self._reported else await self._label()

    async def runs(self, taken: Taken, before: str | None) -> tuple[tuple[int, int], ...]:
        """See RemoteEngine. A reply's one `weight_version` is the one at its end, so two questions enclose it."""
        n = count(taken.ids)
        if n == 0:
            return ()
        if taken.labels is not None:
            return runs_of(taken.labels, n)
        if not self._reported:
            return ((0, 0),)
        return runs_of([(before, 0)], n) if before is not None and before == await self._label() else ()

    async def _label(self) -> str | None:
        try:
            return (await self._model()).weight_version
        except EngineError:
            return None

    # -------------------------------------------------------------------------------------------------- control

    async def pause(self, mode: str = "in_place") -> None:
        """`in_place`: running requests keep their cache; `retract`: they are computed again; `abort`."""
        await self._control("/pause_generation", {"mode": mode})

    async def resume(self) -> None:
        """Raises EngineError."""
        await self._control("/continue_generation", {})

    async def reset_prefix_cache(self) -> None:
        """Raises EngineError while requests hold blocks."""
        await self._control("/flush_cache", {})

    async def load_weights(self, path: Path, version: int, in_flight: InFlight = "recompute") -> None:
        """Pause, load the files at `path` (absolute, of the engine's machine) under their version, resume."""
        await self.pause("retract" if in_flight == "recompute" else "in_place")
        try:
            await self._control(
                "/update_weights_from_disk",
                {
                    "model_path": os.fspath(path),
                    "weight_version": str(version),
                    "abort_all_requests": False,
                    "flush_cache": in_flight == "recompute",
                },
            )
        finally:
            await self.resume()
        self._weights = (path, version)

    async def came_back(self) -> None:
        """See Frame: an engine that restarted has its first weights again."""
        if self._weights is not None and await self._label() != str(self._weights[1]):
            await self.load_weights(*self._weights)

    async def _control(self, path: str, asked: dict[str, object]) -> Answer:
        answer = await self.http.post(path, msgspec.json.encode(asked), seconds=UPDATE)
        if answer.status != 200:
            raise refused(answer)
        return answer

    async def load(self) -> EngineLoad:
        """See Measured: out of `/metrics`, summed over its workers. Raises EngineError."""
        return await self.measured(METRICS)

    # -------------------------------------------------------------------------------------------------- scoring

    @property
    def score_tolerance(self) -> float:
        """Nats at one token: sampling in batches against one pass over the row. Logits in bfloat16 between 16 and 32
        stand 0.125 apart."""
        return 0.25

    async def score(self, row: Ids, sampling: Sampling) -> Floats:
        """See Scorer. Raises EngineError, not retryable, for another sampling than temperature 1 over everything."""
        plain = sampling.temperature == 1.0 and sampling.top_p == 1.0 and sampling.top_k == 0
        if not (plain or self._info.logprob_kind == "raw"):
            why = "SGLang scores at temperature 1 over the whole vocabulary only"
            raise EngineError(why, retryable=False, fault="score")
        self._probes += 1
        answer = await self.http.post(wire.GENERATE, wire.score_body(row, f"tugline-score-{id(self):x}-{self._probes}"))
        if answer.status != 200:
            raise refused(answer)
        return floats(wire.decode_scores(answer.body, row))
