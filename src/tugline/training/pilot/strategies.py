"""The behaviours that the pilot is taught: a few clean strategies, each right or wrong on purpose.

A policy that is wrong by noise learns slowly; one that chooses between clear ways of acting, some of which work, learns
from few sessions. So every strategy is carried out without a slip, and the shares of the mixture set the success rate:

  solve   the right way for the family
  check   the same, then a look at the result
  lazy    says that it is done and does nothing
  wrong   a plausible mistake: another file, a guess instead of a look, too much overwritten
  stumble tries a file that is not there, then says so
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from random import Random

from tugline.tasks.families import Instance
from tugline.training.pilot.actions import Action, Edit, Outcome, Read, Run, Step, Write
from tugline.training.pilot.desk import Paper

Way = Generator[Step, Outcome, None]
"""Yields a step, is sent the outcome of the step's action, and ends after a step without actions."""

MIXTURE: Mapping[str, float] = {"solve": 0.26, "check": 0.22, "lazy": 0.24, "wrong": 0.25, "stumble": 0.03}
"""Shares of the strategies. Solve and check together are about the success rate at temperature 1."""

THOUGHT_SHARE = 0.3
"""Share of acting turns that begin with a short thought."""

_DONE = ("Done.", "The task is done.")


@dataclass(frozen=True, slots=True)
class Played:
    """A conversation: each step with the outcomes of its actions, in order."""

    strategy: str
    steps: tuple[tuple[Step, tuple[Outcome, ...]], ...]


def play(instance: Instance, rng: Random, mixture: Mapping[str, float] = MIXTURE) -> Played:
    """Draw a strategy and act it out on paper."""
    strategy = rng.choices(list(mixture), weights=list(mixture.values()))[0]
    return perform(instance, strategy, rng)


def perform(instance: Instance, strategy: str, rng: Random) -> Played:
    """Act `strategy` out on paper. Pure: the same draws give the same conversation."""
    paper = Paper(instance.files)
    way = _way(instance, strategy)
    steps: list[tuple[Step, tuple[Outcome, ...]]] = []
    step = next(way)
    while step.actions:
        if step.thought and rng.random() >= THOUGHT_SHARE:
            step = Step("", step.text, step.actions)
        outcomes = tuple(paper.do(action) for action in step.actions)
        steps.append((step, outcomes))
        step = way.send(outcomes[-1])
    text = step.text or rng.choice(_DONE)
    steps.append((Step("", text), ()))
    return Played(strategy, tuple(steps))


def _way(instance: Instance, strategy: str) -> Way:
    match strategy:
        case "solve":
            return _solve(instance, check=False)
        case "check":
            return _solve(instance, check=True)
        case "wrong":
            return _WRONG[instance.family](instance.facts)
        case "lazy":
            return _say("")
        case _:
            return _stumble()


def _say(text: str) -> Way:
    yield Step("", text)


def _act(*steps: tuple[str, Action]) -> Way:
    """These actions one after another, whatever comes of them, then the end."""
    for thought, action in steps:
        yield Step(thought, "", (action,))
    yield Step()


def _stumble() -> Way:
    yield Step("", "", (Read("missing.txt"),))
    yield Step("", "I could not find the file.")


def _solve(instance: Instance, *, check: bool) -> Way:
    facts = instance.facts
    yield from _RIGHT[instance.family](facts)
    if check:
        yield Step("Let me check.", "", (_look(instance.family, facts),))
    yield Step()


def _look(family: str, facts: Mapping[str, str]) -> Action:
    """The action that shows whether the task is done."""
    if family in ("copy-file", "delete-file"):
        return Run("ls")
    return Read(facts.get("target", facts.get("path", "")))


def _create(facts: Mapping[str, str]) -> Way:
    yield Step("I write the file.", "", (Write(facts["path"], f"{facts['text']}\n"),))


def _edit_key(facts: Mapping[str, str]) -> Way:
    path, key = facts["path"], facts["key"]
    seen = yield Step("I need the old value first.", "", (Run(f"grep '{key}=' '{path}'"),))
    yield Step("Now I change the line.", "", (Edit(path, seen.text.strip(), f"{key}={facts['value']}"),))


def _copy(facts: Mapping[str, str]) -> Way:
    yield Step("I copy it.", "", (Run(f"cp '{facts['source']}' '{facts['target']}'"),))


def _delete(facts: Mapping[str, str]) -> Way:
    yield Step("I delete it.", "", (Run(f"rm '{facts['path']}'"),))


def _append(facts: Mapping[str, str]) -> Way:
    yield Step("I append the line.", "", (Run(f"echo '{facts['line']}' >> '{facts['path']}'"),))


def _copy_value(facts: Mapping[str, str]) -> Way:
    key = facts["key"]
    seen = yield Step("I look it up first.", "", (Run(f"grep '{key}=' '{facts['source']}'"),))
    yield Step("Now I write the value.", "", (Write(facts["target"], seen.text.removeprefix(f"{key}=")),))


def _count(facts: Mapping[str, str]) -> Way:
    yield Step("I count the lines.", "", (Run(f"wc -l < '{facts['source']}' > '{facts['target']}'"),))


def _find(facts: Mapping[str, str]) -> Way:
    seen = yield Step("I search for the word.", "", (Run(f"grep -l '{facts['word']}' *"),))
    yield Step("Now I write the name.", "", (Write(facts["target"], seen.text),))


_RIGHT: Mapping[str, Callable[[Mapping[str, str]], Way]] = {
    "create-file": _create,
    "edit-key": _edit_key,
    "copy-file": _copy,
    "delete-file": _delete,
    "append-line": _append,
    "copy-value": _copy_value,
    "count-lines": _count,
    "find-word": _find,
}

_WRONG: Mapping[str, Callable[[Mapping[str, str]], Way]] = {
    "create-file": lambda f: _act(("", Write("output.txt", f"{f['text']}\n"))),
    "edit-key": lambda f: _act(("", Write(f["path"], f"{f['key']}={f['value']}\n"))),
    "copy-file": lambda f: _act(("", Run(f"mv '{f['source']}' '{f['target']}'"))),
    "delete-file": lambda f: _act(("", Run("rm *"))),
    "append-line": lambda f: _act(("", Run(f"echo '{f['line']}' > '{f['path']}'"))),
    "copy-value": lambda f: _act(("", Write(f["target"], f"{f['key']}\n"))),
    "count-lines": lambda f: _act(("", Run(f"wc -l '{f['source']}' > '{f['target']}'"))),
    "find-word": lambda f: _act(("", Write(f["target"], f"{f['word']}\n"))),
}
