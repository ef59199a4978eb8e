"""vLLM 0.32's HTTP schema over any engine of ours. See `engine_server`."""

from __future__ import annotations

import base64
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np

from tugline.core.columns import count, floats_array, ids
from tugline.core.contracts import Engine, Sample
from tugline.core.routes import Routes, write_npy
from tugline.core.turn import Sampling
from tugline.engines import LiveWeights, Scorer
from tugline.testing import vllm_shapes as shapes
from tugline.testing.engine_faults import Fault, ids_said, logprobs_of, prompt_of, twisted, version_said
from tugline.testing.engine_server import CALLER, EngineServer, Refused, checked, known, spelled, valid_prompt, words

SAMPLING = frozenset(
    words(
        """n presence_penalty frequency_penalty repetition_penalty temperature watermarking top_p top_k min_p seed stop
    stop_token_ids ignore_eos max_tokens min_tokens logprobs prompt_logprobs prompt_logprob_token_ids
    prompt_logprob_start logprob_token_ids flat_logprobs detokenize skip_special_tokens spaces_between_special_tokens
    include_stop_str_in_output output_kind stream_interval skip_clone structured_outputs logit_bias allowed_token_ids
    routed_experts_prompt_start extra_args bad_words thinking_token_budget repetition_detection"""
    )
)
GENERATE = frozenset(
    words(
        """request_id token_ids token_offsets features content_parts sampling_params model reasoning_ended
    reasoning_parser_kwargs return_token_ids output_mode stream stream_options cache_salt priority kv_transfer_params
    ec_transfer_params"""
    )
)
COMPLETION = frozenset(
    words(
        """model prompt echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream
    stream_options suffix temperature top_p user use_beam_search top_k min_p repetition_penalty watermarking
    length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens
    spaces_between_special_tokens truncate_prompt_tokens allowed_token_ids prompt_logprobs logprob_token_ids bad_words
    add_special_tokens response_format structured_outputs priority request_id session_id return_tokens_as_token_ids
    return_token_ids routed_experts_prompt_start cache_salt kv_transfer_params vllm_xargs"""
    )
)
CLOSED = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
DEV = frozenset(
    words(
        """/pause /resume /is_paused /weight_info /update_weight_version /collective_rpc /abort_requests
    /reset_prefix_cache /server_info"""
    )
)
PROBES = "tugline-probe"
COUNTED = ("prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "generation_tokens")


def experts_of(token: int, layers: int, picks: int) -> list[list[int]]:
    """Where this server's model sends a token: by its id alone, so that rows in the wrong place are seen."""
    return [[(token * 31 + layer * 7 + pick) % 251 for pick in range(picks)] for layer in range(layers)]


class VllmServer(EngineServer):
    """The routes that the driver uses. Over an engine that takes weights and scores rows, so does the server."""

    _weights: Path | None = None

    def __init__(self, inner: Engine, **behaviour: Any) -> None:
        super().__init__(inner, **behaviour)
        self.counts: Counter[str] = Counter()
        """What `/metrics` has added up."""

    async def route(self, method: str, path: str, query: str, body: bytes) -> tuple[Any, Fault | None]:
        """See EngineServer."""
        if path in DEV and not self.now.dev_mode:
            raise Refused(404, "Not Found")
        if path.startswith("/inference/") and not self.now.scale_out:
            raise Refused(403, CLOSED)
        match method, path:
            case "GET", "/health":
                return "", None
            case "GET", "/v1/models":
                root = str(self.inner.info.model_dir)
                return shapes.models("served", root, self.inner.info.context), None
            case "GET", "/metrics":
                return self._metrics(), None
            case "POST", "/tokenize":
                asked = known(body, frozenset(["model", "prompt", "add_special_tokens"]))
                found = spelled(self.inner, asked["prompt"])
                return shapes.tokenized(found, self.inner.info.context), None
            case "POST", "/inference/v1/generate":
                return await self._generate(known(body, GENERATE))
            case "POST", "/v1/completions":
                return await self._complete(known(body, COMPLETION))
            case "POST", "/inference/v1/abort_requests" | "/abort_requests":
                return await self._abort(known(body, frozenset(["request_ids"]))), None
            case _:
                return await self._control(method, path, query, body), None

    def _metrics(self) -> str:
        """As two engines behind one server say it: sums are to be made."""
        values = {
            "num_requests_running": len(self.seen.running),
            "num_requests_waiting": 0,
            "kv_cache_usage_perc": 0.25,
            "num_preemptions_total": 0,
            **{f"{name}_total": self.counts[name] for name in COUNTED},
        }
        label = 'model_name="a}b",engine'
        lines = [f'vllm:{n}{{{label}="0"}} {float(v)}\nvllm:{n}{{{label}="1"}} 0.0' for n, v in values.items()]
        return "\n".join(["# HELP vllm:num_requests_running Running.", *lines, "vllm:other NaN", ""])

    async def _control(self, method: str, path: str, query: str, body: bytes) -> Any:
        match method, path:
            case "GET", "/weight_info":
                return {"weight_version": self.now.version}
            case "POST", "/update_weight_version":
                self.now.version = known(body, frozenset(["new_version"]))["new_version"]
                if isinstance(self.inner, LiveWeights) and self._weights is not None:
                    await self.inner.load_weights(self._weights, int(self.now.version))
                return {"success": True, "new_version": self.now.version}
            case "POST", "/collective_rpc":
                asked = known(body, frozenset(["method", "args", "kwargs", "timeout"]))
                if asked["method"] != "reload_weights" or "missing" in asked["kwargs"]["weights_path"]:
                    raise Refused(500, "No such file")
                self._weights = Path(asked["kwargs"]["weights_path"])
                return {"results": [None]}
            case "POST", "/pause":
                mode = parse_qs(query).get("mode", ["abort"])[0]
                if mode not in ("abort", "wait", "keep"):
                    raise Refused(422, f"mode {mode!r}")
                self.pause(on=True)
                return {"status": "paused"}
            case "POST", "/resume":
                self.pause(on=False)
                return {"status": "resumed"}
            case "GET", "/is_paused":
                return {"is_paused": self.paused}
            case "POST", "/reset_prefix_cache":
                return {"success": True}
        raise Refused(404, "Not Found")

    async def _generate(self, asked: dict[str, Any]) -> tuple[Any, Fault | None]:
        params = checked(asked.get("sampling_params"), SAMPLING, "sampling_params")
        prompt = valid_prompt(asked.get("token_ids"), self.inner)
        if params.get("stop") and not params.get("detokenize", True):
            raise Refused(400, "stop strings are only supported when detokenize is True")
        sample, fault = await self._sample(f"generate-tokens-{asked['request_id']}", prompt, params, asked)
        values = logprobs_of(sample, fault)
        said = ids_said(sample, fault)
        told = [token + 1 for token in said] if fault == "wrong_logprob_ids" else said
        content = None
        if params.get("logprobs") is not None and fault != "no_logprobs":
            content = [self._entry(t, v, params) for t, v in zip([*told, 0], values, strict=False)]
        spans = None if fault == "no_versions" else self._spans(sample, fault)
        choice = shapes.generate_choice(said, self._finish(sample, fault), content, spans)
        choice["routed_experts"] = self._routed(prompt, sample, params, fault)
        echo = prompt_of(prompt, fault) if asked.get("return_token_ids") else None
        reply = shapes.generated(f"generate-tokens-{self._name(asked, fault)}", echo, choice)
        if params.get("prompt_logprobs") is not None:
            scores = [-1.5] * len(prompt)
            if isinstance(self.inner, Scorer):
                scores = floats_array(await self.inner.score(ids(prompt), Sampling())).tolist()
            pairs = list(zip(prompt, scores, strict=True))
            reply["prompt_logprobs"] = [None] + [{str(t): {"logprob": value, "rank": 1}} for t, value in pairs[1:]]
        usage = self._usage(prompt, sample, fault)
        return shapes.generate_events(reply, usage) if asked.get("stream") else reply | {"usage": usage}, fault

    def _routed(self, prompt: list[int], sample: Sample, asked: dict[str, Any], fault: Fault | None) -> str | None:
        if self.now.experts is None:
            return None
        passed = (prompt + ids_said(sample))[asked.get("routed_experts_prompt_start", 0) : -1]
        if fault == "short_routes":
            passed = passed[1:]
        if fault == "wrong_routes":
            return "bm8gYXJyYXk="
        rows = [experts_of(token, *self.now.experts) for token in passed]
        array = np.array(rows, np.uint8).reshape(-1, *self.now.experts)
        return base64.b64encode(write_npy(Routes(0, *self.now.experts, "uint8", array.tobytes()))).decode()

    def _spans(self, sample: Sample, fault: Fault | None) -> list[dict[str, Any]]:
        runs = sample.version_runs if isinstance(self.inner, LiveWeights) and self._weights is not None else ()
        starts = [(str(version), start) for start, version in runs] or [(version_said(self.now.version, fault), 0)]
        ends = [start for _, start in starts[1:]] + [count(sample.ids)]
        return [shapes.span(v, s, e) for (v, s), e in zip(starts, ends, strict=True)]

    def _entry(self, token: int, value: Any, params: dict[str, Any]) -> dict[str, Any]:
        """A token's log-probability, with a best one that moves with the temperature where such are reported."""
        best = -0.25 * (params["temperature"] if self.now.kind == "processed" else 1.0)
        return shapes.entry(token, value, [(0, best)] if params["logprobs"] > 0 else ())

    async def _complete(self, asked: dict[str, Any]) -> tuple[Any, Fault | None]:
        prompt = valid_prompt(asked.get("prompt"), self.inner)
        sample, fault = await self._sample(f"cmpl-{asked['request_id']}-0", prompt, asked, asked)
        logprobs = None if fault == "no_logprobs" else self._listed(sample, fault, asked)
        told = (ids_said(sample, fault), prompt_of(prompt, fault)) if asked.get("return_token_ids") else None
        choice = shapes.completion_choice("", self._finish(sample, fault), logprobs, told)
        choice["routed_experts"] = self._routed(prompt, sample, asked, fault)
        usage = self._usage(prompt, sample, fault)
        frame = {"id": f"cmpl-{self._name(asked, fault)}", "object": "text_completion"}
        if asked.get("stream"):
            return [frame | event for event in shapes.completion_events(choice, usage)], fault
        return frame | {"choices": [choice], "usage": usage}, fault

    def _listed(self, sample: Sample, fault: Fault | None, asked: dict[str, Any]) -> dict[str, Any]:
        best = -0.25 * (asked["temperature"] if self.now.kind == "processed" else 1.0)
        values = logprobs_of(sample, fault)
        return {"token_logprobs": values, "top_logprobs": [{"best": best} for _ in values] if asked["logprobs"] else []}

    async def _sample(
        self, name: str, prompt: list[int], params: dict[str, Any], asked: dict[str, Any]
    ) -> tuple[Sample, Fault | None]:
        if not params.get("ignore_eos") and params.get("max_tokens") != 1:
            raise Refused(400, "this server is strict: the stop set is the driver's")
        probe = PROBES in name
        session = CALLER.get().get("x-session-id") or ("probe " + name)
        fault = None
        if not probe:
            self.seen.generations.append(asked)
            fault = await self.next_fault(session)
        full = {"temperature": 1.0, "top_p": 1.0, "top_k": 0} | params
        sample = twisted(await self.sampled(name, session, prompt, full), fault, self.inner.info)
        told = (len(prompt), sample.cached_tokens, len(prompt), count(sample.ids))
        self.counts.update(dict(zip(COUNTED, told, strict=True)))
        return sample, fault

    def _finish(self, sample: Sample, fault: Fault | None) -> str | None:
        return {"no_finish": None, "strange_finish": "repetition"}.get(fault or "", sample.finish)

    def _name(self, asked: dict[str, Any], fault: Fault | None) -> str:
        return "another" if fault == "other_reply" else asked["request_id"]

    def _usage(self, prompt: list[int], sample: Sample, fault: Fault | None) -> dict[str, Any]:
        n = count(sample.ids) + (fault == "wrong_usage")
        return shapes.usage(len(prompt), n, sample.cached_tokens if self.now.prompt_details else None)

    async def _abort(self, asked: dict[str, Any]) -> Any:
        names = asked.get("request_ids")
        if not isinstance(names, list):
            raise Refused(400, "Missing 'request_ids' in request body")
        for name in names:
            self.seen.aborted.append(name)
            if name in self.seen.running:
                await self.inner.abort(name)
        return {"status": "aborted", "aborted": len(names)}
