"""Replies in the Responses API's form: the response object, its output items, and the event stream of both.

Reasoning leaves as the summary of its item, for every client that reads this API sends a summary back; and packed in
`encrypted_content`, for some send a reasoning item back only if it has one, and trim what is plain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from tugline.core.errors import ContextOverflow, EngineError, Overloaded, StoreError, TuglineError
from tugline.core.items import Options, Pending, Reply, Request, System, Tool, ToolCall
from tugline.dialects import responses_wire as wire
from tugline.dialects.openai_errors import error_body
from tugline.dialects.responses_decode import RESPONSE_PREFIX
from tugline.dialects.responses_tools import bare_name, custom_input, repeated_choice, repeated_tools
from tugline.dialects.sse import event, pieces
from tugline.dialects.wire import sound

_ENCODER = msgspec.json.Encoder()


def output_items(reply: Reply) -> list[wire.OutItem]:
    """Reasoning, message, calls. A reply that says nothing is a message without text: something to echo."""
    said, mark = reply.assistant, f"{wire.MARK}{reply.id}"
    items: list[wire.OutItem] = []
    if said.reasoning:
        summary = [wire.OutSummary(said.reasoning)]
        items.append(wire.OutReasoning(f"rs{mark}", summary, wire.seal(said.reasoning)))
    if said.text or not (said.calls or said.reasoning):
        items.append(wire.OutMessage(f"msg{mark}", "completed", [wire.OutText(said.text or "")]))
    tools = {tool.name: tool for tool in reversed(reply.request.head.tools)}
    items.extend(_call(call, tools.get(call.name), f"{mark}_{i}") for i, call in enumerate(said.calls))
    if reply.finish == "length":
        items[-1].status = "incomplete"
    return items


def _call(call: ToolCall, tool: Tool | None, mark: str) -> wire.OutItem:
    name = bare_name(tool) if tool else call.name
    namespace = (tool.namespace if tool else None) or UNSET
    if tool is not None and tool.kind == "custom":
        text = custom_input(call.arguments)
        return wire.OutCustomCall(f"ctc{mark}", "completed", call.id, name, text, namespace)
    return wire.OutCall(f"fc{mark}", "completed", call.id, name, call.arguments, namespace)


def whole(reply: Reply, items: list[Raw]) -> wire.Response:
    """The finished response object."""
    cut, usage = reply.finish == "length", reply.usage
    response = _frame(_pending(reply), "incomplete" if cut else "completed", items)
    response.completed_at = None if cut else reply.created
    response.incomplete_details = {"reason": "max_output_tokens"} if cut else None
    response.usage = wire.OutUsage(
        usage.prompt,
        wire.InputDetails(usage.cached),
        usage.completion,
        wire.OutputDetails(usage.reasoning),
        usage.prompt + usage.completion,
    )
    return response


def encoded_items(reply: Reply) -> list[Raw]:
    """`output_items` as JSON."""
    return [Raw(_ENCODER.encode(item)) for item in output_items(reply)]


def _pending(reply: Reply) -> Pending:
    return Pending(reply.id, reply.model, reply.created, reply.request)


def _frame(pending: Pending, status: str, output: list[Raw]) -> wire.Response:
    """The response object with what is known from the beginning: the request's own settings."""
    request, options = pending.request, pending.request.options
    return wire.Response(
        id=f"{RESPONSE_PREFIX}{pending.id}",
        created_at=pending.created,
        model=pending.model,
        status=status,
        output=output,
        parallel_tool_calls=options.parallel_calls,
        tool_choice=repeated_choice(options, request.head.tools),
        tools=repeated_tools(request.head.tools),
        text=_text(options),
        instructions=_instructions(request),
        max_output_tokens=options.max_tokens,
        previous_response_id=f"{RESPONSE_PREFIX}{request.previous}" if request.previous else None,
        temperature=options.temperature,
        top_p=options.top_p,
    )


def _instructions(request: Request) -> str | None:
    first = request.items[0] if request.items else None
    return first.text if isinstance(first, System) and first.role == "instructions" else None


def _text(options: Options) -> dict[str, Any]:
    if options.output is None:
        return {"format": {"type": "text"}}
    if options.output == "json_object":
        return {"format": {"type": "json_object"}}
    schema = Raw(options.output.encode())
    return {"format": {"type": "json_schema", "name": "output", "schema": schema, "strict": True}}


class Events:
    """Events in their order, numbered from `first`."""

    def __init__(self, first: int) -> None:
        self.parts: list[bytes] = []
        self._next = first

    def add(self, kind: str, **fields: object) -> None:
        """Behind those there are."""
        self.parts.append(self.one(kind, **fields))

    def one(self, kind: str, **fields: object) -> bytes:
        """The next event, not kept here."""
        data = _ENCODER.encode({"type": kind, "sequence_number": self._next, **fields})
        self._next += 1
        return b"event: " + kind.encode() + b"\n" + event(data)


def beat(pending: Pending, n: int) -> bytes:
    """created and in_progress, then in_progress again and again: clients' idle timers count events."""
    frame = _frame(pending, "in_progress", [])
    if n > 0:
        frame.tools, frame.instructions = [], None  # tens of kilobytes that the client has had already
        return Events(n + 1).one("response.in_progress", response=frame)
    events = Events(0)
    events.add("response.created", response=frame)
    events.add("response.in_progress", response=frame)
    return b"".join(events.parts)


