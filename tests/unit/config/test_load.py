from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tugline.config.load import dump_toml, load
from tugline.core.errors import ConfigError


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "run.toml"
    file.write_text(text)
    return file


def test_flags_beat_environment_beats_file_beats_defaults(tmp_path: Path) -> None:
    file = write(tmp_path, "[run]\nn = 2\nname = 'x'\n[engine]\nslots = 3\n")
    loaded = load(file, {"TUGLINE_RUN__N": "4", "TUGLINE_ENGINE__SLOTS": "5"}, {"run.n": 6})
    assert (loaded.settings.run.n, loaded.settings.engine.slots, loaded.settings.run.name) == (6, 5, "x")
    assert loaded.sources["run.n"] == "flag"
    assert loaded.sources["engine.slots"] == "TUGLINE_ENGINE__SLOTS"
    assert loaded.sources["run.name"].endswith("run.toml:3")
    assert "sampling.top_p" not in loaded.sources


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[run]\n\nm = 3\n", r"run.toml:3: unknown setting 'run.m'"),
        ("[sampling]\ntemprature = 3\n", r"did you mean 'sampling.temperature'"),
        ("[limits]\nagent_timeout = 'soon'\n", r"run.toml:2: limits.agent_timeout = 'soon' is not a duration"),
        ("[sandbox]\nmemory = '1 parsec'\n", "is not a size"),
        ("[run]\nn = 0\n", "outside 1"),
        ("[run]\nn = true\n", "not a whole number"),
        ("[run]\nn = 1.5\n", "not a whole number"),
        ("[sampling]\ntop_p = 1.5\n", "outside"),
        ("[sampling]\ntemperature = nan\n", "outside"),
        ("[run\n", "not valid TOML"),
        ("[limits]\nboot_timeout = -1\n", "outside"),
        ("[engine]\n[engine.spec]\n", "not text"),
        ("[harness]\nname = 3\n", "not text"),
    ],
)
def test_wrong_settings_name_file_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(write(tmp_path, text), {}, {})


def test_missing_and_binary_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml"):
        load(tmp_path / "none.toml", {}, {})
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load(tmp_path / "b.toml", {}, {})


def test_unknown_variables_are_errors_but_test_switches_are_not() -> None:
    with pytest.raises(ConfigError, match="TUGLINE_RUN__M"):
        load(None, {"TUGLINE_RUN__M": "1"}, {})
    load(None, {"TUGLINE_TEST_CACHE": "x", "PATH": "y"}, {})
    told = {"TUGLINE_SESSION": "ses_1", "TUGLINE_RUN": "/r", "TUGLINE_RUN__N": "3"}
    assert load(None, told, {}).settings.run.n == 3  # the first two are for `session end`
    assert load(None, {"TUGLINE_CACHE": "/c"}, {}).settings.cache.dir == "/c"


def test_an_empty_section_sets_nothing_and_an_unknown_one_is_an_error(tmp_path: Path) -> None:
    assert load(write(tmp_path, "[engine]\n[run.concurrency]\n"), {}, {}) == load(None, {}, {})
    with pytest.raises(ConfigError, match="unknown setting 'engin'"):
        load(write(tmp_path, "[engin]\n"), {}, {})


def test_friendly_durations_and_sizes() -> None:
    loaded = load(None, {}, {"limits.agent_timeout": "10m", "sandbox.memory": "1GiB", "gateway.grace": "250ms"})
    assert loaded.settings.limits.agent_timeout == 600
    assert loaded.settings.sandbox.memory == 1 << 30
    assert loaded.settings.gateway.grace == 0.25


@given(st.text(max_size=40), st.integers(1, 1000), st.floats(0, 10))
def test_what_is_dumped_loads_to_the_same_settings(
    tmp_path_factory: pytest.TempPathFactory, name: str, n: int, t: float
) -> None:
    name = name.encode("utf-8", "ignore").decode()
    loaded = load(None, {}, {"run.name": name, "run.n": n, "sampling.temperature": t})
    file = tmp_path_factory.mktemp("dump") / "run.toml"
    file.write_text(dump_toml(loaded.settings), "utf-8")
    assert load(file, {}, {}).settings == loaded.settings
