"""vLLM's HTTP bodies: `/inference/v1/generate` and `/v1/completions` with ids, after vLLM 0.32. Pure.

What a sample depends on is always written out: fields left away take the server's own defaults, which come from the
model's generation_config.json and are not those of the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import msgspec

from tugline.core.columns import Ids, concat, concat_floats, floats, ids_list
from tugline.core.contracts import Generation
from tugline.core.errors import EngineError
from tugline.core.turn import Sampling
from tugline.engines.remote.reply import Taken, base64_bytes, count_fault, decode_json, finish_of, ids_of, known_floats

GENERATE = "/inference/v1/generate"
COMPLETIONS = "/v1/completions"
ABORT = "/inference/v1/abort_requests"
ABORT_DEV = "/abort_requests"
PREFIX = {GENERATE: "generate-tokens-", COMPLETIONS: "cmpl-"}
"""What vLLM puts in front of a request's id; a completion's has `-0` behind it besides."""


class Span(msgspec.Struct):
    version: str
    start: int
    end: int


class Top(msgspec.Struct):
    token_id: int
    logprob: float | None = None


class TokenLogprob(msgspec.Struct):
    token_id: int
    logprob: float | None = None
    top_logprobs: list[Top] = []


class Logprobs(msgspec.Struct):
    content: list[TokenLogprob] | None = None


class Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None


class PromptTop(msgspec.Struct):
    """As in prompt log-probabilities, where the id is the key."""

    logprob: float | None = None


class Choice(msgspec.Struct):
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    weight_versions: list[Span] | None = None
    routed_experts: str | None = None


class Generated(msgspec.Struct):
    """A whole reply, or one event of a stream."""

    request_id: str | None = None
    choices: list[Choice] = []
    prompt_token_ids: list[int] | None = None
    usage: Usage | None = None
    prompt_logprobs: list[dict[str, PromptTop] | None] | None = None
    error: object = None

    @property
    def ended(self) -> bool:
        """Whether the sample ends here."""
        return any(choice.finish_reason for choice in self.choices)


class CompletionLogprobs(msgspec.Struct):
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float | None] | None] | None = None


class Completion(msgspec.Struct):
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: CompletionLogprobs | None = None
    routed_experts: str | None = None


class Completed(msgspec.Struct):
    """A whole reply, or one event of a stream."""

    id: str | None = None
    choices: list[Completion] = []
    usage: Usage | None = None
    error: object = None

    @property
    def ended(self) -> bool:
        """Whether the sample ends here."""
        return any(choice.finish_reason for choice in self.choices)


class ModelCard(msgspec.Struct):
    id: str
    root: str | None = None
    max_model_len: int | None = None


class ModelList(msgspec.Struct):
    data: list[ModelCard] = []


class WeightInfo(msgspec.Struct):
    weight_version: str


class Tokens(msgspec.Struct):
    tokens: list[int]


def sampling_params(request: Generation, stop_ids: Sequence[int], logprobs: int) -> dict[str, object]:
    """`logprobs`: how many besides the sampled token's own. The stop set is ours alone: a model's file that names more
    end-of-text tokens than the policy's stop set would end turns where the policy does not."""
    s = request.sampling
    return {
        "n": 1,
        "max_tokens": s.max_tokens,
        "temperature": s.temperature,
        "top_p": s.top_p,
        "top_k": s.top_k,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "logprobs": logprobs,
        "ignore_eos": True,
        "stop_token_ids": list(stop_ids),
        "skip_special_tokens": False,
        **({"seed": s.seed} if s.seed is not None else {}),
        **({"stop": list(request.stop), "include_stop_str_in_output": True} if request.stop else {}),
    }


