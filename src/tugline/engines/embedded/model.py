"""A transformers decoder over a cache of slots. One forward serves any mix of prompt chunks and single tokens.

The tokens of all segments form one row without padding; our attention function cuts it up again, so that each segment
attends to its own slot and to no more of it than it needs. The model's code is transformers' own.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AttentionInterface, AutoModelForCausalLM, Cache

from tugline.core.columns import Ids
from tugline.core.errors import EngineError
from tugline.engines.embedded.sampling import processed
from tugline.engines.embedded.slots import Segment
from tugline.engines.embedded.wire import Draw

_SCORED_AT_ONCE = 1024
"""Rows of the vocabulary-wide logits that re-scoring turns into log-probabilities at a time."""


class SlotModel:
    """Weights and cache. float32; not thread-safe."""

    def __init__(self, model_dir: Path, *, slots: int, context: int, device: str = "cpu") -> None:
        """Loads from local files only. Raises EngineError for a kind of attention that slots cannot hold."""
        self._model = AutoModelForCausalLM.from_pretrained(
            model_dir, local_files_only=True, dtype=torch.float32, attn_implementation="sdpa", use_safetensors=True
        )
        self._model.to(device).eval().requires_grad_(False)
        kinds = set(getattr(self._model.config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"} or getattr(self._model.config, "sliding_window", None):
            raise EngineError(f"the embedded engine cannot run attention of kind {sorted(kinds)}", retryable=False)
        names = inspect.signature(type(self._model).forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"  # renamed within transformers 5
        self._cache = _SlotCache(slots, context)
        self._name = f"tugline_slots_{id(self._cache):x}"
        AttentionInterface.register(self._name, self._cache.attend)
        self._device = device

    def forward(self, segments: Sequence[Segment], wanted: Sequence[int]) -> Any:
        """Run all segments; float32[len(wanted), V] logits after the last token of the segments `wanted`."""
        plan = self._cache.plan = _Plan.of(segments, self._device)
        ends = torch.tensor([plan.at[i + 1] - 1 for i in wanted], dtype=torch.long, device=self._device)
        with torch.inference_mode(), self._attention(self._name):
            out = self._model(
                input_ids=plan.ids,
                position_ids=plan.positions[None],
                attention_mask=None,
                use_cache=True,
                logits_to_keep=ends,
                **{self._cache_argument: self._cache},
            )
        return out.logits[0]

    def copy(self, source: int, target: int, tokens: int) -> None:
        """The first `tokens` of slot `source` become those of `target`."""
        with torch.inference_mode():
            for store in (*self._cache.keys, *self._cache.values):
                store[target, :, :tokens] = store[source, :, :tokens]

    def score(self, row: Ids, draw: Draw) -> Any:
        """float32[T - 1]: log-probabilities of tokens 1.. in one plain forward, without the slots."""
        tokens = torch.frombuffer(bytearray(row), dtype=torch.int32).long().to(self._device)
        with torch.inference_mode(), self._attention("sdpa"):
            logits = self._model(input_ids=tokens[None], use_cache=False).logits[0]
        parts = []
        for at in range(0, len(tokens) - 1, _SCORED_AT_ONCE):
            block = logits[at : min(at + _SCORED_AT_ONCE, len(tokens) - 1)]
            logprobs = processed(block, [draw] * len(block))
            parts.append(logprobs.gather(1, tokens[at + 1 : at + 1 + len(block), None])[:, 0])
        return torch.cat(parts)

    def load(self, path: Path) -> None:
        """Copy a safetensors file or directory into the live weights. Raises EngineError; nothing has changed then."""
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        live = dict(self._model.named_parameters(remove_duplicate=False))
        live.update((n, b) for n, b in self._model.named_buffers() if n in self._model.state_dict())
        fresh: dict[str, Any] = {}
        for file in files:
            with safe_open(file, framework="pt") as tensors:
                fresh.update((name, tensors.get_tensor(name)) for name in tensors.keys())  # noqa: SIM118
        filled = {live[name].data_ptr() for name in fresh if name in live}  # tied weights come once
        missing = [name for name, tensor in live.items() if tensor.data_ptr() not in filled]
        wrong = [n for n, t in fresh.items() if n not in live or live[n].shape != t.shape]
        if not files or missing or wrong:
            raise EngineError(
                f"weights at {path} do not fit: missing {missing[:3]}, wrong {wrong[:3]}", retryable=False
            )
        with torch.no_grad():
            for name, tensor in fresh.items():
                live[name].copy_(tensor)

    @contextmanager
    def _attention(self, name: str) -> Iterator[None]:
        # layers look the function up by this name at each call
        config = self._model.config
        before = config._attn_implementation
        config._attn_implementation = name
        try:
            yield
        finally:
            config._attn_implementation = before


@dataclass(frozen=True, slots=True)
class _Plan:
    """One forward. `at`: where each segment starts in the row; slots and positions int64[T] per token."""

    segments: Sequence[Segment]
    at: list[int]
    ids: Any
    slots: Any
    positions: Any

    @classmethod
    def of(cls, segments: Sequence[Segment], device: str) -> _Plan:
        at: list[int] = [0]
        slots: list[int] = []
        positions: list[int] = []
        for s in segments:
            size = len(s.tokens) // 4
            slots += [s.slot] * size
            positions += range(s.start, s.start + size)
            at.append(at[-1] + size)
        ids = torch.frombuffer(bytearray(b"".join(s.tokens for s in segments)), dtype=torch.int32)
        return cls(
            segments,
            at,
            ids.long()[None].to(device),
            torch.tensor(slots, dtype=torch.long, device=device),
            torch.tensor(positions, dtype=torch.long, device=device),
        )


class _SlotCache(Cache):  # type: ignore[misc]  # transformers has no types here
    """Keys and values per layer: [slots, heads, context, width], allocated when a forward first shows their shapes."""

    def __init__(self, slots: int, context: int) -> None:
        super().__init__(layers=[])
        self.shape = (slots, context)
        self.keys: list[Any] = []
        self.values: list[Any] = []
        self.plan: _Plan | None = None

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Write the row's keys and values [1, heads, T, width] to their slots; returns views for `_attend`."""
        plan = self.plan
        if plan is None:
            raise EngineError("no forward was planned", retryable=False)
        if layer_idx == len(self.keys):
            slots, context = self.shape
            for stores, new in ((self.keys, key_states), (self.values, value_states)):
                # never touched pages of an empty tensor cost no memory
                size = (slots, new.shape[1], context, new.shape[3])
                stores.append(torch.empty(size, dtype=new.dtype, device=new.device))
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        keys[plan.slots, :, plan.positions] = key_states[0].transpose(0, 1)
        values[plan.slots, :, plan.positions] = value_states[0].transpose(0, 1)
        return keys, values

    def attend(
        self, module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any
    ) -> tuple[Any, None]:
        """transformers' attention signature; `key` and `value` are the layer's whole stores.

        query [1, heads, T, width] -> [1, T, heads, width]. Causal.
        """
        plan = self.plan
        if plan is None or options.get("softcap") or options.get("s_aux") is not None:
            raise EngineError("the embedded engine cannot run this model's attention", retryable=False)
        scaling = options.get("scaling") or query.shape[-1] ** -0.5
        heads, total = query.shape[1], query.shape[2]
        out = query.new_empty(total, heads, value.shape[-1])
        scaled = query[0] * scaling
        for segment, start, end in zip(plan.segments, plan.at, plan.at[1:], strict=False):
            seen = segment.start + end - start
            k, v = key[segment.slot, :, :seen], value[segment.slot, :, :seen]
            if end - start == 1:
                grouped = scaled[:, start].view(k.shape[0], -1, k.shape[-1])  # heads that share keys lie side by side
                weights = torch.bmm(grouped, k.transpose(1, 2)).softmax(-1)
                out[start] = torch.bmm(weights, v).view(heads, -1)
            else:
                out[start:end] = _chunk(scaled[:, start:end], k, v, segment.start)
        return out[None], None


def _chunk(query: Any, key: Any, value: Any, start: int) -> Any:
    """Causal attention of a prompt chunk: query [heads, n, width] at positions start.. -> [n, heads, width]."""
    n, repeat = query.shape[1], query.shape[0] // key.shape[0]
    mask = torch.ones(n, start + n, dtype=torch.bool, device=query.device).tril(start) if start else None
    out = torch.nn.functional.scaled_dot_product_attention(
        query[None],
        key.repeat_interleave(repeat, 0)[None],
        value.repeat_interleave(repeat, 0)[None],
        attn_mask=mask,
        is_causal=mask is None,
        scale=1.0,
    )
    return out[0].transpose(0, 1)
