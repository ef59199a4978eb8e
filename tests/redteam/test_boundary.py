"""Agents that try to get out, in, or at what is not theirs."""

from __future__ import annotations

import asyncio
import os
import secrets

import pytest

from redteam.attacks import BOUNDARY, SECRET, Attack
from redteam.range import LIMITS, host, make_task, shooting_range
from tugline.core.clock import Deadline
from tugline.core.contracts import Command
from tugline.core.errors import VerifierError

pytestmark = pytest.mark.timeout(300)

ENDLESS = {"outlive-the-limit": 2.0, "memory-bomb": 30.0, "fork-bomb": 10.0}


@pytest.mark.parametrize("attack", BOUNDARY, ids=lambda a: a.name)
async def test_attack(provider, attack: Attack, tmp_path):
    task = await asyncio.to_thread(make_task, tmp_path / "task", "harbor")
    async with host(tmp_path / "host") as world, shooting_range(provider, tmp_path) as range_:
        victim = await provider.start(task.environment, "ses_other", LIMITS)
        await victim.write("/app/secret.txt", SECRET.encode())
        token = secrets.token_hex(8)
        env = world.env | {"RANGE_TOKEN": token, "TASK_DIR": str(tmp_path / "task"), "RUN_DIR": str(tmp_path / "run"),
                           "VICTIM_FILES": str(tmp_path / "run" / "sandboxes")}  # fmt: skip
        box, ended, printed = await range_.attack(
            task, attack, env, world.listener("ses_attacker"), ENDLESS.get(attack.name, 40.0)
        )
        left = processes(token)
        try:
            try:
                judged = await range_.judge(task, box)
            except VerifierError as err:
                assert attack.may_die, err
                judged = None
            else:
                assert judged.verdict.reward == 0.0
            after = await world.kit.gateway.close("ses_victim")
            again = await provider.start(task.environment, "ses_next", LIMITS)
            try:
                files = Command(("/bin/sh", "-c", "ls -A; cat base.txt keep.txt"), {"PATH": "/usr/bin:/bin"},
                                stdout=tmp_path / "next.txt")  # fmt: skip
                assert (await again.run(files, Deadline.after(20))).code == 0
                assert await victim.read("/app/secret.txt") == SECRET.encode()
            finally:
                await again.close()
        finally:
            await box.close()
            await victim.close()
        assert SECRET not in printed
        assert "REACHED" not in printed
        assert "SENT" not in printed
        assert world.sink.heard == []
        assert after.turns == 0, "the victim's session has calls that are not its own"
        assert left == set(), "processes outlived the agent"
        assert sorted((tmp_path / "next.txt").read_text().split()) == ["base", "base.txt", "calc", "keep", "keep.txt"]
        if attack.mark and judged is not None and attack.mark.startswith(("edited", "link")):
            assert attack.mark in judged.marks
        if attack.name == "memory-bomb":
            assert ended.oom or ended.code != 0
        if attack.name == "outlive-the-limit":
            assert ended.timed_out


async def test_the_attacks_have_their_tools(provider, tmp_path):
    """An attack that fails for want of a program proves nothing."""
    task = await asyncio.to_thread(make_task, tmp_path / "task", "harbor")
    script = (
        "python3 -c 'import socket, urllib.request, json; print(6 * 7)' && git --version && setsid true && echo all"
    )
    async with shooting_range(provider, tmp_path) as range_:
        box, ended, printed = await range_.attack(task, Attack("tools", "", "", script))
        await box.close()
    assert (ended.code, "42" in printed, "all" in printed) == (0, True, True), printed


async def test_honest_work_is_worth_one(provider, tmp_path):
    task = await asyncio.to_thread(make_task, tmp_path / "task", "harbor")
    async with shooting_range(provider, tmp_path) as range_:
        box, _, _ = await range_.attack(task, Attack("honest", "", "", f"echo {SECRET} > answer.txt"))
        try:
            judged = await range_.judge(task, box)
        finally:
            await box.close()
    assert judged.verdict.reward == 1.0
    assert judged.marks == ()


def processes(token: str) -> set[str]:
    """Processes that have the token in their environment, which all descendants of the attack do."""
    found = set()
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                ours = token.encode() in file.read()
            with open(f"/proc/{name}/stat") as file:
                state = file.read().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if ours and state not in "ZX":
            found.add(name)
    return found
