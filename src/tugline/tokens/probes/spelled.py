"""P15 and P16 of one tokenizer: what stands beside a control token, and text that would like to be one."""

from __future__ import annotations

from tugline.tokens.probes.trial import Trial
from tugline.tokens.spellings import Found, boundary_probe, forgery_probe

_STRINGS = 120
"""Hostile strings tried at each start; `tugline doctor template --fuzz` and the tests try thousands."""


def beside(trial: Trial, close: str) -> None:
    """P15. What the template and the stop set use comes first."""
    names = {i: content for content, i in trial.codec.control.items()}
    stops = [names[i] for i in sorted(trial.bench.stop) if i in names]
    _say(trial, "P15", boundary_probe(trial.codec, [*stops, *([close] if close else [])]))


def forged(trial: Trial) -> None:
    """P16."""
    _say(trial, "P16", forgery_probe(trial.codec, _STRINGS))


def _say(trial: Trial, name: str, found: Found) -> None:
    trial.say(name, found.what, found.example)
    for note in found.notes:
        trial.say(f"{name}_note", note, status="note")
