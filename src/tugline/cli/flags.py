"""Command-line flags as dotted settings, so that they meet file and environment in one place."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tugline.config.load import Loaded, load
from tugline.core.errors import ConfigError

SAMPLING_KEYS = ("temperature", "top_p", "top_k", "max_tokens")


@dataclass(frozen=True, slots=True)
class RunFlags:
    """Flags that several commands share. None = not given."""

    harness: str | None = None
    engine: str | None = None
    model: str | None = None
    template: str | None = None
    parser: str | None = None
    n: int | None = None
    sandbox: str | None = None
    out: Path | None = None
    sampling: str | None = None
    boot_timeout: str | None = None
    agent_timeout: str | None = None
    judge_timeout: str | None = None
    max_turns: int | None = None
    max_tokens_per_session: int | None = None
    seed: int | None = None
    extra: tuple[str, ...] = ()

    def dotted(self) -> dict[str, object]:
        """{"engine.spec": ...} of what was given. Raises ConfigError for a malformed --sampling or --set."""
        named: dict[str, object] = {
            "harness.name": self.harness,
            "engine.spec": self.engine,
            "engine.model": self.model,
            "engine.template": self.template,
            "engine.parser": self.parser,
            "run.n": self.n,
            "run.seed": self.seed,
            "run.out": str(self.out) if self.out else None,
            "sandbox.name": self.sandbox,
            "limits.boot_timeout": self.boot_timeout,
            "limits.agent_timeout": self.agent_timeout,
            "limits.judge_timeout": self.judge_timeout,
            "limits.max_turns": self.max_turns,
            "limits.max_tokens_per_session": self.max_tokens_per_session,
        }
        flags = {k: v for k, v in named.items() if v is not None}
        for part in filter(None, (self.sampling or "").split(",")):
            key, sep, value = part.partition("=")
            if not sep or key.strip() not in SAMPLING_KEYS:
                raise ConfigError(f"{part!r} is not one of {', '.join(SAMPLING_KEYS)} with =VALUE", where="--sampling")
            flags[f"sampling.{key.strip()}"] = value.strip()
        for part in self.extra:
            key, sep, value = part.partition("=")
            if not sep:
                raise ConfigError(f"{part!r} is not KEY=VALUE", where="--set")
            flags[key.strip()] = value.strip()
        return flags


def load_settings(file: Path | None, flags: RunFlags, *, name: str | None = None) -> Loaded:
    """Defaults < file < TUGLINE_* < flags."""
    dotted = flags.dotted()
    if name is not None:
        dotted.setdefault("run.name", name)
    return load(file, dict(os.environ), dotted)
