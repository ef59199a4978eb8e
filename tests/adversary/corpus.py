"""Which cases of the corpus are played: one or more templates of every family that has its own tokenizer, and one of
each other family that can be spelled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from adversary.models import Files


def wanted(corpus: Path, only: list[str]) -> Iterator[Files]:
    from tugline.testing.corpus import cases

    for case in cases(corpus):
        if not only or any(word in case.name for word in only):
            yield Files(case.name, case.template, case.tokenizer_json, dict(case.specials), case.stop, case.real)
