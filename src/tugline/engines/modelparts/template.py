"""Which chat template a model directory means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tugline.core.errors import ConfigError
from tugline.core.paths import expanded
from tugline.engines.modelparts.files import optional, text

FOLDERS = ("additional_chat_templates", "chat_templates")
PREFERRED = ("tool_use", "default")
"""Of several named templates: agents bring tools, and a template for them also renders what has none."""
_HOW = (
    "a base model has none, and replies in no known form: use its chat version, or give a template with "
    '--template FILE ([engine] template, or {"template": FILE} in tugline.json)'
)


@dataclass(frozen=True, slots=True)
class Template:
    """Jinja source and where it stands."""

    source: str
    where: str


def choose(path: Path, settings: Mapping[str, Any], asked: str | None, place: str) -> Template:
    """The model's template. `asked`: a file, or the name of one of the directory's own templates, from `place`.

    Without it, in this order: the one named `tool_use`, the one named `default` (chat_template.jinja, or
    tokenizer_config.json's), the only one there is. `settings`: tokenizer_config.json. Raises ConfigError.
    """
    own = own_templates(path, settings)
    if asked is not None:
        return _asked(path, own, asked, place)
    name = next((n for n in PREFERRED if n in own), None) or (next(iter(own)) if len(own) == 1 else None)
    if name is not None:
        return own[name]
    if own:
        raise ConfigError(
            f"several chat templates and none called {' or '.join(PREFERRED)}; choose with --template: "
            f"{', '.join(sorted(own))}",
            where=str(path),
        )
    raise ConfigError(
        f"missing, and tokenizer_config.json has no chat_template; {_HOW}", where=str(path / "chat_template.jinja")
    )


def own_templates(path: Path, settings: Mapping[str, Any]) -> dict[str, Template]:
    """Every template that a directory holds, by name; files win over tokenizer_config.json, as in transformers."""
    found: dict[str, Template] = {}
    legacy = optional(path / "chat_template.json", dict[str, Any]) or {}  # of processors, before 2025
    for place, value in (
        ("chat_template.json", legacy.get("chat_template")),
        ("tokenizer_config.json", settings.get("chat_template")),
    ):
        for name, source in _named(path / place, value):
            found[name] = Template(source, f"{place} [chat_template{'' if name == 'default' else f' {name}'}]")
    for folder in FOLDERS:
        for file in sorted((path / folder).glob("*.jinja")):
            if one := text(file):
                found[file.stem] = Template(one, f"{folder}/{file.name}")
    if main := text(path / "chat_template.jinja"):
        found["default"] = Template(main, "chat_template.jinja")
    return found


def _named(file: Path, value: Any) -> list[tuple[str, str]]:
    """(name, source) of a `chat_template` value: text, or a list or object of named ones."""
    if value is None or value == "":
        return []
    if isinstance(value, str):
        return [("default", value)]
    pairs = list(value.items()) if isinstance(value, dict) else []
    if isinstance(value, list) and all(isinstance(t, dict) for t in value):
        pairs = [(t.get("name"), t.get("template")) for t in value]
    good = [(name, source) for name, source in pairs if isinstance(name, str) and isinstance(source, str)]
    if len(good) != len(pairs) or not good:
        raise ConfigError("is neither text nor a list of {name, template}", where=f"{file} [chat_template]")
    return good


def _asked(path: Path, own: Mapping[str, Template], asked: str, place: str) -> Template:
    if asked in own:
        return own[asked]
    file = expanded(asked, place)
    if place.startswith(str(path)) and not file.is_absolute():
        file = path / file  # tugline.json names files beside itself
    source = text(file)
    if source is None:
        names = ", ".join(sorted(own)) or "none"
        raise ConfigError(f"no file {str(file)!r}, and the model's own templates are: {names}", where=place)
    if not source:
        raise ConfigError("is empty", where=str(file))
    return Template(source, str(file))
