"""Reading rewards that an attacker may have written: finite numbers or an error, never a guess."""

from __future__ import annotations

import json
import math

from tugline.core.contracts import Verdict
from tugline.core.errors import VerifierError

MAX_PARTS = 256


def from_json(data: bytes, name: str) -> Verdict:
    """A number, or a flat object of numbers. Raises VerifierError for anything else (booleans too)."""
    if not data.strip():
        raise VerifierError(f"{name} is empty")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as err:
        raise VerifierError(f"{name} is not valid JSON") from err
    if isinstance(value, dict):
        if not value or len(value) > MAX_PARTS:
            raise VerifierError(f"{name} has {len(value)} entries; 1 to {MAX_PARTS} are allowed")
        if any(not k.isprintable() for k in value):  # half a character cannot be stored either
            raise VerifierError(f"{name} has an entry whose name cannot be printed")
        parts = {k[:100]: _finite(v, f"{name}: {k[:100]!r}") for k, v in value.items()}
        return Verdict(_finite(_main(parts), f"the mean of {name}"), parts)
    number = _finite(value, name)
    return Verdict(number, {"reward": number})


def from_text(data: bytes, name: str) -> Verdict:
    """One number. Raises VerifierError when empty, not a number or not finite."""
    text = data.decode("utf-8", "replace").strip()
    if not text:
        raise VerifierError(f"{name} is empty")
    try:
        value = float(text)
    except ValueError as err:
        raise VerifierError(f"{name} holds {text[:60]!r}, not a number") from err
    number = _finite(value, name)
    return Verdict(number, {"reward": number})


def _main(parts: dict[str, float]) -> float:
    """The entry `reward`, else the mean of all entries."""
    return parts["reward"] if "reward" in parts else sum(parts.values()) / len(parts)


def _finite(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise VerifierError(f"{name} is {type(value).__name__}, not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise VerifierError(f"{name} is not finite")
    return number
