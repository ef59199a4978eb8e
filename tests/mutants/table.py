"""The table of failure modes: what can go wrong, which tests watch it, and a mutation that proves they do."""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests" / "failure_modes.toml"
GROUPS = {"A": (1, 16), "B": (17, 34), "C": (35, 56), "D": (57, 64), "E": (65, 76)}
"""Letter -> first and last number of a group."""


@dataclass(frozen=True)
class Mutant:
    """One change of our code. `old` stands exactly once in `file`; with `new` instead all of `tests` fail."""

    code: str
    number: int
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        """`F35` or `F35.2`."""
        return self.code if self.number == 1 else f"{self.code}.{self.number}"


@dataclass(frozen=True)
class Mode:
    """One failure mode. Without mutants `reason` says why none applies yet; with them it is a remark."""

    code: str
    name: str
    reason: str
    mutants: tuple[Mutant, ...]

    @property
    def group(self) -> str:
        """A to E."""
        number = int(self.code[1:])
        return next(letter for letter, (low, high) in GROUPS.items() if low <= number <= high)


def load(path: Path = TABLE) -> dict[str, Mode]:
    """All modes by code, in order of the file."""
    with path.open("rb") as file:
        raw = tomllib.load(file)
    return {code: _mode(code, entry) for code, entry in raw.items()}


def _mode(code: str, entry: dict[str, object]) -> Mode:
    mutants = entry.get("mutants", [])
    assert isinstance(mutants, list)
    made = tuple(
        Mutant(code, n, m["breaks"], m["file"], m["old"], m["new"], tuple(m["tests"]))
        for n, m in enumerate(mutants, start=1)
    )
    return Mode(code, str(entry["name"]), str(entry.get("reason", "")), made)


def problems(modes: dict[str, Mode]) -> list[str]:
    """What is wrong with the table, in words; cheap enough for every test run."""
    expected = [f"F{n:02d}" for n in range(1, 77)]
    found = [] if list(modes) == expected else [f"the codes are not {expected[0]} to {expected[-1]} in order"]
    for mode in modes.values():
        if not mode.mutants and not mode.reason:
            found.append(f"{mode.code}: neither a mutation nor a reason")
        for mutant in mode.mutants:
            found += [f"{mutant.name}: {what}" for what in _faults(mutant)]
    return found


def _faults(mutant: Mutant) -> list[str]:
    found = []
    file = ROOT / mutant.file
    if not mutant.file.startswith("src/tugline/") or not file.is_file():
        return [f"no source file {mutant.file}"]
    times = file.read_text("utf-8").count(mutant.old)
    if times != 1:
        found.append(f"its old text stands {times} times in {mutant.file}")
    if mutant.old == mutant.new:
        found.append("it changes nothing")
    if not mutant.tests:
        found.append("no test")
    for test in mutant.tests:
        path, _, name = test.partition("::")
        if name.partition("[")[0] not in _tests_of(ROOT / path):
            found.append(f"no test {test}")
    return found


@cache
def _tests_of(path: Path) -> frozenset[str]:
    """Names of the test functions of a file, and `Class::name` of methods."""
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text("utf-8"))
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{n.name}" for n in node.body if isinstance(n, ast.FunctionDef)}
        elif isinstance(node, ast.Assign):  # `TestX = Machine.TestCase`
            names |= {f"{t.id}::runTest" for t in node.targets if isinstance(t, ast.Name)}
    return frozenset(names)
