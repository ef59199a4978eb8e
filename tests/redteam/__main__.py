# ruff: noqa: E501 - prose for a page
"""Writes docs/security.md from the table of attacks: `PYTHONPATH=src:tests python -m redteam`."""

from __future__ import annotations

from pathlib import Path

from redteam.attacks import BOUNDARY, PYTEST, Attack
from redteam.failing import STOPS, TREES

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
HEAD = """\
# Security

What an agent may try, and what stops it. Made from the attacks that `tests/redteam` plays in every isolating sandbox that works on a
machine, each with the same questions behind it: no secret in anything that the agent saw, no reward, nothing heard at the host's
services, nobody else's session touched, no process left.

`local` is no sandbox: nothing on this page holds there. `tugline doctor sandbox` says which sandboxes isolate.

## Out of the sandbox, into the judge
"""
TESTS = """
## Work that attacks its tests

Python tests share a process with the code that they test, so the judge believes only what that process cannot say alone. This is the
table for the verifiers `pytest` and `swe`.
"""
FAILING = """
## Work that makes its judge fail

A judge that fails gives no verdict, and a session without one is tried again and never trained. So work that is worth nothing would
rather have its judge fail. What only the judged work can cause is worth 0, not "no verdict".
"""
REST = """
## What a task's own test.sh can and cannot know

`harbor` tasks bring their own judge. In a clone of the work directory (Harbor's shared mode) a script that runs pytest there, or reads
its exit status, can be beaten by a `conftest.py`, by an early exit and by code that patches pytest: that is the script's contract, and
it is kept. `tugline tasks check` warns of such tasks, `edited_configuration` marks such sessions, and `verifier = "pytest"` ends it.

## What is left

- Judged code that knows this very runner can report what it likes from inside; tests and work share a process. What it cannot know is
  which tests are contradicted in a further run; that it is one, the clock tells. Guessing is right about once in seven times when up to three
  hidden tests can be contradicted, and more seldom with every further one. `not_contradicted` marks sessions whose hidden tests left nothing to contradict: assertions
  only in loops, helpers or `with` blocks, skipped or async tests.
- What the tests hold can be read by what they test: a problem whose answers are easy to check and hard to find can be solved by reading.
- `not_contradicted` stands for all tests or none. A test that can only be contradicted in a loop or a helper has the other proofs alone.
- A task's own test.sh that runs the work can be made to hang or to crash by it, which is no verdict and not 0: that is Harbor's contract.
- A class that equals exactly what the hidden tests compare it with is a solution as far as tests can tell.
- For a task about pytest itself the runner is the agent's own code. Judge such tasks by `command` or `function`.
- A `function` verifier runs on the operator's machine with the operator's rights. It must not run the agent's files.
- The kernel is shared. A sandbox is as strong as namespaces, the system call filter and capabilities make it.
- An allow-list, where a task has one, is a way out for data to the hosts that are allowed, and by TLS to whatever is served at the same
  address: what a tunnel's client says inside is not looked at.
"""


def rows(attacks: tuple[Attack, ...]) -> str:
    """A table."""
    lines = ["| attack | the agent | what stops it | shown as |", "|---|---|---|---|"]
    for attack in attacks:
        shown = ", ".join(f"`{name}`" for name in (f"!{attack.flag}" if attack.flag else None, attack.mark) if name)
        lines.append(f"| {attack.name} | {attack.does} | {attack.stops} | {shown} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The whole page."""
    return f"{HEAD}\n{rows(BOUNDARY)}{TESTS}\n{rows(PYTEST)}{FAILING}\n{rows((*TREES, *STOPS))}{REST}"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
