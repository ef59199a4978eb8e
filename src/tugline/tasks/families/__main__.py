"""`python -m tugline.tasks.families --out DIR --split heldout --count N`: write a suite of tasks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tugline.tasks.families import FAMILIES, generate_suite


def main() -> int:
    """Write the suite and name its directories, one a line."""
    parser = argparse.ArgumentParser(prog="python -m tugline.tasks.families", description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory that receives the task directories")
    parser.add_argument("--split", choices=("train", "heldout"), default="train")
    parser.add_argument("--count", type=int, default=24, help="number of tasks, the families in turn")
    parser.add_argument("--family", choices=FAMILIES, action="append", help="only this family; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    families = tuple(args.family) if args.family else FAMILIES
    for path in generate_suite(args.out, split=args.split, count=args.count, seed=args.seed, families=families):
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
