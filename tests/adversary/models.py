"""A case of the corpus as a model directory, and what its template can represent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from adversary.plan import Can
from tugline.cli.wiring import chat_model
from tugline.core.errors import ConfigError, Unsupported
from tugline.core.items import Assistant, Head, System, Tool, ToolCall, ToolResult, UserText
from tugline.engines.modeldir import read_model_dir
from tugline.tokens.families import Family, families
from tugline.tokens.model import ChatModel

FALLBACK = {
    "qwen3_5": "qwen3.5", "qwen3_coder": "qwen3.5", "qwen2_5": "qwen3", "hermes": "qwen3", "nemotron3": "nemotron-3",
    "minimax_m2": "minimax-m2", "glm4": "glm-4.5", "hunyuan3": "hy3", "laguna": "laguna", "kimi_k2": "kimi-k2",
    "deepseek_v3": "deepseek-v3", "deepseek_v4": "deepseek-v4", "qwen3": "qwen3",
}  # fmt: skip
_SPEC = (
    '{"type":"function","function":{"name":"run","description":"runs","parameters":'
    '{"type":"object","properties":{"cmd":{"type":"string"}}}}}'
)


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to play with."""

    name: str
    folder: Path
    model: ChatModel
    family: Family
    can: Can
    real: bool


@dataclass(frozen=True, slots=True)
class Files:
    """What a corpus case gives."""

    name: str
    template: str
    tokenizer_json: bytes
    specials: dict[str, str]
    stop: tuple[str, ...]
    real: bool
    word: str = ""
    """Of the corpus's table."""


def subject(files: Files, folder: Path) -> Subject:
    """The case as a Hugging Face directory, found out about by content alone."""
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_bytes(files.tokenizer_json)
    (folder / "chat_template.jinja").write_text(files.template, "utf-8")
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 1_000_000}))
    (folder / "tokenizer_config.json").write_text(json.dumps(files.specials))
    added = {t["content"]: t["id"] for t in json.loads(files.tokenizer_json)["added_tokens"]}
    ends = [added[word] for word in files.stop if word in added]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends} if ends else {}))
    try:
        read_model_dir(folder)
    except ConfigError:
        parser = FALLBACK.get(files.word, "plain")
        (folder / "tugline.json").write_text(json.dumps({"parser": parser}))
    return known(files.name, folder, real=files.real)


def known(name: str, folder: Path, *, real: bool) -> Subject:
    """A model directory, and what its template and family can represent."""
    model = chat_model(folder)
    model.probe()
    family = families()[read_model_dir(folder).parser]
    can = Can(_tools(model), _spells(family, reasoning="zQthoughtQz"), _tools(model, 2))
    if not _spells(family, calls=1):
        can = Can(False, can.reasoning, False)
    return Subject(name, folder, model, family, can, real)


def _spells(family: Family, reasoning: str | None = None, calls: int = 0) -> bool:
    made = tuple(ToolCall("", "run", '{"cmd": "ls"}') for _ in range(calls))
    try:
        spelled = family.spell(Assistant(None if calls else "x", reasoning, made))
    except ConfigError:
        return False
    return (reasoning or "") in spelled and (not calls or "run" in spelled)


def _tools(model: ChatModel, many: int = 1) -> bool:
    """Whether calls and their results reach the prompt."""
    calls = tuple(ToolCall(f"call_{n}", "run", f'{{"cmd": "zQarg{n}Qz"}}') for n in range(many))
    results = [ToolResult(c.id, f"zQres{n}Qz") for n, c in enumerate(calls)]
    items = [System("s"), UserText("u"), Assistant(None, None, calls), *results]
    try:
        text = model.decode(model.render(Head((Tool("run", _SPEC),)), items).ids)
    except Unsupported:
        return False
    words = [f"zQ{kind}{n}Qz" for kind in ("arg", "res") for n in range(many)]
    return all(word in text for word in words)
