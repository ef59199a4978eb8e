"""Loading settings. Every value remembers where it came from; unknown keys are errors with their nearest neighbour."""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from tugline.config.types import EngineSettings, Settings
from tugline.config.values import OWN_FILTER, TEMPLATE_ARGUMENT, convert, from_text
from tugline.core.errors import ConfigError

ENV_PREFIX = "TUGLINE_"
ENV_ALIASES = {"TUGLINE_CACHE": "cache.dir"}
ENV_FOREIGN = ("TUGLINE_TEST_", "TUGLINE_CORPUS", "TUGLINE_CAPTURES", "TUGLINE_WORKDIR")
"""Not settings: our tests' switches and what sandboxes tell their commands."""
ENV_SESSION = frozenset({"TUGLINE_SESSION", "TUGLINE_RUN"})
"""Not settings: which session `tugline gateway session end` means. Whole names: TUGLINE_RUN__N is a setting."""
_ARGUMENTS = re.compile(r"engine(?:s\.[^.]+)?\.template_kwargs")


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and {dotted key: source} of those that are not defaults."""

    settings: Settings
    sources: Mapping[str, str]

    def flat(self) -> dict[str, object]:
        """{dotted key: value} of all settings."""
        return {f"{section}.{name}": value for section, name, value in _entries(self.settings, "")}


def load(file: Path | None, env: Mapping[str, str], flags: Mapping[str, object]) -> Loaded:
    """Merge the four sources. Raises ConfigError naming file and line, variable or flag."""
    kinds = dict(_kinds(Settings, ""))
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for key, value, where in (
        *_from_file(file),
        *_from_env(env),
        *((k, from_text(k, v), "flag") for k, v in flags.items()),
    ):
        kind = kinds.get(key) or _open_kind(key)
        if kind is None:
            raise ConfigError(f"unknown setting {key!r}{_nearest(key, kinds)}", where=where)
        values[key] = convert(key, kind, value, where)
        sources[key] = where
    if "cache.dir" not in values and env.get("XDG_CACHE_HOME"):
        values["cache.dir"], sources["cache.dir"] = f"{env['XDG_CACHE_HOME']}/tugline", "XDG_CACHE_HOME"
    return Loaded(_build(Settings, "", values), sources)


def dump_toml(settings: Settings) -> str:
    """The settings as a TOML file that loads to the same settings."""
    sections: dict[str, list[str]] = {}
    for section, name, value in _entries(settings, ""):
        if value is not None:
            shown = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)
            sections.setdefault(section, []).append(f"{shown} = {_toml(value)}")
    return "\n".join(f"[{name}]\n" + "\n".join(lines) + "\n" for name, lines in sections.items())


def _from_file(file: Path | None) -> Iterator[tuple[str, object, str]]:
    if file is None:
        return
    try:
        text = file.read_text("utf-8")
        tree = tomllib.loads(text)
    except OSError as err:
        raise ConfigError(f"cannot be read: {err.strerror}", where=str(file)) from err
    except UnicodeDecodeError as err:
        raise ConfigError("is not UTF-8 text", where=str(file)) from err
    except tomllib.TOMLDecodeError as err:
        raise ConfigError(f"is not valid TOML: {err}", where=str(file)) from err
    sections = {key.rpartition(".")[0] for key, _ in _kinds(Settings, "")} | {"engines", "models", "models.routes"}
    sections |= {"filters.own", "sandbox.images"}
    for key, value in _leaves(tree, ""):
        if value != {} or not (key in sections or _ARGUMENTS.fullmatch(key)):  # an empty section sets nothing
            yield key, value, f"{file}{_line_of(text, key)}"


def _from_env(env: Mapping[str, str]) -> Iterator[tuple[str, object, str]]:
    for name in sorted(env):
        if not name.startswith(ENV_PREFIX) or name.startswith(ENV_FOREIGN) or name in ENV_SESSION:
            continue
        key = ENV_ALIASES.get(name) or name[len(ENV_PREFIX) :].lower().replace("__", ".")
        yield key, from_text(key, env[name]), name


def _leaves(tree: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            if not value:
                yield f"{prefix}{name}", value
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _line_of(text: str, key: str) -> str:
    """`:12` when the key's line can be told, else nothing."""
    section, _, name = key.rpartition(".")
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.fullmatch(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?", line)
        if header:
            current = header.group(1).strip()
        elif current == section and re.match(rf"\s*\"?{re.escape(name)}\"?\s*=", line):
            return f":{number}"
    return ""


def _open_kind(key: str) -> object | None:
    """Type of a setting in a section whose keys are people's own: `engines.NAME.x`, `models.routes.PATTERN`,
    `sandbox.images.PATTERN`, `filters.own.NAME` and `engine.template_kwargs.NAME`."""
    if TEMPLATE_ARGUMENT.fullmatch(key):
        return str
    named = re.fullmatch(r"engines\.[A-Za-z0-9_-]{1,64}\.(\w+)", key)
    if named and named.group(1) != "template_kwargs":
        return get_type_hints(EngineSettings).get(named.group(1))
    by_name = re.fullmatch(r"(?:models\.routes|sandbox\.images)\..+", key, re.DOTALL)
    return str if OWN_FILTER.fullmatch(key) or by_name else None


def _kinds(cls: type, prefix: str) -> Iterator[tuple[str, object]]:
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        kind = hints[field.name]
        if get_origin(kind) is Mapping:
            continue
        if dataclasses.is_dataclass(kind):
            yield from _kinds(kind, f"{prefix}{field.name}.")  # type: ignore[arg-type]  # a class, not an instance
        else:
            yield f"{prefix}{field.name}", kind


def _build(cls: type[Any], prefix: str, values: Mapping[str, object]) -> Any:
    hints = get_type_hints(cls)
    made: dict[str, object] = {}
    for field in dataclasses.fields(cls):
        key = f"{prefix}{field.name}"
        if get_origin(hints[field.name]) is Mapping:
            made[field.name] = _build_mapping(get_args(hints[field.name])[1], f"{key}.", values)
        elif dataclasses.is_dataclass(hints[field.name]):
            made[field.name] = _build(hints[field.name], f"{key}.", values)
        elif key in values:
            made[field.name] = values[key]
    return cls(**made)


def _build_mapping(kind: Any, prefix: str, values: Mapping[str, object]) -> dict[str, Any]:
    mine = [key[len(prefix) :] for key in values if key.startswith(prefix)]
    if not dataclasses.is_dataclass(kind):
        return {name: values[prefix + name] for name in mine}
    names = dict.fromkeys(name.partition(".")[0] for name in mine)
    return {name: _build(kind, f"{prefix}{name}.", values) for name in names}  # type: ignore[arg-type]  # a class


def _entries(value: Any, section: str) -> Iterator[tuple[str, str, object]]:
    """(section, name, value) of every setting."""
    pairs = (
        value.items()
        if isinstance(value, Mapping)
        else [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    )
    for name, inner in pairs:
        if dataclasses.is_dataclass(inner) or isinstance(inner, Mapping):
            yield from _entries(inner, f"{section}.{name}" if section else name)
        else:
            yield section, name, inner


def _nearest(key: str, kinds: Mapping[str, object]) -> str:
    if key.startswith("filters."):
        own = "a filter of your own is [filters.own] NAME, of lower-case letters, digits and underscores"
        return f"; there are: {', '.join(k for k in kinds if k.startswith('filters.'))}; {own}"
    close = difflib.get_close_matches(key, list(kinds), 1, 0.6)
    if not close:
        name = key.rpartition(".")[2]
        close = [k for k in kinds if k.rpartition(".")[2] == name][:1]
    return f"; did you mean {close[0]!r}?" if close else "; `tugline config show` lists all"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    text = str(value)
    escaped = "".join(
        f"\\u{ord(c):04X}" if ord(c) < 32 or ord(c) == 127 else {'"': '\\"', "\\": "\\\\"}.get(c, c) for c in text
    )
    return f'"{escaped}"'
