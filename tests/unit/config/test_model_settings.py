"""What `[engine]` says about the model: lists and open tables, from every source, and back to TOML."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tugline.cli.wiring import asked_of, chat_models
from tugline.config.load import dump_toml, load
from tugline.core.errors import ConfigError
from tugline.testing.models import make_tokenizer_dir

TEXT = """
[engine]
parser = "qwen3"
template = "mine.jinja"
stop = ["<|im_end|>", "a,b"]
context = 99

[engine.template_kwargs]
enable_thinking = false
effort = "true"
depth = 2

[engines.judge]
stop = ["</s>"]

[engines.judge.template_kwargs]
"""


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "f.toml"
    path.write_text(text, "utf-8")
    return path


def test_a_file_says_it_and_is_written_back(tmp_path: Path) -> None:
    settings = load(file(tmp_path, TEXT), {}, {}).settings
    engine = settings.engine
    assert (engine.parser, engine.template, engine.stop, engine.context) == (
        "qwen3", "mine.jinja", ("<|im_end|>", "a,b"), 99,
    )  # fmt: skip
    assert engine.template_kwargs == {"enable_thinking": False, "effort": "true", "depth": 2}
    assert settings.engines["judge"].stop == ("</s>",)
    assert asked_of(settings.engines["judge"], "judge").section == "engines.judge"
    assert load(file(tmp_path, dump_toml(settings)), {}, {}).settings == settings


def test_variables_and_flags_say_it() -> None:
    env = {
        "TUGLINE_ENGINE__STOP": "<|im_end|>, <|endoftext|>",
        "TUGLINE_ENGINE__TEMPLATE_KWARGS__ENABLE_THINKING": "False",
        "TUGLINE_ENGINES__JUDGE__TEMPLATE_KWARGS__DEPTH": "3",
    }
    flags = {"engine.template_kwargs.effort": "high", "engine.stop": '["a,b"]'}
    loaded = load(None, env, flags)
    assert loaded.settings.engine.template_kwargs == {"enable_thinking": False, "effort": "high"}
    assert loaded.settings.engines["judge"].template_kwargs == {"depth": 3}
    assert loaded.settings.engine.stop == ("a,b",)
    assert load(None, {"TUGLINE_ENGINE__STOP": "<|im_end|>, <|endoftext|>"}, {}).settings.engine.stop == (
        "<|im_end|>", "<|endoftext|>",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[engine]\nstop = [1]", r"f\.toml:2: engine\.stop is no list of texts"),
        ("[engine]\ncontext = 0", r"engine\.context = 0 is outside"),
        ("[engine]\ntemplate_kwargs = 1", r"unknown setting 'engine\.template_kwargs'"),
        ("[engines.a]\ntemplate_kwargs = 1", r"unknown setting 'engines\.a\.template_kwargs'"),
        ("[engine.template_kwargs]\na = [1]", r"neither text, number"),
        ("[engine.template_kwargs.a]\nb = 1", r"unknown setting"),
        ("[engine]\nparsr = 'x'", r"did you mean 'engine\.parser'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(file(tmp_path, text), {}, {})


def test_a_stored_run_is_read_with_the_choices_it_was_made_with(tmp_path: Path) -> None:
    """`run.toml` keeps them: verify and explain see the same model as the gateway did."""
    model = make_tokenizer_dir(tmp_path / "m")
    (tmp_path / "mine.jinja").write_text("{% for m in messages %}<|im_start|>{{ greeting }}{{ m.content }}{% endfor %}")
    choices = {
        "engine.model": str(model),
        "engine.template": str(tmp_path / "mine.jinja"),
        "engine.stop": "<|endoftext|>",
        "engine.context": 123,
        "engine.template_kwargs.greeting": "hi",
    }
    (tmp_path / "run.toml").write_text(dump_toml(load(None, {}, choices).settings))
    found = chat_models(tmp_path)("")
    tokens = {t["content"]: t["id"] for t in json.loads((model / "tokenizer.json").read_text())["added_tokens"]}
    assert (found.context, found.stop_ids) == (123, (tokens["<|endoftext|>"],))
    from tugline.core.items import Head, UserText

    assert found.decode(found.render(Head(), [UserText("x")]).ids) == "<|im_start|>hix"
    assert found.decode(found.render(Head((), '{"greeting":"yo"}'), [UserText("x")]).ids) == "<|im_start|>yox"
