"""Whether a prompt is the template's text with assistant turns as they were sampled. Pure.

No mark of a format is needed to find a turn in a prompt: its sampled ids are known. What has to be true then is

    have = S0 B1 S1 B2 ... Bn Sn      want = S0 A1 S1 A2 ... An Sn

for the same texts S around the turns, id by id, where each B is a turn as sampled, or equal to A, the turn as the
template writes it. What an A may be is bounded: it is one turn, so nothing of the harness's words is in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from tugline.core.columns import Ids, common_prefix, count, ids_list, take
from tugline.testing.exactness.fake import Made

_CLOSING_MARKS = 16
"""Tokens at most that may stand behind a turn that was cut, to close what it had opened."""


class Shape(Protocol):
    """What is asked of a model's format."""

    @property
    def header(self) -> Ids: ...

    @property
    def closings(self) -> frozenset[int]: ...

    def own(self, sampled: Ids) -> tuple[Ids, ...]: ...

    def is_one_turn(self, column: Ids) -> bool: ...

    def controls(self, column: Ids) -> int: ...

    def decode(self, column: Ids) -> str: ...

    def shown(self, ours: Ids, theirs: Ids) -> str: ...


class Alignment:
    """One prompt beside one rendering. Positions are token indices."""

    def __init__(self, shape: Shape, want: Ids, have: Ids, origins: Sequence[Made | None]) -> None:
        """`origins`: of each assistant turn of the conversation the generation that it is; None: nobody sampled it."""
        self._shape, self._want, self._have = shape, want, have
        self._origins = origins
        self._far = (0, 0, 0)
        """(tokens of `want` passed, turns passed, tokens of `have` passed) where it went on longest."""
        self._dead: set[tuple[int, int, int]] = set()

    def problem(self) -> tuple[int, str]:
        """(how far it goes, "" or what is not as it should be behind that)."""
        if self._go(0, 0, 0):
            return count(self._want), ""
        want, turn, have = self._far
        ours, theirs = take(self._want, want), take(self._have, have)
        shown = self._shape.shown(ours, theirs)
        inside = self._inside(take(self._want, 0, want))
        if inside:
            return want, f"assistant turn {turn + 1} is neither as sampled nor as the template writes it, {shown}"
        return want, f"{f'behind assistant turn {turn}' if turn else 'before the first assistant turn'}, {shown}"

    def _inside(self, passed: Ids) -> bool:
        """Whether what was passed ends inside an assistant turn: behind a header and before what ends the turn."""
        column, header = ids_list(passed), ids_list(self._shape.header)
        n = len(header)
        at = next((i for i in range(len(column) - n, -1, -1) if column[i : i + n] == header), None)
        return at is not None and not any(token in self._shape.closings for token in column[at + n :])

    def _go(self, turn: int, want: int, have: int) -> bool:
        """Whether the rest fits, `turn` turns being behind."""
        if (turn, want, have) in self._dead:
            return False
        self._dead.add((turn, want, have))
        same = common_prefix(take(self._want, want), take(self._have, have))
        if want + same > self._far[0]:
            self._far = (want + same, self._turns_before(turn, want, same), have + same)
        if same == count(self._want) - want == count(self._have) - have:
            return True
        if turn == len(self._origins):
            return False
        for start, end in self._sampled(turn, have, same):
            for behind in self._written(want + start - have, end):
                if self._go(turn + 1, behind, end):
                    return True
        return self._go(turn + 1, want, have)  # it stands as the template writes it

    def _turns_before(self, turn: int, want: int, same: int) -> int:
        """Turns that lie whole in front of the place where it stops: those behind, and those passed as written."""
        column, header = ids_list(take(self._want, want, want + same)), ids_list(self._shape.header)
        begun = sum(column[i : i + len(header)] == header for i in range(len(column) - len(header) + 1))
        return min(turn + max(0, begun - self._inside(take(self._want, 0, want + same))), len(self._origins))

    def _sampled(self, turn: int, have: int, same: int) -> Iterator[tuple[int, int]]:
        """Where in `have` the turn stands as it was sampled: (first token, the one behind it)."""
        origin = self._origins[turn]
        if origin is None:
            return
        for own in dict.fromkeys(self._shape.own(origin.sampled)):
            for start in _places(self._have, own, have, have + same):
                end = start + count(own)
                yield start, end
                if origin.finish == "length":
                    yield from ((start, more) for more in self._closed(end))

    def _closed(self, end: int) -> Iterator[int]:
        """Ends of a turn that was cut, with marks and blanks behind it that close it."""
        for n, token in enumerate(ids_list(take(self._have, end, end + _CLOSING_MARKS))):
            one = take(self._have, end + n, end + n + 1)
            if token in self._shape.closings or not (self._shape.controls(one) or not self._shape.decode(one).strip()):
                return
            yield end + n + 1

    def _written(self, begin: int, end: int) -> Iterator[int]:
        """Where in `want` the turn that begins there may be over, so that what follows is what follows in `have`. A
        turn that stands with the stop token that was sampled has the one of the template behind it on the other side.
        """
        if end >= count(self._have):
            return
        stopped = ids_list(take(self._have, end - 1, end))[0] in self._shape.closings
        following = take(self._have, end, end + 1)
        for behind in _places(self._want, following, begin + stopped, count(self._want)):
            last = ids_list(take(self._want, behind - 1, behind))
            if stopped and last[0] not in self._shape.closings:
                continue
            if self._shape.is_one_turn(take(self._want, begin, behind - stopped)):
                yield behind


def _places(column: Ids, wanted: Ids, start: int, last: int) -> Iterator[int]:
    """Token positions from `start` to `last`, both included, at which `wanted` stands in `column`."""
    if not wanted:
        return
    at = column.find(wanted, start * 4)
    while 0 <= at <= last * 4:
        if at % 4 == 0:
            yield at // 4
        at = column.find(wanted, at + 1)
