"""Routed experts as a column."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from tugline.core.routes import Routes, joined, read_npy, write_npy


def made(start: int, rows: int, seed: int = 0, shape: tuple[int, int] = (3, 2), kind: Any = "uint8") -> Routes:
    data = np.random.default_rng(seed).integers(0, 100, (rows, *shape)).astype(kind)
    return Routes(start, *shape, kind, data.tobytes())


def npy(array: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int16", "int32"])
def test_a_file_and_back(kind: str) -> None:
    routes = made(4, 5, kind=kind)
    assert read_npy(write_npy(routes), 9) == routes
    assert (routes.end, routes.array().shape) == (9, (5, 3, 2))


def test_byte_order_and_layout_are_made_ours() -> None:
    array = np.arange(12).reshape(2, 3, 2).astype(">i4")
    assert read_npy(npy(array), 2).array().tolist() == array.tolist()
    turned = np.asfortranarray(array)
    assert read_npy(npy(turned), 2).array().tolist() == array.tolist()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY",
        b"no array",
        npy(np.zeros((2, 3), np.uint8)),
        npy(np.zeros((2, 3, 2), np.float32)),
        npy(np.zeros((2, 0, 2), np.uint8)),
        npy(np.array([[[{}]]], object), allow_pickle=True),
        npy(np.zeros((4, 3, 2), np.uint8))[:-1],
    ],
    ids=["empty", "cut_head", "text", "flat", "floats", "no_layers", "pickle", "cut_data"],
)
def test_what_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_npy(data, 4)


def test_rows_in_front_are_cut() -> None:
    routes = made(4, 5)
    assert routes.since(0) is routes and routes.since(4) is routes
    assert routes.since(6).array().tolist() == routes.array()[2:].tolist()
    assert (routes.since(6).start, routes.since(6).end, routes.since(99).end) == (6, 9, 9)


def test_parts_are_joined_and_later_ones_count() -> None:
    first, second = made(0, 5, 1), made(4, 6, 2)
    whole = joined([first, second])
    assert whole is not None
    assert whole.array().tolist() == [*first.array()[:4].tolist(), *second.array().tolist()]
    assert (whole.start, whole.end) == (0, 10)


@pytest.mark.parametrize(
    "parts",
    [[], [None], [made(0, 5), None], [made(1, 5)], [made(0, 5), made(6, 2)], [made(0, 5), made(5, 1, shape=(2, 3))]],
    ids=["none", "unknown", "later_unknown", "no_beginning", "gap", "shape"],
)
def test_what_is_not_whole_is_nothing(parts: list[Routes | None]) -> None:
    assert joined(parts) is None
