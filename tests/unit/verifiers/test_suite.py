"""The contract suite on our verifiers, and proof that it catches the usual mistakes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tugline.core.contracts import Sandbox, Verdict, Verifier
from tugline.core.errors import VerifierError
from tugline.core.task import Environment, Task
from tugline.testing.fakes import FakeSandbox
from tugline.testing.verifier_suite import CHECKS, run_suite
from tugline.verifiers import CommandVerifier, FunctionVerifier, HarborVerifier

SCRIPTS = {
    "solved": 'echo judged; echo 1 > "$LOGS_DIR/reward.txt"',
    "unsolved": 'echo judged; echo 0 > "$LOGS_DIR/reward.txt"',
    "crashing": "exit 7",
    "hanging": "sleep 60",
}
FUNCTIONS = {
    "solved": "print('judged'); return {'reward': 1.0, 'files': float(len(list(work.files.iterdir())))}",
    "unsolved": "return 0",
    "crashing": "raise RuntimeError('no network')",
    "hanging": "import time; time.sleep(60)",
}
STATUS = {"solved": "echo yes; exit 0", "unsolved": "exit 1", "crashing": "exit 7", "hanging": "sleep 60"}


MODULE = "tugline_test_judge"


class ByOption:
    """The function verifier of the module that a task's name tells."""

    name = "function"

    async def judge(self, task, box, deadline, out):
        return await FunctionVerifier(f"{MODULE}_{task.name}:score").judge(task, box, deadline, out)


@dataclass
class OurSubject:
    """Harbor's verifier, or a command whose text is the task's name."""

    scratch: Path
    kind: str
    made: itertools.count = field(default_factory=itertools.count)

    def verifier(self) -> Verifier:
        if self.kind == "harbor":
            return HarborVerifier()
        if self.kind == "function":
            return ByOption()
        return CommandVerifier(("/bin/sh", "-c", 'eval "$SCRIPT"'))

    async def box(self) -> Sandbox:
        return FakeSandbox(self.scratch / f"box{next(self.made)}")

    def _task(self, name: str) -> Task:
        tests = self.scratch / f"tests-{name}"
        tests.mkdir(exist_ok=True)
        (tests / "test.sh").write_text(f"#!/bin/sh\n{SCRIPTS[name]}\n")
        module = self.scratch / f"{MODULE}_{name}.py"
        module.write_text(f"def score(work):\n    {FUNCTIONS[name]}\n")
        return Task(name, name, "", Environment(image=""), tests, tests, verifier_env={"SCRIPT": STATUS[name]})

    def solved(self) -> Task:
        return self._task("solved")

    def unsolved(self) -> Task:
        return self._task("unsolved")

    def crashing(self) -> Task:
        return self._task("crashing")

    def hanging(self) -> Task:
        return self._task("hanging")


@pytest.mark.parametrize("kind", ["harbor", "command", "function"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.name)
async def test_our_verifiers_keep_the_contract(check, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    await check.run(OurSubject(tmp_path, kind))


class Lenient:
    """Turns every failure into a reward of 0: the mistake this project exists to prevent."""

    name = "lenient"

    async def judge(self, task, box, deadline, out):
        try:
            return await HarborVerifier().judge(task, box, deadline, out)
        except VerifierError:
            return Verdict(0.0)


async def test_the_suite_catches_a_verifier_that_makes_failures_zero(tmp_path):
    subject = OurSubject(tmp_path, "harbor")
    subject.verifier = Lenient
    failed = {line.partition(":")[0] for line in await run_suite(subject)}
    assert failed == {"a_crash_is_no_verdict", "the_deadline_holds"}
