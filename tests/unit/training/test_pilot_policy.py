"""The network's short cuts give the ordinary numbers, and the shipped model is complete."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tugline.tasks.families import FAMILIES, build  # noqa: E402
from tugline.training.pilot import MODEL_DIR  # noqa: E402
from tugline.training.pilot.conversation import STOP, Encoded, template_text  # noqa: E402
from tugline.training.pilot.evaluate import wilson  # noqa: E402
from tugline.training.pilot.formats import Head  # noqa: E402
from tugline.training.pilot.policy import CONTEXT, Sampler, Shape, new_model, prefix_loss  # noqa: E402
from tugline.training.pilot.recipe import first_prompt, prefix_text, rate_share  # noqa: E402

TINY = Shape(vocab=64, hidden=32, layers=2, heads=2, kv_heads=1, head_dim=16, mlp=48)


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return new_model(TINY, stop_id=1, pad_id=0)


def encoded(size: int, seed: int) -> Encoded:
    rng = np.random.default_rng(seed)
    sampled = rng.random(size) < 0.5
    sampled[0], sampled[-1] = False, True
    return Encoded(rng.integers(2, 64, size).astype(np.int32), sampled)


def ordinary_loss(model: Any, prefix: list[int], batch: list[Encoded], weights: Any) -> Any:
    """Each sequence alone and whole, without cache or padding."""
    total, count = torch.zeros(()), torch.zeros(())
    for one in batch:
        ids = torch.tensor([[*prefix, *one.ids.tolist()]])
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0], -1)
        for i in np.flatnonzero(one.sampled):
            token = int(one.ids[i])
            weight = 1.0 if weights is None else weights[token]
            total = total - weight * logprobs[len(prefix) + int(i) - 1, token]
            count = count + weight
    return total / count


@pytest.mark.parametrize("prefix_size", [0, 1, 37])
@pytest.mark.parametrize("weighted", [False, True])
def test_prefix_loss_and_its_gradient_are_those_of_whole_sequences(
    model: Any, prefix_size: int, weighted: bool
) -> None:
    prefix = np.random.default_rng(9).integers(2, 64, prefix_size).tolist()
    batch = [encoded(size, seed) for seed, size in enumerate((11, 5, 23))]
    weights = torch.linspace(0.5, 3.0, 64) if weighted else None

    model.zero_grad()
    plain = ordinary_loss(model, prefix, batch, weights)
    plain.backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    shared = prefix_loss(model, prefix, batch, weights)
    shared.backward()

    assert shared.item() == pytest.approx(plain.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name], rtol=1e-3, atol=1e-5)


def test_greedy_turns_are_those_of_the_whole_forward(model: Any) -> None:
    prefix = list(range(2, 30))
    rows = [[5, 6, 7], [9, 8, 7, 6, 5, 4, 3], [11]]
    turns = Sampler(model, prefix, stop_id=1, temperature=0.0).turns(rows, 12, torch.Generator())
    for row, turn in zip(rows, turns, strict=True):
        assert turn
        so_far = [*prefix, *row]
        for token in turn:
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([so_far])).logits[0, -1]
            assert logits[token] >= logits.max() - 1e-4
            so_far.append(token)
        assert turn[-1] == 1 or len(turn) == 12


def test_sampling_repeats_with_its_generator(model: Any) -> None:
    sampler = Sampler(model, [3, 4], stop_id=1)
    first = sampler.turns([[5], [6, 7]], 8, torch.Generator().manual_seed(4))
    again = sampler.turns([[5], [6, 7]], 8, torch.Generator().manual_seed(4))
    other = sampler.turns([[5], [6, 7]], 8, torch.Generator().manual_seed(5))
    assert first == again
    assert first != other


def test_rate_rises_stays_and_falls() -> None:
    shares = [rate_share(step, 300) for step in range(300)]
    assert shares[0] < 0.1
    assert shares[20:200] == [1.0] * 180
    assert all(a >= b for a, b in pairwise(shares[200:]))
    assert 0 < shares[-1] < 0.05


def test_wilson_interval() -> None:
    low, high = wilson(80, 200)
    assert (low, high) == (pytest.approx(0.3346, abs=1e-3), pytest.approx(0.4691, abs=1e-3))
    assert wilson(0, 20)[0] == 0.0
    assert wilson(20, 20)[1] == pytest.approx(1.0)
    assert wilson(0, 0) == (0.0, 1.0)


def test_the_shared_prefix_ends_where_the_user_turn_begins() -> None:
    head = Head("You act.", ({"type": "function", "function": {"name": "read", "description": "", "parameters": {}}},))
    for family in FAMILIES:
        prompt = first_prompt(head, build(family, 0, "heldout").instruction)
        assert prompt.startswith(prefix_text(head) + "<|im_start|>user\n")
        assert prompt.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_shipped_model_is_complete_and_small() -> None:
    files = {p.name for p in MODEL_DIR.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tugline.json"} <= files
    assert sum(p.stat().st_size for p in MODEL_DIR.iterdir()) <= 8_000_000
    note = json.loads((MODEL_DIR / "tugline.json").read_text())
    assert (note["parser"], note["stop"], note["context"]) == ("qwen3", [STOP], CONTEXT)
    assert note["harnesses"] == ["pi"]
    assert (MODEL_DIR / "chat_template.jinja").read_text() == template_text()


def test_shipped_model_loads_and_ends_its_turns_with_the_stop_token() -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL_DIR)
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL_DIR)
    assert sum(p.numel() for p in model.parameters()) <= 1_050_000
    stop = tokenizer.convert_tokens_to_ids(STOP)
    assert model.generation_config.eos_token_id == stop
    assert tokenizer.eos_token_id == stop
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": build("create-file", 0, "heldout").instruction}],
        add_generation_prompt=True,
        tokenize=False,
    )
    ids = tokenizer.encode(text, add_special_tokens=False)
    turns = Sampler(model, ids[:-1], stop).turns([ids[-1:]] * 8, 160, torch.Generator().manual_seed(0))
    assert all(turn[-1] == stop for turn in turns)
