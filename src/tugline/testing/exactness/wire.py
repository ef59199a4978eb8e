"""How the fake engine's generations look on the wire of real engines. Pure.

Shapes as vLLM 0.32 gives them (taken from a running server) and as SGLang documents its `/generate`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tugline.core.columns import count, floats_array, ids_list
from tugline.testing import vllm_shapes as shapes
from tugline.testing.exactness.fake import Made
from tugline.testing.vllm_shapes import CREATED, JsonObject

PIECES = 3
"""Chunks that a streamed text is cut into."""
VERSION = "default"


def usage(made: Made) -> JsonObject:
    """Counts of one generation."""
    return shapes.usage(count(made.prompt), count(made.sampled))


def logprobs(made: Made) -> list[float]:
    """One per sampled id."""
    return [float(value) for value in floats_array(made.logprobs)]


def respelled(arguments: str) -> str:
    """Arguments as tool parsers of engines hand them on: read, and written again."""
    try:
        return json.dumps(json.loads(arguments), ensure_ascii=False)
    except ValueError:
        return arguments


def message(made: Made, *, sglang: bool = False) -> JsonObject:
    """The assistant's message of a chat completion. SGLang has another word for reasoning, and no empty content."""
    said = made.said
    calls = [
        {
            "id": f"chatcmpl-tool-{made.name[5:]}{n}",
            "type": "function",
            "function": {"name": c.name, "arguments": respelled(c.arguments)},
        }
        for n, c in enumerate(said.calls)
    ]
    content = (said.text or "") if sglang else said.text
    base = {"role": "assistant", "content": content, "reasoning_content" if sglang else "reasoning": said.reasoning}
    return {**base, "tool_calls": calls} if calls else base


def finish(made: Made) -> str:
    """What a chat completion ends with."""
    if made.finish == "length":
        return "length"
    return "tool_calls" if made.said.calls else "stop"


def _content(made: Made, asked: Mapping[str, Any], words: Sequence[str]) -> list[JsonObject]:
    named = bool(asked.get("return_tokens_as_token_ids"))
    rows = zip(ids_list(made.sampled), logprobs(made), words, strict=True)
    return [
        {
            "token": f"token_id:{token}" if named else word,
            "logprob": value,
            "bytes": list(word.encode()),
            "top_logprobs": [],
        }
        for token, value, word in rows
    ]


def chat(made: Made, asked: Mapping[str, Any], model: str, words: Sequence[str]) -> JsonObject:
    """A chat completion. `words`: the sampled tokens' texts."""
    ids_too = bool(asked.get("return_token_ids"))
    choice: JsonObject = {
        "index": 0,
        "message": message(made, sglang=bool(asked.get("return_meta_info"))),
        "logprobs": {"content": _content(made, asked, words)} if asked.get("logprobs") else None,
        "finish_reason": finish(made),
        "stop_reason": None,
        "token_ids": ids_list(made.sampled) if ids_too else None,
    }
    if asked.get("return_meta_info"):  # SGLang's word for the same
        choice["meta_info"] = meta(made)
    head = {"id": made.name, "object": "chat.completion", "created": CREATED, "model": model}
    prompt = ids_list(made.prompt) if ids_too else None
    return {**head, "choices": [choice], "usage": usage(made), "prompt_token_ids": prompt}


def chat_chunks(made: Made, asked: Mapping[str, Any], model: str, words: Sequence[str]) -> Iterator[JsonObject]:
    """The same as a stream of chunks: ids and log-probabilities come with the deltas."""
    head = {"id": made.name, "object": "chat.completion.chunk", "created": CREATED, "model": model}
    ids_too = bool(asked.get("return_token_ids"))
    start: JsonObject = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    first = {**head, "choices": [{**start, "logprobs": None}]}
    yield {**first, "prompt_token_ids": ids_list(made.prompt)} if ids_too else first
    deltas = [*_deltas(made), {}]
    content, tokens = _content(made, asked, words), ids_list(made.sampled)
    for n, delta in enumerate(deltas):
        at, end = len(tokens) * n // len(deltas), len(tokens) * (n + 1) // len(deltas)
        choice: JsonObject = {
            "index": 0,
            "delta": delta,
            "logprobs": {"content": content[at:end]} if asked.get("logprobs") else None,
            "finish_reason": finish(made) if n == len(deltas) - 1 else None,
        }
        if ids_too:
            choice["token_ids"] = tokens[at:end]
        yield {**head, "choices": [choice]}
    if (asked.get("stream_options") or {}).get("include_usage"):
        yield {**head, "choices": [], "usage": usage(made)}


