"""The checkpoint forest: an append-only tree of sampled turns, looked up by hash, holding ids once.

full(turn) = full(parent)[:keep] ++ bridge ++ sampled. Nodes are immutable. One owner commits; attach and the reads may
run in worker threads meanwhile. Rolling item hashes are registered from the echo of our own reply; the deepest sampled
turn wins.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import takewhile
from threading import Lock
from types import MappingProxyType
from typing import Literal

import msgspec

from tugline.core.columns import NO_IDS, Ids, concat, count, take
from tugline.core.errors import VerifyError
from tugline.core.items import Assistant, Head, Item, Prefill, Request
from tugline.core.turn import Turn
from tugline.forest import keys
from tugline.forest.attach import Attachment
from tugline.forest.canon import opaque
from tugline.forest.edits import edits, edits_along, same_calls
from tugline.forest.origins import drift_of_tail, retained, with_stored_ids
from tugline.forest.rules import DEFAULT, Rules

__all__ = ["Attachment", "Forest"]

HOT_LEAVES = 8
"""Materialised id streams kept per session; a conversation that only grows needs one."""


KNOWN_HEADS = 64
"""Tool lists of one session whose keys are kept; more only costs time."""

SIBLINGS = 64
"""Newest answers to one prompt that are looked at to find what an edited turn was."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where keys were found: behind `upto` items of the request stands `turn`."""

    turn: Turn | None
    upto: int
    match: Literal["exact", "lenient", "root"]


