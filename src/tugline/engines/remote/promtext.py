"""Numbers out of Prometheus text. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{[^}]*\})?\s+(\S+)")


def totals(text: str, names: Iterable[str]) -> dict[str, float]:
    """{name: sum over its label sets} of the series asked for. A counter counts under its name with or without
    `_total`; NaN counts for nothing."""
    wanted = set(names)
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            continue
        name = match.group(1) if match.group(1) in wanted else match.group(1).removesuffix("_total")
        if name not in wanted:
            continue
        try:
            value = float(match.group(2))
        except ValueError:
            continue
        if not math.isnan(value):
            found[name] = found.get(name, 0.0) + value
    return found