def _deltas(made: Made) -> Iterator[JsonObject]:
    said = made.said
    for piece in pieces(said.reasoning or ""):
        yield {"reasoning": piece}
    for piece in pieces(said.text or ""):
        yield {"content": piece}
    for n, call in enumerate(message(made).get("tool_calls", ())):
        function = call["function"]
        yield {"tool_calls": [{**call, "index": n, "function": {"name": function["name"], "arguments": ""}}]}
        for piece in pieces(function["arguments"]):
            yield {"tool_calls": [{"index": n, "function": {"arguments": piece}}]}


def pieces(text: str) -> list[str]:
    """A text cut into at most PIECES parts."""
    size = max(1, -(-len(text) // PIECES))
    return [text[at : at + size] for at in range(0, len(text), size)]


def completion(made: Made, asked: Mapping[str, Any], model: str, words: Sequence[str]) -> JsonObject | list[JsonObject]:
    """A text completion, whole or as events; what stands in `text` has no control tokens, as engines decode it."""
    told = (ids_list(made.sampled), ids_list(made.prompt)) if asked.get("return_token_ids") else None
    listed = {"tokens": list(words), "token_logprobs": logprobs(made)} if asked.get("logprobs") is not None else None
    choice = shapes.completion_choice("".join(words), made.finish, listed, told)
    head = {"id": made.name, "object": "text_completion", "created": CREATED, "model": model}
    if asked.get("stream"):
        return [head | event for event in shapes.completion_events(choice, usage(made))]
    return {**head, "choices": [choice], "usage": usage(made)}


def generated(made: Made, asked: Mapping[str, Any], model: str) -> JsonObject | list[JsonObject]:
    """vLLM's /inference/v1/generate, whole or as events."""
    told = ids_list(made.sampled)
    wanted = (asked.get("sampling_params") or {}).get("logprobs") is not None
    content = [shapes.entry(token, value) for token, value in zip(told, logprobs(made), strict=True)]
    choice = shapes.generate_choice(
        told, made.finish, content if wanted else None, [shapes.span(VERSION, 0, len(told))]
    )
    prompt = ids_list(made.prompt) if asked.get("return_token_ids") else None
    reply = shapes.generated(asked.get("request_id") or made.name, prompt, choice)
    if asked.get("stream"):
        return shapes.generate_events(reply, usage(made))
    return reply | {"model": model, "created": CREATED, "usage": usage(made)}


def meta(made: Made) -> JsonObject:
    """SGLang's `meta_info`."""
    sampled, prompt = ids_list(made.sampled), ids_list(made.prompt)
    stopped = {"type": "stop", "matched": sampled[-1]} if made.finish == "stop" and sampled else None
    return {
        "id": made.name,
        "finish_reason": stopped or {"type": "length", "length": len(sampled)},
        "prompt_tokens": len(prompt),
        "completion_tokens": len(sampled),
        "cached_tokens": 0,
        "weight_version": VERSION,
        "input_token_logprobs": [[None, token, None] for token in prompt],
        "output_token_logprobs": [[v, t, None] for v, t in zip(logprobs(made), sampled, strict=True)],
    }


def sglang(made: Made, text: str) -> JsonObject:
    """SGLang's /generate."""
    return {"text": text, "output_ids": ids_list(made.sampled), "meta_info": meta(made)}


def sse(events: Iterator[JsonObject] | Sequence[JsonObject], *, done: bool = True) -> Iterator[bytes]:
    """Server-sent events."""
    for event in events:
        yield b"data: " + msgspec.json.encode(event) + b"\n\n"
    if done:
        yield b"data: [DONE]\n\n"


def flat(messages: Sequence[Mapping[str, Any]]) -> list[JsonObject]:
    """Messages as vLLM gives them to a template: text parts joined by a line break, no content as an empty one,
    reasoning under both its names."""
    out: list[JsonObject] = []
    for given in messages:
        made = dict(given)
        content = made.get("content")
        if content is None:
            made["content"] = ""
        elif isinstance(content, list):
            made["content"] = "\n".join(p if isinstance(p, str) else p.get("text") or "" for p in content)
        thought = made.get("reasoning") or made.get("reasoning_content")
        if thought:
            made["reasoning"] = made["reasoning_content"] = thought
        out.append(made)
    return out
