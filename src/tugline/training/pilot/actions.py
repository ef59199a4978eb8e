"""What an agent can do to files, and what came of it, in no harness' words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Read:
    path: str


@dataclass(frozen=True, slots=True)
class Run:
    command: str


@dataclass(frozen=True, slots=True)
class Edit:
    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Write:
    path: str
    text: str


Action = Read | Run | Edit | Write

OutcomeKind = Literal["text", "missing", "directory", "ran", "edited", "no_match", "ambiguous", "unchanged", "wrote"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The effect of one action.

    `text` is the file's text after a read and the merged output after a run; `count` is the exit status after a run
    and the number of matches of an ambiguous edit.
    """

    kind: OutcomeKind
    text: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the agent: an optional thought, an optional text, then actions. No action: the session ends."""

    thought: str = ""
    text: str = ""
    actions: tuple[Action, ...] = ()
