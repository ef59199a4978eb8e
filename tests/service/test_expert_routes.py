"""Routed experts from an engine's replies to the rows: for every token, in its place, or not at all."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from property.views_wire import Talk, User
from service.engine_kit import At, engine
from service.test_hopping import SCRIPT, TOOLS, answered, call, kept
from service.wire_kit import DIALECT_NAMES, assert_exact
from tugline.core.columns import count, ids_list
from tugline.core.trace import Trace
from tugline.engines.journal import JournalIndex
from tugline.rollout.proof import prove_run
from tugline.rollout.trajectory_json import decode_trajectory, encode_trajectory
from tugline.testing.vllm_server import experts_of

SHAPE = (3, 2)


async def talk(at: At, dialect: str, turns: int) -> None:
    """A conversation with tools."""
    rng = random.Random(1)
    said = Talk(("Be brief. ",), TOOLS, (User(("Begin.",)),))
    for _ in range(turns):
        turn = await call(at.run, at.http, f"{at.run.gateway.url}/s/{at.key}", dialect, said)
        said = answered(said, kept(turn), rng)


def rows(at: At) -> list[Trace]:
    return list(at.run.store.trajectory("ses_a").traces)  # type: ignore[union-attr]


def assert_routed(row: Trace) -> None:
    """The server's experts follow from the token alone."""
    assert row.routed_experts is not None
    tokens = ids_list(row.token_ids)
    assert (row.routed_experts.start, row.routed_experts.end) == (0, len(tokens) - 1)
    assert row.routed_experts.array().tolist() == [experts_of(token, *SHAPE) for token in tokens[:-1]]


@pytest.mark.parametrize("scale_out", [True, False], ids=["generate", "completions"])
@pytest.mark.parametrize("dialect", DIALECT_NAMES)
async def test_every_token_of_a_row_has_its_own(tmp_path: Path, dialect: str, scale_out: bool) -> None:
    async with engine(tmp_path, "vllm", SCRIPT, experts=SHAPE, scale_out=scale_out) as at:
        await talk(at, dialect, 8)
        turns = at.run.turns()
        for turn in turns:
            assert turn.routes is not None
            assert turn.routes.start == max(0, turn.keep - 1)
            assert turn.routes.end == turn.prompt_len + count(turn.sampled) - 1
        asked = [(g.get("sampling_params") or g).get("routed_experts_prompt_start", 0) for g in seen(at)]
        assert asked == [max(0, turn.keep - 1) for turn in turns], "what is known is not sent again"
        assert_exact(await at.run.prove(), calls=8)
        (row,) = rows(at)
        assert_routed(row)
        stored = at.run.store.trajectory("ses_a")
        assert stored is not None and decode_trajectory(encode_trajectory(stored)) == stored


def seen(at: At) -> list[dict[str, Any]]:
    return at.served.server.seen.generations


async def test_a_dense_model_has_none_and_is_asked_for_none(tmp_path: Path) -> None:
    async with engine(tmp_path, "vllm", SCRIPT) as at:
        await talk(at, "chat", 3)
        assert all(t.routes is None for t in at.run.turns())
        assert not any("routed_experts_prompt_start" in str(g) for g in seen(at))
        assert_exact(await at.run.prove(), calls=3)
        (row,) = rows(at)
        assert row.routed_experts is None and "routes_incomplete" not in row.drift


@pytest.mark.parametrize("dialect", DIALECT_NAMES)
@pytest.mark.parametrize(("fault", "why"), [("short_routes", "routes_mismatch"), ("wrong_routes", "routes_unreadable")])
async def test_untrue_routes_never_train(tmp_path: Path, dialect: str, fault: str, why: str) -> None:
    async with engine(tmp_path, "vllm", SCRIPT, experts=SHAPE, faults=[fault]) as at:
        await talk(at, dialect, 3)
        assert [t.untrainable for t in at.run.turns()] == [why, None, None]
        assert at.faults() == {why: 1}
        await at.run.prove()
        (row,) = rows(at)
        assert row.routed_experts is None and row.drift["routes_incomplete"] == 1


async def test_records_that_differ_from_the_engines_are_found(tmp_path: Path) -> None:
    async with engine(tmp_path, "vllm", SCRIPT, experts=SHAPE) as at:
        await talk(at, "chat", 2)
        assert (await at.run.prove()).findings == []
        file = sorted((at.run.run / "engine" / "experts").iterdir())[-1]
        whole = file.read_bytes()
        for damaged, kind in ((whole[:-1] + bytes([whole[-1] ^ 1]), "routes"), (whole[:-1], "journal")):
            file.write_bytes(damaged)
            found = prove_run(at.run.store, JournalIndex(at.run.run / "engine").get).findings
            assert len(found) == 1 and kind in found[0].kind, found
        file.unlink()
        found = prove_run(at.run.store, JournalIndex(at.run.run / "engine").get).findings
        assert [f.kind for f in found] == ["routes"]
