"""Adversarial sessions of 20 turns in four dialects: exact always, continuous wherever the agent kept the meaning.

With the shipped policy's tokenizer everywhere; with real templates and tokenizers where TUGLINE_TEST_CORPUS names a
folder that `python -m tugline.testing.corpus fetch` has filled. TUGLINE_TEST_SEEDS raises the number of sessions.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from adversary.corpus import PLAYED, wanted
from adversary.models import Subject, known, subject
from adversary.run import sessions
from adversary.tally import EMPTY, Tally, unexplained
from tugline.cli.wiring import PILOT

CORPUS = os.environ.get("TUGLINE_TEST_CORPUS")
SEEDS = int(os.environ.get("TUGLINE_TEST_SEEDS", "1"))


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
@pytest.mark.skipif(CORPUS is None, reason="TUGLINE_TEST_CORPUS names no folder of templates and tokenizers")
@pytest.mark.parametrize("name", PLAYED)
@pytest.mark.timeout(120 + 120 * SEEDS)
async def test_real_templates_and_tokenizers(tmp_path: Path, name: str) -> None:
    found = [files for files in wanted(Path(CORPUS or ""), [name]) if files.name == name]
    if not found:
        pytest.skip(f"the corpus was fetched without {name}")
    await check_all(subject(found[0], tmp_path / "model"), tmp_path)
