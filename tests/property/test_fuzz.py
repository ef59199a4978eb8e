"""A short run of the shipped fuzzer over every dialect, and proof that it notices what it looks for."""

from __future__ import annotations

import mmap
import time
from pathlib import Path

import pytest

from contract.kits import kits
from tugline.core.errors import BadRequest
from tugline.core.items import Options
from tugline.dialects import DIALECTS, ChatDialect
from tugline.testing import fuzz as fuzzing
from tugline.testing.dialect_suite import CONVERSATION
from tugline.testing.fuzz import Fuzzed, fuzz, main
from tugline.testing.fuzz_bodies import Bodies
from tugline.testing.fuzz_seeds import seeds
from tugline.testing.fuzz_wire import through_gateway

every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
MODEL = {"model": "policy"}


def bodies(name: str, seed: int = 0) -> Bodies:
    written = [kits()[name].write(CONVERSATION, Options(stream=stream)) for stream in (False, True)]
    return Bodies(name, [*seeds(name), *written], seed)


@every_dialect
def test_seeds_are_good_requests(dialect) -> None:
    assert len(seeds(dialect.name)) >= 3
    for body in seeds(dialect.name):
        assert dialect.decode(body, MODEL).items


@every_dialect
def test_no_body_breaks_a_dialect(dialect) -> None:
    done = fuzz(dialect, bodies(dialect.name), range(600), MODEL)
    assert done.failures == []
    assert done.bodies == done.decoded + done.refused == 600
    assert done.decoded > 60 and done.refused > 60, "either only good or only bad bodies were tried"


@every_dialect
async def test_no_body_breaks_a_gateway(dialect, tmp_path: Path) -> None:
    served = await through_gateway(dialect, bodies(dialect.name), range(150), tmp_path)
    assert served.failures == []
    assert served.calls == served.statuses.total() == 150
    assert set(served.statuses) <= {200, 400, 404, 413} and served.statuses[200] > 10


def test_a_body_is_the_same_by_its_number() -> None:
    once, again, other = bodies("chat"), bodies("chat"), bodies("chat", seed=1)
    numbers = range(50)
    assert [once.body(n) for n in numbers] == [again.body(n) for n in reversed(numbers)][::-1]
    assert [once.body(n) for n in numbers] != [other.body(n) for n in numbers]


class Crashing(ChatDialect):
    """A decoder that lets a foreign exception out."""

    def decode(self, body, params):
        if b"tool_call_id" in body:
            raise KeyError("tool_call_id")
        return super().decode(body, params)


class Quoting(ChatDialect):
    """An error as long as its cause."""

    def decode(self, body, params):
        raise BadRequest("no: " + "x" * 10_000)


class Slow(ChatDialect):
    """One body in many takes too long."""

    def decode(self, body, params):
        time.sleep(0.02)
        return super().decode(body, params)


class Leaking(ChatDialect):
    """Keeps something of every body."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[mmap.mmap] = []

    def decode(self, body, params):
        fresh = mmap.mmap(-1, 100_000)  # the allocator may have room of earlier tests to give away
        fresh.write(bytes(100_000))
        self.kept.append(fresh)
        return super().decode(body, params)


class Fragile(ChatDialect):
    """Decodes anything, and fails where a gateway goes on with it."""

    def encode(self, reply):
        if len(reply.request.items) > 7:
            raise AttributeError("no such reply")
        return super().encode(reply)


@pytest.mark.parametrize(
    ("dialect", "words"),
    [
        (Crashing(), "KeyError"),
        (Quoting(), "characters"),
        (Slow(), "ms for"),
        (Leaking(), "memory grew"),
        (Fragile(), "no such"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, ChatDialect) else "",
)
def test_the_fuzzer_notices(dialect, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "SLOW_MS", 15.0 if words == "ms for" else 1e9)
    monkeypatch.setattr(fuzzing, "GROWTH", 8 << 20)
    done: Fuzzed = fuzz(dialect, bodies("chat"), range(200), MODEL)
    assert any(words in text for text in done.failures), done.table()


def test_the_command_reports_and_repeats_one(capsysbinary, tmp_path: Path) -> None:
    assert main(["--dialect", "chat", "--bodies", "60", "--over-http", "20"]) == 0
    said = capsysbinary.readouterr().out
    assert said.startswith(b"dialect ") and b"\nchat " in said
    assert main(["--dialect", "chat", "--only", "7"]) == 0
    assert Bodies("chat", seeds("chat")).body(7) in capsysbinary.readouterr().out
    assert main(["--dialect", "nobodys"]) == 2
    assert main(["--dialect", "chat", "--captures", str(tmp_path)]) == 2