def generate_body(
    request: Generation, model: str, stop_ids: Sequence[int], *, stream: bool = False, top: int = 0
) -> bytes:
    """Body of `/inference/v1/generate`. Only servers that return routes may know what `routes_from` is."""
    params = sampling_params(request, stop_ids, top) | {"detokenize": bool(request.stop)}
    if request.routes_from:
        params["routed_experts_prompt_start"] = request.routes_from
    return msgspec.json.encode(
        {
            "request_id": request.request_id,
            "model": model,
            "token_ids": ids_list(request.prompt_ids),
            "sampling_params": params,
            "return_token_ids": True,
            "stream": stream,
            **({"stream_options": {"include_usage": True}} if stream else {}),
        }
    )


def completion_body(
    request: Generation, model: str, stop_ids: Sequence[int], *, stream: bool = False, top: int = 0
) -> bytes:
    """Body of `/v1/completions`: the same, without weight versions in its reply."""
    return msgspec.json.encode(
        {
            "request_id": request.request_id,
            "model": model,
            "prompt": ids_list(request.prompt_ids),
            "add_special_tokens": False,
            "return_token_ids": True,
            "stream": stream,
            **({"stream_options": {"include_usage": True}} if stream else {}),
            **({"routed_experts_prompt_start": request.routes_from} if request.routes_from else {}),
            **sampling_params(request, stop_ids, top),
        }
    )


def score_body(row: Ids, model: str, name: str) -> bytes:
    """Body of `/inference/v1/generate` that asks what the engine makes of a whole row: one token more is sampled and
    thrown away."""
    params: dict[str, object] = {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0, "detokenize": False}
    return msgspec.json.encode(
        {"request_id": name, "model": model, "token_ids": ids_list(row), "sampling_params": params}
    )


def abort_body(request_id: str, path: str) -> bytes:
    """Body of an abort call for a request that went to `path`."""
    name = f"{PREFIX[path]}{request_id}"
    return msgspec.json.encode({"request_ids": [name if path == GENERATE else f"{name}-0"]})


def decode_generated(body: bytes) -> Taken:
    """A whole reply of `/inference/v1/generate`. Raises EngineError."""
    reply = cast("Generated", decode_json(body, Generated))
    choice = _only(reply.choices)
    usage = reply.usage or Usage()
    return replace(_taken(choice, reply.prompt_token_ids, usage, final=True), name=reply.request_id)


def decode_event(path: str, data: bytes) -> tuple[Generated | Completed, Taken | None]:
    """One event of a stream: (the event, what it adds; None: only usage). Raises EngineError, also the one it tells."""
    kind = Generated if path == GENERATE else Completed
    event = cast("Generated | Completed", decode_json(data, kind))
    if event.error is not None:
        raise EngineError(f"the engine failed: {str(event.error)[:300]}", fault="stream_error")
    if not event.choices:
        return event, None
    if isinstance(event, Completed):
        return event, replace(_completion(event.choices, Usage(), final=False), name=event.id)
    more = _taken(_only(event.choices), event.prompt_token_ids, Usage(), final=False)
    return event, replace(more, name=event.request_id)


def joined(parts: Sequence[Taken], usage: Usage | None) -> Taken:
    """A stream's events as one reply: ids and log-probabilities one behind the other, the rest of the last."""
    last = parts[-1]
    column = concat([part.ids for part in parts])
    usage = usage or Usage()
    prompt = next((part.prompt_ids for part in parts if part.prompt_ids is not None), None)
    return replace(
        last,
        ids=column,
        logprobs=concat_floats([part.logprobs for part in parts]),
        prompt_ids=prompt,
        name=next((part.name for part in parts if part.name != last.name), last.name),
        cached=_cached(usage),
        fault=next((p.fault for p in parts if p.fault), None) or count_fault(column, usage.completion_tokens),
        experts=next((p.experts for p in reversed(parts) if p.experts is not None), None),
    )


def decode_completed(body: bytes) -> Taken:
    """A whole reply of `/v1/completions`. Raises EngineError."""
    reply = cast("Completed", decode_json(body, Completed))
    return replace(_completion(reply.choices, reply.usage or Usage(), final=True), name=reply.id)


