"""What every reply parser shares: what goes in, what comes out, and the little that no family does in its own way.

The parsers themselves live in `tugline.tokens.families`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tugline.core.columns import Ids, count, ids_list, take
from tugline.core.items import Assistant, Tool
from tugline.core.turn import Finish
from tugline.tokens.codec import Codec, positions

_PROMPT_TAIL = 512
"""Tokens of the prompt that are searched for the start of the assistant turn."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A reply without call ids (""). `finish`: what to tell the harness; `length` is never hidden behind a call."""

    assistant: Assistant
    finish: Literal["stop", "tool_calls", "length"]
    drift: tuple[str, ...]
    reasoning_tokens: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a parser gets. `prompt`: the ids behind the last stop token of the prompt; `ids`: sampled, stop included."""

    codec: Codec
    stop: frozenset[int]
    prompt: Ids
    ids: Ids
    finish: Finish
    tools: Sequence[Tool]
    response_template: bytes | None = None
    """What the model's own settings say about reading replies (JSON): for the family `schema`."""


Parser: TypeAlias = Callable[[Sampled], Parsed]


def prompt_tail(prompt: Ids, stop: frozenset[int]) -> Ids:
    """The end of a prompt: behind its last stop token, at most 512 tokens."""
    tail = take(prompt, max(0, count(prompt) - _PROMPT_TAIL))
    found = positions(tail, stop)
    return take(tail, int(found[-1]) + 1) if len(found) else tail


class Shim:
    """The little of a transformers tokenizer that `renderers` asks for."""

    unk_token_id = None

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return self._codec.decode(ids, specials=not skip_special_tokens)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return ids_list(self._codec.encode(text))

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._codec.token(token)


def body_of(sampled: Sampled) -> list[int]:
    """Sampled ids up to the stop token."""
    found = positions(sampled.ids, sampled.stop)
    return ids_list(take(sampled.ids, 0, int(found[0]) if len(found) else None))


def invalid_utf8(sampled: Sampled, body: list[int]) -> set[str]:
    """`invalid_utf8` when more U+FFFD come out than were sampled as that very character."""
    text = sampled.codec.decode(body)
    if "\ufffd" not in text:
        return set()
    sign = ids_list(sampled.codec.encode("\ufffd"))
    honest = sum(body[i : i + len(sign)] == sign for i in range(len(body)))
    return {"invalid_utf8"} if text.count("\ufffd") > honest else set()


def finished(sampled: Sampled, assistant: Assistant, drift: set[str], reasoning_tokens: int) -> Parsed:
    """The parse with what the harness is told: `length` is never hidden behind a call."""
    finish: Literal["stop", "tool_calls", "length"] = "length"
    if sampled.finish == "stop":
        finish = "tool_calls" if assistant.calls else "stop"
    return Parsed(assistant, finish, tuple(sorted(drift)), reasoning_tokens)


PromptState: TypeAlias = Literal["outside", "inside", "at_opener", "behind_closer"]
"""Where a prompt ends with respect to reasoning; `at_opener`, `behind_closer`: with the very marker."""


def prompt_state(codec: Codec, prompt: Ids, reasoning: tuple[str, str], header: str) -> PromptState:
    """Whether the prompt ends inside reasoning. `header`: how the assistant's turn begins."""
    from renderers.reasoning import prompt_ends_in_reasoning

    opener, closer = reasoning
    values = ids_list(prompt)
    if not opener or not values:
        return "outside"
    inside = prompt_ends_in_reasoning(
        Shim(codec), values, open_marker=opener, close_marker=closer, assistant_prefix=header
    )
    first, last = codec.token(opener), codec.token(closer)
    if not inside and first is not None and last is not None and not _contains(values, ids_list(codec.encode(header))):
        # The turn goes on behind a tool's result. No text of a harness holds the marker's id.
        inside = _last(values, first) > _last(values, last)
    text = codec.decode(values[-8:])
    if inside:
        return "at_opener" if text.endswith(opener) else "inside"
    return "behind_closer" if text.endswith(closer) else "outside"


def _contains(values: list[int], run: list[int]) -> bool:
    return any(values[i : i + len(run)] == run for i in range(len(values) - len(run) + 1))


def _last(values: list[int], wanted: int) -> int:
    return next((i for i in range(len(values) - 1, -1, -1) if values[i] == wanted), -1)


def common_prefix(text: str, written: str) -> int:
    """How many characters of `written` the text begins with."""
    return next((n for n in range(len(written), 0, -1) if text.startswith(written[:n])), 0)


def common_suffix(text: str, written: str) -> int:
    """How many characters of the end of `written` the text ends with."""
    return next((n for n in range(len(written), 0, -1) if text.endswith(written[-n:])), 0)
