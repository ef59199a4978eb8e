"""What the engine process and its parent say to each other: length-prefixed msgpack over a socket pair."""

from __future__ import annotations

import struct
from typing import Literal, TypeAlias

import msgspec

from tugline.engines.modeldir import Asked

LENGTH = struct.Struct("<I")


class _Message(msgspec.Struct, array_like=True, frozen=True, tag=True):
    pass


class Options(msgspec.Struct, frozen=True):
    """Command line of the engine process, as JSON."""

    fd: int
    parent: int
    model_dir: str
    journal_dir: str
    boot: str
    device: str
    threads: int
    slots: int
    seed: int | None
    weights: str | None = None
    """Loaded over the model directory's own: what was live when the last process died."""
    version: int = 0
    asked: Asked = Asked()


class Draw(msgspec.Struct, array_like=True, frozen=True):
    """Sampling settings; as in core `Sampling`."""

    temperature: float
    top_p: float
    top_k: int


class Generate(_Message, frozen=True):
    """Sample up to `max_tokens` after `prompt` (int32 ids), or until one of the `stop` strings is spelled."""

    request_id: str
    session_id: str
    prompt: bytes
    draw: Draw
    max_tokens: int
    seed: int | None
    stop: tuple[str, ...] = ()
    live: bool = False
    """Send `Partial` messages while it runs."""


class Abort(_Message, frozen=True):
    request_id: str


class Release(_Message, frozen=True):
    session_id: str


class Load(_Message, frozen=True):
    """New weights, in place, before the next step."""

    request_id: str
    path: str
    version: int
    in_flight: Literal["recompute", "keep"]


class Score(_Message, frozen=True):
    request_id: str
    row: bytes
    draw: Draw


class Health(_Message, frozen=True):
    request_id: str


class Stop(_Message, frozen=True):
    """Close the journal and exit."""


ToChild: TypeAlias = Generate | Abort | Release | Load | Score | Health | Stop


class Ready(_Message, frozen=True):
    """Weights are loaded. `slots`: contexts it holds at once."""

    slots: int
    version: int


class Partial(_Message, frozen=True):
    """Ids (int32) sampled since the one before. Not journalled yet; `Done` has all of them."""

    request_id: str
    ids: bytes


class Done(_Message, frozen=True):
    """A finished generation, already journalled. ids int32, logprobs float32."""

    request_id: str
    ids: bytes
    logprobs: bytes
    finish: Literal["stop", "length", "abort"]
    version_runs: tuple[tuple[int, int], ...]
    engine_ref: str
    cached: int


class Failed(_Message, frozen=True):
    request_id: str
    message: str
    retryable: bool


class Scored(_Message, frozen=True):
    request_id: str
    logprobs: bytes


class Loaded(_Message, frozen=True):
    request_id: str


class Status(_Message, frozen=True):
    """Counters since the process started; seconds and bytes."""

    request_id: str
    version: int
    running: int
    waiting: int
    sampled: int
    prefilled: int
    cached: int
    steps: int
    cpu_seconds: float
    rss: int


FromChild: TypeAlias = Ready | Partial | Done | Failed | Scored | Loaded | Status


def frame(message: ToChild | FromChild) -> bytes:
    """One message as it goes over the socket."""
    payload = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(payload)) + payload


def to_child(payload: bytes) -> ToChild:
    """Raises msgspec.DecodeError."""
    return msgspec.msgpack.decode(payload, type=ToChild)


def from_child(payload: bytes) -> FromChild:
    """Raises msgspec.DecodeError."""
    return msgspec.msgpack.decode(payload, type=FromChild)
