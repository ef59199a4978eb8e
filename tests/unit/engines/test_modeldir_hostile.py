"""Model directories that somebody broke: every one is read, or refused by an error that names the file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tugline.core.errors import ConfigError
from tugline.engines.modeldir import read_model_dir
from tugline.engines.modelparts.files import SMALL
from tugline.engines.scripted import ScriptedEngine
from tugline.testing.models import make_tokenizer_dir

FILES = {
    "tokenizer.json": None,
    "chat_template.jinja": None,
    "tugline.json": {"parser": "qwen3", "stop": None, "context": 99, "template_kwargs": {"a": True}},
    "config.json": {
        "vocab_size": 600, "max_position_embeddings": 99, "eos_token_id": [2],
        "rope_scaling": {"type": "yarn", "factor": 2},
        "text_config": {"vocab_size": 600, "max_position_embeddings": 99},
    },
    "generation_config.json": {"eos_token_id": [505]},
    "tokenizer_config.json": {
        "eos_token": {"content": "<|im_end|>"}, "chat_template": [{"name": "default", "template": "x"}],
        "model_max_length": 1e30, "response_schema": {"type": "object"},
    },
    "chat_template.json": {"chat_template": "x"},
    "additional_chat_templates/tool_use.jinja": None,
}  # fmt: skip
WRONG = (
    *(
        b"",
        b" ",
        b"{",
        b"null",
        b"[]",
        b"0",
        b'"x"',
        b"\xff\xfe",
        b'{"a": "\xff"}',
        b'{"a":"\\ud800"}',
        b"\xef\xbb\xbf{}",
    ),
    *(
        b"\xef\xbb\xbf{}",
        b"[" * 50_000,
        b'{"a":' * 50_000,
        b"9" * 5000,
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    ),
)
VALUES = (
    None,
    0,
    -1,
    1e999,
    10**30,
    0.5,
    "",
    "x",
    "\ud800",
    [],
    {},
    True,
    [[]],
    [{"a": 1}],
    {"content": 5},
    [None],
    -(2**63),
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = make_tokenizer_dir(tmp_path / "tiny")
    for name, value in FILES.items():
        if value is not None:
            (path / name).write_text(json.dumps(value))
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "tool_use.jinja").write_text((path / "chat_template.jinja").read_text())
    tokens = {t["content"]: t["id"] for t in json.loads((path / "tokenizer.json").read_text())["added_tokens"]}
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [tokens["<|im_end|>"]]}))
    return path


def refused_by_name(model: Path, name: str) -> str | None:
    """The error, which must name the file; None when the directory was taken."""
    try:
        files = read_model_dir(model)
        ScriptedEngine([{"text": "x"}], model, model)
    except ConfigError as err:
        assert str(model) in str(err), err
        return str(err)
    assert files.stop and files.context > 0 and files.vocab > 0 and files.template
    return None


def test_the_directory_is_good_before_it_is_broken(model: Path) -> None:
    assert refused_by_name(model, "") is None
    assert read_model_dir(model).sources["template"] == "additional_chat_templates/tool_use.jinja"


@pytest.mark.parametrize("name", FILES)
def test_wrong_bytes(model: Path, name: str) -> None:
    good = (model / name).read_bytes()
    for wrong in (*WRONG, *(good[:cut] for cut in range(1, len(good), max(1, len(good) // 20)))):
        (model / name).write_bytes(wrong)
        refused_by_name(model, name)


@pytest.mark.parametrize("name", [n for n, v in FILES.items() if v is not None])
def test_wrong_values(model: Path, name: str) -> None:
    (model / "tugline.json").write_text("{}") if name != "tugline.json" else None
    good = json.loads((model / name).read_text())
    for key in good:
        for value in VALUES:
            (model / name).write_text(json.dumps({**good, key: value}))
            refused_by_name(model, name)


@pytest.mark.parametrize("name", FILES)
def test_no_regular_file(model: Path, name: str) -> None:
    file = model / name
    file.unlink()
    file.symlink_to(file.name)
    assert name in (refused_by_name(model, name) or "")
    file.unlink()
    os.mkfifo(file)
    assert "no regular file" in (refused_by_name(model, name) or "")
    file.unlink()
    file.mkdir()
    assert "no regular file" in (refused_by_name(model, name) or "")


@pytest.mark.parametrize("name", ["config.json", "chat_template.jinja", "tokenizer_config.json"])
def test_a_huge_file_is_not_read(model: Path, name: str) -> None:
    with (model / name).open("wb") as file:
        file.truncate(SMALL + 1)
    assert "are not read" in (refused_by_name(model, name) or "")


def test_a_directory_that_is_a_link_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match="no such model directory"):
        read_model_dir(tmp_path / "loop")


def test_a_stop_token_beyond_the_output_layer(model: Path) -> None:
    (model / "config.json").write_text(json.dumps({"vocab_size": 100, "max_position_embeddings": 99}))
    assert "no room for the stop tokens" in (refused_by_name(model, "config.json") or "")
