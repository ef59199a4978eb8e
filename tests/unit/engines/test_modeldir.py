import json

import pytest

from tugline.core.errors import ConfigError
from tugline.engines.modeldir import read_model_dir, require_weights
from tugline.testing.models import make_tokenizer_dir


@pytest.fixture
def model(tmp_path):
    return make_tokenizer_dir(tmp_path / "tiny")


def test_everything_is_read(model):
    files = read_model_dir(model)
    assert (files.parser, files.stop, files.context, files.name) == ("qwen3", ("<|im_end|>",), 2048, "tiny")
    tokens = {t["content"]: t["id"] for t in json.loads(files.tokenizer_json)["added_tokens"]}
    assert files.stop_ids == (tokens["<|im_end|>"],)
    assert files.vocab == max(tokens.values()) + 1
    assert "<|im_start|>" in files.template


def test_without_tugline_json_the_usual_files_serve(model):
    template = (model / "chat_template.jinja").read_text() + "{# <tool_call> arguments #}"
    for name in ("tugline.json", "chat_template.jinja"):
        (model / name).unlink()
    tokens = {t["content"]: t["id"] for t in json.loads((model / "tokenizer.json").read_text())["added_tokens"]}
    settings = {"chat_template": template, "eos_token": {"content": "<|im_end|>"}, "bos_token": None}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    (model / "config.json").write_text(json.dumps({"vocab_size": 600, "max_position_embeddings": 99, "x": 1}))
    (model / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [tokens["<|im_end|>"], tokens["<|endoftext|>"]]})
    )
    files = read_model_dir(model)
    assert files.stop == ("<|im_end|>", "<|endoftext|>")
    assert (files.template, files.parser, files.context, files.vocab) == (template, "qwen3", 99, 600)
    assert files.specials == {"eos_token": "<|im_end|>"}
    (model / "generation_config.json").unlink()
    assert read_model_dir(model).stop == ("<|im_end|>",)  # from eos_token


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tokenizer.json", None, r"tokenizer\.json: missing"),
        ("tokenizer.json", "{", r"tokenizer\.json: not valid"),
        ("chat_template.jinja", None, r"chat_template\.jinja: missing"),
        ("tugline.json", '{"context": 5, "parser": "qwen3", "stop": ["</s>"]}', r"\[stop\]: stop tokens \['</s>'\]"),
        ("tugline.json", '{"context": "5"}', r"tugline\.json: not valid.*context"),
        ("tugline.json", '{"parser": "qwen3", "stop": ["<|im_end|>"]}', r"context is unknown"),
        ("tugline.json", '{"context": 5, "parser": "plain"}', r"no stop token is known"),
        ("config.json", "[]", r"config\.json: not valid"),
    ],
)
def test_each_fault_is_named(model, name, content, says):
    (model / name).unlink(missing_ok=True)
    if content is not None:
        (model / name).write_text(content)
    with pytest.raises(ConfigError, match=says):
        read_model_dir(model)


def test_a_recipe_may_lie_beside_the_settings(model):
    settings = json.loads((model / "tugline.json").read_text())
    (model / "tugline.json").write_text(json.dumps({**settings, "recipe": {"steps": 5}}))
    assert read_model_dir(model).context == 2048


def test_no_directory(tmp_path):
    with pytest.raises(ConfigError, match="no such model directory"):
        read_model_dir(tmp_path / "none")


def test_weights_are_asked_for_by_name(model):
    with pytest.raises(ConfigError, match=r"config\.json: missing"):
        require_weights(model)
    (model / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"model\.safetensors: missing"):
        require_weights(model)
    (model / "model-00001-of-00002.safetensors").write_bytes(b"")
    require_weights(model)
