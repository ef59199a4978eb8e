"""Where an engine listens, and the key for it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tugline.core.errors import ConfigError
from tugline.core.paths import expanded

KEY_LIMIT = 8192
"""Bytes of a file with a key."""
_KEY = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class Remote:
    """Where an engine listens and how long to wait for it. Seconds."""

    url: str
    """Without a slash at the end."""
    key: str | None = field(default=None, repr=False)
    connect: float = 10.0
    reply: float = 1800.0
    """For a whole generation."""
    patience: float = 60.0
    """For an engine that does not answer, before calls fail."""
    served: str | None = None
    """The model's name there; None: the first that the engine lists."""

    def without_key(self, text: bytes) -> bytes:
        """Some servers repeat a key that they do not know: it must not get into errors and records."""
        return text.replace(self.key.encode(), b"[key]") if self.key else text


def shown_url(text: str) -> str:
    """An address as it may be repeated: without what may be a key."""
    return re.sub(r"//[^/]*@", "//[key]@", text).partition("?")[0].partition("#")[0]


def remote_url(text: str, where: str = "engine") -> str:
    """A base URL as people write it. Raises ConfigError, which never repeats what may be a key."""
    if any(not c.isprintable() or c.isspace() for c in text):
        raise ConfigError("the URL holds spaces or control characters", where=where)
    shown = shown_url(text)
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError as err:
        raise ConfigError(f"{shown!r} is no URL: {err}", where=where) from err
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{shown!r} is no URL such as http://127.0.0.1:8000", where=where)
    if "@" in parts.netloc:
        raise ConfigError("a key stands in the URL; name its file or variable instead", where=where)
    if "?" in text or "#" in text:
        raise ConfigError(f"{shown}: a base URL has no query; a key belongs in a file or variable", where=where)
    return text.rstrip("/")


def read_key(file: str | None, variable: str | None, where: str) -> str | None:
    """The key in a file (whitespace around it does not count) or an environment variable. Raises ConfigError."""
    if file is not None and variable is not None:
        raise ConfigError("say key_file or key_env, not both", where=f"{where}.key_env")
    if file is not None:
        path = expanded(file, f"{where}.key_file")
        try:
            with path.open("rb") as opened:
                text = opened.read(KEY_LIMIT + 1).decode("utf-8").strip()
        except (OSError, UnicodeDecodeError, ValueError) as err:
            why = err.strerror if isinstance(err, OSError) else "it is no text"
            raise ConfigError(f"{path}: cannot be read: {why}", where=f"{where}.key_file") from None
        if len(text) > KEY_LIMIT or not _KEY.fullmatch(text):
            raise ConfigError(f"{path}: is not one line with a key", where=f"{where}.key_file")
        return text
    if variable is not None:
        text = os.environ.get(variable, "").strip()
        if not text:
            raise ConfigError(f"the environment variable {variable} is not set", where=f"{where}.key_env")
        if not _KEY.fullmatch(text):
            raise ConfigError(f"the environment variable {variable} holds no key", where=f"{where}.key_env")
        return text
    return None
