"""`history_reasoning = "template"`: where the chat template would leave sampled reasoning out of the history.

Many templates drop the reasoning of earlier turns once a user speaks again. A prompt that goes on from the sampled ids
keeps it. With this policy such a prompt is rendered anew, as at deployment, and begins a row of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tugline.core.items import Assistant, Item, Request, UserMedia, UserText
from tugline.forest.attach import Attachment
from tugline.forest.forest import Forest
from tugline.tokens.model import ChatModel


def strips_reasoning(forest: Forest, request: Request, attached: Attachment, model: ChatModel) -> bool:
    """Whether the ids that the request goes on from hold reasoning that the template would leave out behind this tail.
    Two renders where a user speaks and there is reasoning; nothing otherwise. Raises Unsupported as a render does."""
    if not attached.template or attached.parent is None:
        return False
    if not any(isinstance(item, UserText | UserMedia) for item in attached.tail):
        return False
    history = list(forest.history(attached.parent.turn_id))
    held = list(_held(forest, attached.parent.turn_id))
    without = [
        replace(i, reasoning=None) if n in held and isinstance(i, Assistant) else i for n, i in enumerate(history)
    ]
    if without == history:
        return False
    whole = model.render(request.head, (*history, *attached.tail))
    return whole.ids == model.render(request.head, (*without, *attached.tail)).ids


def _held(forest: Forest, turn_id: str) -> Iterator[int]:
    """Places in history(turn_id) of assistant turns whose reasoning, if any, stands in full(turn_id): those that were
    sampled or bridged. What a root's prompt says was rendered by the template, which has left out what it would."""
    path = []
    at: str | None = turn_id
    while at is not None:
        path.append(forest.turns[at])
        at = path[-1].parent
    place = 0
    for turn in reversed(path):
        items: tuple[Item, ...] = (*turn.items, turn.echo)
        yield from range(place + len(turn.items) if turn.parent is None else place, place + len(items))
        place += len(items)
