"""The tests of one file, in the same process as the code that is judged: a pytest session, or Django's own runner.

What it says is signed with a key that came by standard input, and goes through a pipe to `parent`. Beside the outcomes
it says what it saw of pytest being tampered with. argv: PIPE_FD
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import sys

from tugline.verifiers.inside.watch import LOOKS, Checkers, Files, Internals, codes, equals_all, plain_functions


class Line:
    """The signed way to the parent."""

    def __init__(self, fd: int, key: bytes) -> None:
        sent = [0]
        pid, write, dumps = os.getpid(), os.write, json.dumps
        new, sha = hmac.new, hashlib.sha256

        def say(kind: str, **more: object) -> None:
            if os.getpid() != pid:
                return  # a fork of the candidate's
            body = dumps(dict(more, t=kind)).encode()
            mac = new(key, b"%d %s" % (sent[0], body), sha).hexdigest().encode()
            data = mac + b" " + body + b"\n"
            sent[0] += 1
            while data:
                data = data[write(fd, data) :]

        self.say = say


class Judge:
    """A pytest plugin."""

    def __init__(self, job: dict, say: object) -> None:  # type: ignore[type-arg]
        self.say = say
        self.job = job
        self.work = os.path.realpath(job["workdir"])
        known = job["changed"]
        self.changed = None if known is None else {os.path.join(self.work, p) for p in known}
        self.roots = tuple({os.path.realpath(p) + "/" for p in (sys.prefix, sys.base_prefix, *job["trusted"])})
        self.count = 0
        self.outcomes: dict = {}  # type: ignore[type-arg]
        self.told: set = set()  # type: ignore[type-arg]
        self.files = Files(self.trusted)
        self.internals = Internals(self.files.genuine)
        self.sources = {}
        self.expected: dict = {}  # type: ignore[type-arg]
        path = os.path.join(self.work, job["file"])
        with open(path, "rb") as file:
            self.sources[path] = file.read()
        known = job["restored"].get(job["file"])
        if known and hashlib.sha256(self.sources[path]).hexdigest() != known:
            self.tamper("tests_changed", job["file"])
        self.checkers = Checkers(self.sources[path], self.mine)

    def tamper(self, what: str, detail: str) -> None:
        if (what, detail) not in self.told:
            self.told.add((what, detail))
            self.say("tamper", what=what, detail=detail[:200])  # type: ignore[operator]

    def trusted(self, filename: str) -> bool:
        """Whether code of that file is the image's or the task's, not the agent's."""
        path = os.path.realpath(filename)
        if not os.path.exists(path):
            return False
        if path.startswith(self.work + "/"):
            ours = os.path.relpath(path, self.work) in self.job["restored"]
            return ours or (self.changed is not None and path not in self.changed)
        return path.startswith(self.roots)

    def mine(self, code: object) -> bool:
        """Whether code that compares for the tests is the agent's: of a file of its own in the place of a library's,
        or of no file that holds it. What the task's own project compares with is its own affair."""
        path = os.path.realpath(code.co_filename)  # type: ignore[attr-defined]
        if not path.startswith(self.work + "/"):
            return not self.files.genuine(code)
        inside = os.path.relpath(path, self.work)
        return inside in self.job["added"] and elsewhere(inside, self.work)

    # ------------------------------------------------------------------------------------------------- hooks

    def pytest_collection_modifyitems(self, items: list) -> None:  # type: ignore[type-arg]
        self.say("collected", ids=[item.nodeid for item in items])  # type: ignore[operator]
        for item in items:
            self.check_source(item)
        self.check_checkers()

    def pytest_collectreport(self, report: object) -> None:
        if report.failed:  # type: ignore[attr-defined]
            self.say("broken", id=report.nodeid, why=str(report.longrepr)[-2000:])  # type: ignore[attr-defined, operator]

    def pytest_runtest_logreport(self, report: object) -> None:
        node, when, outcome = report.nodeid, report.when, report.outcome  # type: ignore[attr-defined]
        if hasattr(report, "wasxfail"):
            outcome = "xfailed" if outcome == "skipped" else "xpassed"
        elif outcome == "failed" and when != "call":
            outcome = "error"
        worst = ("error", "failed", "skipped", "xfailed", "xpassed", "passed")
        known = self.outcomes.get(node)
        if known is None or worst.index(outcome) < worst.index(known):
            self.outcomes[node] = outcome
        if when == "teardown":
            self.count += 1
            self.say("test", id=node, outcome=self.outcomes[node])  # type: ignore[operator]
            for name in self.internals.altered():
                self.tamper("patched_internals", name)

    def check_checkers(self) -> None:
        for name in self.checkers.altered():
            self.tamper("patched_internals", name)

    def pytest_sessionfinish(self) -> None:
        self.check_checkers()
        for name in self.internals.altered():
            self.tamper("patched_internals", name)
        for name in self.always_equal():
            self.tamper("always_equal", name)

    # ------------------------------------------------------------------------------------------------ checks

    def check_source(self, item: object) -> None:
        """A plain test function must be the one that its file holds: a file can be swapped for a moment."""
        path = os.path.realpath(str(getattr(item, "path", getattr(item, "fspath", ""))))
        source, function = self.sources.get(path), getattr(item, "function", None)
        code = getattr(function, "__code__", None)
        if source is None or code is None:
            return
        cls = getattr(item, "cls", None)
        name = (cls.__name__ + "." if cls is not None else "") + function.__name__  # type: ignore[union-attr]
        if path not in self.expected:
            self.expected[path] = (plain_functions(source), codes(source, path, item.config))  # type: ignore[attr-defined]
        plain, known = self.expected[path]
        if name in plain and code not in known:
            self.tamper("tests_changed", name)

    def always_equal(self) -> list[str]:
        """Classes of the agent's that say they equal whatever they are compared with."""
        wrong, seen, todo = [], set(), [object]
        while todo:
            for cls in type.__subclasses__(todo.pop()):
                if id(cls) in seen:
                    continue
                seen.add(id(cls))
                todo.append(cls)
                equal = cls.__dict__.get("__eq__")
                code = getattr(equal, "__code__", None)
                if code is not None and not self.files.genuine(code) and equals_all(cls, equal):
                    wrong.append(cls.__name__)
        return wrong


