"""The pilot's network: a Qwen3 of under a million parameters, its loss over a shared prefix, and its sampler.

A harness' prompt is over a thousand tokens and the same for every session of a batch. So it runs through the model
once per step, with gradient, and the sessions attend to its keys and values: the numbers of an ordinary forward
over whole sequences (a test holds them equal), at a fraction of the work.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3Model

from tugline.training.pilot.conversation import Encoded

CONTEXT = 4096
"""Tokens of prompt and answer together."""

_IGNORED = -100
_INITIAL_DEVIATION = 0.06
"""Three times the usual: at this width, copying from the prompt emerges much sooner."""

_COPIER_NOISE = 0.03

_CACHE_ARGUMENT = "cache" if "cache" in inspect.signature(Qwen3Model.forward).parameters else "past_key_values"
"""The name of the argument changed within transformers 5."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the network."""

    vocab: int = 1632
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    mlp: int = 256


def new_model(shape: Shape, stop_id: int, pad_id: int) -> Qwen3ForCausalLM:
    """A model with random float32 weights, drawn from torch's global generator."""
    config = Qwen3Config(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        bos_token_id=None,
        eos_token_id=stop_id,
        pad_token_id=pad_id,
        initializer_range=_INITIAL_DEVIATION,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    _start_as_copier(model)
    return model


def _start_as_copier(model: Qwen3ForCausalLM) -> None:
    """Begin with value and output projections near the identity, so that attending to a token already copies it.

    What is left to learn is where to look; from plain noise, copying each kind of word takes many times the steps.
    """
    config = model.config
    size, repeats = config.head_dim, config.num_attention_heads // config.num_key_value_heads
    identity = torch.eye(config.num_key_value_heads * size, config.hidden_size)
    with torch.no_grad():
        for layer in model.model.layers:
            attention = layer.self_attn
            attention.v_proj.weight.normal_(0.0, _COPIER_NOISE).add_(identity)
            attention.o_proj.weight.normal_(0.0, _COPIER_NOISE)
            for head in range(config.num_attention_heads):
                group = head // repeats
                part = identity[group * size : (group + 1) * size].T
                attention.o_proj.weight[:, head * size : (head + 1) * size].add_(part, alpha=1.0 / repeats)


def prefix_loss(
    model: Qwen3ForCausalLM, prefix: Sequence[int], batch: Sequence[Encoded], weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Mean cross-entropy over the sampled tokens of `batch`, whose sequences all follow `prefix`.

    `prefix` may be empty. A sequence's first token must not be a sampled one, since nothing of it predicts that token.
    `weights` float32[vocab]: how much a token counts in the mean; None: all alike.
    """
    ids, targets = _padded(batch)
    cache = DynamicCache()
    if prefix:
        _forward(model, torch.tensor([list(prefix)]), cache)
        cache.batch_repeat_interleave(len(batch))
    hidden = _forward(model, ids, cache)
    wanted = targets[:, 1:] != _IGNORED
    logits = model.lm_head(hidden[:, :-1][wanted])
    return torch.nn.functional.cross_entropy(logits, targets[:, 1:][wanted], weight=weights)


def _forward(model: Qwen3ForCausalLM, ids: torch.Tensor, cache: DynamicCache, **more: torch.Tensor) -> torch.Tensor:
    """Last hidden states [B, T, H] of `ids`, which follow what `cache` holds; the cache grows by them."""
    return model.model(ids, use_cache=True, **{_CACHE_ARGUMENT: cache}, **more).last_hidden_state


def _padded(batch: Sequence[Encoded]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids int64[B, T] and targets int64[B, T], padded on the right, where nothing real attends to it."""
    longest = max(len(e.ids) for e in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.int64)
    targets = torch.full((len(batch), longest), _IGNORED, dtype=torch.int64)
    for row, encoded in enumerate(batch):
        size = len(encoded.ids)
        here = torch.from_numpy(encoded.ids).long()
        ids[row, :size] = here
        targets[row, :size] = torch.where(torch.from_numpy(encoded.sampled), here, _IGNORED)
    return ids, targets


class Sampler:
    """Samples turns of many sessions that share a prefix, with a key-value cache, at one temperature.

    `stop_id` ends a turn. Session rows are given as the ids after the prefix.
    """

    def __init__(self, model: Qwen3ForCausalLM, prefix: Sequence[int], stop_id: int, temperature: float = 1.0) -> None:
        self._model = model.eval()
        self._stop = stop_id
        self._temperature = temperature
        self._prefix = len(prefix)
        with torch.no_grad():
            self._head = DynamicCache()
            _forward(model, torch.tensor([list(prefix)]), self._head)

    def turns(self, rows: Sequence[Sequence[int]], max_tokens: int, rng: torch.Generator) -> list[list[int]]:
        """One sampled turn per row, its stop token included unless `max_tokens` came first."""
        with torch.inference_mode():
            return self._turns(rows, max_tokens, rng)

    def _turns(self, rows: Sequence[Sequence[int]], max_tokens: int, rng: torch.Generator) -> list[list[int]]:
        model, count = self._model, len(rows)
        longest = max(len(row) for row in rows)
        ids = torch.zeros(count, longest, dtype=torch.int64)
        mask = torch.ones(count, self._prefix + longest, dtype=torch.int64)
        for i, row in enumerate(rows):  # padded on the left of the row, so that every row ends at the same column
            ids[i, longest - len(row) :] = torch.tensor(list(row))
            mask[i, self._prefix : self._prefix + longest - len(row)] = 0
        cache = DynamicCache()
        for layer, source in enumerate(self._head.layers):
            cache.update(source.keys.repeat(count, 1, 1, 1), source.values.repeat(count, 1, 1, 1), layer)
        positions = (mask.cumsum(1) - 1)[:, self._prefix :].clamp(min=0)
        out: list[list[int]] = [[] for _ in rows]
        alive = set(range(count))
        for _ in range(max_tokens):
            hidden = _forward(model, ids, cache, attention_mask=mask, position_ids=positions)[:, -1]
            chosen = self._choose(model.lm_head(hidden), rng)
            for i in list(alive):
                out[i].append(int(chosen[i]))
                if out[i][-1] == self._stop:
                    alive.discard(i)
            if not alive:
                break
            ids, positions = chosen[:, None], positions[:, -1:] + 1
            mask = torch.cat([mask, torch.ones(count, 1, dtype=torch.int64)], dim=1)
        return out

    def _choose(self, logits: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
        if self._temperature == 0.0:
            return logits.argmax(-1)
        return torch.multinomial(torch.softmax(logits / self._temperature, -1), 1, generator=rng)[:, 0]
