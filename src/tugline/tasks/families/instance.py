"""One task as a value: what is asked, what lies in the working directory, what must hold afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Split = Literal["train", "heldout"]


@dataclass(frozen=True, slots=True)
class Instance:
    """A task of a family, before it is written as a Harbor directory. Paths are relative to the working directory."""

    family: str
    index: int
    split: Split
    instruction: str
    files: Mapping[str, str]
    """Text of each file that exists at the start."""
    expected: Mapping[str, str | None]
    """What must hold at the end: text of a file (trailing newlines do not count), or None: the file is gone."""
    solution: str
    """Shell commands of the oracle."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """The slots that were drawn, by name; a policy's teacher reads them, nothing written to disk does."""

    @property
    def name(self) -> str:
        """Directory name, unique over families and splits."""
        part = "" if self.split == "train" else "heldout-"
        return f"{self.family}-{part}{self.index}"


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a family's rule makes of random draws, before the split is checked."""

    instruction: str
    files: Mapping[str, str]
    expected: Mapping[str, str | None]
    solution: str
    facts: Mapping[str, str]
    combination: tuple[str, ...]
    """The names and values that make this task this one; a combination belongs to one split for ever."""
