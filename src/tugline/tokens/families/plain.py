"""Replies that are nothing but text: models whose template knows no tools."""

from __future__ import annotations

from tugline.core.errors import ConfigError
from tugline.core.items import Assistant
from tugline.tokens.families.family import Family
from tugline.tokens.live import PlainLive
from tugline.tokens.parse import Parsed, Sampled, body_of, finished, invalid_utf8


def _parse(sampled: Sampled) -> Parsed:
    body = body_of(sampled)
    text = sampled.codec.decode(body)
    return finished(sampled, Assistant(text=text or None), invalid_utf8(sampled, body), 0)


def _spell(turn: Assistant) -> str:
    if turn.calls or turn.reasoning:
        raise ConfigError("plain replies have no calls and no reasoning; use explicit ids", where="parser")
    return turn.text or ""


def plain() -> Family:
    """Everything is text."""
    return Family(name="plain", parse=_parse, spell=_spell, end=lambda turn: "", live=PlainLive)
