"""Where tests find the corpus of real chat templates and tokenizers.

`TUGLINE_CORPUS`, or else `.cache/corpus` in the repository, filled by
`python -m tugline.testing.corpus fetch .cache/corpus --only small`.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from tugline.core.errors import ConfigError
from tugline.testing.corpus import Case, cases, tokenizers

FOLDER = Path(os.environ.get("TUGLINE_CORPUS", Path(__file__).parent.parent / ".cache" / "corpus"))
HOW = f"no corpus: python -m tugline.testing.corpus fetch {FOLDER} --only small"


@cache
def corpus_cases() -> tuple[Case, ...]:
    """Every case that is there; none without a corpus. For parametrize."""
    try:
        return tuple(cases(FOLDER))
    except ConfigError:
        return ()


@cache
def corpus_tokenizers() -> dict[str, bytes]:
    """Every real tokenizer that is there."""
    try:
        return tokenizers(FOLDER)
    except ConfigError:
        return {}


def each(found: tuple[Case, ...] | list[Case]) -> list[object]:
    """Parameters for a test per case; one that skips itself where there is none."""
    if not found:
        return [pytest.param(None, marks=pytest.mark.skip(reason=HOW))]
    return [pytest.param(case, id=case.name) for case in found]
