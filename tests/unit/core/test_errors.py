import asyncio

import pytest

from tugline.core import errors as e


def test_boundary_converts_foreign_errors_once_and_keeps_the_cause() -> None:
    with pytest.raises(e.SandboxError, match="start: OSError: disk") as caught, e.boundary(e.SandboxError, "start"):
        raise OSError("disk")
    assert isinstance(caught.value.__cause__, OSError)


def test_boundary_lets_our_own_errors_through() -> None:
    with pytest.raises(e.StoreError), e.boundary(e.SandboxError, "start"):
        raise e.StoreError("full")


def test_boundary_never_swallows_cancellation() -> None:
    with pytest.raises(asyncio.CancelledError), e.boundary(e.SandboxError, "start"):
        raise asyncio.CancelledError


def test_a_bad_request_names_its_field() -> None:
    assert e.BadRequest("is not text", path="messages[3].content").message == "messages[3].content: is not text"


def test_describe_is_one_line() -> None:
    assert e.describe(ValueError("a\nb")) == "ValueError: a"


def test_every_error_class_is_drawn_in_the_tree() -> None:
    assert e.__doc__ is not None
    for name, value in vars(e).items():
        if isinstance(value, type) and issubclass(value, e.TuglineError):
            assert name in e.__doc__, f"{name} is missing from the tree on top of the file"
