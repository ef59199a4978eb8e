"""What a turn costs as its session grows: reading, attaching, bridging, checking, committing, each timed alone.

    python bench/forest.py                 5,000 turns of 80 tokens, then 200,000 tokens in turns of 3,000
    python bench/forest.py --turns 500     a short look

CPU time, all threads. No engine runs: samples are made up. Halfway the forest is thrown away and restored from the
store. At the end every prompt is compared with the plain concatenation of what was recorded, and the run's rows are
built and proven.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tugline.cli.wiring import PILOT, chat_model
from tugline.core.columns import Floats, concat, count, ids, last, take
from tugline.core.contracts import EngineInfo, Generation, Sample
from tugline.core.session import Outcome
from tugline.core.turn import CallOutcome, CallRecord, Sampling, Turn
from tugline.dialects import DIALECTS
from tugline.forest import keys
from tugline.forest.check import check_sample
from tugline.forest.forest import Forest
from tugline.gateway.exchange import Deps, make_prompt
from tugline.store import RunStore
from tugline.trajectory.build import SessionFacts, build
from tugline.trajectory.verify import verify_trace

CHAT = DIALECTS[0]
STAGES = ("read", "attach", "bridge", "check", "store", "commit")
WINDOW = 9
"""Turns around a mark whose median is shown."""
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}


@dataclass
class Session:
    """One session and the clock readings of its turns."""

    store: RunStore
    result_chars: int
    model: Any = field(default_factory=lambda: chat_model(PILOT))
    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    marks: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    """(turn, prompt tokens, request bytes, resident bytes, store bytes)."""
    sizes: list[tuple[int, int, int]] = field(default_factory=list)
    """(prompt tokens, resident bytes, store bytes) behind every turn."""

    def __post_init__(self) -> None:
        nothing: Any = None
        self.model.probe()
        self.forest = Forest("ses", self.model.digest)
        self.deps = Deps(nothing, self.model, nothing, nothing, nothing, nothing)
        self.info = EngineInfo("made up", "m", Path("."), 1 << 30, self.model.vocab, self.model.stop_ids)
        self.messages: list[bytes] = [msgspec.json.encode({"role": "user", "content": "Do the work."})]

    def body(self) -> bytes:
        """The request as an agent resends it, in time linear in its bytes."""
        front = msgspec.json.encode({"model": "m", "tools": [TOOL]})
        return front[:-1] + b',"messages":[' + b",".join(self.messages) + b"]}"

    async def turn(self, n: int) -> None:
        """One call, all of its steps."""
        body = self.body()
        clock = [time.process_time()]
        request = CHAT.decode(body, {})
        clock.append(time.process_time())
        attached = self.forest.attach(request)
        clock.append(time.process_time())
        prompt = make_prompt(self.forest, request, attached, self.deps)
        clock.append(time.process_time())
        arguments = f'{{"command": "step {n}"}}'
        call = f'Now step {n}.\n<tool_call>\n{{"name": "bash", "arguments": {arguments}}}\n</tool_call>'
        sampled = concat([self.model.encode(call), ids([self.model.stop_ids[0]])])
        values = Floats(b"\0\0\0\xbf" * count(sampled))
        asked = Generation("r", "ses", prompt.ids, Sampling())
        sample = Sample(sampled, values, "stop", ((0, 0),), prompt.ids)
        began = time.process_time()
        reason = check_sample(asked, sample, self.info)
        checked = time.process_time() - began
        assert reason is None, reason
        turn, message = self._make(n, request, prompt, sampled, values, arguments)
        record = CallRecord(
            f"call_{n}", "ses", n, "chat", "/", turn.turn_id, CallOutcome.ANSWERED, 200, 0.0, 0.0, engine_ref=str(n)
        )
        began = time.process_time()
        await self.store.commit(record, turn)
        stored = time.process_time()
        self.forest.commit(turn)
        committed = time.process_time()
        spent = [b - a for a, b in itertools.pairwise(clock)] + [checked, stored - began, committed - stored]
        for stage, seconds in zip(STAGES, spent, strict=True):
            self.times[stage].append(seconds)
        self.messages += [msgspec.json.encode(message), self._result(n)]
        self.last = (count(prompt.ids), len(body))
        self.sizes.append((count(prompt.ids), resident(), self.stored()))

    def _make(
        self, n: int, request: Any, prompt: Any, sampled: Any, values: Floats, arguments: str
    ) -> tuple[Turn, dict[str, Any]]:
        parsed = self.model.parse(prompt.ids, sampled, "stop", request.head.tools).assistant
        function = {"name": "bash", "arguments": arguments}
        message = {
            "role": "assistant",
            "content": parsed.text,
            "tool_calls": [{"id": f"call_{n}_0", "type": "function", "function": function}],
        }
        echo = CHAT.decode(json.dumps({"model": "m", "messages": [message, message]}).encode(), {}).items[0]
        exact, lenient = self.forest.keys(prompt.attached, echo)
        parent = prompt.attached.parent
        assert n == 0 or (parent is not None and prompt.attached.match == "exact")
        turn = Turn(
            f"turn_{n}", "ses", n, parent.turn_id if parent else None, prompt.keep, prompt.bridge, sampled, values,
            ((0, 0),), "stop", count(prompt.ids), request.head, prompt.attached.tail, echo, exact, lenient, Sampling(),
        )  # fmt: skip
        return turn, message

    def _result(self, n: int) -> bytes:
        words = f"line {n} of the output; " * (self.result_chars // 24 + 1)
        return msgspec.json.encode(
            {"role": "tool", "tool_call_id": f"call_{n}_0", "content": words[: self.result_chars]}
        )

    def mark(self, n: int) -> None:
        """Note sizes."""
        gc.collect()
        self.marks.append((n, *self.last, resident(), self.stored()))

    def stored(self) -> int:
        """Bytes of the store's files."""
        return sum(p.stat().st_size for p in self.store.path.iterdir() if p.is_file())

    async def restart(self) -> float:
        """Seconds to restore the forest; it must be the one before."""
        turns = await self.store.load_turns("ses")
        began = time.process_time()
        again = Forest.restore("ses", self.model.digest, turns)
        end = again.full(turns[-1].turn_id)
        seconds = time.process_time() - began
        assert dict(again.turns) == dict(self.forest.turns)
        assert all(
            (a.key_exact, a.key_lenient) == (b.key_exact, b.key_lenient)
            for a, b in zip(turns, again.turns.values(), strict=True)
        )
        assert end == self.forest.full(turns[-1].turn_id)
        for turn in turns[:: max(1, len(turns) // 50)]:
            assert again.full(turn.turn_id) == self.forest.full(turn.turn_id)
        self.forest = again
        return seconds

    def prove(self) -> tuple[float, float]:
        """(seconds to build the rows, to prove them)."""
        turns = list(self.forest.turns.values())
        plain = concat([part for t in turns for part in (t.bridge, t.sampled)])
        assert self.forest.full(turns[-1].turn_id) == plain
        assert last(take(plain, 0, turns[-1].prompt_len)) is not None
        began = time.process_time()
        made = build(SessionFacts("ses", "g", Outcome.COMPLETED, 1.0), turns, frozenset())
        built = time.process_time()
        assert len(made.traces) == 1 and made.traces[0].token_ids == plain
        assert verify_trace(made.traces[0], self.forest.turns) == []
        return built - began, time.process_time() - built


def resident() -> int:
    """Resident bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def chain_cost(session: Session) -> float:
    """Seconds to hash the whole last request, alone."""
    request = CHAT.decode(session.body(), {})
    began = time.process_time()
    keys.walk(keys.start(b"t", request.head), request.items)
    return time.process_time() - began


async def measure(title: str, turns: int, result_chars: int, marks: list[int]) -> None:
    """Run one session and print its tables."""
    with tempfile.TemporaryDirectory() as scratch:
        async with RunStore.create(Path(scratch) / "run", "") as store:
            session = Session(store, result_chars)
            before, restored = resident(), 0.0
            for n in range(turns):
                await session.turn(n)
                if n + 1 == turns // 2:
                    restored = await session.restart()
                if n + 1 in marks:
                    session.mark(n + 1)
            built, proven = session.prove()
            table(title, session, before)
            fits(session)
            print(f"\nrestored at turn {turns // 2} in {restored * 1e3:.0f} ms, same keys, same ids; ", end="")
            print(f"one row built in {built * 1e3:.0f} ms, proven in {proven * 1e3:.0f} ms; ", end="")
            print(f"hashing the last request takes {chain_cost(session) * 1e3:.2f} ms\n")


def fits(session: Session) -> None:
    """Straight lines through the medians of blocks of turns, by least squares."""
    turns = len(session.sizes)
    size = max(1, turns // 50)
    blocks = turns // size
    at = np.arange(blocks) * size + size / 2

    def fit(values: Any, unit: float) -> tuple[float, float, float, float]:
        """(at the first turn, at the last, growth per turn, R2)."""
        medians = np.median(np.array(values[: blocks * size]).reshape(blocks, size), axis=1) * unit
        slope, base = np.polyfit(at, medians, 1)
        left = medians - (slope * at + base)
        spread = float(((medians - medians.mean()) ** 2).sum())
        return base, base + slope * turns, slope, 1 - float((left**2).sum()) / spread if spread else 1.0

    print("\n| fitted | first turn | last turn | growth per turn | R2 |\n|---|---|---|---|---|")
    parts = {**session.times, "all but read": np.sum([session.times[s] for s in STAGES[1:]], axis=0)}
    parts["attach + bridge + check"] = np.sum([session.times[s] for s in ("attach", "bridge", "check")], axis=0)
    for name, times in parts.items():
        base, end, slope, good = fit(times, 1e6)
        print(f"| {name} | {base / 1e3:.2f} ms | {end / 1e3:.2f} ms | {slope:.2f} us | {good:.2f} |")
    for name, place in (("memory", 1), ("store", 2)):
        base, end, slope, good = fit([row[place] for row in session.sizes], 1e-3)
        print(f"| {name} | {base / 1e3:.1f} MB | {end / 1e3:.1f} MB | {slope:.2f} KB | {good:.3f} |")


def table(title: str, session: Session, before: int) -> None:
    """Medians around each mark, ms."""
    print(f"\n{title}\n")
    print(
        "| turn | prompt, tokens | request, KB | "
        + ", ms | ".join(STAGES)
        + ", ms | all but read, ms | RSS +, MB | store, MB |"
    )
    print("|---" * (len(STAGES) + 6) + "|")
    for turn, tokens, size, rss, files in session.marks:
        window = slice(max(0, turn - WINDOW), turn)
        medians = [statistics.median(session.times[s][window]) * 1e3 for s in STAGES]
        cells = " | ".join(f"{m:.2f}" for m in medians)
        print(
            f"| {turn} | {tokens} | {size / 1e3:.0f} | {cells} | {sum(medians[1:]):.2f} "
            f"| {(rss - before) / 1e6:.0f} | {files / 1e6:.1f} |"
        )


async def main() -> None:
    """Both sessions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5000)
    turns = parser.parse_args().turns
    marks = [n for n in (10, 100, 1000, 2500, 5000) if n < turns] + [turns]
    await measure(f"{turns:,} turns", turns, 80, sorted(set(marks)))
    await measure("200,000 tokens", 66, 9600, [5, 10, 25, 50, 66])


if __name__ == "__main__":
    asyncio.run(main())
