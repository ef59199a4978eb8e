"""Break our own code on purpose and see that the tests of the table notice.

    python tests/mutants/run.py --all            every mutant, two at a time
    python tests/mutants/run.py --code F35 F37   some
    python tests/mutants/run.py --all --write    also docs/failure-modes.md

Each mutant is applied to a copy of the tree; all of its tests must then fail, by a failed test and not by an import
error, and all must pass on an untouched copy. Results are kept beside the table's hash of everything that they depend
on, so that a run can be interrupted and goes on where it was.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Lock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutants.page import page
from mutants.table import ROOT, Mode, Mutant, load, problems

STATE = ROOT / ".mutants.json"
LIMIT = 600.0
"""Seconds for the tests of one mutant."""
IGNORED = shutil.ignore_patterns("__pycache__", ".hypothesis", "*.safetensors.*")


class Copy:
    """A tree of its own to spoil."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        for name in ("src", "tests", "docs", "examples"):
            shutil.copytree(ROOT / name, folder / name, ignore=IGNORED)
        shutil.copy(ROOT / "pyproject.toml", folder)
        compileall.compile_dir(str(folder / "src"), quiet=2, workers=1)

    def run(self, tests: list[str], mutant: Mutant | None = None) -> dict[str, str]:
        """Outcome of every test that ran or could not, by node id. The mutant is undone again."""
        if mutant is None:
            return self._pytest(tests)
        file = self.root / mutant.file
        whole, stat = file.read_bytes(), file.stat()
        text = whole.decode()
        assert text.count(mutant.old) == 1
        file.write_bytes(text.replace(mutant.old, mutant.new).encode())
        try:
            return self._pytest(tests)
        finally:
            file.write_bytes(whole)
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # its compiled form is valid again

    def _pytest(self, tests: list[str]) -> dict[str, str]:
        report = self.root / "outcomes.jsonl"
        report.write_text("")
        path = os.pathsep.join(str(self.root / name) for name in ("src", "tests"))
        env = os.environ | {
            "PYTHONPATH": path,
            "PYTHONDONTWRITEBYTECODE": "1",
            "TUGLINE_OUTCOMES": str(report),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "mutants.outcomes"]
        try:
            subprocess.run([*command, *tests], cwd=self.root, env=env, capture_output=True, timeout=LIMIT, check=False)
        except subprocess.TimeoutExpired:
            return {"": f"no end within {LIMIT:.0f} s"}
        return dict(json.loads(line) for line in report.read_text().splitlines())


def verdicts(tests: tuple[str, ...], outcomes: dict[str, str]) -> dict[str, str]:
    """Per test of the table: red, green or why it says nothing. One red case makes a parametrised test red."""
    found = {}
    for test in tests:
        mine = [o for node, o in outcomes.items() if node == test or node.startswith(f"{test}[")]
        broken = [o for node, o in outcomes.items() if o == "collect failed" or not node]
        if "call failed" in mine:
            found[test] = "red"
        elif broken:
            found[test] = "broken"
        elif any(o.endswith("failed") for o in mine):
            found[test] = "setup failed"
        else:
            found[test] = "green" if mine and any(o == "call passed" for o in mine) else "did not run"
    return found


class State:
    """Results by what they depend on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._known: dict[str, dict[str, object]] = json.loads(path.read_text()) if path.is_file() else {}

    def get(self, key: str) -> dict[str, object] | None:
        return self._known.get(key)

    def put(self, key: str, result: dict[str, object]) -> None:
        with self._lock:
            self._known[key] = result
            draft = self._path.with_suffix(".new")
            draft.write_text(json.dumps(self._known, indent=0))
            draft.replace(self._path)


def source_key() -> str:
    """Hash of all of src: what a clean run depends on, with the tests' own files."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def key_of(name: str, tests: tuple[str, ...], more: tuple[str, ...]) -> str:
    """Hash of a mutant or clean run, its tests and the files that they stand in."""
    digest = hashlib.sha256(json.dumps([name, tests, more]).encode())
    for file in sorted({t.partition("::")[0] for t in tests}):
        digest.update((ROOT / file).read_bytes())
    return digest.hexdigest()[:32]


