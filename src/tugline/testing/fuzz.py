"""Fuzzing a dialect: thousands of hostile bodies through decode(), a share of them through a real gateway.

    python -m tugline.testing.fuzz --dialect chat --bodies 20000 [--captures DIR]

A body must give a Request or a BadRequest, in time; a Request must survive being attached, answered, streamed and
echoed. The gateway must answer 200 or a client error, in time. Memory must not grow. Failures are named by body number:
`--only N` runs one again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import gc
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from tugline.core.contracts import Dialect
from tugline.core.errors import BadRequest, TuglineError, VerifyError, boundary, describe
from tugline.core.items import Assistant, Request, ToolCall
from tugline.dialects import dialect_named
from tugline.forest.forest import Forest
from tugline.testing.dialect_suite import reply_of
from tugline.testing.fuzz_bodies import Bodies
from tugline.testing.fuzz_seeds import seeds
from tugline.testing.fuzz_wire import resident, through_gateway
from tugline.testing.replay import captured_bodies, overrides_of

SLOW_MS = 1_000.0
"""One body may not take longer in decode(), attach and the reply."""
HANG_S = 60.0
"""The process dumps its stacks and ends when one body takes longer."""
GROWTH = 48 << 20
"""Bytes of resident memory by which a run may grow after its first tenth: allocators keep some."""
GATEWAY_GROWTH = 128 << 20
"""The same for the gateway, whose tokenizer keeps the words that it has met, up to a number."""
MAX_FAILURES = 20
SAID = Assistant(
    "  Text.\n", "Thought.", (ToolCall("call_1", "bash", '{"command" :  "ls"}'), ToolCall("call_2", "x", "{"))
)


@dataclass(slots=True)
class Fuzzed:
    """What came of a run. `failures` names bodies by number; empty is what one wants."""

    dialect: str
    bodies: int = 0
    decoded: int = 0
    refused: int = 0
    slowest_ms: float = 0.0
    slowest: int = -1
    grown: int = 0
    """Bytes of resident memory."""
    over_wire: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    slowest_call_ms: float = 0.0
    grown_gateway: int = 0
    failures: list[str] = field(default_factory=list)

    def table(self) -> str:
        """A line of figures under a line of heads, then the failures."""
        served = " ".join(f"{status}:{n}" for status, n in sorted(self.statuses.items())) or "-"
        head = (
            "dialect    bodies  200    400    slowest ms (body)  RSS +MiB  over HTTP  statuses  slowest ms  RSS +MiB\n"
        )
        line = (
            f"{self.dialect:<10} {self.bodies:<7} {self.decoded:<6} {self.refused:<6} "
            f"{f'{self.slowest_ms:.0f} ({self.slowest})':<18} {self.grown / 2**20:<9.1f} {self.over_wire:<10} "
            f"{served}  {self.slowest_call_ms:.0f}  {self.grown_gateway / 2**20:.1f}\n"
        )
        return head + line + "".join(f"FAILED {text}\n" for text in self.failures)


def fuzz(dialect: Dialect, bodies: Bodies, numbers: Sequence[int], params: dict[str, str] | None = None) -> Fuzzed:
    """Every body through decode() and what follows of it. `params`: path parameters of the generate route."""
    done = Fuzzed(dialect.name)
    settled = len(numbers) // 10
    base = resident()
    with _no_hang():
        for n, number in enumerate(numbers):
            if n == settled:
                gc.collect()
                base = resident()
            faulthandler.dump_traceback_later(HANG_S, exit=True, file=sys.__stderr__ or sys.stderr)
            _one(dialect, bodies.body(number), number, params or {}, done)
            if len(done.failures) >= MAX_FAILURES:
                break
    gc.collect()
    done.grown = max(0, resident() - base)
    if done.grown > GROWTH:
        done.failures.append(
            f"memory grew by {done.grown >> 20} MiB:\n{_growth(dialect, bodies, numbers, params or {})}"
        )
    return done


def _one(dialect: Dialect, body: bytes, number: int, params: dict[str, str], done: Fuzzed) -> None:
    done.bodies += 1
    begun = time.perf_counter()
    try:
        with boundary(VerifyError, "unexpected"):
            follow(dialect, dialect.decode(body, params))
        done.decoded += 1
    except BadRequest as err:
        done.refused += 1
        if not err.message or len(err.message) > 5_000:
            done.failures.append(f"body {number}: an error of {len(err.message)} characters")
    except TuglineError as err:
        done.failures.append(f"body {number}: {describe(err.__cause__ or err)}: {body[:120]!r}")
    took = (time.perf_counter() - begun) * 1000
    if took > done.slowest_ms:
        done.slowest_ms, done.slowest = took, number
    if took > SLOW_MS:
        done.failures.append(f"body {number}: {took:.0f} ms for {len(body)} bytes")


def follow(dialect: Dialect, request: Request) -> None:
    """What a gateway does with a request besides tokens: keys, replies that repeat it, the echo. Raises whatever is
    raised there."""
    Forest("ses_fuzz", b"").attach(request)
    msgspec.json.encode(request.options)
    reply = replace(reply_of(SAID, request.options), model=request.model, request=request)
    dialect.encode(reply)
    dialect.stream(reply, 1)
    dialect.echo(reply)


@contextlib.contextmanager
def _no_hang() -> Iterator[None]:
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _growth(dialect: Dialect, bodies: Bodies, numbers: Sequence[int], params: dict[str, str]) -> str:
    """Where a run's memory stays, by tracemalloc, over its first bodies again."""
    tracemalloc.start(12)
    before = tracemalloc.take_snapshot()
    for number in numbers[:2_000]:
        _one(dialect, bodies.body(number), number, params, Fuzzed(dialect.name))
    gc.collect()
    top = tracemalloc.take_snapshot().compare_to(before, "lineno")[:10]
    tracemalloc.stop()
    return "\n".join(f"  {line}" for line in top)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Exit status 1: something failed."""
    parser = argparse.ArgumentParser(prog="python -m tugline.testing.fuzz", description=fuzz.__doc__)
    parser.add_argument("--dialect", required=True, help="name of a dialect, e.g. chat")
    parser.add_argument("--bodies", type=int, default=20_000)
    parser.add_argument("--over-http", type=int, default=None, help="of these, posted to a gateway too (a twentieth)")
    parser.add_argument("--captures", type=Path, help="folder of recorded requests to damage as well")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=TEXT", help="replace a string of recordings")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="one body, by number; its bytes are printed")
    asked = parser.parse_args(argv)
    try:
        dialect = dialect_named(asked.dialect)
        given = seeds(dialect.name)
        if asked.captures:
            overrides = overrides_of(asked.set)
            given += [r.body for r in captured_bodies(asked.captures, dialect, overrides)]
    except TuglineError as err:
        sys.stderr.write(f"{err.message}\n")
        return 2
    bodies = Bodies(dialect.name, given, asked.seed)
    params = {"model": "policy"}
    if asked.only is not None:
        sys.stdout.buffer.write(bodies.body(asked.only) + b"\n")
        sys.stdout.flush()
        done = fuzz(dialect, bodies, [asked.only], params)
    else:
        done = fuzz(dialect, bodies, range(asked.bodies), params)
        posted = asked.bodies // 20 if asked.over_http is None else asked.over_http
        _over_http(dialect, bodies, posted, done)
    sys.stdout.write(done.table())
    return 1 if done.failures else 0


def _over_http(dialect: Dialect, bodies: Bodies, posted: int, done: Fuzzed) -> None:
    with tempfile.TemporaryDirectory(prefix="tugline-fuzz-") as scratch:
        served = asyncio.run(through_gateway(dialect, bodies, range(posted), Path(scratch)))
    done.over_wire, done.statuses = served.calls, served.statuses
    done.slowest_call_ms, done.grown_gateway = served.slowest_ms, served.grown
    done.failures += served.failures[:MAX_FAILURES]
    if served.grown > GATEWAY_GROWTH:
        done.failures.append(f"the gateway's memory grew by {served.grown >> 20} MiB over {served.calls} calls")


if __name__ == "__main__":
    sys.exit(main())
