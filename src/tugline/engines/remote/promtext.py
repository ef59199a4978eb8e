"""Numbers out of Prometheus text. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection

from prometheus_client.parser import text_string_to_metric_families

from tugline.core.errors import EngineError


def totals(text: str, names: Collection[str], highest: Collection[str] = ()) -> dict[str, float]:
    """{name: sum over its label sets} of the series asked for; of those in `highest` the greatest value instead, as
    shares do not add up. A counter counts under its name with or without `_total`; NaN counts for nothing. Raises
    EngineError."""
    found: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name if sample.name in names else sample.name.removesuffix("_total")
                if name in names and not math.isnan(sample.value):
                    before = found.get(name, 0.0)
                    found[name] = max(before, sample.value) if name in highest else before + sample.value
    except (ValueError, IndexError, KeyError) as err:
        raise EngineError(f"the engine's metrics cannot be read: {err}", fault="unreadable") from err
    return found