def one(mutant: Mutant, copies: queue.Queue[Copy], state: State, fresh: bool) -> dict[str, object]:
    """The verdicts of one mutant, from memory if nothing has changed."""
    source = (ROOT / mutant.file).read_text("utf-8")
    key = key_of(mutant.name, mutant.tests, (mutant.old, mutant.new, source))
    known = state.get(key)
    if known is not None and not fresh:
        return known
    copy = copies.get()
    begun = time.monotonic()
    try:
        found = verdicts(mutant.tests, copy.run(list(mutant.tests), mutant))
    finally:
        copies.put(copy)
    result: dict[str, object] = {"tests": found, "seconds": round(time.monotonic() - begun, 1)}
    state.put(key, result)
    return result


def control(tests: list[str], copies: queue.Queue[Copy], state: State, fresh: bool) -> dict[str, str]:
    """Verdicts on the untouched tree."""
    key = key_of("control", tuple(tests), (source_key(),))
    known = state.get(key)
    if known is not None and not fresh:
        return known["tests"]  # type: ignore[return-value]
    copy = copies.get()
    try:
        found = verdicts(tuple(tests), copy.run(tests))
    finally:
        copies.put(copy)
    state.put(key, {"tests": found})
    return found


def main() -> int:
    """Exit status 0 when every mutant turns all of its tests red and none is red without it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every mutant")
    parser.add_argument("--code", nargs="+", default=[], help="codes such as F35")
    parser.add_argument("-j", type=int, default=2, help="copies of the tree at work")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--write", action="store_true", help="write docs/failure-modes.md")
    args = parser.parse_args()
    modes = load()
    wrong = problems(modes)
    if wrong:
        print("\n".join(wrong))
        return 2
    chosen = [m for m in modes.values() if args.all or m.code in args.code]
    if not chosen:
        parser.error("say --all or --code")
    mutants = [m for mode in chosen for m in mode.mutants]
    results, clean, ok = _run(mutants, args)
    killed = sum(set(r["tests"].values()) == {"red"} for r in results.values())  # type: ignore[attr-defined]
    left = [m.code for m in chosen if not m.mutants]
    print(f"\n{killed}/{len(mutants)} mutants killed, {len(chosen) - len(left)} codes with one, {len(left)} without")
    if args.write:
        (ROOT / "docs" / "failure-modes.md").write_text(page(_whole(modes), results, clean, _commit()))
    return 0 if ok else 1


def _run(mutants: list[Mutant], args: argparse.Namespace) -> tuple[dict[str, dict[str, object]], dict[str, str], bool]:
    state = State(STATE)
    tests = sorted({t for m in mutants for t in m.tests})
    results: dict[str, dict[str, object]] = {}
    ok = True
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch, ThreadPoolExecutor(args.j) as pool:
        copies: queue.Queue[Copy] = queue.Queue()
        for n in range(args.j):
            copies.put(Copy(Path(scratch) / str(n)))
        clean_run = pool.submit(control, tests, copies, state, args.fresh)
        runs = {pool.submit(one, m, copies, state, args.fresh): m for m in mutants}
        for done in as_completed(runs):
            mutant, result = runs[done], done.result()
            results[mutant.name] = result
            left = {t: v for t, v in result["tests"].items() if v != "red"}  # type: ignore[attr-defined]
            ok = ok and not left
            word = "killed" if not left else "SURVIVED"
            print(f"{mutant.name:7} {word:9} {result.get('seconds', 0):6} s  {mutant.breaks}", flush=True)
            for test, verdict in left.items():
                print(f"        {verdict:12} {test}", flush=True)
        clean = clean_run.result()
    for test, verdict in clean.items():
        if verdict != "green":
            ok = False
            print(f"control {verdict:12} {test}")
    return results, clean, ok


def _whole(modes: dict[str, Mode]) -> list[Mode]:
    return list(modes.values())


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
