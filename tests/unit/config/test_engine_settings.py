from pathlib import Path

import pytest

from tugline.cli.wiring import engine_for
from tugline.config.load import load
from tugline.core.errors import ConfigError
from tugline.engines.openai import OpenAiEngine, base_url
from tugline.engines.spending import Prices


def test_durations_and_lists_of_every_engine(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        '[engine]\npatience = "2m"\n[engines.teacher]\nreply_timeout = "90s"\nprices = ["3", "15"]\nkey_env = "K"\n'
    )
    settings = load(file, {}, {}).settings
    assert settings.engine.patience == 120.0 and settings.engines["teacher"].reply_timeout == 90.0
    assert settings.engines["teacher"].prices == ("3", "15") and settings.engines["teacher"].key_env == "K"


@pytest.mark.parametrize("written", ["[3, 15.5, 0.25]", '["3", "15.5", "0.25"]', '"3,15.5,0.25"'])
def test_prices_are_numbers_or_texts(tmp_path: Path, written: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f'[engine]\nspec = "openai:http://h"\nmodel = "m"\nprices = {written}\n')
    engine = engine_for(load(file, {}, {}).settings, tmp_path)
    assert isinstance(engine, OpenAiEngine) and engine._prices == Prices(3.0, 15.5, 0.25)


@pytest.mark.parametrize(
    "written", ["[true, 1]", "[[3], 15]", "{ input = 3 }", '"1;2"', '"nan,1"', '"inf,1"', "[1, -1]"]
)
def test_prices_that_are_none(tmp_path: Path, written: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f'[engine]\nspec = "openai:http://h"\nmodel = "m"\nprices = {written}\n')
    with pytest.raises(ConfigError, match="prices"):
        engine_for(load(file, {}, {}).settings, tmp_path)


@pytest.mark.parametrize("section", ["engine", "engines.judge"])
@pytest.mark.parametrize("url", ["http://127.0.0.1:8123/v1", "http://localhost:8123", "http://[::1]:8123"])
def test_a_gateway_is_not_its_own_engine(tmp_path: Path, section: str, url: str) -> None:
    flags: dict[str, object] = {f"{section}.spec": f"openai:{url}", f"{section}.model": "m", "gateway.port": 8123}
    with pytest.raises(ConfigError, match="this gateway itself"):
        engine_for(load(None, {}, flags).settings, tmp_path)
    engine_for(load(None, {}, flags | {"gateway.port": 8124}).settings, tmp_path)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"engine.patience": "-1"}, "engine.patience"),
        ({"engine.patience": "inf"}, "engine.patience"),
        ({"engine.reply_timeout": "0"}, "engine.reply_timeout"),
        ({"engine.reply_timeout": "99999d"}, "engine.reply_timeout"),
        ({"engine.connect_timeout": True}, "engine.connect_timeout"),
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
        (
            {"engine.spec": "openai:http://h", "engine.model": "m", "engine.key_file": "/x", "engine.key_env": "K"},
            "not both",
        ),
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


@pytest.mark.parametrize(
    ("said", "base"),
    [
        ("http://h:1", "http://h:1/v1"),
        ("http://h:1/v1", "http://h:1/v1"),
        ("https://h/v1beta/openai", "https://h/v1beta/openai"),
        ("http://h/s/tug-secret/v1", "http://h/s/tug-secret/v1"),
    ],
)
def test_where_an_api_hangs(said: str, base: str) -> None:
    assert base_url(said) == base
