"""SGLang 0.5.23's HTTP schema, as its sources say, over any engine of ours. See `engine_server`.

UNPROVEN: written from the sources, never compared with a running server. What passes here may still fail there.
"""

from __future__ import annotations

from typing import Any

from tugline.core.columns import count
from tugline.testing.engine_server import (
    EngineServer,
    Fault,
    Refused,
    checked,
    ids_said,
    known,
    logprobs_of,
    prompt_of,
    spelled,
    valid_prompt,
    words,
)

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
    spaces_between_special_tokens no_stop_trim stream_interval logit_bias sampling_seed custom_params"""
    )
)


class SglangServer(EngineServer):
    """The routes that the driver uses."""

    async def route(self, method: str, path: str, query: str, body: bytes) -> tuple[Any, Fault | None]:
        """See EngineServer."""
        info = self.inner.info
        match method, path:
            case "GET", "/health":
                return "", None
            case "GET", "/model_info":
                name = {"model_path": str(info.model_dir), "served_model_name": "served"}
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
                asked = known(body, frozenset(["rid", "abort_all"]))
                self.seen.aborted.append(asked["rid"])
                for rid in [n for n in self.seen.running if n.startswith(asked["rid"])]:  # by prefix, as there
                    await self.inner.abort(rid)
                return "", None
            case "POST", _:
                return self._control(path, body), None
        raise Refused(404, "Not Found")

    def _control(self, path: str, body: bytes) -> Any:
        match path:
            case "/pause_generation":
                if known(body, frozenset(["mode"]))["mode"] not in ("abort", "retract", "in_place"):
                    raise Refused(422, "mode")
                self.pause(on=True)
                return {"message": "Generation paused successfully.", "status": "ok"}
            case "/continue_generation":
                self.pause(on=False)
                return {"message": "Generation continued successfully.", "status": "ok"}
            case "/flush_cache":
                return "Cache flushed.\n"
            case "/update_weights_from_disk":
                fields = ["model_path", "weight_version", "abort_all_requests", "flush_cache", "load_format"]
                asked = known(body, frozenset(fields))
                if "missing" in asked["model_path"]:
                    raise Refused(400, "Failed to get model path")
                self.now.version = asked["weight_version"]
                return {"success": True, "message": "Succeeded to update model weights."}
        raise Refused(404, "Not Found")

    async def _generate(self, asked: dict[str, Any]) -> tuple[Any, Fault | None]:
        params = checked(asked.get("sampling_params"), SAMPLING, "sampling_params")
        prompt = valid_prompt(asked.get("input_ids"), self.inner)
        if params["max_new_tokens"] == 0:
            scored = [[None if at == 0 else -1.5, token, None] for at, token in enumerate(prompt)]
            return {"output_ids": [], "meta_info": {"id": asked["rid"], "input_token_logprobs": scored}}, None
        if not (params.get("ignore_eos") and params.get("no_stop_trim")):
            raise Refused(400, "this server is strict: the stop set is the driver's, and stop tokens stay")
        fault = None
        if "tugline-probe" not in asked["rid"]:
            self.seen.generations.append(asked)
            fault = await self.next_fault()
        session = asked["session_id"] if asked["session_id"] != "tugline-probe" else asked["rid"]
        full = params | {"max_tokens": params["max_new_tokens"], "seed": params.get("sampling_seed")}
        sample = await self.sampled(asked["rid"], session, prompt, full)
        said = ids_said(sample)
        told = [token + 1 for token in said] if fault == "wrong_logprob_ids" else said
        best = -0.25 * (params["temperature"] if self.now.kind == "processed" else 1.0)
        meta: dict[str, Any] = {
            "id": asked["rid"],
            "finish_reason": None if fault == "no_finish" else self._finish(sample.finish, said),
            "prompt_tokens": len(prompt),
            "completion_tokens": count(sample.ids) + (fault == "wrong_usage"),
            "cached_tokens": sample.cached_tokens,
            "weight_version": self.now.version,
        }
        if fault != "no_versions":
            meta["weight_versions"] = [{"version": self.now.version, "start": 0, "end": len(said)}]
        if asked.get("return_logprob") and fault != "no_logprobs":
            pairs = zip(logprobs_of(sample, fault), told, strict=False)
            meta["output_token_logprobs"] = [[value, token, None] for value, token in pairs]
            if asked.get("top_logprobs_num"):
                meta["output_top_logprobs"] = [[[best, 0, None]] for _ in said]
        reply: dict[str, Any] = {"text": "", "output_ids": said, "meta_info": meta}
        echo = prompt_of(prompt, fault)
        if asked.get("return_prompt_token_ids") and echo is not None:
            reply["prompt_token_ids"] = echo
        if not asked.get("stream"):
            return reply, fault
        parts = [{"output_ids": said[:n], "meta_info": {"finish_reason": None}} for n in range(1, len(said))]
        return [*parts, reply], fault

    def _finish(self, finish: str, said: list[int]) -> dict[str, Any]:
        match finish:
            case "stop":
                return {"type": "stop", "matched": said[-1]}
            case "length":
                return {"type": "length", "length": len(said)}
        return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