def decode_scores(body: bytes, row: Ids) -> Sequence[float]:
    """float per token of the row: its log-probability, NaN where there is none. Raises EngineError."""
    reply = cast("Generated", decode_json(body, Generated))
    said, column = reply.prompt_logprobs, ids_list(row)
    if said is None or len(said) != len(column):
        raise EngineError("the reply has no log-probabilities of the prompt", retryable=False, fault="no_scores")
    nan = float("nan")
    found = []
    for token, entry in zip(column, said, strict=True):
        value = entry.get(str(token)) if entry else None
        found.append(nan if value is None or value.logprob is None else value.logprob)
    return found


def highest(path: str, body: bytes) -> float | None:
    """The highest log-probability in a reply that was asked for the best one beside the sampled token's."""
    if path == COMPLETIONS:
        told = [
            choice.logprobs for choice in cast("Completed", decode_json(body, Completed)).choices if choice.logprobs
        ]
        best = [value for said in told for entry in said.top_logprobs or () for value in (entry or {}).values()]
        return max((value for value in best if value is not None), default=None)
    reply = cast("Generated", decode_json(body, Generated))
    content = [entry for choice in reply.choices for entry in (choice.logprobs or Logprobs()).content or ()]
    values = [top.logprob for entry in content for top in (entry.top_logprobs or [Top(0, entry.logprob)])]
    return max((value for value in values if value is not None), default=None)


def _taken(choice: Choice, prompt: list[int] | None, usage: Usage, *, final: bool) -> Taken:
    said = choice.token_ids
    if said is None:
        raise EngineError("the reply has no token_ids", retryable=False, fault="no_ids")
    column = ids_of(said)
    entries = choice.logprobs.content if choice.logprobs else None
    fault = count_fault(column, usage.completion_tokens) if final else None
    if entries is None:
        logprobs = floats([float("nan")] * len(said))
    else:
        logprobs = known_floats([entry.logprob for entry in entries])
        if len(entries) == len(said) and [entry.token_id for entry in entries] != said:
            fault = "logprob_ids_mismatch"
    spans = choice.weight_versions
    return Taken(
        ids=column,
        logprobs=logprobs,
        finish=finish_of(choice.finish_reason) if final or choice.finish_reason is not None else "length",
        prompt_ids=None if prompt is None else ids_of(prompt),
        labels=None if spans is None else tuple((span.version, span.start) for span in spans),
        cached=_cached(usage),
        fault=fault,
        experts=base64_bytes(choice.routed_experts),
    )


def _completion(choices: Sequence[Completion], usage: Usage, *, final: bool) -> Taken:
    if len(choices) != 1:
        raise EngineError(f"the engine answered with {len(choices)} choices", fault="unreadable")
    choice = choices[0]
    if choice.token_ids is None and final:
        raise EngineError("the reply has no token_ids: this server is too old", retryable=False, fault="no_ids")
    said = choice.token_ids or []
    column = ids_of(said)
    return Taken(
        ids=column,
        logprobs=known_floats(choice.logprobs.token_logprobs if choice.logprobs else [None] * len(said)),
        finish=finish_of(choice.finish_reason) if final or choice.finish_reason is not None else "length",
        prompt_ids=None if choice.prompt_token_ids is None else ids_of(choice.prompt_token_ids),
        labels=None,
        cached=_cached(usage),
        fault=count_fault(column, usage.completion_tokens) if final else None,
        experts=base64_bytes(choice.routed_experts),
    )


def _only(choices: Sequence[Choice]) -> Choice:
    if len(choices) != 1:
        raise EngineError(f"the engine answered with {len(choices)} choices", fault="unreadable")
    return choices[0]


def _cached(usage: Usage) -> int:
    return (usage.prompt_tokens_details.cached_tokens or 0) if usage.prompt_tokens_details else 0


def probe(ids_: Ids, name: str, temperature: float) -> Generation:
    """A request that only finds out what the engine can do."""
    return Generation(name, "tugline-probe", ids_, Sampling(temperature=temperature, max_tokens=1, seed=1))
