"""What calls to an API cost: prices, sums, and the lines of `usage.jsonl` that both are read from again."""

from __future__ import annotations

import errno
import math
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tugline.core.contracts import Reading
from tugline.core.errors import ConfigError
from tugline.core.items import Usage

FILE = "usage.jsonl"
POLICY = "policy"
"""How the engine is called that has no name."""
_TOKENS = "Tokens that an API counted."


class UsageLine(msgspec.Struct, omit_defaults=False):
    """One answer of an API, whether it was of use or not: both cost. Tokens."""

    ref: str
    """The engine's name for the generation; "" when its answer was of no use."""
    session: str
    id: str
    model: str
    prompt: int
    cached: int
    completion: int
    reasoning: int
    cost: float
    fault: str | None = None
    """Why the answer was of no use."""


@dataclass(slots=True)
class Spent:
    """What was used so far. Tokens; `cost` in whatever the prices are in. `wasted`: the part of the cost that bought
    answers of no use."""

    calls: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0
    cost: float = 0.0
    wasted: float = 0.0

    def add(self, line: UsageLine) -> None:
        """One more answer; `calls` has those of use."""
        self.calls += line.fault is None
        self.prompt += line.prompt
        self.cached += line.cached
        self.completion += line.completion
        self.reasoning += line.reasoning
        self.cost += line.cost
        self.wasted += 0.0 if line.fault is None else line.cost

    def readings(self) -> tuple[Reading, ...]:
        """For metrics."""
        kinds = {
            "prompt": self.prompt,
            "cached": self.cached,
            "completion": self.completion,
            "reasoning": self.reasoning,
        }
        tokens = tuple(Reading("api_tokens", "counter", _TOKENS, ("kind", k), float(n)) for k, n in kinds.items())
        return (*tokens, Reading("api_cost", "counter", "Cost by `engine.prices`.", value=self.cost))


@dataclass(frozen=True, slots=True)
class Prices:
    """Per million tokens."""

    prompt: float = 0.0
    completion: float = 0.0
    cached: float = 0.0

    def of(self, usage: Usage) -> float:
        """Cost of one call. Cached tokens are part of the prompt's, reasoning is part of the completion's."""
        cached = min(usage.cached, usage.prompt)
        fresh = usage.prompt - cached
        return (fresh * self.prompt + cached * self.cached + usage.completion * self.completion) / 1e6


def prices_of(said: tuple[str, ...], where: str) -> Prices:
    """input, output and, if it differs, cached input. Raises ConfigError."""
    try:
        numbers = [float(word) for word in said]
    except ValueError:
        numbers = [-1.0]
    if not said:
        return Prices()
    if len(numbers) not in (2, 3) or not all(math.isfinite(n) and n >= 0 for n in numbers):
        raise ConfigError(f"{', '.join(said)}: two or three prices are expected", where=f"{where}.prices")
    return Prices(numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else numbers[0])


def append_line(path: Path, line: UsageLine) -> None:
    """Write a line, whole or not at all, behind whatever a crash left of another. Raises OSError."""
    with path.open("a+b", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
        text = (b"" if not end or file.read(1) == b"\n" else b"\n") + msgspec.json.encode(line) + b"\n"
        if file.write(text) != len(text):
            file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def spent_in(run_dir: Path) -> dict[str, Spent]:
    """{engine: what a run has spent there}, of the engines that write it down. A last line that a crash cut counts for
    nothing."""
    places = {POLICY: run_dir / "engine"}
    others = run_dir / "engines"
    if others.is_dir():
        places |= {each.name: each for each in sorted(others.iterdir())}
    found: dict[str, Spent] = {}
    for name, place in places.items():
        if (place / FILE).is_file():
            found[name] = Spent()
            for line in (place / FILE).read_bytes().splitlines():
                try:
                    found[name].add(msgspec.json.decode(line, type=UsageLine))
                except msgspec.MsgspecError:
                    continue
    return found
