"""`python -m adversary CORPUS --turns 20 --seeds 2 [--only WORD]... [--json F] [--markdown F]`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from adversary.corpus import wanted
from adversary.models import subject
from adversary.play import MODES
from adversary.run import sessions
from adversary.tally import Tally, markdown


def _written(tallies: list[Tally], as_json: Path | None, as_markdown: Path | None) -> None:
    """After every model: a long run may be stopped."""
    if as_json:
        as_json.write_text(json.dumps([t.as_json() for t in tallies], indent=1))
    if as_markdown:
        as_markdown.write_text(markdown(tallies))


def main() -> int:
    parser = argparse.ArgumentParser(prog="adversary", description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", action="append", default=[], help="part of a case's name")
    parser.add_argument("--mode", action="append", choices=MODES)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    asked = parser.parse_args()
    tallies: list[Tally] = []
    for files in wanted(asked.corpus, asked.only):
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="tugline-adversary-") as scratch:
            one = subject(files, Path(scratch) / "model")
            seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
            made = asyncio.run(sessions(one, Path(scratch), asked.turns, seeds, tuple(asked.mode or MODES)))
        tallies += made
        _written(tallies, asked.json, asked.markdown)
        calls, exact = sum(t.calls for t in made), sum(t.exact for t in made)
        steps, good = sum(t.steps for t in made), sum(t.continuous for t in made)
        took = time.monotonic() - began
        print(f"{files.name} [{one.family.name}] tools={one.can.tools} {exact}/{calls} exact, "
              f"{good}/{steps} continuous, {took:.0f} s", file=sys.stderr, flush=True)  # fmt: skip
        for t in made:
            if t.breaks or t.refused or t.findings:
                print(f"  {t.dialect} {t.mode}: breaks {dict(t.breaks)} refused {dict(t.refused)} findings "
                      f"{dict(t.findings)} e.g. {t.examples}", file=sys.stderr, flush=True)  # fmt: skip
    if not asked.markdown:
        print(markdown(tallies))
    return 0 if all(t.exact == t.calls and not t.findings for t in tallies) else 1


if __name__ == "__main__":
    raise SystemExit(main())
