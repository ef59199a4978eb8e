"""SGLang 0.5.23's HTTP schema, as its sources say, over any engine of ours. See `engine_server`.

UNPROVEN: written from the sources, never compared with a running server. What passes here may still fail there.
"""

from __future__ import annotations

import math
from typing import Any

from tugline.core.columns import count
from tugline.core.contracts import Engine, Sample
from tugline.testing.engine_faults import Fault, ids_said, logprobs_of, prompt_of, twisted, version_said
from tugline.testing.engine_server import EngineServer, Refused, checked, known, spelled, valid_prompt, words

PROVEN = False
GENERATE = frozenset(
    words(
        """rid session_id text input_ids sampling_params return_logprob logprob_start_len top_logprobs_num
    token_ids_logprob return_text_in_logprobs stream log_metrics return_hidden_states return_routed_experts
    routed_experts_start_len
    session_params lora_path priority extra_key no_logs routing_key conversation_id return_prompt_token_ids"""
    )
)
SAMPLING = frozenset(
    words(
        """max_new_tokens stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty
    presence_penalty repetition_penalty min_new_tokens n json_schema regex ebnf structural_tag ignore_eos
    skip_special_tokens
    spaces_between_special_tokens no_stop_trim stream_interval logit_bias sampling_seed custom_params beam_width
    watermark choice"""
    )
)
TYPES: dict[str, tuple[type, ...]] = {
    "max_new_tokens": (int,),
    "temperature": (int, float),
    "top_p": (int, float),
    "top_k": (int,),
    "min_p": (int, float),
    "frequency_penalty": (int, float),
    "presence_penalty": (int, float),
    "repetition_penalty": (int, float),
    "min_new_tokens": (int,),
    "n": (int,),
    "ignore_eos": (bool,),
    "no_stop_trim": (bool,),
    "skip_special_tokens": (bool,),
    "sampling_seed": (int,),
    "stop": (str, list),
    "stop_token_ids": (list,),
}
RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, math.inf),
    "min_p": (0, 1),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "min_new_tokens": (0, math.inf),
    "max_new_tokens": (0, math.inf),
    "sampling_seed": (-(2**63), 2**63 - 1),
}
STOPS = 32
"""Stop strings at most."""
CONTROL = {
    "/pause_generation": words("rid mode"),
    "/continue_generation": words("rid torch_empty_cache"),
    "/flush_cache": words("timeout"),
    "/update_weights_from_disk": words(
        """rid model_path load_format abort_all_requests weight_version is_async torch_empty_cache keep_pause
        recapture_cuda_graph token_step flush_cache manifest"""
    ),
}


