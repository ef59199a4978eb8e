"""Families of small file tasks that an agent solves with read, bash, edit and write tools.

An instance is a pure function of (family, index, split). The splits share their words, never a combination of them: the
same file name with the same value is either a training or a held-out task, decided by a hash. Instances are written as
ordinary Harbor task directories; the ones under `tasks/shipped` are the first of each family.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random

from tugline.core.errors import NotFound
from tugline.tasks.families.harbor import files_of, write
from tugline.tasks.families.instance import Instance, Split
from tugline.tasks.families.rules import RULES

__all__ = ["FAMILIES", "Instance", "Split", "build", "files_of", "generate", "generate_suite", "write"]

FAMILIES: tuple[str, ...] = tuple(RULES)

_HELDOUT_SHARE = 0.25
_SUITE_STRIDE = 10_000
"""Indices that one suite seed owns, so that suites of different seeds never share an instance."""


def build(family: str, index: int, split: Split) -> Instance:
    """The instance as a value. Raises NotFound for an unknown family."""
    rule = RULES.get(family)
    if rule is None:
        raise NotFound(f"no task family {family!r}; there are {', '.join(FAMILIES)}")
    rng = Random(f"{family}/{split}/{index}")
    while True:
        drawn = rule(rng)
        if _split_of(family, drawn.combination) == split:
            break
    return Instance(
        family=family,
        index=index,
        split=split,
        instruction=drawn.instruction,
        files=drawn.files,
        expected=drawn.expected,
        solution=drawn.solution,
        facts=drawn.facts,
    )


def generate(family: str, index: int, split: Split, out_dir: Path) -> Path:
    """Write one task under `out_dir` and return its directory. Raises NotFound, FileExistsError."""
    return write(build(family, index, split), out_dir)


def generate_suite(
    out_dir: Path, *, split: Split, count: int, seed: int = 0, families: tuple[str, ...] = FAMILIES
) -> list[Path]:
    """Write `count` tasks, the families in turn; the n-th task of a family has the index `seed * 10000 + n`."""
    return [
        generate(families[i % len(families)], seed * _SUITE_STRIDE + i // len(families), split, out_dir)
        for i in range(count)
    ]


def _split_of(family: str, combination: tuple[str, ...]) -> Split:
    digest = hashlib.sha256("\0".join((family, *combination)).encode()).digest()
    return "heldout" if int.from_bytes(digest[:4]) < _HELDOUT_SHARE * 2**32 else "train"
