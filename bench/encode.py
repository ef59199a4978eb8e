"""The work of making a prompt as a session grows: a bridge against a full render.

    python bench/encode.py [--corpus DIR --case trl/qwen3] [--turns 1,10,100] [--instructions]

Each turn is a call, a result of about 600 characters and a reply. Reported per turn number: characters and tokens of
the whole prompt, characters handed to the tokenizer by each way, and CPU microseconds (least of several runs). With
`--instructions` the process runs again under valgrind, which counts machine instructions of each way exactly, with
nothing else counted: it starts in a minute or two. Without a corpus the model that ships with the package is used.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

import tugline.tokens.codec as codec_module
from tugline.cli.wiring import PILOT, chat_model
from tugline.core.columns import Ids, concat, count, ids, last
from tugline.core.items import Assistant, Head, Item, System, Tool, ToolCall, ToolResult, UserText
from tugline.testing.corpus import cases
from tugline.testing.forgery import model_of
from tugline.tokens.model import ChatModel

_INSIDE = "TUGLINE_UNDER_VALGRIND"
_SPEC = {
    "type": "function",
    "function": {
        "name": "run",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}},
    },
}


@dataclass(frozen=True)
class Point:
    """One turn number. Instructions are 0 where they were not counted."""

    turn: int
    prompt: int
    """Tokens of the whole prompt."""
    delta: int
    """Tokens of the bridge."""
    handed: tuple[int, int]
    """Characters handed to the tokenizer: bridge, full render."""
    cpu: tuple[float, float]
    """Microseconds of CPU time."""
    instructions: tuple[int, int] = (0, 0)


def session(turns: int) -> tuple[Head, list[Item]]:
    """A conversation that ends with a result: as many results as `turns`."""
    items: list[Item] = [System("You are a coding agent. Be brief."), UserText("Make the tests of this project pass.")]
    for n in range(turns):
        call = ToolCall(
            f"call{n:05d}", "run", msgspec.json.encode({"cmd": f"sed -n {n},{n + 9}p src/part{n % 7}.py"}).decode()
        )
        line = f"{n:4d}     def part_{n}(self, value: int) -> int:  # step {n}\n"
        items += [Assistant(f"Now part {n}.", None, (call,)), ToolResult(call.id, line * 11)]
    return Head((Tool("run", msgspec.json.encode(_SPEC).decode()),)), items


def ways(chat: ChatModel, turn: int) -> tuple[Callable[[], Ids], Callable[[], Ids]]:
    """(bridge, full render) of the prompt behind result number `turn`."""
    head, items = session(turn)
    stop = chat.stop_ids[0]
    sampled = concat([chat.encode("Now."), ids([stop])])

    def bridged() -> Ids:
        made = chat.bridge(head, items[:-1], items[-1:], last_id=last(sampled), finish="stop", sampled=sampled)
        return made.ids

    return bridged, lambda: chat.render(head, items).ids


@contextmanager
def characters() -> Iterator[list[int]]:
    """Lengths of the texts that are handed to the tokenizer."""
    seen: list[int] = []
    before = codec_module._encoded

    def counting(tokenizer: object, text: str) -> list[int]:
        seen.append(len(text))
        return before(tokenizer, text)

    codec_module._encoded = counting
    try:
        yield seen
    finally:
        codec_module._encoded = before


def measure(chat: ChatModel, turn: int, repeats: int = 15) -> Point:
    """Everything but instructions."""
    both = ways(chat, turn)
    handed, cpu, sizes = [], [], []
    for way in both:
        sizes.append(count(way()))
        with characters() as seen:
            way()
        handed.append(sum(seen))
        took = []
        for _ in range(repeats):
            begun = time.process_time_ns()
            way()
            took.append((time.process_time_ns() - begun) / 1_000)
        cpu.append(min(took))
    return Point(turn, sizes[1], sizes[0], (handed[0], handed[1]), (cpu[0], cpu[1]))


def load(corpus: Path | None, name: str) -> ChatModel:
    chat = chat_model(PILOT) if corpus is None else model_of(cases(corpus, only=lambda n: n == name)[0])
    chat.probe()
    return chat


def table(points: list[Point]) -> str:
    head = "| turn | prompt tokens | bridge tokens | characters encoded: bridge / render | CPU us: bridge / render |"
    counted = any(p.instructions[1] for p in points)
    head += " M instructions: bridge / render |" if counted else ""
    lines = [head, "|---" * (5 + counted) + "|"]
    for p in points:
        line = f"| {p.turn} | {p.prompt:,} | {p.delta:,} | {p.handed[0]:,} / {p.handed[1]:,} "
        line += f"| {p.cpu[0]:,.0f} / {p.cpu[1]:,.0f} |"
        line += f" {p.instructions[0] / 1e6:,.2f} / {p.instructions[1] / 1e6:,.2f} |" if counted else ""
        lines.append(line)
    return "\n".join(lines) + "\n"


def inside(chat: ChatModel, turns: list[int]) -> None:
    """Under valgrind: switch counting on around one call of each way, and leave a dump of each."""

    def control(*words: str) -> None:
        subprocess.run(["callgrind_control", *words, str(os.getpid())], check=True, capture_output=True)

    for turn in turns:
        for name, way in zip(("bridge", "render"), ways(chat, turn), strict=True):
            way()
            control("-i", "on")
            control("-z")
            way()
            control("-d", f"{name}-{turn}")
            control("-i", "off")


def instructions(argv: list[str]) -> dict[str, int]:
    """`way-turn` -> instructions, from a run of this file under valgrind."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "counts"
        tool = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}", "--dump-instr=no"]
        env = os.environ | {_INSIDE: "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0"}
        subprocess.run([*tool, sys.executable, __file__, *argv], env=env, check=True, stderr=subprocess.DEVNULL)
        found = {}
        for path in Path(folder).iterdir():
            text = path.read_text("utf-8", "replace")
            label = re.search(r"Trigger: .*?([a-z]+-\d+)", text)
            total = re.search(r"^(?:totals|summary): (\d+)", text, re.M)
            if label and total:
                found[label.group(1)] = int(total.group(1))
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--case", default="trl/qwen3")
    parser.add_argument("--turns", default="1,10,100")
    parser.add_argument("--instructions", action="store_true", help="count them under valgrind")
    args = parser.parse_args()
    turns = [int(t) for t in args.turns.split(",")]
    chat = load(args.corpus, args.case)
    if os.environ.get(_INSIDE):
        inside(chat, turns)
        return
    points = [measure(chat, t) for t in turns]
    if args.instructions:
        counted = instructions(sys.argv[1:])
        points = [
            Point(
                p.turn, p.prompt, p.delta, p.handed, p.cpu, (counted[f"bridge-{p.turn}"], counted[f"render-{p.turn}"])
            )
            for p in points
        ]
    sys.stdout.write(table(points))


if __name__ == "__main__":
    main()
