"""SGLang's HTTP bodies: `/generate` with `input_ids`, after the sources of SGLang 0.5.23. Pure.

Never compared with a running server: this needs a GPU. What SGLang leaves open is checked on every reply.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

import msgspec
from msgspec.structs import replace

from tugline.core.columns import Ids, floats, ids_list
from tugline.core.contracts import Generation
from tugline.core.errors import EngineError
from tugline.engines.remote.reply import Taken, count_fault, decode_json, finish_of, ids_of, known_floats

GENERATE = "/generate"
ABORT = "/abort_request"
END = ";"
"""Behind each request's name: SGLang aborts every request whose name begins with the one given."""


class Span(msgspec.Struct):
    version: str
    start: int
    end: int


class Finish(msgspec.Struct):
    type: str
    message: str | None = None
    status_code: int | None = None


Scored = tuple[float | None, int, str | None]
"""(log-probability, id, text or null)."""


class Meta(msgspec.Struct):
    id: str | None = None
    finish_reason: Finish | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    weight_version: str | None = None
    weight_versions: list[Span] | None = None
    output_token_logprobs: list[Scored] | None = None
    output_top_logprobs: list[list[Scored] | None] | None = None
    input_token_logprobs: list[Scored] | None = None


class ErrorSaid(msgspec.Struct):
    message: str = ""
    code: int | None = None


class Generated(msgspec.Struct):
    """A whole reply, or one event of a stream: everything so far, or what is new where the server was started with
    `--incremental-streaming-output`."""

    output_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    meta_info: Meta = msgspec.field(default_factory=Meta)
    error: ErrorSaid | str | None = None


class ModelInfo(msgspec.Struct):
    model_path: str = ""
    served_model_name: str | None = None
    weight_version: str | None = None
    preferred_sampling_params: dict[str, object] | None = None


class ServerInfo(msgspec.Struct):
    context_length: int | None = None
    max_req_input_len: int | None = None


class Tokens(msgspec.Struct):
    tokens: list[int]


WRITTEN = frozenset(
    {
        "n",
        "max_new_tokens",
        "min_new_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "ignore_eos",
        "stop_token_ids",
        "no_stop_trim",
        "skip_special_tokens",
    }
)
"""Sampling parameters that every request says. What a server was told to prefer of others, it would add."""
STOPS = 32
"""Stop strings of one request at most."""


def generate_body(request: Generation, stop_ids: Sequence[int], *, stream: bool = False, top: int = 0) -> bytes:
    """Body of `/generate`. The stop set is ours alone; the stop token stays in `output_ids`."""
    s = request.sampling
    params = {
        "n": 1,
        "max_new_tokens": s.max_tokens,
        "min_new_tokens": 0,
        "temperature": s.temperature,
        "top_p": s.top_p,
        "top_k": s.top_k or -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "ignore_eos": True,
        "stop_token_ids": list(stop_ids),
        "no_stop_trim": True,
        "skip_special_tokens": False,
        **({"sampling_seed": s.seed} if s.seed is not None else {}),
        **({"stop": list(request.stop[:STOPS])} if request.stop else {}),
    }
    return msgspec.json.encode(
        {
            "rid": request.request_id + END,
            "session_id": request.session_id,
            "input_ids": ids_list(request.prompt_ids),
            "sampling_params": params,
            "return_logprob": True,
            "logprob_start_len": -1,
            "top_logprobs_num": top,
            "return_text_in_logprobs": False,
            "return_prompt_token_ids": True,
            "stream": stream,
        }
    )


