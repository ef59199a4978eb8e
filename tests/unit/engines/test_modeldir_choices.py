"""Which template, family, stop tokens and window a directory means, and who may say otherwise."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tugline.core.errors import ConfigError
from tugline.engines.embedded import wire
from tugline.engines.modeldir import Asked, read_model_dir
from tugline.testing.models import make_tokenizer_dir

TEMPLATE = (
    "{# <|im_start|> <tool_call> arguments #}{% for m in messages %}<|im_start|>{{ m.role }}{{ m.content }}{% endfor %}"
)

NAMED = [{"name": "default", "template": "no"}, {"name": "tool_use", "template": TEMPLATE}]


def write(path: Path, name: str, value: Any) -> None:
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_text(value if isinstance(value, str) else json.dumps(value))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """As frameworks save it: nothing of ours in it."""
    path = make_tokenizer_dir(tmp_path / "base")
    (path / "tugline.json").unlink()
    write(path, "chat_template.jinja", TEMPLATE)
    write(path, "config.json", {"model_type": "qwen3", "vocab_size": 600, "max_position_embeddings": 4096})
    write(path, "tokenizer_config.json", {"eos_token": "<|im_end|>", "pad_token": {"content": "<|endoftext|>"}})
    return path


def test_a_checkpoint_is_read_like_its_base(model: Path, tmp_path: Path) -> None:
    base = read_model_dir(model)
    tuned = tmp_path / "ckpt" / "step_100"
    shutil.copytree(model, tuned)
    write(tuned, "chat_template.jinja", TEMPLATE.replace("{% for", "\n\n {% for").replace("endfor %}", "endfor -%} "))
    found = read_model_dir(tuned)
    assert (found.parser, found.stop, found.stop_ids, found.context) == (
        base.parser, base.stop, base.stop_ids, base.context,
    )  # fmt: skip
    assert (found.name, base.parser) == ("step_100", "qwen3")


def test_stop_tokens_are_gathered_with_their_sources(model: Path) -> None:
    tokens = {t["content"]: t["id"] for t in json.loads((model / "tokenizer.json").read_text())["added_tokens"]}
    write(model, "generation_config.json", {"eos_token_id": [tokens["<|endoftext|>"], tokens["<|im_end|>"]]})
    files = read_model_dir(model)
    assert files.stop == ("<|endoftext|>", "<|im_end|>")
    assert files.stop_ids == (tokens["<|endoftext|>"], tokens["<|im_end|>"])
    assert files.sources["stop <|im_end|>"] == "generation_config.json, tokenizer_config.json, family qwen3"
    assert files.sources["stop <|endoftext|>"] == "generation_config.json"


def test_the_family_adds_what_no_file_says(model: Path) -> None:
    write(model, "tokenizer_config.json", {"eos_token": "<|endoftext|>"})
    files = read_model_dir(model)
    assert files.stop == ("<|endoftext|>", "<|im_end|>") and files.sources["stop <|im_end|>"] == "family qwen3"


def test_structure_inside_a_turn_never_ends_one(model: Path) -> None:
    write(model, "tokenizer_config.json", {"eos_token": "</tool_call>"})
    assert read_model_dir(model).stop == ("<|im_end|>",)


def test_an_eos_of_another_tokenizer_is_named(model: Path) -> None:
    write(model, "generation_config.json", {"eos_token_id": 151645})
    with pytest.raises(ConfigError, match=r"generation_config\.json: eos_token_id 151645 is no token"):
        read_model_dir(model)


@pytest.mark.parametrize(
    ("files", "where"),
    [
        ({"chat_template.jinja": TEMPLATE}, "chat_template.jinja"),
        ({"tokenizer_config.json": {"chat_template": TEMPLATE}}, "tokenizer_config.json [chat_template]"),
        ({"chat_template.json": {"chat_template": TEMPLATE}}, "chat_template.json [chat_template]"),
        (
            {"tokenizer_config.json": {"chat_template": NAMED}},
            "tokenizer_config.json [chat_template tool_use]",
        ),
        ({"tokenizer_config.json": {"chat_template": {"rag": TEMPLATE}}}, "tokenizer_config.json [chat_template rag]"),
        (
            {"chat_template.jinja": "no", "additional_chat_templates/tool_use.jinja": TEMPLATE},
            "additional_chat_templates/tool_use.jinja",
        ),
        ({"chat_template.jinja": TEMPLATE, "chat_templates/rag.jinja": "no"}, "chat_template.jinja"),
        (
            {"chat_template.jinja": TEMPLATE, "tokenizer_config.json": {"chat_template": "no"}},
            "chat_template.jinja",
        ),
    ],
)  # fmt: skip
def test_the_template_that_is_meant(model: Path, files: dict[str, Any], where: str) -> None:
    (model / "chat_template.jinja").unlink()
    for name, value in files.items():
        write(model, name, value)
    found = read_model_dir(model)
    assert (found.template, found.sources["template"]) == (TEMPLATE, where)


def test_a_missing_template_says_what_to_do(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match=r"chat_template\.jinja: missing.*--template FILE"):
        read_model_dir(model)
    write(model, "chat_templates/a.jinja", TEMPLATE)
    write(model, "chat_templates/b.jinja", TEMPLATE)
    with pytest.raises(ConfigError, match="choose with --template: a, b"):
        read_model_dir(model)
    assert read_model_dir(model, Asked(template="b")).sources["template"] == "chat_templates/b.jinja"


def test_settings_win_over_tugline_json_over_content(model: Path, tmp_path: Path) -> None:
    write(model, "own.jinja", "{# own #}" + TEMPLATE)
    write(model, "tugline.json", {
        "parser": "plain", "stop": ["<|endoftext|>"], "context": 7, "template": "own.jinja",
        "template_kwargs": {"a": 1, "b": True},
    })  # fmt: skip
    files = read_model_dir(model)
    assert (files.parser, files.stop, files.context) == ("plain", ("<|endoftext|>",), 7)
    assert files.template.startswith("{# own #}") and files.template_kwargs == {"a": 1, "b": True}
    write(tmp_path, "theirs.jinja", "{# theirs #}" + TEMPLATE)
    asked = Asked("qwen3", ("<|im_end|>",), str(tmp_path / "theirs.jinja"), 9, {"b": False}, "engines.judge")
    files = read_model_dir(model, asked)
    assert (files.parser, files.stop, files.context) == ("qwen3", ("<|im_end|>",), 9)
    assert files.template.startswith("{# theirs #}") and files.template_kwargs == {"a": 1, "b": False}
    assert files.sources["parser"] == "engines.judge.parser"


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (Asked(parser="llama9"), r"^engine\.parser: unknown reply format 'llama9'; there are: .*plain, .*qwen3"),
        (Asked(stop=("</s>",)), r"^engine\.stop: stop tokens \['</s>'\] are not in the tokenizer"),
        (Asked(template="none.jinja"), r"^engine\.template: no file 'none\.jinja', and .* are: default"),
        (Asked(template="none.jinja", section="engines.judge"), r"^engines\.judge\.template: "),
        (Asked(template_kwargs={"tools": "x", "a": 1}), r"^engine\.template_kwargs: tools cannot be set"),
        (Asked(template_kwargs={"continue_final_message": True}), r"^engine\.template_kwargs: continue_final_message "),
    ],
)
def test_what_settings_get_wrong_is_named(model: Path, asked: Asked, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_model_dir(model, asked)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({"max_position_embeddings": 32768}, 32768),
        ({"n_positions": 1024}, 1024),
        ({"text_config": {"max_position_embeddings": 131072, "vocab_size": 700}, "max_position_embeddings": 5}, 131072),
        ({"max_position_embeddings": 40960, "rope_scaling": YARN}, 131072),
        ({"max_position_embeddings": 131072, "rope_scaling": YARN}, 131072),
        ({"max_position_embeddings": 32768, "rope_parameters": {"full_attention": YARN}}, 131072),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, 8192),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "max_position_embeddings": 131072,
                                                  "rope_scaling": {"rope_type": "linear", "factor": 8.0}}}, 131072),
    ],
)  # fmt: skip
def test_the_window(model: Path, config: dict[str, Any], context: int) -> None:
    write(model, "config.json", {"vocab_size": 600, **config})
    assert read_model_dir(model).context == context


def test_a_window_that_only_the_tokenizer_names(model: Path) -> None:
    (model / "config.json").unlink()
    with pytest.raises(ConfigError, match="context is unknown"):
        read_model_dir(model)
    write(model, "tokenizer_config.json", {"eos_token": "<|im_end|>", "model_max_length": 1e30})
    with pytest.raises(ConfigError, match="context is unknown"):
        read_model_dir(model)
    write(model, "tokenizer_config.json", {"eos_token": "<|im_end|>", "model_max_length": 2048})
    assert read_model_dir(model).context == 2048
    write(model, "tokenizer_config.json", {"eos_token": "<|im_end|>"})
    write(model, "adapter_config.json", {})
    with pytest.raises(ConfigError, match="merge it into its base model"):
        read_model_dir(model)


def test_the_text_models_vocabulary(model: Path) -> None:
    write(model, "config.json", {"text_config": {"vocab_size": 700, "max_position_embeddings": 9}, "vocab_size": 5})
    assert read_model_dir(model).vocab == 700


def test_another_kind_of_tokenizer(model: Path) -> None:
    """A byte-level vocabulary of two files needs nothing else; one that nothing can read says what would."""
    spec = json.loads((model / "tokenizer.json").read_text())
    whole = read_model_dir(model)
    (model / "tokenizer.json").unlink()
    write(model, "vocab.json", spec["model"]["vocab"])
    write(model, "merges.txt", "\n".join(" ".join(pair) for pair in spec["model"]["merges"]))
    write(model, "tokenizer_config.json", {
        "tokenizer_class": "GPT2Tokenizer", "eos_token": "<|im_end|>",
        "added_tokens_decoder": {str(t["id"]): {"content": t["content"]} for t in spec["added_tokens"]},
    })  # fmt: skip
    found = read_model_dir(model)
    assert found.stop_ids == whole.stop_ids and found.sources["tokenizer"] == "vocab.json, converted by transformers"
    (model / "vocab.json").unlink()
    (model / "merges.txt").unlink()
    for name in ("tokenizer.model", "tekken.json", "qwen.tiktoken"):
        write(model, name, "nonsense")
        with pytest.raises(ConfigError, match=rf"{name}: there is no tokenizer.json, and .*save_pretrained"):
            read_model_dir(model)
        (model / name).unlink()


def test_the_engine_process_is_told_what_was_chosen() -> None:
    """It reads the directory again, on its own."""
    asked = Asked("qwen3", ("<|im_end|>",), "/t.jinja", 9, {"a": True, "b": 1, "c": "x", "d": 0.5}, "engines.judge")
    options = wire.Options(3, 1, "/m", "/j", "0", "cpu", 1, 2, None, asked=asked)
    assert msgspec.json.decode(msgspec.json.encode(options), type=wire.Options) == options
