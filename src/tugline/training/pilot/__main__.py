"""`python -m tugline.training.pilot train|evaluate`: make the pilot policy, and measure one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tugline.training.pilot import MODEL_DIR


def main() -> int:
    """Train a pilot policy, or measure one on held-out tasks."""
    parser = argparse.ArgumentParser(prog="python -m tugline.training.pilot", description=main.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="train from scratch and write a model directory")
    train.add_argument("--out", type=Path, required=True)
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--pi", type=Path, required=True, help="directory whose node_modules holds Pi")
    evaluate = commands.add_parser("evaluate", help="held-out success with 95 %% Wilson intervals, without the harness")
    evaluate.add_argument("--model", type=Path, default=MODEL_DIR)
    evaluate.add_argument("--pi", type=Path, required=True, help="directory whose node_modules holds Pi")
    evaluate.add_argument("--n", type=int, default=200)
    evaluate.add_argument("--seed", type=int, default=0)
    evaluate.add_argument("--temperature", type=float, default=1.0)
    evaluate.add_argument("--show", type=int, default=0, metavar="N", help="print the first N sessions")
    args = parser.parse_args()
    return _train(args) if args.command == "train" else _evaluate(args)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _train(args: argparse.Namespace) -> int:
    from tugline.training.pilot.formats import PiFormat
    from tugline.training.pilot.recipe import Recipe, train

    figures = train(Recipe(seed=args.seed), PiFormat(args.pi), args.out, _say)
    _say(str(figures))
    return 0


def _evaluate(args: argparse.Namespace) -> int:
    from tugline.training.pilot.evaluate import Trial, evaluate
    from tugline.training.pilot.formats import PiFormat

    trial = Trial(model=args.model, count=args.n, seed=args.seed, temperature=args.temperature)
    outcome = evaluate(trial, PiFormat(args.pi))
    for text in outcome.texts[: args.show]:
        _say(text)
    for line in outcome.lines():
        _say(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
