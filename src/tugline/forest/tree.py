"""The tree of sampled turns: append-only, ids held once.

full(turn) = full(parent)[:keep] ++ bridge ++ sampled. Nodes are immutable. One owner commits; the reads may run in
worker threads meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from threading import Lock
from types import MappingProxyType
from typing import Self

from tugline.core.columns import NO_IDS, Ids, concat, count, take
from tugline.core.errors import VerifyError
from tugline.core.items import Assistant, Head, Item, Prefill
from tugline.core.turn import Turn
from tugline.forest import keys

HOT_LEAVES = 8
"""Materialised id streams kept per session; a conversation that only grows needs one."""


class Tree:
    """All turns of one session, by id, by key and by parent."""

    def __init__(self, session_id: str, template_digest: bytes) -> None:
        self.session_id = session_id
        self._digest = template_digest
        self._turns: dict[str, Turn] = {}
        self._children: dict[str | None, list[str]] = {None: []}
        self._exact: dict[bytes, list[Turn]] = {}
        self._lenient: dict[bytes, list[Turn]] = {}
        self._openings: dict[bytes, set[bytes]] = {}
        """Key of what stands before a root's first assistant turn -> chains of the heads it came under."""
        self._heads: dict[Head, Head] = {}
        """Each head once: tool lists are the bulk of most requests."""
        self._delivered: set[str] = set()
        self._hot: OrderedDict[str, Ids] = OrderedDict()
        self._told: OrderedDict[str, tuple[Item, ...]] = OrderedDict()
        """Histories that were asked for last: a bridge needs its parent's, which is the last one's and a turn more."""
        self._hot_lock = Lock()

    @classmethod
    def restore(cls, session_id: str, template_digest: bytes, turns: Sequence[Turn]) -> Self:
        """The tree of stored turns, in commit order."""
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
        parent = self._turns.get(turn.parent) if turn.parent is not None else None
        if turn.parent is not None:
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
        front = keys.exact_root(self._digest, turn.head) if parent is None else parent.key_exact
        run_on = keys.run_on(front, turn.items, turn.echo)  # some APIs have no border between two turns
        if run_on is not None:
            self._exact.setdefault(run_on, []).append(turn)
        if turn.parent is None:
            self._openings.setdefault(opening(turn.items), set()).add(keys.exact_root(self._digest, turn.head))

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

    def said(self, turn_id: str) -> tuple[Item, ...]:
        """The history as clients echo it."""
        return tuple(
            item
            for turn in self.path(turn_id)
            for item in (*(i for i in turn.items if not isinstance(i, Prefill)), turn.said)
        )

    def path(self, turn_id: str | None) -> list[Turn]:
        """From the root to a turn; empty for None."""
        path: list[Turn] = []
        at = turn_id
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


def opening(items: Sequence[Item]) -> bytes:
    """Key of what stands before the first assistant turn, without any head."""
    before = takewhile(lambda item: not isinstance(item, Assistant), items)
    chains = keys.walk(keys.Chain(b"items", b"items", {}), before)
    return chains[-1].exact if chains else b""
