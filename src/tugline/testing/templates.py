"""Every template of a corpus judged and fuzzed: `python -m tugline.testing.templates DIR --out PAGE --json FILE`.

Results are kept in FILE as they come, each under a hash of what it depends on, so that a run can be stopped and goes on
where it was. Exit 1 when a difference was silent.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import tugline.tokens
from tugline.core.errors import ConfigError
from tugline.testing.corpus import Case, cases
from tugline.testing.template_fuzz import Tally, fuzz_model
from tugline.testing.template_page import Row, page
from tugline.tokens.families import detect
from tugline.tokens.model import ChatModel


class _Tokens(msgspec.Struct):
    class _Token(msgspec.Struct):
        content: str

    added_tokens: list[_Token] = []


def parser_of(case: Case) -> str:
    """The family that the program itself sees; `plain` where it sees none."""
    added = {t.content for t in msgspec.json.decode(case.tokenizer_json, type=_Tokens).added_tokens}
    try:
        return detect(case.template, added).name
    except ConfigError:
        return "plain"


def run_case(case: Case, conversations: int, key: str = "") -> Row:
    """Judge one template and fuzz it."""
    begun = time.process_time()
    parser = parser_of(case)
    chat = ChatModel(case.files(parser))
    verdict = chat.probe()
    tally: Tally = fuzz_model(chat, conversations)
    return Row(
        key=key,
        name=case.name,
        package=case.package,
        family=case.family,
        parser=parser,
        tokenizer=case.tokenizer,
        real=case.real,
        bridge=verdict.bridge,
        representable=verdict.tools.representable,
        parallel=verdict.tools.parallel,
        tools=verdict.tools.why,
        faithful=list(verdict.faithful),
        roles=list(verdict.appendable),
        failed=[f"{r.name}: {r.what}" for r in verdict.failed],
        clock=list(verdict.clock.prints),
        conversations=conversations,
        turns=tally.turns,
        equal=tally.equal,
        spelled=tally.spelled,
        behind=tally.behind,
        classes=dict(tally.classes),
        notes=dict(tally.notes),
        silent=tally.silent,
        examples=tally.examples,
        seconds=time.process_time() - begun,
    )


def key_of(case: Case, conversations: int) -> str:
    """sha256 of the case, the size of the run and the sources at work."""
    digest = hashlib.sha256(f"{conversations} {case.name} {case.stop} {sorted(case.specials.items())}".encode())
    digest.update(hashlib.sha256(case.template.encode()).digest() + hashlib.sha256(case.tokenizer_json).digest())
    digest.update(_sources())
    return digest.hexdigest()


@cache
def _sources() -> bytes:
    digest = hashlib.sha256()
    own = sorted(Path(__file__).parent.glob("template*.py"))
    for folder in map(Path, tugline.tokens.__path__):
        own += sorted(folder.rglob("*.py"))
    for file in own:
        digest.update(file.read_bytes())
    return digest.digest()


@cache
def _corpus(folder: str) -> dict[str, Case]:
    return {case.name: case for case in cases(Path(folder))}


def _work(folder: str, name: str, conversations: int, key: str) -> Row:
    return run_case(_corpus(folder)[name], conversations, key)


def run_corpus(
    folder: Path, *, conversations: int, only: str = "*", jobs: int = 2, kept: Path | None = None
) -> list[Row]:
    """Rows in the corpus's order. `only`: a pattern of names; `kept`: where results are and stay."""
    wanted = {n: c for n, c in _corpus(str(folder)).items() if fnmatch.fnmatch(n, only)}
    keys = {name: key_of(case, conversations) for name, case in wanted.items()}
    had = {row.name: row for row in _load(kept) if row.key == keys.get(row.name)}
    missing = sorted((name for name in wanted if name not in had), key=lambda name: not wanted[name].real)
    for row in _made(folder, missing, (conversations, keys), jobs):
        had[row.name] = row
        if kept is not None:
            part = kept.with_suffix(".part")
            part.write_bytes(msgspec.json.encode(list(had.values())))
            os.replace(part, kept)
    return [had[name] for name in wanted]


def _made(folder: Path, names: Sequence[str], asked: tuple[int, dict[str, str]], jobs: int) -> Iterator[Row]:
    if jobs < 2 or len(names) < 2:
        for name in names:
            yield run_case(_corpus(str(folder))[name], asked[0], asked[1][name])
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    context = multiprocessing.get_context("spawn")
    with Progress(*columns, console=Console(stderr=True)) as bar, ProcessPoolExecutor(jobs, context) as pool:
        task = bar.add_task("templates", total=len(names))
        begun = {pool.submit(_work, str(folder), name, asked[0], asked[1][name]): name for name in names}
        for done in as_completed(begun):
            yield done.result()
            bar.update(task, advance=1, description=begun[done])


def _load(kept: Path | None) -> list[Row]:
    if kept is None or not kept.is_file():
        return []
    try:
        return msgspec.json.decode(kept.read_bytes(), type=list[Row])
    except msgspec.DecodeError:
        return []


def main(argv: Sequence[str] | None = None) -> int:
    """Run, write, say the sum."""
    parser = argparse.ArgumentParser(prog="python -m tugline.testing.templates", description=__doc__)
    parser.add_argument("corpus", type=Path, help="a folder that `python -m tugline.testing.corpus fetch` filled")
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--only", default="*", help="a pattern of names, e.g. 'trl/qwen3*'")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the page here")
    parser.add_argument("--json", type=Path, help="results; also where an interrupted run goes on")
    args = parser.parse_args(argv)
    rows = run_corpus(args.corpus, conversations=args.conversations, only=args.only, jobs=args.jobs, kept=args.json)
    if args.out:
        args.out.write_text(page(rows), encoding="utf-8")
    for row in rows:
        for example in row.examples:
            sys.stdout.write(f"{row.name}: {example}\n")
    silent = sum(r.silent for r in rows)
    compared = sum(r.compared for r in rows)
    sys.stdout.write(f"{len(rows)} templates, {compared} turns compared, silent differences: {silent}\n")
    return 1 if silent or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
