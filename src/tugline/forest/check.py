"""What must hold of every sample before its tokens may train (V1-V3). A failure never fails the agent's call."""

from __future__ import annotations

import numpy as np

from tugline.core.columns import count, floats_array, ids_array, last
from tugline.core.contracts import EngineInfo, Generation, Sample

LOGPROB_SLACK = 1e-4
"""Nats above 0 that float32 rounding may give."""


def check_sample(generation: Generation, sample: Sample, info: EngineInfo) -> str | None:
    """The reason why this call is untrainable, or None."""
    if sample.fault is not None:
        return sample.fault
    if sample.prompt_ids is None and info.level == "L4" and info.echoes_prompt:
        return "no_prompt_ids"
    if sample.prompt_ids is not None and sample.prompt_ids != generation.prompt_ids:
        return "engine_echo_mismatch"
    n = count(sample.ids)
    if n == 0:
        return "empty_sample"
    if len(sample.ids) % 4 or len(sample.logprobs) % 4 or count(sample.logprobs) != n:
        return "length_mismatch"
    values = floats_array(sample.logprobs)
    if np.isnan(values).all():
        return "no_logprobs"
    if not np.isfinite(values).all():
        return "nonfinite_logprob"
    if float(values.max()) > LOGPROB_SLACK:
        return "positive_logprob"
    tokens = ids_array(sample.ids)
    if int(tokens.min()) < 0 or int(tokens.max()) >= info.vocab:
        return "id_out_of_vocab"
    # an engine that takes messages has a stop set of its own, which nobody may know
    if sample.finish == "stop" and not generation.stop and info.stop_ids and last(sample.ids) not in info.stop_ids:
        return "bad_stop"
    if n > generation.sampling.max_tokens:
        return "too_many_tokens"
    starts = [start for start, _ in sample.version_runs]
    if not starts or starts[0] != 0 or starts != sorted(set(starts)) or starts[-1] >= n:
        return "bad_version_runs"
    return None if sample.routes is None or routes_fit(generation, sample) else "routes_mismatch"


def routes_fit(generation: Generation, sample: Sample) -> bool:
    """Whether a sample has routes for every token that was passed over, or for those that were asked for. Drivers count
    rows from the end: one too few or too many shows at the beginning."""
    routes = sample.routes
    last_passed = count(generation.prompt_ids) + count(sample.ids) - 1
    return routes is not None and routes.start in (0, generation.routes_from) and routes.end == last_passed