def elsewhere(inside: str, work: str) -> bool:
    """Whether the top module of a path below the work directory is to be had without the work directory."""
    from importlib.machinery import PathFinder

    outside = [p for p in sys.path if p and not (os.path.realpath(p) + "/").startswith(work + "/")]
    parts = inside.rpartition(".")[0].split("/")
    names = (parts[n] for n in range(min(3, len(parts))))
    return any(name in sys.builtin_module_names or PathFinder.find_spec(name, outside) for name in names)


def guard(judge: Judge) -> None:
    """Note writes to restored files and looks through the collector's lists; no code can take this hook away."""
    protected = {os.path.join(judge.work, p) for p in judge.job["restored"]}
    real, fspath = os.path.realpath, os.fspath
    changing = {"os.remove", "os.rename", "os.truncate", "os.link", "os.symlink", "shutil.copyfile", "shutil.move"}

    def path_of(value: object) -> str:
        try:
            return real(os.fsdecode(fspath(value)))  # type: ignore[call-overload]
        except (TypeError, ValueError, OSError):
            return ""

    def hook(event: str, args: tuple) -> None:  # type: ignore[type-arg]
        if event == "open":
            flags = args[2] if isinstance(args[2], int) else 0
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC) or (
                isinstance(args[1], str) and args[1][:1] in "wax"
            )
            if writes and path_of(args[0]) in protected:
                judge.tamper("tests_changed", path_of(args[0]))
        elif event in changing:
            for value in args[:2]:
                if path_of(value) in protected:
                    judge.tamper("tests_changed", path_of(value))
        elif event in LOOKS and not judge.files.genuine(sys._getframe(1).f_code):
            judge.tamper("patched_internals", event)

    if hasattr(sys, "addaudithook"):
        sys.addaudithook(hook)


def main() -> None:
    """Read the job, run the tests of one file, say how it ended."""
    job = json.load(sys.stdin)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    pipe = int(sys.argv[1])
    os.set_inheritable(pipe, False)
    line = Line(pipe, bytes.fromhex(job.pop("key")))
    code = with_runtests(job, line.say) if job["runner"] == "runtests" else with_pytest(job, line.say)
    line.say("end", code=code)
    sys.stdout.flush()
    os._exit(0)  # what the candidate left for the end of the process is not run


