"""Replies of the Anthropic Messages API: whole, as an event stream, and its errors."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tugline.core.errors import (
    BadRequest,
    ContextOverflow,
    Forbidden,
    NotFound,
    Overloaded,
    TooLarge,
    TuglineError,
    Unauthorized,
)
from tugline.core.items import Reply
from tugline.dialects import anthropic_wire as wire
from tugline.dialects.anthropic_blocks import blocks
from tugline.dialects.sse import event, pieces
from tugline.dialects.wire import sound

PING = b'event: ping\ndata: {"type": "ping"}\n\n'
STOP = b'event: message_stop\ndata: {"type": "message_stop"}\n\n'
STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}

Event = wire.MessageStart | wire.BlockStart | wire.BlockDelta | wire.BlockStop | wire.MessageDelta | wire.ErrorReply


def spelled(value: Event) -> bytes:
    """One named event. Clients of this API go by the name."""
    name = str(value.__struct_config__.tag).encode()
    return b"event: " + name + b"\n" + event(msgspec.json.encode(value))


def message(reply: Reply) -> wire.OutMessage:
    """The whole reply."""
    usage = reply.usage
    return wire.OutMessage(
        f"msg_{reply.id}",
        "message",
        "assistant",
        reply.model,
        blocks(reply.assistant),
        stop_reason(reply),
        reply.stop,
        wire.OutUsage(
            max(0, usage.prompt - usage.cached), usage.cached, usage.completion, wire.OutputDetails(usage.reasoning)
        ),
    )


def stop_reason(reply: Reply) -> str:
    """The API's word for why sampling ended."""
    if reply.finish == "stop" and reply.stop is not None:
        return "stop_sequence"
    return STOP_REASONS[reply.finish]


def events(reply: Reply) -> Iterator[bytes]:
    """Everything but the last event, which alone says that the reply is whole."""
    whole = message(reply)
    head = msgspec.structs.replace(whole, content=[], stop_reason=None, stop_sequence=None, usage=_at_start(whole))
    yield spelled(wire.MessageStart(head))
    yield PING
    for index, block in enumerate(whole.content):
        yield from block_events(index, block)
    yield stopped(reply, whole.usage)


def block_events(index: int, block: wire.OutBlock) -> Iterator[bytes]:
    """One content block from its start to its stop."""
    yield spelled(wire.BlockStart(index, _opening(block)))
    for delta in _deltas(block):
        yield spelled(wire.BlockDelta(index, delta))
    yield spelled(wire.BlockStop(index))


def stopped(reply: Reply, usage: wire.OutUsage) -> bytes:
    """Why the reply ended, and all counts."""
    totals = wire.DeltaUsage(
        usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens, usage.output_tokens_details
    )
    return spelled(wire.MessageDelta(wire.Stopped(stop_reason(reply), reply.stop), totals))


def error_body(err: TuglineError) -> wire.ErrorReply:
    """What clients act on: the type, and for a context overflow the real API's words."""
    kind, text = "api_error", err.message
    if isinstance(err, ContextOverflow):
        kind, text = "invalid_request_error", f"prompt is too long: {err.prompt_tokens} tokens > {err.limit} maximum"
    elif isinstance(err, BadRequest):
        kind = "invalid_request_error"
    elif isinstance(err, Unauthorized):
        kind = "authentication_error"
    elif isinstance(err, Forbidden):
        kind = "permission_error"
    elif isinstance(err, NotFound):
        kind = "not_found_error"
    elif isinstance(err, TooLarge):
        kind = "request_too_large"
    elif isinstance(err, Overloaded):
        kind = "rate_limit_error"
    return wire.ErrorReply(wire.ErrorBody(kind, sound(text)))


def _at_start(whole: wire.OutMessage) -> wire.OutUsage:
    """The true prompt from the first event on: clients fill their context meter from it."""
    return msgspec.structs.replace(
        whole.usage, output_tokens=min(1, whole.usage.output_tokens), output_tokens_details=wire.OutputDetails(0)
    )


def _opening(block: wire.OutBlock) -> wire.OutBlock:
    if isinstance(block, wire.OutText):
        return wire.OutText("")
    if isinstance(block, wire.OutThinking):
        return wire.OutThinking("", "")
    return wire.OutToolUse(block.id, block.name, msgspec.Raw(b"{}"))


def _deltas(block: wire.OutBlock) -> Iterator[wire.OutDelta]:
    if isinstance(block, wire.OutText):
        for piece in pieces(block.text):
            yield wire.TextDelta(piece)
    elif isinstance(block, wire.OutThinking):
        for piece in pieces(block.thinking):
            yield wire.ThinkingDelta(piece)
        yield wire.SignatureDelta(block.signature)
    else:
        for piece in pieces(bytes(block.input).decode()):
            yield wire.InputDelta(piece)
