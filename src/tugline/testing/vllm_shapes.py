"""How vLLM 0.32 says things over HTTP, as both our servers of its schema say them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

JsonObject = dict[str, Any]
CREATED = 1_790_000_000


def models(name: str, root: str, context: int) -> JsonObject:
    """GET /v1/models."""
    card = {"id": name, "object": "model", "created": CREATED, "owned_by": "vllm", "root": root, "parent": None}
    return {"object": "list", "data": [{**card, "max_model_len": context, "permission": []}]}


def tokenized(tokens: Sequence[int], context: int) -> JsonObject:
    """POST /tokenize."""
    return {"count": len(tokens), "max_model_len": context, "tokens": list(tokens), "token_strs": None}


def usage(prompt: int, sampled: int, cached: int | None = None) -> JsonObject:
    """Counts of one generation. `cached` None: the server tells no details."""
    details = None if cached is None else {"cached_tokens": cached}
    total = {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
    return {**total, "prompt_tokens_details": details}


def span(version: str, start: int, end: int) -> JsonObject:
    """Which weights sampled the tokens from `start` to before `end`."""
    return {"version": version, "start": start, "end": end}


def entry(token: int, logprob: Any, top: Sequence[tuple[int, Any]] = ()) -> JsonObject:
    """A sampled token's log-probability. `top`: the best ones, behind the token's own; empty: they are not told."""
    rank = 2 if len(top) else 1
    told = [{"token_id": token, "logprob": logprob, "rank": rank}]
    told += [{"token_id": other, "logprob": value, "rank": 1} for other, value in top]
    # vLLM's versions name the id in one field or in the other
    named = {"token_id": token, "token": f"token_id:{token}"}
    return {**named, "logprob": logprob, "rank": rank, "top_logprobs": told}


def generate_choice(
    sampled: list[int], finish: str | None, content: list[JsonObject] | None, spans: list[JsonObject] | None
) -> JsonObject:
    """The choice of a reply of /inference/v1/generate. `content`: entries, None when they were not asked for."""
    return {
        "index": 0,
        "finish_reason": finish,
        "stop_reason": None,
        "token_ids": sampled,
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": spans,
        "logprobs": None if content is None else {"content": content},
    }


def generated(name: str, prompt: list[int] | None, choice: JsonObject) -> JsonObject:
    """A reply of /inference/v1/generate, without its usage. `prompt` None: no echo was asked for."""
    return {"request_id": name, "output_mode": "tokens", "prompt_token_ids": prompt, "choices": [choice]}


def generate_events(reply: Mapping[str, Any], counts: JsonObject) -> list[JsonObject]:
    """The same as a stream: as many events as tokens, then one with the usage."""
    choice = reply["choices"][0]
    said, content = choice["token_ids"], (choice["logprobs"] or {}).get("content")
    events: list[JsonObject] = []
    for at in range(max(1, len(said))):
        last = at >= len(said) - 1
        part = choice | {
            "token_ids": said[at : at + 1],
            "logprobs": None if content is None else {"content": content[at : None if last else at + 1]},
            "finish_reason": choice["finish_reason"] if last else None,
            "weight_versions": choice["weight_versions"] if last else None,
            "routed_experts": choice["routed_experts"] if last else None,
        }
        event: JsonObject = {"request_id": reply["request_id"], "usage": None, "choices": [part]}
        if at == 0 and reply["prompt_token_ids"] is not None:
            event["prompt_token_ids"] = reply["prompt_token_ids"]
        events.append(event)
    return [*events, {"request_id": reply["request_id"], "choices": [], "usage": counts}]


def completion_choice(
    text: str, finish: str | None, logprobs: JsonObject | None, ids: tuple[list[int], list[int] | None] | None
) -> JsonObject:
    """The choice of a reply of /v1/completions. `ids`: sampled ones and the prompt's, None when not asked for."""
    sampled, prompt = ids or (None, None)
    return {
        "index": 0,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish,
        "stop_reason": None,
        "token_ids": sampled,
        "prompt_token_ids": prompt,
        "routed_experts": None,
    }


def completion_events(choice: JsonObject, counts: JsonObject) -> list[JsonObject]:
    """The same as a stream; all of its text stands in the first event."""
    said, logprobs = choice["token_ids"], choice["logprobs"]
    lists = {} if logprobs is None else {k: v for k, v in logprobs.items() if isinstance(v, list)}
    steps = max(1, len(said or ()))
    events: list[JsonObject] = []
    for at in range(steps):
        end = at + 1 if said else None
        rest = None if at == steps - 1 else end  # a list that is too long ends too late
        part = choice | {
            "text": "" if at else choice["text"],
            "token_ids": None if said is None else said[at:end],
            "logprobs": None if logprobs is None else {k: v[at:rest] for k, v in lists.items()},
            "finish_reason": choice["finish_reason"] if at == steps - 1 else None,
            "prompt_token_ids": None if at else choice["prompt_token_ids"],
            "routed_experts": choice["routed_experts"] if at == steps - 1 else None,
        }
        events.append({"object": "text_completion", "choices": [part]})
    return [*events, {"object": "text_completion", "choices": [], "usage": counts}]
