"""Adversarial sessions of one model, in every dialect and mode."""

from __future__ import annotations

import random
from pathlib import Path

from adversary.models import Subject
from adversary.plan import hostile_texts, plan
from adversary.play import DIALECT_NAMES, MODES, play, stage
from adversary.tally import Tally, count_up


async def sessions(
    one: Subject, scratch: Path, turns: int, seeds: range, modes: tuple[str, ...] = MODES
) -> list[Tally]:
    """Every dialect in every mode, one session per seed."""
    found: list[Tally] = []
    hostile = hostile_texts(sorted(one.model.codec.control), random.Random(one.name))
    for live in (False, True):
        chosen = [m for m in modes if (m == "live") == live]
        if not chosen:
            continue
        async with stage(one.folder, one.model, scratch / f"run-{live}", live) as at:
            for mode in chosen:
                for dialect in DIALECT_NAMES:
                    names = []
                    for seed in seeds:
                        name = f"ses_{mode}_{dialect}_{seed}"
                        moves = plan(f"{one.name}/{name}", turns, one.can, one.family, hostile)
                        await play(at, name, dialect, mode, moves, one.can.tools)
                        names.append(name)
                    tally = Tally(one.name, one.family.name, dialect, mode, one.can.tools, one.real)
                    count_up(tally, at, names)
                    found.append(tally)
    return found
