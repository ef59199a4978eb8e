"""What a harness is shown of a turn: cut at stop strings, calls named uniquely, wishes that were not kept. Pure."""

from __future__ import annotations

from dataclasses import replace

from tugline.core.items import Assistant, Head, Options, Pending, Reply, ToolCall, Usage
from tugline.tokens.callids import wire_id
from tugline.tokens.model import Parsed


def reply_of(pending: Pending, parsed: Parsed, usage: Usage, ended: tuple[bool, str | None]) -> Reply:
    """What is shown of a parsed sample. `ended`: whether a stop string and no stop token ended it, and the stop string
    that its ids spell."""
    assistant, stop = with_call_ids(parsed.assistant, f"turn_{pending.id}"), None
    if ended[0]:
        assistant, stop = cut_at_stop(assistant, pending.request.options.stop)
        stop = stop or ended[1]
    return Reply(
        id=pending.id,
        model=pending.model,
        created=pending.created,
        assistant=assistant,
        finish=parsed.finish,
        usage=usage,
        request=pending.request,
        stop=stop,
    )


def kept(reply: Reply) -> Reply:
    """A reply without the conversation that it answers: who asks again brings it along."""
    return replace(reply, request=replace(reply.request, head=Head(), items=()))


def cut_at_stop(said: Assistant, stops: tuple[str, ...]) -> tuple[Assistant, str | None]:
    """What is shown of a turn that a stop string ended: what stands before it, as every API has it. The ids stay."""
    at, stop = first_of(said.text or "", stops)
    if stop is not None:
        return replace(said, text=(said.text or "")[:at] or None), stop
    at, stop = first_of(said.reasoning or "", stops)
    return (said if stop is None else replace(said, reasoning=(said.reasoning or "")[:at] or None)), stop


def first_of(text: str, stops: tuple[str, ...]) -> tuple[int, str | None]:
    """(place, stop string) of the first one in a text; (0, None) if there is none."""
    return min(((at, s) for s in stops if (at := text.find(s)) >= 0), default=(0, None))


def unasked(options: Options, said: Assistant) -> tuple[str, ...]:
    """Wishes of the request that were sampled against: nothing constrains the engine."""
    against = []
    if said.calls and options.tool_choice == "none":
        against.append("calls_unasked")
    if len(said.calls) > 1 and not options.parallel_calls:
        against.append("parallel_calls_unasked")
    return tuple(against)


def with_call_ids(assistant: Assistant, turn_id: str) -> Assistant:
    """Give each call a wire id that is unique in the session: some models repeat theirs turn by turn. What a model
    itself called the call is spelled into it, for its next prompts."""
    if not assistant.calls:
        return assistant
    stem = turn_id.removeprefix("turn_")
    calls = tuple(ToolCall(wire_id(stem, i, c.id), c.name, c.arguments) for i, c in enumerate(assistant.calls))
    return Assistant(assistant.text, assistant.reasoning, calls)
