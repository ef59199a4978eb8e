"""A route to an engine that is not there is an error before anything boots."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tugline.cli.wiring import check_routes
from tugline.config.types import EngineSettings, ModelSettings, Settings
from tugline.core.errors import ConfigError
from tugline.core.task import ModelRoute
from tugline.tasks.harbor import read_task
from unit.tasks.kit import make


def test_routes_are_checked_with_their_place(tmp_path: Path) -> None:
    task = replace(read_task(make(tmp_path / "t"), {}), routes=(ModelRoute("x", "judge"),))
    judged = Settings(engines={"judge": EngineSettings()}, models=ModelSettings({"y": "judge"}))
    check_routes(judged, (task,))
    with pytest.raises(ConfigError, match=r"no engine 'judge'.*there are: none") as caught:
        check_routes(Settings(), (task,))
    assert caught.value.where == "task acme/sum, metadata.tugline.models"
    with pytest.raises(ConfigError, match="there are: other") as caught:
        check_routes(replace(judged, engines={"other": EngineSettings()}), ())
    assert caught.value.where == "models.routes.y"
