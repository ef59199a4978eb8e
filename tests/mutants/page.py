"""docs/failure-modes.md from the table and the results of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mutants.table import Mode

TITLES = {
    "A": "Text and tokens",
    "B": "Chat templates",
    "C": "Matching and protocol",
    "D": "Truncation and parsing",
    "E": "Rows and training",
}
HEAD = """# Failure modes

How a record of what a model sampled goes wrong, as seen in agents, engines and training frameworks, and how we know
that ours does not. Each mode has tests and at least one *mutant*: a change of our own code that brings the mode back. A
mutant is killed when every test beside it fails with it; all of them pass without it.

Made by `tests/mutants/run.py --all --write` from `tests/failure_modes.toml`, at commit `{commit}`:
**{killed} of {mutants} mutants killed**, {covered} of {modes} modes have one, the others say why not. {tests} tests,
{clean} of them green on the untouched tree.
"""


def page(modes: Sequence[Mode], results: Mapping[str, Mapping[str, Any]], clean: Mapping[str, str], commit: str) -> str:
    """The whole page."""
    mutants = [m for mode in modes for m in mode.mutants]
    dead = {m.name for m in mutants if set(results.get(m.name, {}).get("tests", {"": ""}).values()) == {"red"}}
    parts = [
        HEAD.format(
            commit=commit,
            killed=len(dead),
            mutants=len(mutants),
            covered=sum(bool(m.mutants) for m in modes),
            modes=len(modes),
            tests=len(clean),
            clean=sum(v == "green" for v in clean.values()),
        )
    ]
    for letter, title in TITLES.items():
        mine = [mode for mode in modes if mode.group == letter]
        parts += [
            f"\n## {title}\n",
            "| mode | what goes wrong | the mutant | tests that it turns red |",
            "|---|---|---|---|",
        ]
        parts += [row for mode in mine for row in _rows(mode, dead)]
    return "\n".join(parts) + "\n"


def _rows(mode: Mode, dead: set[str]) -> list[str]:
    remark = f"*{mode.reason}*" if mode.reason else ""
    if not mode.mutants:
        return [f"| {mode.code} | {mode.name} | {remark} | |"]
    rows = []
    for mutant in mode.mutants:
        name = f"{mode.name}{'. ' if remark else ''}{remark}" if mutant.number == 1 else ""
        where = mutant.file.removeprefix("src/tugline/")
        verdict = "" if mutant.name in dead else " **survived**"
        tests = "<br>".join(f"`{_short(t)}`" for t in mutant.tests)
        code = mode.code if mutant.number == 1 else ""
        rows.append(f"| {code} | {name} | {mutant.breaks} (`{where}`){verdict} | {tests} |")
    return rows


def _short(test: str) -> str:
    path, _, name = test.partition("::")
    return f"{path.rpartition('/')[2].removesuffix('.py')}::{name}".replace("|", "\\|")
