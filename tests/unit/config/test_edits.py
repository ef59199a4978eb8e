"""`[edits]` and `[filters]`: defaults, choices, patterns, and what reaches the gateway."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tugline.cli.edits import BILLING_HEADER, TOTAL_TOKENS
from tugline.cli.wiring import policy_of
from tugline.config.load import dump_toml, load
from tugline.core.contracts import EditPolicy, TextFilter
from tugline.core.errors import ConfigError


def test_defaults() -> None:
    policy = policy_of(load(None, {}, {}).settings)
    assert (policy.history_reasoning, policy.edits, policy.filters) == ("keep", EditPolicy(), (BILLING_HEADER,))


def test_everything_reaches_the_policy_and_is_dumped_again(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        '[edits]\nhistory_reasoning = "template"\nargs_repaired = "retain"\nws_trim = "honour"\n'
        "[filters]\nbilling_header = false\ntotal_tokens = true\n[filters.own]\nclock = 'at [0-9:]+'\n"
    )
    settings = load(file, {}, {"edits.head_changed": "retain"}).settings
    policy = policy_of(settings)
    assert policy.history_reasoning == "template"
    assert policy.edits == EditPolicy(args_repaired="retain", ws_trim="honour", head_changed="retain")
    assert policy.filters == (TOTAL_TOKENS, TextFilter("clock", "at [0-9:]+"))
    (tmp_path / "again.toml").write_text(dump_toml(settings))
    assert load(tmp_path / "again.toml", {}, {}).settings == settings


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("edits.ws_trim", "keep", "none of: retain, honour"),
        ("edits.history_reasoning", "retain", "none of: keep, template"),
        ("edits.args_changed", True, "args_changed = true is none of: retain, honour"),
        ("edits.call_added", "retain", "unknown setting"),
        ("filters.total_tokens", "maybe", "true or false"),
        ("filters.own.x", "(", "no regular expression"),
        ("filters.own.x", ".*", "matches the empty text"),
        ("filters.own.X Y", "a", "lower-case letters"),
        ("filters.clock", "a", "a filter of your own is [filters.own] NAME"),
        ("filters.own.total_tokens", "a", "another filter has this name"),
    ],
)
def test_what_is_wrong_is_named(key: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load(None, {}, {key: value})


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("x-anthropic-billing-header: v=1.2; h=abc;\nYou are", "You are"),
        ("x-anthropic-billing-header: v=1.2; h=abc;", ""),
        ("You are\nx-anthropic-billing-header: v=1", "You are\nx-anthropic-billing-header: v=1"),
    ],
)
def test_the_billing_header_is_the_first_line(text: str, rest: str) -> None:
    assert re.sub(BILLING_HEADER.pattern, "", text) == rest


def test_total_tokens_with_the_blank_before_it() -> None:
    assert re.sub(TOTAL_TOKENS.pattern, "", "ok\n<total_tokens>12 left</total_tokens> more") == "ok more"
