"""Turning what people write into typed values: numbers, durations ("10m"), sizes ("512MB")."""

from __future__ import annotations

import json
import math
import re
from typing import get_args, get_origin

from tugline.core.errors import ConfigError

_DURATION = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")

_WAITS = ("connect_timeout", "reply_timeout", "patience")
DURATIONS = frozenset(
    {
        "limits.boot_timeout",
        "limits.agent_timeout",
        "limits.judge_timeout",
        "gateway.keepalive",
        "gateway.grace",
        *(f"engine.{name}" for name in _WAITS),
        "sandbox.keep",
    }
)
SIZES = frozenset({"sandbox.memory", "sandbox.disk", "sandbox.cache_size", "gateway.max_body"})
RANGES: dict[str, tuple[float, float]] = {
    "run.n": (1, 100_000),
    "run.concurrency.boot": (1, 10_000),
    "run.concurrency.run": (1, 10_000),
    "run.concurrency.judge": (1, 10_000),
    "engine.context": (1, 1 << 40),
    "engine.threads": (1, 1024),
    "engine.slots": (1, 65_536),
    "engine.connect_timeout": (0.01, 3600),
    "engine.reply_timeout": (0.01, 86_400),
    "engine.patience": (0, 86_400),
    "sampling.temperature": (0, 100),
    "sampling.top_p": (1e-9, 1),
    "sampling.top_k": (0, 10_000_000),
    "sampling.max_tokens": (1, 10_000_000),
    "sandbox.memory": (1 << 20, math.inf),
    "sandbox.disk": (1 << 20, math.inf),
    "sandbox.pids": (1, 1_000_000),
    "sandbox.keep": (0, math.inf),
    "sandbox.cache_size": (0, math.inf),
    "limits.boot_timeout": (0.001, math.inf),
    "limits.agent_timeout": (0.001, math.inf),
    "limits.judge_timeout": (0.001, math.inf),
    "limits.max_turns": (1, 1_000_000),
    "limits.max_tokens_per_session": (1, math.inf),
    "limits.infra_retries": (0, 1000),
    "gateway.port": (0, 65_535),
    "gateway.keepalive": (0.05, 3600),
    "gateway.grace": (0, 3600),
    "gateway.max_body": (1024, 1 << 32),
}


CHOICES: dict[str, tuple[str, ...]] = {
    "gateway.media": ("omit", "refuse"),
    "gateway.constraints": ("refuse", "ignore"),
    "edits.history_reasoning": ("keep", "template"),
    **{
        f"edits.{name}": ("retain", "honour")
        for name in (
            "ws_trim",
            "reasoning_changed",
            "args_lossy_known",
            "args_repaired",
            "args_changed",
            "text_changed",
            "partial_echo",
            "head_changed",
        )
    },
    "gateway.streaming": ("buffered", "live"),
    "sandbox.runtime": ("auto", "podman", "docker"),
}
SHIPPED_FILTERS = ("billing_header", "total_tokens")
OWN_FILTER = re.compile(r"filters\.own\.([a-z][a-z0-9_]{0,39})")
TEMPLATE_ARGUMENT = re.compile(r"engine(?:s\.[A-Za-z0-9_-]{1,64})?\.template_kwargs\.([A-Za-z_]\w{0,63})")
_NAMED_ENGINE = re.compile(r"engines\.[^.]+\.")


def convert(key: str, kind: object, value: object, where: str) -> object:
    """`value` as the setting's type. Raises ConfigError naming `where` and `key`."""
    if get_origin(kind) is tuple:
        return _words(key, value, where)
    if TEMPLATE_ARGUMENT.fullmatch(key):
        return _scalar(key, value, where)
    optional = type(None) in get_args(kind)
    base = next((a for a in get_args(kind) if a is not type(None)), kind)
    if value is None or (optional and value == ""):
        if optional:
            return None
        raise ConfigError(f"{key} needs a value", where=where)
    if _NAMED_ENGINE.sub("engine.", key) in DURATIONS:
        result: object = _scaled(key, value, _DURATION, "s", "a duration such as 90, 90s or 10m", where)
    elif key in SIZES:
        result = int(_scaled(key, value, _SIZE, "", "a size such as 1048576, 512MB or 1GiB", where))
    else:
        result = _plain(key, base, value, where)
    own = OWN_FILTER.fullmatch(key)
    if own and own.group(1) in SHIPPED_FILTERS:
        raise ConfigError(f"{key}: another filter has this name, which reports count by", where=where)
    if own:
        _check_pattern(key, str(result), where)
    if key in CHOICES and result not in CHOICES[key]:
        raise ConfigError(f"{key} = {value!r} is none of: {', '.join(CHOICES[key])}", where=where)
    low, high = RANGES.get(_NAMED_ENGINE.sub("engine.", key), (-math.inf, math.inf))
    if isinstance(result, int | float) and not low <= result <= high:
        raise ConfigError(f"{key} = {value!r} is outside {low:g} .. {high:g}", where=where)
    return result


def _words(key: str, value: object, where: str) -> tuple[str, ...]:
    """A list of texts; outside TOML as a JSON list, or separated by commas."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.lstrip().startswith("[") else [w.strip() for w in value.split(",")]
        except ValueError:
            value = None
    if isinstance(value, list | tuple) and key.endswith(".prices"):
        value = [str(word) if type(word) in (int, float) else word for word in value]
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
        raise ConfigError(f'{key} is no list of texts such as ["<|im_end|>"]', where=where)
    return tuple(word for word in value if word)


def from_text(key: str, value: object) -> object:
    """A template argument written outside TOML: `true`, `false` and numbers are not texts there."""
    if not isinstance(value, str) or not TEMPLATE_ARGUMENT.fullmatch(key):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        number = json.loads(value, parse_constant=str)
    except ValueError:
        return value
    return number if isinstance(number, int | float) else value


def _scalar(key: str, value: object, where: str) -> object:
    if isinstance(value, str | bool | int | float):
        return value
    raise ConfigError(f"{key} = {value!r} is neither text, number, true nor false", where=where)


def _check_pattern(key: str, pattern: str, where: str) -> None:
    """A filter must be a regular expression that does not match everywhere."""
    try:
        empty = re.compile(pattern).fullmatch("") is not None
    except re.error as err:
        raise ConfigError(f"{key} = {pattern!r} is no regular expression: {err}", where=where) from err
    if empty:
        raise ConfigError(f"{key} = {pattern!r} matches the empty text, which is everywhere", where=where)


def _plain(key: str, base: object, value: object, where: str) -> object:
    if base is str and isinstance(value, str):
        return value
    if base is bool and (isinstance(value, bool) or str(value).lower() in ("true", "false")):
        return value if isinstance(value, bool) else str(value).lower() == "true"
    if base is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if base is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and base in (int, float):
        try:
            number = int(value) if base is int else float(value)
        except ValueError:
            number = math.nan
        if math.isfinite(number):
            return number
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    wanted = f"none of: {', '.join(CHOICES[key])}" if key in CHOICES else f"not {names.get(base, base)}"  # type: ignore[call-overload]
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    raise ConfigError(f"{key} = {shown} is {wanted}", where=where)


def _scaled(
    key: str, value: object, units: dict[str, float] | dict[str, int], default: str, want: str, where: str
) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    unit = (match.group(2).lower() or default) if match else "?"
    if match is None or unit not in units:
        raise ConfigError(f"{key} = {value!r} is not {want}", where=where)
    return float(match.group(1)) * units[unit]