def stream(reply: Reply, beats: int) -> tuple[list[bytes], bytes]:
    """(everything up to the terminal event, the terminal event)."""
    events = Events(beats + 1 if beats else 2)
    terminal = finish(events, reply, 0)
    head = [] if beats else [beat(_pending(reply), 0)]
    return head + events.parts, terminal


def finish(events: Events, reply: Reply, done: int) -> bytes:
    """Add all items but the first `done`; the terminal event."""
    items, raws = output_items(reply), encoded_items(reply)
    for index in range(done, len(items)):
        _item(events, index, items[index], raws[index])
    response = whole(reply, raws)
    return events.one(f"response.{response.status}", response=response)


def _item(events: Events, index: int, item: wire.OutItem, raw: Raw) -> None:
    if isinstance(item, wire.OutReasoning | wire.OutMessage):
        text = item.summary[0].text if isinstance(item, wire.OutReasoning) else item.content[0].text
        begin(events, index, item)
        say(events, index, item, text)
        end(events, index, item, raw)
        return
    where: dict[str, object] = {"item_id": item.id, "output_index": index}
    if isinstance(item, wire.OutCall):
        opening: wire.OutItem = msgspec.structs.replace(item, status="in_progress", arguments="")
        events.add("response.output_item.added", output_index=index, item=opening)
        for piece in pieces(item.arguments):
            events.add("response.function_call_arguments.delta", **where, delta=piece)
        events.add("response.function_call_arguments.done", **where, name=item.name, arguments=item.arguments)
    else:
        opening = msgspec.structs.replace(item, status="in_progress", input="")
        events.add("response.output_item.added", output_index=index, item=opening)
        for piece in pieces(item.input):
            events.add("response.custom_tool_call_input.delta", **where, delta=piece)
        events.add("response.custom_tool_call_input.done", **where, input=item.input)
    events.add("response.output_item.done", output_index=index, item=raw)


Spoken = wire.OutReasoning | wire.OutMessage
_NOTHING: Sequence[object] = ()


def _place(index: int, item: Spoken) -> dict[str, object]:
    part = "summary_index" if isinstance(item, wire.OutReasoning) else "content_index"
    return {"item_id": item.id, "output_index": index, part: 0}


def begin(events: Events, index: int, item: Spoken) -> None:
    """Everything before the first delta of a text. Of `item` only the kind and the id count."""
    place = _place(index, item)
    if isinstance(item, wire.OutReasoning):
        events.add("response.output_item.added", output_index=index, item=wire.OutReasoning(item.id, []))
        events.add("response.reasoning_summary_part.added", **place, part=wire.OutSummary(""))
    else:
        events.add("response.output_item.added", output_index=index, item=wire.OutMessage(item.id, "in_progress", []))
        events.add("response.content_part.added", **place, part=wire.OutText(""))


def say(events: Events, index: int, item: Spoken, text: str) -> None:
    """The text in deltas."""
    for piece in pieces(text):
        add_delta(events, index, item, piece)


def add_delta(events: Events, index: int, item: Spoken, piece: str) -> None:
    """One delta, which may be empty."""
    if isinstance(item, wire.OutReasoning):
        events.add("response.reasoning_summary_text.delta", **_place(index, item), delta=piece)
    else:
        events.add("response.output_text.delta", **_place(index, item), delta=piece, logprobs=_NOTHING)


def end(events: Events, index: int, item: Spoken, raw: Raw) -> None:
    """Everything behind the last delta of a text. `item` is whole, `raw` its JSON."""
    place = _place(index, item)
    if isinstance(item, wire.OutReasoning):
        text = item.summary[0].text
        events.add("response.reasoning_summary_text.done", **place, text=text)
        events.add("response.reasoning_summary_part.done", **place, part=wire.OutSummary(text))
    else:
        said = item.content[0]
        events.add("response.output_text.done", **place, text=said.text, logprobs=_NOTHING)
        events.add("response.content_part.done", **place, part=said)
    events.add("response.output_item.done", output_index=index, item=raw)


def failed(err: TuglineError, pending: Pending, beats: int) -> bytes:
    """response.failed. Codex reads `response.error`; the official SDKs raise for an `error` beside it."""
    response = _frame(pending, "failed", [])
    response.error = _failure(err)
    events = Events(beats + 1 if beats else 1)
    last = events.one("response.failed", response=response, error=error_body(err))
    if beats:
        return last
    return Events(0).one("response.created", response=_frame(pending, "in_progress", [])) + last


def _failure(err: TuglineError) -> wire.Failure:
    """Codes of this API, by what clients do: Codex ends the turn on the first and second, and tries again on others."""
    message = sound(error_body(err).message)
    if isinstance(err, ContextOverflow):
        return wire.Failure("context_length_exceeded", message)
    if isinstance(err, Overloaded):
        return wire.Failure("rate_limit_exceeded", f"{message} Please try again in {max(1.0, err.retry_after):g}s.")
    if isinstance(err, StoreError) or (isinstance(err, EngineError) and err.retryable):
        return wire.Failure("server_error", message)
    return wire.Failure("invalid_prompt", message)
