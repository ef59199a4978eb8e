"""Work that makes its judge fail is judged all the same."""

from __future__ import annotations

import asyncio

import pytest

from redteam.attacks import Attack
from redteam.failing import STOPS, TREES
from redteam.range import make_task, shooting_range

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("verifier", ["harbor", "pytest"])
@pytest.mark.parametrize("attack", TREES, ids=lambda a: a.name)
async def test_tree(provider, attack: Attack, verifier, tmp_path):
    task = await asyncio.to_thread(make_task, tmp_path / "task", verifier)
    async with shooting_range(provider, tmp_path) as range_:
        box, ended, printed = await range_.attack(task, attack, seconds=100.0)
        try:
            assert ended.code == 0, printed
            judged = await range_.judge(task, box)
        finally:
            await box.close()
    assert judged.verdict.reward == 0.0
    if attack.mark:
        assert judged.marks == (attack.mark,)


@pytest.mark.parametrize("attack", STOPS, ids=lambda a: a.name)
async def test_judge(provider, attack: Attack, tmp_path):
    task = await asyncio.to_thread(make_task, tmp_path / "task", "pytest")
    async with shooting_range(provider, tmp_path) as range_:
        box, _, _ = await range_.attack(task, attack)
        try:
            judged = await range_.judge(task, box, 20.0 if attack.name == "stop-the-judge" else 150.0)
        finally:
            await box.close()
    assert judged.verdict.reward == 0.0
    if attack.flag:
        assert f"!{attack.flag}" in judged.marks
    if attack.mark:
        assert attack.mark in judged.marks