def score_body(row: Ids, name: str) -> bytes:
    """Body of `/generate` that asks what the engine makes of a whole row. SGLang samples no token then."""
    return msgspec.json.encode(
        {
            "rid": name + END,
            "input_ids": ids_list(row),
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
    )


def abort_body(request_id: str) -> bytes:
    """Body of an abort call."""
    return msgspec.json.encode({"rid": request_id + END, "abort_all": False})


def decode_generated(body: bytes, asked: int) -> Taken:
    """A whole reply. `asked`: tokens of the prompt that was sent. Raises EngineError."""
    return taken_of(cast("Generated", decode_json(body, Generated)), asked)


def decode_event(data: bytes) -> Generated:
    """One event of a stream. Raises EngineError, also the one it tells."""
    event = cast("Generated", decode_json(data, Generated))
    if event.error is not None:
        said = event.error if isinstance(event.error, ErrorSaid) else ErrorSaid(event.error)
        refusal = 400 <= (said.code or 0) < 500
        fault = f"http_{said.code}" if refusal else "stream_error"
        raise EngineError(f"the engine failed: {said.message[:300]}", retryable=not refusal, fault=fault)
    return event


class Streamed:
    """A stream's events as they come. Whether they tell everything so far or what is new is told by their own count."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._logprobs: list[Scored] | None = []
        self._last: Generated | None = None
        self._prompt: list[int] | None = None
        self._whole = True
        """How the last event told it."""
        self._proven = self._doubtful = False
        """Whether an event can only tell what is new, and whether one was read so that might tell all."""

    def take(self, event: Generated) -> Ids:
        """What an event adds. Raises EngineError for one that takes back what was told."""
        said, meta = event.output_ids or [], event.meta_info
        known, total = len(self.ids), meta.completion_tokens
        begins_so = said[:known] == self.ids
        if total in (len(said), known + len(said)):
            self._whole = len(said) == total
        else:  # its count is wrong; an abort's is that of before
            self._whole = self._whole and begins_so
        whole = self._whole
        if known and not whole:
            self._proven = self._proven or not begins_so
            self._doubtful = self._doubtful or begins_so
        # an abort repeats the last id in a stream of what is new
        aborted = meta.finish_reason is not None and meta.finish_reason.type == "abort" and total == known
        again = known if whole else int(aborted and bool(said))
        if said[:again] != self.ids[known - again :]:
            raise EngineError("the engine's stream takes back what it told", fault="stream_error")
        fresh = said[again:]
        self.ids += fresh
        entries = meta.output_token_logprobs
        if entries is None:
            self._logprobs = None if fresh else self._logprobs
        elif self._logprobs is not None:
            self._logprobs = entries if whole or len(entries) == total else self._logprobs + entries
        self._prompt = self._prompt if event.prompt_token_ids is None else event.prompt_token_ids
        self._last = event
        return ids_of(fresh)

    def taken(self, asked: int) -> Taken:
        """The reply. Raises EngineError."""
        last = self._last
        if last is None:
            raise EngineError("the engine's stream has no end", fault="truncated")
        meta = replace(last.meta_info, output_token_logprobs=self._logprobs)
        taken = taken_of(Generated(self.ids, self._prompt, meta), asked)
        if self._doubtful and not self._proven and taken.fault is None:
            return dataclasses.replace(taken, fault="usage_mismatch")
        return taken


def taken_of(reply: Generated, asked: int) -> Taken:
    """What a reply, or a stream's last event, says. Raises EngineError."""
    meta, said = reply.meta_info, reply.output_ids
    if meta.finish_reason is None:
        raise EngineError("the reply does not say how it ended", fault="finish_none")
    ended = meta.finish_reason
    if ended.type == "abort" and (ended.status_code or 0) >= 400:
        refused = (ended.status_code or 0) < 500
        raise EngineError(
            f"the engine refused: {ended.message}", retryable=not refused, fault=f"http_{ended.status_code}"
        )
    if said is None:
        raise EngineError("the reply has no output_ids", retryable=False, fault="no_ids")
    column, entries = ids_of(said), meta.output_token_logprobs
    fault = count_fault(column, meta.completion_tokens)
    if reply.prompt_token_ids is None and meta.prompt_tokens is not None and meta.prompt_tokens != asked:
        fault = "prompt_count_mismatch"
    if entries is not None and len(entries) == len(said) and [entry[1] for entry in entries] != said:
        fault = "logprob_ids_mismatch"
    spans = meta.weight_versions
    labels = None if spans is None else tuple((span.version, span.start) for span in spans)
    return Taken(
        ids=column,
        logprobs=floats([float("nan")] * len(said)) if entries is None else known_floats([e[0] for e in entries]),
        finish=finish_of(ended.type),
        prompt_ids=None if reply.prompt_token_ids is None else ids_of(reply.prompt_token_ids),
        labels=labels,
        cached=meta.cached_tokens or 0,
        fault=fault,
        name=meta.id,
    )


def decode_scores(body: bytes, row: Ids) -> Sequence[float]:
    """float per token of the row, NaN where there is none. Raises EngineError."""
    entries = cast("Generated", decode_json(body, Generated)).meta_info.input_token_logprobs
    if entries is None or [entry[1] for entry in entries] != ids_list(row):
        raise EngineError("the reply has no log-probabilities of the row", retryable=False, fault="no_scores")
    return [float("nan") if value is None else value for value, _, _ in entries]


def highest(body: bytes) -> float | None:
    """The highest log-probability in a reply that was asked for the best one beside the sampled token's."""
    meta = cast("Generated", decode_json(body, Generated)).meta_info
    values = [entry[0] for entry in meta.output_token_logprobs or ()]
    values += [entry[0] for entries in meta.output_top_logprobs or () for entry in entries or ()]
    return max((value for value in values if value is not None), default=None)