def with_pytest(job: dict, say: object) -> int:  # type: ignore[type-arg]
    """A pytest session. Returns its status."""
    try:
        import pytest
    except ImportError:
        sys.path.append(job["tools"])
        import pytest
    say("tools", pytest=pytest.__version__, python=sys.version.split()[0])  # type: ignore[operator]
    preload()
    judge = Judge(job, say)
    guard(judge)
    sys.path.insert(0, judge.work)
    for extra in job["paths"]:
        sys.path.insert(0, os.path.join(judge.work, extra))
    args = [job["file"], "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *job["args"]]
    return int(pytest.main(args, plugins=[judge]))


def with_runtests(job: dict, say: object) -> int:  # type: ignore[type-arg]
    """The module of one file under the project's own tests/runtests.py, Django's, which runs unittest in here."""
    import runpy
    import unittest.case
    import unittest.mock
    import unittest.runner

    outcomes: dict = {}  # type: ignore[type-arg]
    described: dict = {}  # type: ignore[type-arg]
    record(unittest.runner.TextTestResult, outcomes, described)
    say("tools", python=sys.version.split()[0])  # type: ignore[operator]
    judge = Judge(job, say)
    guard(judge)
    top = os.path.join(judge.work, "tests")
    os.chdir(top)
    sys.path[:0] = [judge.work, top]
    label = job["file"][len("tests/") : -len(".py")].replace("/", ".")
    sys.argv = ["runtests.py", "--verbosity", "0", "--parallel", "1", *job["args"], label]
    code = 0
    try:
        runpy.run_path(os.path.join(top, "runtests.py"), run_name="__main__")
    except SystemExit as end:
        code = int(end.code or 0) if not isinstance(end.code, str) else 1
    for test, outcome in {**described, **outcomes}.items():
        say("test", id=test, outcome=outcome)  # type: ignore[operator]
    judge.pytest_sessionfinish()
    return code


def record(result: type, outcomes: dict, described: dict) -> None:  # type: ignore[type-arg]
    """Make a unittest result class note outcomes by `method (module.Class)`, and by description where there is one."""
    worst = ("error", "failed", "skipped", "xfailed", "xpassed", "passed")

    def note(test: object, outcome: str) -> None:
        method = getattr(test, "_testMethodName", None)
        if method is None:
            return
        cls = type(test)
        names = [(outcomes, method + " (" + cls.__module__ + "." + cls.__qualname__ + ")")]
        said = test.shortDescription()  # type: ignore[attr-defined]
        if said:
            names.append((described, said))
        for into, name in names:
            known = into.get(name)
            if known is None or worst.index(outcome) < worst.index(known):
                into[name] = outcome

    def wrap(name: str, outcome: str) -> None:
        before = getattr(result, name)

        def after(self: object, test: object, *more: object) -> None:
            note(test, outcome)
            before(self, test, *more)

        setattr(result, name, after)

    for name, outcome in (("addSuccess", "passed"), ("addFailure", "failed"), ("addError", "error"),
                          ("addSkip", "skipped"), ("addExpectedFailure", "xfailed"),
                          ("addUnexpectedSuccess", "xpassed")):  # fmt: skip
        wrap(name, outcome)
    sub = result.addSubTest  # type: ignore[attr-defined]

    def after_sub(self: object, test: object, subtest: object, err: object) -> None:
        if err is not None:
            note(test, "failed")
        sub(self, test, subtest, err)

    result.addSubTest = after_sub  # type: ignore[attr-defined]


def preload() -> None:
    """Import all of pytest, so that what is not there yet cannot be put there by somebody else."""
    import importlib
    import pkgutil

    import _pytest

    for info in pkgutil.walk_packages(_pytest.__path__, "_pytest."):
        if "__main__" not in info.name:
            with contextlib.suppress(ImportError):
                importlib.import_module(info.name)
    import unittest.case
    import unittest.mock  # noqa: F401


if __name__ == "__main__":
    main()
