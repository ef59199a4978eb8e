"""Paths as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tugline.core.errors import ConfigError
from tugline.core.paths import expanded


def test_home_and_plain_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert expanded("~/x", "engine.model") == Path("/somewhere/x")
    assert expanded(Path("a/~b"), "engine.model") == Path("a/~b")


def test_a_user_that_is_not_there_is_named_with_the_setting() -> None:
    with pytest.raises(ConfigError, match="nosuchuser") as failed:
        expanded("~nosuchuser/model", "engine.model")
    assert failed.value.where == "engine.model"
