"""Routed experts out of a real vLLM, with a small mixture of experts that was never trained: `make vllm`."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from property.views_wire import Talk, User
from real.test_vllm import TOOLS, driver
from real.vllm_kit import ASKED, routed, served
from service.test_hopping import answered, call, kept
from service.wire_kit import assert_exact, wire
from tugline.cli.wiring import PILOT
from tugline.core.columns import count

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.soak,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not ASKED, reason="TUGLINE_TEST_VLLM is not set: it installs and starts vLLM"),
]
LAYERS, EXPERTS, PICKS = 2, 8, 2


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights; the pilot's tokenizer and template."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    path = tmp_path_factory.mktemp("model") / "mixture"
    shutil.copytree(PILOT, path, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    pilot = json.loads((PILOT / "config.json").read_text())
    torch.manual_seed(7)
    config = Qwen3MoeConfig(
        vocab_size=pilot["vocab_size"], hidden_size=128, intermediate_size=256, moe_intermediate_size=64,
        num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_experts=EXPERTS,
        num_experts_per_tok=PICKS, max_position_embeddings=4096, tie_word_embeddings=False,
        eos_token_id=pilot.get("eos_token_id"), initializer_range=0.2, decoder_sparse_step=1, norm_topk_prob=True,
    )  # fmt: skip
    Qwen3MoeForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def url(mixture: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(mixture, tmp_path_factory.mktemp("log") / "vllm.log", "--experts") as url:
        yield url


async def test_a_rows_experts_are_those_of_another_program(url: str, mixture: Path, tmp_path: Path) -> None:
    made = driver(url, mixture, tmp_path / "run" / "engine")
    async with wire(tmp_path, [{"text": "x"}], model_files=mixture, engine=lambda _: made) as run:
        assert made.abilities is not None and made.abilities.routes
        async with aiohttp.ClientSession() as http:
            access = await run.session(max_tokens=32)
            talk = Talk(("Be brief.",), TOOLS, (User(("Copy the text of notes.txt to result.txt.",)),))
            for _ in range(4):
                turn = await call(run, http, access.secret_url, "chat", talk)
                talk = answered(talk, kept(turn), random.Random(1))
        turns = run.turns()
        assert [t.untrainable for t in turns] == [None] * 4
        assert all(t.routes is not None and t.routes.start == max(0, t.keep - 1) for t in turns)
        assert_exact(await run.prove(), calls=4)
        (row,) = run.store.iter_traces("ses_a")
        assert row.routed_experts is not None
        found = row.routed_experts.array()
        assert found.shape == (count(row.token_ids) - 1, LAYERS, PICKS) and found.max() < EXPERTS
        other = await asyncio.to_thread(routed, mixture, row.token_ids, PICKS)
        same = sum(
            set(a) == set(b)
            for x, y in zip(found.tolist(), other.tolist(), strict=True)
            for a, b in zip(x, y, strict=True)
        )
        print(f"{found.shape}: {same} of {found.shape[0] * LAYERS} picks as transformers routes the row")
        assert same >= 0.99 * found.shape[0] * LAYERS, "but for ties"
