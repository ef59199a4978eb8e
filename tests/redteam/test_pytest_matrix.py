"""Work that attacks the tests that judge it. The right work, judged the same way, is worth 1."""

from __future__ import annotations

import asyncio

import pytest

from redteam.attacks import GOOD, INIT, PYTEST, Attack
from redteam.range import make_task, shooting_range

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("attack", PYTEST, ids=lambda a: a.name)
async def test_attack(provider, attack: Attack, tmp_path):
    task = await asyncio.to_thread(make_task, tmp_path / "task", "pytest")
    async with shooting_range(provider, tmp_path) as range_:
        box, _, _ = await range_.attack(task, attack)
        try:
            judged = await range_.judge(task, box, 8.0 if attack.name == "hang" else 150.0)
        finally:
            await box.close()
    assert judged.verdict.reward == 0.0
    if attack.flag:
        assert f"!{attack.flag}" in judged.marks
    if attack.mark:
        assert attack.mark in judged.marks


@pytest.mark.parametrize("name", ["honest", "conftest-hook", "ini-plugin", "overwrite-tests", "poisoned-bytecode"])
async def test_right_work_is_worth_one_whatever_lies_beside_it(provider, name, tmp_path):
    attack = next((a for a in PYTEST if a.name == name), Attack("honest", "", ""))
    right = Attack(name, "", "", attack.script, {**attack.files, INIT: GOOD})
    task = await asyncio.to_thread(make_task, tmp_path / "task", "pytest")
    async with shooting_range(provider, tmp_path) as range_:
        box, _, _ = await range_.attack(task, right)
        try:
            judged = await range_.judge(task, box)
        finally:
            await box.close()
    assert judged.verdict.reward == 1.0, judged
    assert not [m for m in judged.marks if m.startswith("!")]