class Forest:
    """All turns of one session."""

    def __init__(self, session_id: str, template_digest: bytes) -> None:
        self.session_id = session_id
        self._digest = template_digest
        self._turns: dict[str, Turn] = {}
        self._children: dict[str | None, list[str]] = {None: []}
        self._exact: dict[bytes, list[Turn]] = {}
        self._lenient: dict[bytes, list[Turn]] = {}
        self._openings: dict[bytes, set[bytes]] = {}
        """Key of what stands before a root's first assistant turn -> chains of the heads it came under."""
        self._roots: OrderedDict[bytes, keys.Chain] = OrderedDict()
        """Chains of empty conversations by exact key: reading a long tool list as values takes milliseconds."""
        self._heads: dict[Head, Head] = {}
        """Each head once: tool lists are the bulk of most requests."""
        self._delivered: set[str] = set()
        self._opaque = False
        """Whether some call's arguments are no JSON object, so that lenient keys need a second look."""
        self._hot: OrderedDict[str, Ids] = OrderedDict()
        self._told: OrderedDict[str, tuple[Item, ...]] = OrderedDict()
        """Histories that were asked for last: a bridge needs its parent's, which is the last one's and a turn more."""
        self._hot_lock = Lock()

    @classmethod
    def restore(cls, session_id: str, template_digest: bytes, turns: Sequence[Turn]) -> Forest:
        """The forest of stored turns, in commit order."""
        made = cls(session_id, template_digest)
        for turn in turns:
            made._append(turn)  # ids are put together when a leaf is first read: linear in what is stored
        return made

    @property
    def turns(self) -> Mapping[str, Turn]:
        """By id, in commit order."""
        return MappingProxyType(self._turns)

    def children(self, turn_id: str | None) -> tuple[str, ...]:
        """Ids of the turns that extend one; of the roots for None."""
        return tuple(self._children.get(turn_id, ()))

    def leaves(self) -> tuple[str, ...]:
        """Turns that nothing extends, in commit order."""
        return tuple(t for t in self._turns if not self._children.get(t))

    # ------------------------------------------------------------------------------------------- attach

    def attach(self, request: Request, rules: Rules = DEFAULT) -> Attachment:
        """Find the deepest sampled turn that the request echoes. Changes nothing. O(bytes of the request)."""
        head = self._root(request.head)
        plain = rules.plain(request.items)
        filtered = plain is not request.items
        chains = list(keys.states(head, request.items, plain if filtered else None))
        end = keys.Chain(*chains[-1]) if chains else head
        asked = keys.walk(head, plain)[-1] if filtered else end  # a retry may bring other volatile text
        place = _Place(None, 0, "root")
        for index in range(len(request.items) - 1, -1, -1):
            if isinstance(request.items[index], Assistant):
                found = self._find(chains[index], request.items, index, rules)
                if found is not None:
                    place = _Place(found[0], index + 1, found[1])
                    break
        made = self._attached(request, place, rules)
        if made.parent is None:
            reason = self._root_reason(request, head)
            if reason == "root_head_changed" and rules.sticky_head:
                stale = self._under_known_head(request, rules)
                if stale is not None:
                    return stale
            made = replace(made, root_reason=reason)
        return replace(made, chain=end, fingerprint=_fingerprint(asked, request))

    def _attached(self, request: Request, place: _Place, rules: Rules) -> Attachment:
        """The attachment of a request whose keys were found at `place`, its chain left out."""
        turn, tail, match, drift = place.turn, request.items[place.upto :], place.match, set[str]()
        if turn is not None and match == "lenient":
            drift.update(self._drift(turn, request, place.upto - 1, rules))
            tail = with_stored_ids(tail, request.items[place.upto - 1], turn.echo)
        kept = retained(turn.turn_id if turn else None, tail, self._answers, rules)
        if kept is not None:
            turn, match = kept.turn, "lenient"
            drift.update(kept.drift)
            tail = with_stored_ids(tail[kept.index + 1 :], tail[kept.index], turn.echo)
        drift.update(drift_of_tail(turn.turn_id if turn else None, tail, self._answers, rules))
        nowhere = keys.Chain(b"", b"", {})
        return Attachment(turn, tail, match, None, tuple(sorted(drift)), nowhere, b"", template=rules.template)

    def _under_known_head(self, request: Request, rules: Rules) -> Attachment | None:
        """The request as a continuation under another head that its opening came under, the newest that goes on."""
        known = self._openings.get(_opening(request.items), set())
        for head in reversed(list(self._heads)):
            if keys.exact_root(self._digest, head) in known:
                at = self.attach(replace(request, head=head), replace(rules, sticky_head=False))
                if at.parent is not None:
                    return replace(at, head=head, drift=tuple(sorted({*at.drift, "head_stale"})))
        return None

    def _answers(self, turn_id: str | None) -> list[Turn]:
        return [self._turns[child] for child in self._children.get(turn_id, ())[-SIBLINGS:]]

    def _find(
        self, chain: keys.State, items: Sequence[Item], index: int, rules: Rules
    ) -> tuple[Turn, Literal["exact", "lenient"]] | None:
        exact = self._exact.get(chain[0])
        if exact:
            return next((t for t in reversed(exact) if t.turn_id in self._delivered), exact[-1]), "exact"
        lenient = self._lenient.get(chain[1], ())
        if lenient and self._opaque:
            lenient = [t for t in lenient if same_calls(self._said(t.turn_id), items[: index + 1])]
        if lenient and rules.honoured:
            upto = items[: index + 1]
            lenient = [t for t in lenient if not rules.honoured.intersection(edits_along(self._said(t.turn_id), upto))]
        if not lenient:
            return None
        item = items[index]
        assert isinstance(item, Assistant)

        def likeness(at: tuple[int, Turn]) -> tuple[int, ...]:
            return *_likeness(at[1].said, item), at[1].turn_id in self._delivered

        return max(enumerate(lenient), key=lambda at: (likeness(at), at[0]))[1], "lenient"

    def _drift(self, turn: Turn, request: Request, index: int, rules: Rules) -> tuple[str, ...]:
        """Edit classes of the newest echoed turn. Older turns were named when they were newest, unless the edit is
        new to them: then the newest is verbatim, and all are compared."""
        newest = request.items[index]
        assert isinstance(newest, Assistant)
        tools = ("tools_respelled",) if turn.head.tools != request.head.tools else ()
        said = edits(turn.said, newest) or edits_along(self._said(turn.turn_id), request.items)
        dropped = rules.filtered(self._said(turn.turn_id), request.items[: index + 1]) if rules.filters else ()
        return said + tools + dropped or ("shape",)

    def _root(self, head: Head) -> keys.Chain:
        """The chain of an empty conversation under a head."""
        exact = keys.exact_root(self._digest, head)
        with self._hot_lock:
            known = self._roots.get(exact)
        if known is None:
            known = keys.start(self._digest, head)
            with self._hot_lock:
                self._roots[exact] = known
                if len(self._roots) > KNOWN_HEADS:
                    self._roots.popitem(last=False)
        return known

    def _root_reason(self, request: Request, head: keys.Chain) -> str:
        if not self._turns:
            return "root_first"
        known = self._openings.get(_opening(request.items))
        if known is not None and head.exact not in known:
            return "root_head_changed"
        if any(isinstance(item, Assistant) for item in request.items):
            return "root_history_changed"
        if known is not None:
            return "root_repeated"
        toolless = not request.head.tools and any(other.tools for other in self._heads)
        return "root_aux" if toolless else "root_unknown"  # titles and summaries are asked for without tools

    def keys(self, attachment: Attachment, echo: Assistant) -> tuple[bytes, bytes]:
        """(exact, lenient) under which the turn that answers `attachment` is to be found."""
        chain = keys.step(attachment.chain, echo)
        return chain.exact, chain.lenient

    # ------------------------------------------------------------------------------------------- commit

    def commit(self, turn: Turn) -> None:
        """Append a turn. Raises VerifyError when it does not extend its parent token for token."""
        self._append(turn)
        before = NO_IDS if turn.parent is None else self.full(turn.parent)
        kept = before if turn.keep == count(before) else take(before, 0, turn.keep)
        self._heat(turn.turn_id, concat([kept, turn.bridge, turn.sampled]))
        if turn.parent is not None and len(self._children[turn.parent]) == 1:
            with self._hot_lock:
                self._hot.pop(turn.parent, None)

    def _append(self, turn: Turn) -> None:
        if turn.turn_id in self._turns:
            raise VerifyError(f"turn {turn.turn_id} is already in the forest")
        before = 0
        if turn.parent is not None:
            parent = self._turns.get(turn.parent)
            if parent is None:
                raise VerifyError(f"turn {turn.turn_id}: its parent {turn.parent} is not in the forest")
            before = parent.prompt_len + count(parent.sampled)
            if turn.keep < before and not parent.sampled:
                raise VerifyError(f"turn {turn.turn_id} trims a stop that its parent did not sample")
        if not before - 1 <= turn.keep <= before or turn.keep < 0:
            raise VerifyError(f"turn {turn.turn_id} keeps {turn.keep} of {before} tokens of its parent")
        length = turn.keep + count(turn.bridge)
        if length != turn.prompt_len:
            raise VerifyError(f"turn {turn.turn_id}: its prompt has {length} tokens, not {turn.prompt_len}")
        head = self._heads.setdefault(turn.head, turn.head)
        if head is not turn.head:
            turn = replace(turn, head=head)
        self._turns[turn.turn_id] = turn
        self._children.setdefault(turn.parent, []).append(turn.turn_id)
        self._exact.setdefault(turn.key_exact, []).append(turn)
        self._lenient.setdefault(turn.key_lenient, []).append(turn)
        if turn.parent is None:
            self._openings.setdefault(_opening(turn.items), set()).add(keys.exact_root(self._digest, turn.head))
        self._opaque = self._opaque or any(opaque(call.arguments) for call in turn.echo.calls)

    def mark_delivered(self, turn_id: str) -> None:
        """The harness has this turn's reply: of turns that say the same, an echo means this one."""
        self._delivered.add(turn_id)

    def mark_undelivered(self, turn_id: str) -> None:
        """The harness turned out not to have it."""
        self._delivered.discard(turn_id)

    def delivered(self, turn_id: str) -> bool:
        """Whether the harness is known to have this turn's reply."""
        return turn_id in self._delivered

    # -------------------------------------------------------------------------------------------- reads

    def full(self, turn_id: str) -> Ids:
        """prompt ++ sampled, int32. Hot leaves are at hand; others are put together from their path, in time linear
        in its length. Raises KeyError for an unknown turn."""
        hot = self._hot.get(turn_id)
        if hot is not None:
            return hot
        path: list[Turn] = []
        at: str | None = turn_id
        base = NO_IDS
        while at is not None:
            known = self._hot.get(at)
            if known is not None:
                base = known
                break
            turn = self._turns[at]
            path.append(turn)
            at = turn.parent
        parts = [base]
        length = count(base)
        for turn in reversed(path):
            while length > turn.keep:  # a trimmed stop
                last = parts.pop()
                length -= count(last)
                if length < turn.keep:
                    parts.append(take(last, 0, turn.keep - length))
                    length = turn.keep
            parts += [turn.bridge, turn.sampled]
            length = turn.keep + count(turn.bridge) + count(turn.sampled)
        made = concat(parts)
        self._heat(turn_id, made)
        return made

    def prompt(self, turn_id: str) -> Ids:
        """The ids that the turn was sampled on."""
        return take(self.full(turn_id), 0, self._turns[turn_id].prompt_len)

    def history(self, turn_id: str) -> tuple[Item, ...]:
        """Items from the root to the turn, each sampled turn as its own echo. That of the conversation which is going
        on is at hand but for its newest turn."""
        path: list[Turn] = []
        at: str | None = turn_id
        known: tuple[Item, ...] = ()
        while at is not None:
            found = self._told.get(at)
            if found is not None:
                known = found
                break
            path.append(self._turns[at])
            at = path[-1].parent
        path.reverse()
        made = (*known, *(item for turn in path for item in (*turn.items, turn.echo)))
        with self._hot_lock:
            self._told[turn_id] = made
            self._told.move_to_end(turn_id)
            while len(self._told) > HOT_LEAVES:
                self._told.popitem(last=False)
        return made

    def _said(self, turn_id: str) -> tuple[Item, ...]:
        """The history as clients echo it."""
        return tuple(
            item
            for turn in self._path(turn_id)
            for item in (*(i for i in turn.items if not isinstance(i, Prefill)), turn.said)
        )

    def _path(self, turn_id: str) -> list[Turn]:
        path: list[Turn] = []
        at: str | None = turn_id
        while at is not None:
            path.append(self._turns[at])
            at = path[-1].parent
        path.reverse()
        return path

    def _heat(self, turn_id: str, full: Ids) -> None:
        with self._hot_lock:
            self._hot[turn_id] = full
            self._hot.move_to_end(turn_id)
            while len(self._hot) > HOT_LEAVES:
                self._hot.popitem(last=False)


def _fingerprint(end: keys.Chain, request: Request) -> bytes:
    asked = replace(request.options, stream=False, include_usage=False, form="")
    hasher = blake2b(end.exact, digest_size=keys.SIZE)
    hasher.update(msgspec.msgpack.encode((request.model, end.prefill, asked)))
    return hasher.digest()


def _likeness(stored: Assistant, item: Assistant) -> tuple[int, ...]:
    """Which of several turns with one lenient key is meant: same call ids, same reasoning (or trimmed), same text."""
    same_ids = [call.id for call in stored.calls] == [call.id for call in item.calls]
    ours, theirs = stored.reasoning or "", item.reasoning or ""
    return same_ids, (ours == theirs) + (ours.strip() == theirs.strip()), (stored.text or "") == (item.text or "")


def _opening(items: Sequence[Item]) -> bytes:
    """Key of what stands before the first assistant turn, without any head."""
    before = takewhile(lambda item: not isinstance(item, Assistant), items)
    chains = keys.walk(keys.Chain(b"items", b"items", {}), before)
    return chains[-1].exact if chains else b""
