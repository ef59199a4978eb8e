"""Arguments as typed values: what counts as the same call."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tugline.forest.canon import arguments_view, canonical, explained, opaque

SAME = [
    ('{"k" :  "v"}', '{"k":"v"}'),
    ('{"k": "\\u00e9"}', '{"k":"é"}'),
    ('{"k": "\\ud83d\\ude00"}', '{"k":"😀"}'),
    ('{"k": 1.0}', '{"k":1}'),
    ('{"k": 1e3}', '{"k":1000}'),
    ('{"k": 9007199254740993}', '{"k":9007199254740992}'),
    ('{"k": 1E400}', '{"k":null}'),
    ('{"k": -0}', '{"k":0}'),
    ('{"a": 1, "b": 2}', '{"b":2,"a":1}'),
    ('{"a": 1, "a": 2}', '{"a":2}'),
    ('{"a": "x/y"}', '{"a":"x\\/y"}'),
    ("", "{}"),
    (" \n", "{}"),
    ("null", "{}"),
    ('{"a": [1, [2.0, {"b": true}]]}', '{"a":[1,[2,{"b":true}]]}'),
]
DIFFERENT = [
    ('{"k": "1"}', '{"k": 1}'),
    ('{"k": true}', '{"k": 1}'),
    ('{"k": false}', '{"k": null}'),
    ('{"k": []}', '{"k": {}}'),
    ('{"k": [1, 2]}', '{"k": [2, 1]}'),
    ('{"k": [[1], 2]}', '{"k": [[1, 2]]}'),
    ('{"k": "a "}', '{"k": "a"}'),
    ('{"k": "é"}', '{"k": "e\u0301"}'),
    ('{"a": 1}', '{"a": 1, "b": null}'),
    ('{"a": "b:s1:c"}', '{"a": "b", "s1": "c"}'),
    ('{"a": 1}', "{}"),
    ("[]", "{}"),
]
INVALID = ['{"command": "echo hi", }', "{", "{'a': 1}", "NaN", '{"a": NaN}', '{"a": Infinity}', "echo hi", '{"a": 1} x']


@pytest.mark.parametrize(("a", "b"), SAME)
def test_same(a: str, b: str) -> None:
    assert canonical(a) == canonical(b) is not None
    assert explained(a, b)


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_different(a: str, b: str) -> None:
    assert arguments_view(a) != arguments_view(b)


@pytest.mark.parametrize("text", INVALID)
def test_text_that_is_no_json_is_opaque_and_equals_only_what_harnesses_make_of_it(text: str) -> None:
    assert canonical(text) is None
    assert opaque(text)
    assert arguments_view(text) == arguments_view("{}")
    assert explained(text, "{}")
    assert explained(text, json.dumps(text))
    assert explained(text, text)
    assert not explained(text, '{"command": "echo hi"}')
    assert not explained(text, text + "!")
    assert not explained("{}", text)


def test_hostile_nesting_costs_no_stack() -> None:
    for depth in (66, 1_000, 200_000):
        assert opaque("[" * depth + "]" * depth)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=10,
)


def as_doubles(value: object) -> object:
    """Oracle: JSON's value as a double-only reader sees it, hashable by repr with sorted keys; bools stay bools."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return (type(value).__name__, value)
    if isinstance(value, int | float):
        return ("number", float(value) + 0.0)
    if isinstance(value, list):
        return ("list", [as_doubles(v) for v in value])
    assert isinstance(value, dict)
    return ("dict", sorted((k, as_doubles(v)) for k, v in value.items()))


@given(
    st.dictionaries(st.text(max_size=4), VALUES, min_size=1, max_size=4), st.dictionaries(st.text(max_size=4), VALUES)
)
def test_spelling_never_matters_and_value_always_does(a: dict[str, object], b: dict[str, object]) -> None:
    spellings = {
        canonical(json.dumps(a)),
        canonical(json.dumps(a, ensure_ascii=False, separators=(",", ":"))),
        canonical(json.dumps(dict(reversed(a.items())), indent=2)),
    }
    assert len(spellings) == 1
    assert None not in spellings
    assert (canonical(json.dumps(a)) == canonical(json.dumps(b))) == (as_doubles(a) == as_doubles(b))


@given(st.text())
def test_any_text_has_a_view(text: str) -> None:
    arguments_view(text)
    assert explained(text, text)
