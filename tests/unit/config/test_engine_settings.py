from pathlib import Path

import pytest

from tugline.cli.wiring import engine_for
from tugline.config.load import load
from tugline.core.errors import ConfigError
from tugline.engines.openai import OpenAiEngine


def test_durations_and_lists_of_every_engine(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        '[engine]\npatience = "2m"\n[engines.teacher]\nreply_timeout = "90s"\nprices = ["3", "15"]\nkey_env = "K"\n'
    )
    settings = load(file, {}, {}).settings
    assert settings.engine.patience == 120.0 and settings.engines["teacher"].reply_timeout == 90.0
    assert settings.engines["teacher"].prices == ("3", "15") and settings.engines["teacher"].key_env == "K"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"engine.patience": "-1"}, "engine.patience"),
        ({"engine.reply_timeout": "soon"}, "not a duration"),
        ({"engines.x.connect_timeout": "0"}, "outside"),
    ],
)
def test_waits_that_cannot_be(flags: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(None, {}, flags)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"engine.spec": "vllm:http://h:1"}, "engine.model: vllm needs --model"),
        ({"engine.spec": "openai:http://h:1"}, "needs --model: the name there"),
        ({"engine.spec": "openai:h", "engine.model": "m"}, "is no URL"),
        (
            {"engine.spec": "openai:http://h", "engine.model": "m", "engine.key_env": "NO_SUCH_KEY"},
            "NO_SUCH_KEY is not set",
        ),
        ({"engine.spec": "openai:http://h", "engine.model": "m", "engine.key_file": "/none"}, "engine.key_file"),
        ({"engine.spec": "openai:http://h", "engine.model": "m", "engine.prices": "1"}, "two or three prices"),
        ({"engine.spec": "openai:http://h", "engine.model": "m", "engine.prices": "1,x"}, "two or three prices"),
    ],
)
def test_an_engine_behind_a_url_says_what_it_lacks(flags: dict[str, object], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        engine_for(load(None, {}, flags).settings, tmp_path)


def test_an_api_needs_no_files_and_its_window_can_be_told(tmp_path: Path) -> None:
    flags: dict[str, object] = {"engine.spec": "openai:https://h/api/v1/", "engine.model": "big/teacher"}
    engine = engine_for(load(None, {}, flags | {"engine.context": 9000}).settings, tmp_path)
    assert isinstance(engine, OpenAiEngine)
    assert (engine.info.model, engine.info.context, engine.remote.url) == ("big/teacher", 9000, "https://h/api/v1")
