import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tugline.core import columns as c

INTS = st.lists(st.integers(0, 2**31 - 1), max_size=50)


@given(INTS)
def test_ids_round_trip(values: list[int]) -> None:
    packed = c.ids(values)
    assert c.ids_list(packed) == values
    assert c.count(packed) == len(values)
    assert c.last(packed) == (values[-1] if values else None)


@given(INTS, INTS)
def test_common_prefix_is_what_a_loop_finds(a: list[int], b: list[int]) -> None:
    expected = 0
    while expected < min(len(a), len(b)) and a[expected] == b[expected]:
        expected += 1
    assert c.common_prefix(c.ids(a), c.ids(b)) == expected


def test_common_prefix_of_an_extension_is_the_shorter() -> None:
    assert c.common_prefix(c.ids([1, 2]), c.ids([1, 2, 3])) == 2


def test_unknown_is_nan_and_never_zero() -> None:
    assert all(math.isnan(v) for v in c.floats_array(c.nans(3)))


def test_ids_outside_int32_are_refused() -> None:
    with pytest.raises(OverflowError):
        c.ids([2**31])


def test_take_counts_tokens_not_bytes() -> None:
    assert c.ids_list(c.take(c.ids([5, 6, 7, 8]), 1, 3)) == [6, 7]
    assert c.ids_list(c.take(c.ids([5, 6, 7, 8]), 2)) == [7, 8]
