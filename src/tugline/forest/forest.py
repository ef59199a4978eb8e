"""The checkpoint forest: sampled turns, looked up by hash.

Rolling item hashes are registered from the echo of our own reply; the deepest sampled turn wins. Attaching may run in
worker threads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Literal

import msgspec

from tugline.core.items import Assistant, Head, Item, Prefill, Request
from tugline.core.turn import Turn
from tugline.forest import keys
from tugline.forest.attach import Attachment
from tugline.forest.edits import edits, edits_along, same_calls
from tugline.forest.origins import Children, cut_short, drift_of_tail, retained, with_stored_ids
from tugline.forest.rules import DEFAULT, Rules
from tugline.forest.tree import Tree, opening
from tugline.forest.walked import Walk, Walked

__all__ = ["Attachment", "Forest"]

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


class Forest(Tree):
    """The tree, and where in it a request belongs."""

    def __init__(self, session_id: str, template_digest: bytes) -> None:
        super().__init__(session_id, template_digest)
        self._roots: OrderedDict[bytes, keys.Chain] = OrderedDict()
        """Chains of empty conversations by exact key: reading a long tool list as values takes milliseconds."""
        self._walked = Walked()

    def attach(self, request: Request, rules: Rules = DEFAULT) -> Attachment:
        """Find the deepest sampled turn that the request echoes. Changes nothing. O(bytes of the request)."""
        head = self._root(request.head)
        plain = rules.plain(request.items)
        filtered = plain is not request.items
        place, end = self._place(head, request, plain if filtered else None, rules)
        asked = keys.walk(head, plain)[-1] if filtered else end  # a retry may bring other volatile text
        made = self._attached(request, place, rules)
        if made.parent is None:
            reason = self._root_reason(request, head)
            if reason == "root_head_changed" and rules.sticky_head:
                stale = self._under_known_head(request, rules)
                if stale is not None:
                    return stale
            made = replace(made, root_reason=reason)
        return replace(made, chain=end, fingerprint=_fingerprint(asked, request))

    def _place(
        self, head: keys.Chain, request: Request, plain: Sequence[Item] | None, rules: Rules
    ) -> tuple[_Place, keys.Chain]:
        """Where the deepest sampled turn of a request stands, and the chain behind its last item. What the request
        before it has said already is compared, not hashed, unless the turn is found nowhere behind that. `plain`: the
        items as filters leave them, where these match something."""
        items = request.items
        before = self._walked.longest(head.exact, items) if plain is None else None
        for walk in (before, None) if before is not None else (None,):
            start, skip = (walk.end, len(walk.items)) if walk is not None else (head, 0)
            chains = list(keys.states(start, items[skip:], plain))
            end = keys.Chain(*chains[-1]) if chains else start
            place = self._deepest(chains, items, skip, rules)
            if place.turn is not None:
                break
        if plain is None:
            known = before.items if before is not None else self._as_held(items, place)
            self._walked.add(Walk(head.exact, (*known, *items[len(known) :]), end))
        return place, end

    def _deepest(self, chains: Sequence[keys.State], items: Sequence[Item], skip: int, rules: Rules) -> _Place:
        looked: dict[str, bool] = {}
        for index in range(len(items) - 1, skip - 1, -1):
            if isinstance(items[index], Assistant):
                found = self._find(chains[index - skip], items, index, rules, looked)
                if found is not None:
                    return _Place(found[0], index + 1, found[1])
        return _Place(None, 0, "root")

    def _as_held(self, items: tuple[Item, ...], place: _Place) -> tuple[Item, ...]:
        """The items up to a turn as the forest holds them, wherever they are equal: to be kept without a copy."""
        if place.turn is None:
            return ()
        pairs = zip(self.history(place.turn.turn_id), items[: place.upto], strict=False)
        return tuple(ours if ours == theirs else theirs for ours, theirs in pairs)

    def _attached(self, request: Request, place: _Place, rules: Rules) -> Attachment:
        """The attachment of a request whose keys were found at `place`, its chain left out."""
        turn, tail, match, drift = place.turn, request.items[place.upto :], place.match, set[str]()
        echoed: tuple[tuple[str, Assistant], ...] = ()
        if turn is not None and match == "lenient":
            drift.update(self._drift(turn, request, place.upto - 1, rules))
            echoed = self._echoed(turn, request, place.upto - 1)
            tail = with_stored_ids(tail, request.items[place.upto - 1], turn.echo)
        kept = retained(turn.turn_id if turn else None, tail, self._answers_under(request.head), rules)
        if kept is not None:
            turn, match = kept.turn, "lenient"
            drift.update(kept.drift)
            echoed += kept.echoed
            tail = with_stored_ids(tail[kept.index + 1 :], tail[kept.index], turn.echo)
        at = turn.turn_id if turn else None
        drift.update(drift_of_tail(at, tail, self._answers, rules))
        cut = cut_short(at, (request.head, tail), self._answers, rules, self._delivered) if rules.partial else None
        nowhere = keys.Chain(b"", b"", {})
        found = tuple(sorted(drift))
        return Attachment(turn, tail, match, None, found, nowhere, b"", echoed=echoed, template=rules.template, cut=cut)

    def _under_known_head(self, request: Request, rules: Rules) -> Attachment | None:
        """The request as a continuation under another head that its opening came under, the newest that goes on."""
        known = self._openings.get(opening(request.items), set())
        for head in reversed(list(self._heads)):
            if keys.exact_root(self._digest, head) in known:
                at = self.attach(replace(request, head=head), replace(rules, sticky_head=False))
                if at.parent is not None:
                    return replace(at, head=head, drift=tuple(sorted({*at.drift, "head_stale"})))
        return None

    def _answers(self, turn_id: str | None) -> list[Turn]:
        return [self._turns[child] for child in self._children.get(turn_id, ())[-SIBLINGS:]]

    def _answers_under(self, head: Head) -> Children:
        """`_answers`, and of the roots only those under this head: others read other tools in their prompts."""

        def answers(turn_id: str | None) -> list[Turn]:
            found = self._answers(turn_id)
            if turn_id is not None or not found:
                return found
            mine = self._root(head).lenient
            return [turn for turn in found if self._root(turn.head).lenient == mine]

        return answers

    def _find(
        self, chain: keys.State, items: Sequence[Item], index: int, rules: Rules, looked: dict[str, bool]
    ) -> tuple[Turn, Literal["exact", "lenient"]] | None:
        exact = self._exact.get(chain[0])
        if exact:
            return next((t for t in reversed(exact) if t.turn_id in self._delivered), exact[-1]), "exact"
        likely = self._lenient.get(chain[1], ())
        lenient = [t for t in likely if self._means(t, items, index + 1, rules, looked)]
        if not lenient:
            return None
        item = items[index]
        assert isinstance(item, Assistant)

        def likeness(at: tuple[int, Turn]) -> tuple[int, ...]:
            return *_likeness(at[1].said, item), at[1].turn_id in self._delivered

        return max(enumerate(lenient), key=lambda at: (likeness(at), at[0]))[1], "lenient"

    def _means(self, turn: Turn, items: Sequence[Item], end: int, rules: Rules, looked: dict[str, bool]) -> bool:
        """Whether a turn whose lenient key was found says what items[:end] say: keys cannot tell {} from text that is
        no JSON object, and know nothing of edits that are to be obeyed. `looked`: the answer for turns seen before in
        this request, so that a whole path is read once."""
        at, trail, same = turn, list[str](), True
        while same:
            known = looked.get(at.turn_id)
            if known is not None:
                same = known
                break
            trail.append(at.turn_id)
            ours = (*(i for i in at.items if not isinstance(i, Prefill)), at.said)
            theirs = items[end - len(ours) : end]
            same = same_calls(ours, theirs) and not (
                rules.honoured and rules.honoured.intersection(edits_along(ours, theirs))
            )
            end -= len(ours)
            if at.parent is None:
                break
            at = self._turns[at.parent]
        looked.update(dict.fromkeys(trail, same))
        return same

    def _drift(self, turn: Turn, request: Request, index: int, rules: Rules) -> tuple[str, ...]:
        """Edit classes of the newest echoed turn. Older turns were named when they were newest, unless the edit is
        new to them: then the newest is verbatim, and all are compared."""
        newest = request.items[index]
        assert isinstance(newest, Assistant)
        tools = ("tools_respelled",) if turn.head.tools != request.head.tools else ()
        said = edits(turn.said, newest) or edits_along(self.said(turn.turn_id), request.items)
        dropped = rules.filtered(self.said(turn.turn_id), request.items[: index + 1]) if rules.filters else ()
        return said + tools + dropped or ("shape",)

    def _echoed(self, turn: Turn, request: Request, index: int) -> tuple[tuple[str, Assistant], ...]:
        """The turns on the path whose words the harness changed, in its words: the newest, else all that it did."""
        newest = request.items[index]
        assert isinstance(newest, Assistant)
        if edits(turn.said, newest):
            return ((turn.turn_id, newest),)
        ours: list[Turn | None] = []
        for at in self.path(turn.turn_id):
            ours += [None for item in at.items if isinstance(item, Assistant)]
            ours.append(at)
        theirs = (item for item in request.items[: index + 1] if isinstance(item, Assistant))
        pairs = zip(ours, theirs, strict=False)
        return tuple((mine.turn_id, item) for mine, item in pairs if mine is not None and edits(mine.said, item))

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
        known = self._openings.get(opening(request.items))
        if known is not None and head.exact not in known:
            return "root_head_changed"
        if any(isinstance(item, Assistant) for item in request.items):
            return "root_history_changed"
        if known is not None:
            return "root_repeated"
        toolless = not request.head.tools and any(other.tools for other in list(self._heads))
        return "root_aux" if toolless else "root_unknown"  # titles and summaries are asked for without tools

    def keys(self, attachment: Attachment, echo: Assistant) -> tuple[bytes, bytes]:
        """(exact, lenient) under which the turn that answers `attachment` is to be found."""
        chain = keys.step(attachment.chain, echo)
        return chain.exact, chain.lenient


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
