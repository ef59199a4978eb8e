"""Reward files that an attacker may have written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tugline.core.errors import VerifierError
from tugline.verifiers.rewards import MAX_PARTS, from_json, from_text


@pytest.mark.parametrize(
    ("data", "reward", "parts"),
    [
        (b"1", 1.0, {"reward": 1.0}),
        (b" 0.5\n", 0.5, {"reward": 0.5}),
        (b'{"reward": 1, "tests": 0.25}', 1.0, {"reward": 1.0, "tests": 0.25}),
        (b'{"score": 0.75}', 0.75, {"score": 0.75}),
        (b'{"a": 1, "b": 0}', 0.5, {"a": 1.0, "b": 0.0}),
        (b'{"reward": -2.5e1}', -25.0, {"reward": -25.0}),
    ],
)
def test_a_number_or_a_flat_object(data, reward, parts):
    verdict = from_json(data, "reward.json")
    assert (verdict.reward, verdict.parts) == (reward, parts)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"null",
        b"true",
        b'"1"',
        b"[1]",
        b"{}",
        b'{"reward": "1"}',
        b'{"reward": true}',
        b'{"reward": null}',
        b'{"reward": {"a": 1}}',
        b'{"reward": [1]}',
        b'{"reward": NaN}',
        b'{"reward": Infinity}',
        b'{"reward": 1e400}',
        b'{"reward": -1e400}',
        b'{"reward": 1' + b"0" * 400 + b"}",
        b'{"reward": 1' + b"0" * 5000 + b"}",
        b'{"reward": 1, "other": "text"}',
        b'{"a": 1e308, "b": 1e308}',
        b'{"reward": 1, "\\ud800": 1}',
        b'{"reward": 1, "a\\nb": 1}',
        b"[" * 60_000,
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        b'{"reward": 1',
        b"\xff\xfe",
        b"{" + b",".join(b'"%d": 1' % n for n in range(MAX_PARTS + 1)) + b"}",
    ],
    ids=lambda d: d[:24].decode("latin-1") + f"({len(d)})",
)
def test_anything_else_is_no_verdict(data):
    with pytest.raises(VerifierError):
        from_json(data, "reward.json")


@pytest.mark.parametrize(("data", "reward"), [(b"1", 1.0), (b" 0.25\n", 0.25), (b"-1e-3", -0.001)])
def test_one_number_as_text(data, reward):
    assert from_text(data, "reward.txt").reward == reward


@pytest.mark.parametrize(
    "data", [b"", b"  \n", b"nan", b"inf", b"-Infinity", b"1e400", b"one", b"1 1", b"true", b"\xff"]
)
def test_no_number_is_no_verdict(data):
    with pytest.raises(VerifierError):
        from_text(data, "reward.txt")


@given(st.binary(max_size=200))
def test_no_bytes_break_the_readers(data):
    for read in (from_json, from_text):
        try:
            verdict = read(data, "reward")
        except VerifierError:
            continue
        assert all(abs(v) < float("inf") for v in (verdict.reward, *verdict.parts.values()))
