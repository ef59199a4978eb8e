"""Conversations as token ids: the rendered text of the chat template, encoded, with the sampled part marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from tugline.tasks.families import Instance
from tugline.training.pilot.formats import Call, HarnessFormat, Head
from tugline.training.pilot.strategies import Played

PLAIN_SPECIALS: tuple[str, ...] = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
"""Added tokens that decoding keeps, as Qwen3 has them."""
CONTROL_SPECIALS: tuple[str, ...] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
STOP = "<|im_end|>"
PAD = "<|endoftext|>"
_ASSISTANT = "<|im_start|>assistant\n"

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Encoded:
    """`ids` int32[T]; `sampled` bool[T], true where the policy itself writes: its turns, their stop token included."""

    ids: NDArray[np.int32]
    sampled: NDArray[np.bool_]


def special_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of an added token. Raises ValueError when the tokenizer lacks it."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer has no {token}")
    return int(found)


def template_text() -> str:
    """The chat template that goes with the model."""
    return resources.files("tugline.training.pilot").joinpath("chat_template.jinja").read_text(encoding="utf-8")


def render(messages: Messages, tools: Sequence[Mapping[str, Any]], *, generate: bool = False) -> str:
    """The template's text of a conversation, by the same renderer that serves it."""
    texts, _ = render_jinja_template(
        conversations=[messages],
        tools=[dict(tool) for tool in tools] or None,
        chat_template=template_text(),
        add_generation_prompt=generate,
    )
    return str(texts[0])


def assistant_message(thought: str, text: str, calls: Sequence[Call]) -> dict[str, Any]:
    """One turn of the policy as an OpenAI Chat message."""
    turn: dict[str, Any] = {"role": "assistant", "content": text}
    if thought:
        turn["reasoning_content"] = thought
    if calls:
        turn["tool_calls"] = [{"function": {"name": call.name, "arguments": call.arguments}} for call in calls]
    return turn


def messages_of(instance: Instance, played: Played, head: Head, fmt: HarnessFormat, cwd: str = "/app") -> Messages:
    """The OpenAI Chat messages of a played session, as the harness would send them."""
    messages: Messages = [
        {"role": "system", "content": head.system},
        {"role": "user", "content": instance.instruction},
    ]
    for step, outcomes in played.steps:
        messages.append(assistant_message(step.thought, step.text, [fmt.call(action) for action in step.actions]))
        for action, outcome in zip(step.actions, outcomes, strict=True):
            messages.append({"role": "tool", "content": fmt.result(action, outcome, cwd)})
    return messages


def encode(tokenizer: Tokenizer, text: str) -> Encoded:
    """Ids of a rendered conversation. The policy's turns are found by the template's own marks."""
    pieces: list[NDArray[np.int32]] = []
    marks: list[NDArray[np.bool_]] = []

    def put(part: str, sampled: bool) -> None:
        ids = np.array(tokenizer.encode(part, add_special_tokens=False).ids, dtype=np.int32)
        pieces.append(ids)
        marks.append(np.full(len(ids), sampled))

    first, *turns = text.split(_ASSISTANT)
    put(first, False)
    for turn in turns:
        body, stop, rest = turn.partition(STOP)
        put(_ASSISTANT, False)
        put(body + stop, bool(stop))
        put(rest, False)
    return Encoded(np.concatenate(pieces), np.concatenate(marks))
