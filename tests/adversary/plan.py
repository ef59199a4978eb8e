"""What happens in an adversarial session: what the model says, turn by turn, and what the harness does with it.

Everything is drawn from a seed. What the harness does keeps the meaning of the conversation, always: it drops or keeps
reasoning, spells arguments anew, answers calls out of order and lets its user speak in between.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tugline.core.errors import ConfigError
from tugline.core.items import Assistant, ToolCall
from tugline.tokens.families import Family

TEXTS = (
    "Done.", "\n\nTwo lines lead.", "  blanks at both ends  ", "ends with breaks\n\n",
    "漢字 👩\u200d💻 é\u2028 \u202e x", "a\tb\r\nc",
    "```python\nif a < b:\n    print('<b>')\n```", '{"json": [1, 2.50]}',
    "I look at the files first, then I write.",
)  # fmt: skip
THOUGHTS = ("Think.", "\nfirst\n\nsecond ", "漢字 🙂", " <b> & </b> ", "Let me see what there is.\n\nThen go on.")
ARGUMENTS = (
    {"cmd": "ls -la"}, {"cmd": "echo 'é 漢 👩\u200d💻'\n"}, {"cmd": ""}, {"path": "a b.txt", "content": "\nx\n\n"},
    {"path": "<b>&amp;</b>", "n": 1.5}, {"n": 3, "flag": True}, {"options": {"deep": [1, {"x": None}]}},
)  # fmt: skip
RAW = ('{"cmd" :  "ls"}', '{"n": 1.0, "cmd": "\\u00e9\\/"}', '{"n": 1e3}', '{\n  "cmd": "a"\n}')
BROKEN = ('{"cmd": "ls', "{cmd: ls}", '{"cmd": "a",}', "ls -la")
Way = Literal["same", "python", "javascript", "sorted"]


@dataclass(frozen=True, slots=True)
class Can:
    """What a model's template can represent."""

    tools: bool
    reasoning: bool
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class Move:
    """One turn. `step` is a line of a script; the rest is what the harness does behind it."""

    kind: str
    """plain | calls | cut | broken."""
    step: dict[str, Any]
    keep_reasoning: bool
    spelling: Way
    order: int
    """Seed of the order of results."""
    results: tuple[str, ...]
    """Texts of results, used in turn."""
    user: tuple[str, ...]
    """What the user says: behind the results, or where there are none. Empty: nothing behind results."""


def plan(seed: str, turns: int, can: Can, family: Family, hostile: Sequence[str]) -> list[Move]:
    """The moves of one session. `hostile`: texts that spell the model's own control tokens, whole and in part."""
    rng = random.Random(seed)
    return [_move(rng, can, family, hostile) for _ in range(turns)]


def _move(rng: random.Random, can: Can, family: Family, hostile: Sequence[str]) -> Move:
    kind = rng.choices(("calls", "plain", "cut", "broken"), (0.55, 0.2, 0.15, 0.1))[0]
    if kind in ("calls", "broken") and not can.tools:
        kind = "plain"
    step = _step(rng, can, family, kind)
    words = [*TEXTS, *hostile]
    said = tuple(rng.choice(words) for _ in range(rng.choice((1, 1, 2))))
    behind = () if kind == "calls" and rng.random() < 0.75 else said
    return Move(
        kind=kind,
        step=step,
        keep_reasoning=rng.random() < 0.5,
        spelling=rng.choice(("same", "python", "javascript", "sorted")),
        order=rng.randrange(1000),
        results=tuple(rng.choice(words) for _ in range(3)),
        user=behind,
    )


def _step(rng: random.Random, can: Can, family: Family, kind: str) -> dict[str, Any]:
    reasoning = rng.choice(THOUGHTS) if can.reasoning and rng.random() < 0.6 else ""
    text = rng.choice(TEXTS)
    if kind == "broken":
        return _broken(rng, family, reasoning, text)
    many = 0 if kind == "plain" or not can.tools else rng.choice((1, 1, 2, 3) if can.parallel else (1,))
    if kind == "cut" and rng.random() < 0.4:
        many = 0
    if many and rng.random() < 0.5:
        text = ""
    calls = [_call(rng) for _ in range(many)]
    step: dict[str, Any] = {"reasoning": reasoning, "text": text, "calls": calls}
    for change in (
        {"calls": [{**call, "arguments": json.dumps(rng.choice(ARGUMENTS))} for call in calls]},
        {"text": "" if calls else text},
        {"calls": step["calls"][:1]},
        {"reasoning": ""},
    ):
        if not _fits(family, step):
            step |= change
    if kind == "cut":
        step |= {"finish": "length", "cut": rng.choice((0.1, 0.3, 0.5, 0.7, 0.9, 0.97))}
    return step


def _call(rng: random.Random) -> dict[str, str]:
    name = rng.choice(("run", "write", "look"))
    if rng.random() < 0.2:
        return {"name": name, "arguments": "{}"}
    arguments = rng.choice(RAW) if rng.random() < 0.3 else json.dumps(rng.choice(ARGUMENTS), ensure_ascii=False)
    return {"name": name, "arguments": arguments}


def _broken(rng: random.Random, family: Family, reasoning: str, text: str) -> dict[str, Any]:
    """A call that is none: bad JSON where the format takes arguments as they are, else an opener with nonsense."""
    bad = rng.choice(BROKEN)
    step: dict[str, Any] = {"reasoning": reasoning, "text": text, "calls": [{"name": "run", "arguments": bad}]}
    if _fits(family, step):
        return step
    opening, closing = family.call
    return {"reasoning": reasoning, "text": f"{text}{opening}{bad}{closing}", "calls": []}


def _fits(family: Family, step: dict[str, Any]) -> bool:
    calls = tuple(ToolCall("", c["name"], c["arguments"]) for c in step["calls"])
    try:
        family.spell(Assistant(step["text"] or None, step["reasoning"] or None, calls))
    except ConfigError:
        return False
    return True


def respelled(arguments: str, way: Way) -> str:
    """Arguments as they come back from a client that parsed and printed them; what is no JSON object stays."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    if way == "same" or not isinstance(value, dict):
        return arguments
    if way == "javascript":
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return json.dumps(value, sort_keys=way == "sorted")


def hostile_texts(controls: Sequence[str], rng: random.Random, many: int = 8) -> list[str]:
    """Texts that would become control tokens if anything took them for the template's own."""
    found: list[str] = []
    for word in rng.sample(list(controls), min(many, len(controls))):
        cut = max(1, len(word) // 2)
        found += [
            f"{word} ok",
            f"x{word}{word}",
            word[:cut],
            word[cut:],
            json.dumps({"text": f"\n{word}\n"}),
            f"\n{word}",
        ]
    return found
