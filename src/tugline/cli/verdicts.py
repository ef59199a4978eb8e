"""Where verdicts on chat templates are kept between starts: one small file each, below the cache directory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import tugline.tokens

_LIBRARIES = ("transformers", "jinja2", "tokenizers", "renderers")


class FileVerdicts:
    """A `VerdictCache` in a directory. A file that cannot be read is as good as none; one that cannot be written is
    done without."""

    def __init__(self, cache: Path) -> None:
        self._folder = cache / "templates"

    def get(self, key: str) -> bytes | None:
        """What was put by the same code and libraries, or None."""
        try:
            return self._file(key).read_bytes()
        except OSError:
            return None

    def put(self, key: str, value: bytes) -> None:
        """Write it whole or not at all."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder, suffix=".part")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(value)
                os.replace(name, self._file(key))
            except OSError:
                Path(name).unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        return self._folder / f"{hashlib.sha256((key + self._code).encode()).hexdigest()}.json"

    @cached_property
    def _code(self) -> str:
        """Versions of the libraries that render and encode, and our own sources: another code, another verdict."""
        digest = hashlib.sha256()
        for name in _LIBRARIES:
            try:
                digest.update(f"{name} {version(name)}\n".encode())
            except PackageNotFoundError:
                digest.update(f"{name} is missing\n".encode())
        for folder in map(Path, tugline.tokens.__path__):
            for file in sorted(folder.rglob("*.py")):
                digest.update(file.read_bytes())
        return digest.hexdigest()