class SglangServer(EngineServer):
    """The routes that the driver uses. `incremental`: as started with `--incremental-streaming-output`; `preferred`:
    with `--preferred-sampling-params`; `old`: without `/model_info` and what came with it."""

    def __init__(self, inner: Engine, **behaviour: Any) -> None:
        self.incremental: bool = behaviour.pop("incremental", False)
        self.preferred: dict[str, Any] | None = behaviour.pop("preferred", None)
        self.old: bool = behaviour.pop("old", False)
        super().__init__(inner, **behaviour)

    async def route(self, method: str, path: str, query: str, body: bytes) -> tuple[Any, Fault | None]:
        """See EngineServer."""
        info = self.inner.info
        match method, path:
            case "GET", "/health" | "/health_generate":
                return "", None
            case "GET", "/model_info" | "/get_model_info":
                if self.old and path == "/model_info":
                    raise Refused(404, "Not Found")
                name: dict[str, Any] = {"model_path": str(info.model_dir), "served_model_name": "served"}
                name |= {"is_generation": True, "preferred_sampling_params": self.preferred}
                return name | {"weight_version": self.now.version}, None
            case "GET", "/server_info":
                return {"context_length": info.context, "version": "0.5.23"}, None
            case "GET", "/metrics":
                return f"sglang:num_running_reqs{{}} {len(self.seen.running)}\n", None
            case "POST", "/v1/tokenize":
                asked = known(body, frozenset(["prompt", "model", "add_special_tokens"]))
                return {"tokens": spelled(self.inner, asked["prompt"])}, None
            case "POST", "/generate":
                return await self._generate(known(body, GENERATE))
            case "POST", "/abort_request":
                return await self._abort(known(body, frozenset(["rid", "abort_all"]))), None
            case "POST", _:
                return self._control(path, body), None
        raise Refused(404, "Not Found")

    async def _abort(self, asked: dict[str, Any]) -> Any:
        """By the beginning of a name, as there; an empty name is ignored."""
        rid = asked.get("rid", "")
        self.seen.aborted.append(rid)
        for name in [n for n in self.seen.running if asked.get("abort_all") or (rid and n.startswith(rid))]:
            await self.inner.abort(name)
        return ""

    def _control(self, path: str, body: bytes) -> Any:
        if path not in CONTROL:
            raise Refused(404, "Not Found")
        asked = known(body, frozenset(CONTROL[path]))
        match path:
            case "/pause_generation":
                if asked.get("mode", "abort") not in ("abort", "retract", "in_place"):
                    raise Refused(400, "mode")
                self.pause(on=True)
                return {"message": "Generation paused successfully.", "status": "ok"}
            case "/continue_generation":
                self.pause(on=False)
                return {"message": "Generation continued successfully.", "status": "ok"}
            case "/flush_cache":
                if self.seen.running:
                    raise Refused(400, "Flush cache failed: requests are running.")
                return "Cache flushed.\n"
        if not isinstance(asked.get("model_path"), str) or not isinstance(asked.get("weight_version", ""), str):
            raise Refused(400, "model_path and weight_version are texts")
        if "missing" in asked["model_path"]:
            raise Refused(400, "Failed to get model path")
        self.now.version = asked.get("weight_version") or self.now.version
        return {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}

    async def _generate(self, asked: dict[str, Any]) -> tuple[Any, Fault | None]:
        params = valid_sampling(checked(asked.get("sampling_params"), SAMPLING, "sampling_params"))
        prompt = valid_prompt(asked.get("input_ids"), self.inner)
        if params["max_new_tokens"] == 0:
            scored = [[None if at == 0 else -1.5, token, None] for at, token in enumerate(prompt)]
            return {"output_ids": [], "meta_info": {"id": asked["rid"], "input_token_logprobs": scored}}, None
        if not (params.get("ignore_eos") and params.get("no_stop_trim")):
            raise Refused(400, "this server is strict: the stop set is the driver's, and stop tokens stay")
        fault = None
        if "tugline-probe" not in asked["rid"]:
            self.seen.generations.append(asked)
            fault = await self.next_fault(asked["session_id"])
        session = asked["session_id"] if asked["session_id"] != "tugline-probe" else asked["rid"]
        full = params | {"max_tokens": params["max_new_tokens"], "seed": params.get("sampling_seed")}
        sample = twisted(await self.sampled(asked["rid"], session, prompt, full), fault, self.inner.info)
        reply = self._reply(asked, sample, fault)
        echo = prompt_of(prompt, fault)
        if asked.get("return_prompt_token_ids") and echo is not None:
            reply["prompt_token_ids"] = echo
        return (self._parts(reply) if asked.get("stream") else reply), fault

    def _reply(self, asked: dict[str, Any], sample: Sample, fault: Fault | None) -> dict[str, Any]:
        said = ids_said(sample, fault)
        told = [token + 1 for token in said] if fault == "wrong_logprob_ids" else said
        best = -0.25 * (asked["sampling_params"]["temperature"] if self.now.kind == "processed" else 1.0)
        version = version_said(self.now.version, fault)
        meta: dict[str, Any] = {
            "id": "another" if fault == "other_reply" else asked["rid"],
            "finish_reason": None if fault == "no_finish" else self._finish(sample.finish, said),
            "prompt_tokens": len(asked["input_ids"]),
            "completion_tokens": count(sample.ids) + (fault == "wrong_usage"),
            "cached_tokens": sample.cached_tokens,
            "weight_version": version,
        }
        if fault == "strange_finish":
            meta["finish_reason"] = {"type": "repetition"}
        if fault != "no_versions":
            meta["weight_versions"] = [{"version": version, "start": 0, "end": len(said)}]
        if asked.get("return_logprob") and fault != "no_logprobs":
            values = logprobs_of(sample, fault)
            meta["output_token_logprobs"] = [[v, t, None] for v, t in zip(values, [*told, 0], strict=False)]
            if asked.get("top_logprobs_num"):
                meta["output_top_logprobs"] = [[[best, 0, None]] for _ in said]
        return {"text": "", "output_ids": said, "meta_info": meta}

    def _parts(self, reply: dict[str, Any]) -> list[dict[str, Any]]:
        """Events of a stream: each tells everything so far, or with `incremental` what is new."""
        said, meta = reply["output_ids"], reply["meta_info"]
        entries = meta.get("output_token_logprobs")
        parts = []
        for n in range(1, max(2, len(said) + 1)):
            last, begin = n >= len(said), n - 1 if self.incremental else 0
            told = meta | {} if last else meta | {"finish_reason": None, "completion_tokens": n}
            told.pop("weight_versions", None)
            if entries is not None:
                told["output_token_logprobs"] = entries[begin : None if last else n]
            parts.append(reply | {"output_ids": said[begin:n], "meta_info": (meta | told) if last else told})
        return parts

    def _finish(self, finish: str, said: list[int]) -> dict[str, Any]:
        match finish:
            case "stop":
                return {"type": "stop", "matched": said[-1]}
            case "length":
                return {"type": "length", "length": len(said)}
        return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}


def valid_sampling(params: dict[str, Any]) -> dict[str, Any]:
    """What SGLang's schema and `SamplingParams.verify` let pass. Raises Refused."""
    for name, value in params.items():
        kinds = TYPES.get(name)
        if kinds is not None and value is not None:
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise Refused(400, f"sampling_params.{name}: invalid type")
            low, high = RANGES.get(name, (-math.inf, math.inf))
            if isinstance(value, int | float) and not low <= value <= high:
                raise Refused(400, f"{name} must be in [{low}, {high}], got {value}.")
    if not 0.0 < params.get("top_p", 1.0) <= 1.0:
        raise Refused(400, "top_p must be in (0, 1]")
    if params.get("top_k", -1) < 1 and params.get("top_k", -1) != -1:
        raise Refused(400, "top_k must be -1 (disable) or at least 1")
    if not 0.0 < params.get("repetition_penalty", 1.0) <= 2.0:
        raise Refused(400, "repetition_penalty must be in (0, 2]")
    if params.get("min_new_tokens", 0) > params.get("max_new_tokens", 128):
        raise Refused(400, "min_new_tokens must be in [0, max_new_tokens]")
    if isinstance(params.get("stop"), list) and len(params["stop"]) > STOPS:
        raise Refused(400, f"at most {STOPS} stop strings are allowed")
    return params
