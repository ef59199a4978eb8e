"""Logits to tokens. The log-probabilities given are those of the distribution drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tugline.engines.embedded.wire import Draw


def processed(logits: Any, draws: Sequence[Draw]) -> Any:
    """float32[n, V] log-probabilities after temperature, then top-k, then top-p, one `Draw` per row.

    Greedy rows (temperature 0) keep the model's own distribution: of the one that was drawn from, all mass on one
    token, log-probabilities would say nothing.
    """
    heat = [d.temperature if d.temperature > 0 else 1.0 for d in draws]
    logits = logits.float()
    if any(h != 1.0 for h in heat):
        logits = logits / torch.tensor(heat, device=logits.device)[:, None]
    rows = [i for i, d in enumerate(draws) if d.temperature > 0 and (d.top_p < 1.0 or 0 < d.top_k < logits.shape[1])]
    if rows:
        logits = logits.clone()
        logits[rows] = _cut(logits[rows], [draws[i] for i in rows])
    return torch.log_softmax(logits, dim=-1)


def sample(logits: Any, draws: Sequence[Draw], uniform: Sequence[float]) -> tuple[list[int], list[float]]:
    """(id, its log-probability in nats) per row of logits [n, V]."""
    logprobs = processed(logits, draws)
    picked = choose(logprobs, draws, uniform)
    own = logprobs.gather(1, torch.tensor(picked, device=logprobs.device)[:, None])[:, 0]
    return picked, own.tolist()


def choose(logprobs: Any, draws: Sequence[Draw], uniform: Sequence[float]) -> list[int]:
    """One id per row: the likeliest one at temperature 0, else by inverse transform of `uniform` in [0, 1).

    A row's id depends on its own logits and number only, so batch-mates cannot change it.
    """
    picked = logprobs.argmax(-1)
    if any(d.temperature > 0 for d in draws):
        mass = logprobs.double().exp().cumsum(-1)
        total = mass[:, -1:]
        at = torch.tensor(uniform, dtype=torch.float64, device=mass.device)[:, None] * total
        at = torch.minimum(at, torch.nextafter(total, torch.zeros_like(total)))  # rounding must not pass the last one
        drawn = torch.searchsorted(mass, at, right=True)[:, 0]
        warm = torch.tensor([d.temperature > 0 for d in draws], device=mass.device)
        picked = torch.where(warm, drawn, picked)
    return [int(i) for i in picked.tolist()]


def _cut(logits: Any, draws: Sequence[Draw]) -> Any:
    """Minus infinity outside top-k, and outside the smallest set that holds top-p of what is left."""
    size = logits.shape[1]
    order = torch.sort(logits, dim=-1, descending=True, stable=True)
    values = order.values
    ks = torch.tensor([d.top_k if 0 < d.top_k < size else size for d in draws], device=logits.device)
    values = values.masked_fill(torch.arange(size, device=logits.device)[None] >= ks[:, None], -torch.inf)
    mass = torch.softmax(values, dim=-1)
    before = mass.cumsum(-1) - mass
    ps = torch.tensor([d.top_p for d in draws], device=logits.device)
    drop = (before >= ps[:, None]) & (ps < 1.0)[:, None]
    drop[:, 0] = False  # top_p 0 still leaves the likeliest one
    values = values.masked_fill(drop, -torch.inf)
    return torch.full_like(logits, -torch.inf).scatter(-1, order.indices, values)
