"""The closed vocabulary of the task families.

Few words, so that a policy of a million parameters can hold each as one token; many combinations, so that what it
is asked on held-out tasks is new. No word is a part of another: `grep WORD` finds the word and nothing else.
"""

from __future__ import annotations

STEMS: tuple[str, ...] = (
    "notes", "report", "sketch", "draft", "index", "team", "budget", "orders", "guide", "recipe", "letter", "memo",
    "agenda", "survey", "ledger", "roster", "diary", "script", "essay", "poem", "chart", "table", "backup", "summary",
    "invoice", "journal", "catalog", "manual", "outline", "schedule", "contract", "review", "profile", "archive",
    "record", "packet", "folder", "digest", "bulletin", "brief",
)  # fmt: skip
"""Stems of file names."""

EXTENSIONS: tuple[str, ...] = ("txt", "md", "log", "dat")

SETTINGS: tuple[str, ...] = ("server", "client", "logger", "worker", "display", "network", "storage", "account",
                             "printer", "router", "scanner", "camera")  # fmt: skip
"""Stems of settings files, which end in `.cfg`."""

KEYS: tuple[str, ...] = (
    "color", "mode", "level", "owner", "region", "theme", "format", "limit", "retries", "timeout", "rank", "size",
    "speed", "depth", "width", "height", "target", "source", "zone", "shift",
)  # fmt: skip

NOUNS: tuple[str, ...] = (
    "amber", "river", "stone", "cedar", "maple", "falcon", "harbor", "lantern", "meadow", "copper", "silver", "velvet",
    "marble", "canyon", "island", "forest", "desert", "glacier", "thunder", "breeze", "coral", "willow", "orchid",
    "tulip", "violet", "crimson", "ivory", "walnut", "ginger", "pepper", "honey", "lemon", "mango", "cherry", "tiger",
    "otter", "rabbit", "raven", "turtle", "beetle", "planet", "comet", "rocket", "engine", "magnet", "crystal",
    "diamond", "topaz",
)  # fmt: skip
"""Words of texts and values."""

ALL: tuple[str, ...] = STEMS + SETTINGS + KEYS + NOUNS
