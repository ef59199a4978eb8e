"""A refused start leaves no run directory; a run that was there, or that others hold, stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tugline.cli.fresh import nothing_left
from tugline.core.errors import ConfigError, EngineError, TuglineError
from tugline.core.session import Running, SessionKey
from tugline.store import RunStore


def refused(path: Path, err: TuglineError) -> None:
    with pytest.raises(type(err)), nothing_left(path):
        RunStore.open_or_create(path, "").close_now()
        raise err


def test_what_a_refused_start_made_is_removed_and_nothing_else(tmp_path: Path) -> None:
    run = tmp_path / "run"
    refused(run, ConfigError("no"))
    assert list(tmp_path.iterdir()) == []
    refused(run, EngineError("its log is in there"))
    assert (run / "run.db").is_file()
    refused(run, ConfigError("no"))  # it was there before
    assert (run / "run.db").is_file()


async def test_a_run_with_a_session_stays(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(ConfigError), nothing_left(run):
        async with RunStore.open_or_create(run, "") as store:
            await store.put_session(Running(SessionKey("ses_1", "grp_1", "t", 0)))
        raise ConfigError("later")
    assert (run / "run.db").is_file()


def test_a_run_that_another_has_made_meanwhile_is_his(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(ConfigError), nothing_left(run):
        his = RunStore.open_or_create(run, "")
        raise ConfigError("no")
    assert (run / "run.db").is_file()
    his.close_now()
