"""Adversarial sessions of 20 turns in four dialects: exact always, continuous wherever the agent kept the meaning.

With the shipped policy's tokenizer everywhere; with real templates and tokenizers where the corpus is (see corpus_kit),
one of each large family, or all with TUGLINE_TEST_SEEDS, which also raises the number of sessions.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from adversary.corpus import PLAYED, SMALL, wanted
from adversary.models import Subject, known, subject
from adversary.run import sessions
from adversary.tally import EMPTY, Tally, unexplained
from corpus_kit import FOLDER, HOW, corpus_cases
from tugline.cli.wiring import PILOT

SEEDS = int(os.environ.get("TUGLINE_TEST_SEEDS", "1"))
NAMES = PLAYED if "TUGLINE_TEST_SEEDS" in os.environ else SMALL


def check(tally: Tally) -> None:
    where = f"{tally.model}, {tally.dialect}, {tally.mode}: {tally.examples}"
    assert tally.refused == {}, where
    assert tally.findings == {} and tally.exact == tally.calls == 20 * tally.sessions, where
    assert unexplained(tally) == {}, where
    assert tally.rows == tally.continuous_rows, where


async def check_all(one: Subject, scratch: Path) -> None:
    for tally in await sessions(one, scratch, 20, range(SEEDS)):
        check(tally)


@pytest.mark.timeout(60 + 60 * SEEDS)
async def test_the_shipped_policys_format(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(PILOT, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    facts = json.loads((folder / "tugline.json").read_text())
    (folder / "tugline.json").write_text(json.dumps(facts | {"context": 1_000_000}))
    one = known("pilot", folder, real=True)
    assert one.can.tools and one.can.reasoning and one.can.parallel
    for tally in await sessions(one, tmp_path, 20, range(SEEDS)):
        check(tally)
        assert set(tally.breaks) <= {EMPTY} and set(tally.levels) == {"L4"}


@pytest.mark.corpus
@pytest.mark.real
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(120 + 120 * SEEDS)
async def test_real_templates_and_tokenizers(tmp_path: Path, name: str) -> None:
    if not any(case.name == name for case in corpus_cases()):
        pytest.skip(f"{name} is not there; {HOW}")
    found = [files for files in wanted(FOLDER, [name]) if files.name == name]
    await check_all(subject(found[0], tmp_path / "model"), tmp_path)
