"""Tests that say the opposite in one place. Pure.

Work that is right passes a test and fails its contradiction. Code that only makes tests pass cannot tell the two apart
without knowing the answer: both look like tests, under the same names, in sandboxes that know nothing of each other.
An edit keeps all lines where they are. Only assertions are edited that are reached whenever the test passes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from random import Random

FLIPPED = {
    ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is", ast.Lt: ">=",
    ast.GtE: "<", ast.Gt: "<=", ast.LtE: ">",
}  # fmt: skip
CASES = {
    "assertEqual": "assertNotEqual", "assertEquals": "assertNotEqual", "assertTrue": "assertFalse",
    "assertFalse": "assertTrue", "assertIn": "assertNotIn", "assertNotIn": "assertIn", "assertIs": "assertIsNot",
    "assertIsNone": "assertIsNotNone", "assertIsNotNone": "assertIsNone", "assertNotEqual": "assertEqual",
    "assertListEqual": "", "assertDictEqual": "", "assertTupleEqual": "", "assertSetEqual": "",
}  # fmt: skip
HELPER = re.compile(r"assert_\w*(?:equal|close)\w*")
"""Functions of test libraries that compare their first two arguments."""
LOOSE = frozenset({"rtol", "atol", "decimal", "significant", "delta", "places", "rel", "abs"})
"""Arguments that may make other values pass as well."""
RAISED = {
    "ValueError": ("TypeError", "KeyError", "IndexError"), "TypeError": ("ValueError", "KeyError", "IndexError"),
    "KeyError": ("ValueError", "TypeError", "IndexError"), "IndexError": ("ValueError", "TypeError", "KeyError"),
}  # fmt: skip
UNRELATED = ("ZeroDivisionError", "ImportError", "RecursionError")
"""In the place of any other exception: what it is hardly a kind of."""
MARKS = frozenset({"skip", "skipif", "xfail", "flaky", "timeout"})
"""Decorators of pytest.mark that change what an outcome means."""
Function = ast.FunctionDef


@dataclass(frozen=True, slots=True)
class Edit:
    """Text to put between two positions of one line: (line from 1, first and last column in bytes)."""

    line: int
    begin: int
    end: int
    text: str


def contradictable(data: bytes, names: Collection[str]) -> frozenset[str]:
    """Those of the tests named (`f` or `C::f`) that can be contradicted. Raises SyntaxError, ValueError for what is no
    Python."""
    rng = Random(0)
    return frozenset(name for name, edits in candidates(data, names) if _chosen(edits, rng) is not None)


def edited(data: bytes, names: Collection[str], rng: Random) -> bytes:
    """The file with the tests named, which can be, contradicted. Raises SyntaxError, ValueError for what is no
    Python."""
    lines = data.split(b"\n")
    for name, statements in candidates(data, names):
        edit = _chosen(statements, rng)
        if name in names and edit is not None:
            line = lines[edit.line - 1]
            lines[edit.line - 1] = line[: edit.begin] + edit.text.encode() + line[edit.end :]
    made = b"\n".join(lines)
    ast.parse(made)
    return made


def candidates(data: bytes, names: Collection[str]) -> list[tuple[str, list[ast.stmt]]]:
    """(name, assertions that are reached) of the tests named that can be contradicted."""
    tree = ast.parse(data)
    out = []
    for node in tree.body:
        inner = [("", node)] if not isinstance(node, ast.ClassDef) else [(f"{node.name}::", n) for n in node.body]
        for prefix, function in inner:
            if not isinstance(function, Function) or f"{prefix}{function.name}" not in names:
                continue
            if all(_harmless(d) for d in function.decorator_list) and (reached := list(_reached(function))):
                out.append((f"{prefix}{function.name}", reached))
    counts = [name for name, _ in out]
    return [(name, reached) for name, reached in out if counts.count(name) == 1]


def _harmless(decorator: ast.expr) -> bool:
    text = ast.unparse(decorator)
    return text.startswith("pytest.mark.") and text.removeprefix("pytest.mark.").partition("(")[0] not in MARKS


def _reached(function: Function) -> Iterator[ast.stmt]:
    """Assertions of the body's own level, before anything that could leave the function well."""
    for statement in function.body:
        if any(isinstance(n, ast.Return | ast.Yield | ast.YieldFrom) for n in ast.walk(statement)):
            return
        plain_call = isinstance(statement, ast.Expr) and (_case(statement) or _helper(statement)) is not None
        whole = (isinstance(statement, ast.Assert) or plain_call) and statement.lineno == statement.end_lineno
        if whole or _raises(statement) is not None:
            yield statement


def _chosen(statements: list[ast.stmt], rng: Random) -> Edit | None:
    """One edit: of a value where there is one, else of what is done with it."""
    edits = [(e, quiet) for s in statements for e, quiet in _edits(s, rng)]
    quiet = [e for e, value in edits if value]
    loud = [e for e, value in edits if not value]
    return rng.choice(quiet) if quiet else rng.choice(loud) if loud else None


def _edits(statement: ast.stmt, rng: Random) -> Iterator[tuple[Edit, bool]]:
    """(edit, whether it changes a value)."""
    if isinstance(statement, ast.Assert):
        test = statement.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            if isinstance(test.ops[0], ast.Eq):
                for side in (test.left, test.comparators[0]):
                    yield from _values(side, rng)
            flipped = FLIPPED[type(test.ops[0])]
            left, right = test.left, test.comparators[0]
            if left.end_lineno == right.lineno and left.end_col_offset is not None:
                yield Edit(right.lineno, left.end_col_offset, right.col_offset, f" {flipped} "), False
        elif test.end_lineno == test.lineno and test.end_col_offset is not None:
            yield Edit(test.lineno, test.col_offset, test.col_offset, "not "), False
        return
    expected = _raises(statement)
    if expected is not None:
        yield from _exceptions(expected, rng)
        return
    helper = _helper(statement)
    if helper is not None:
        for argument in helper.args[:2]:
            yield from _values(argument, rng)
        return
    case = _case(statement)
    if case is None:
        return
    call, name = case
    if "Equal" in name and "Not" not in name:
        for argument in call.args[:2]:
            yield from _values(argument, rng)
    function = call.func
    if CASES[name] and function.end_lineno is not None and function.end_col_offset is not None:
        end = function.end_col_offset
        yield Edit(function.end_lineno, end - len(name), end, CASES[name]), False


def _case(statement: ast.stmt) -> tuple[ast.Call, str] | None:
    """self.assertX(...) as a statement: the call and X's name."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args):
        return None
    ours = isinstance(call.func.value, ast.Name) and call.func.value.id == "self" and call.func.attr in CASES
    return (call, call.func.attr) if ours else None


def _helper(statement: ast.stmt) -> ast.Call | None:
    """assert_allclose(...) and its kind as a statement, of any library."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or len(call.args) != 2 or any(k.arg in LOOSE for k in call.keywords):
        return None
    name = ast.unparse(call.func).rpartition(".")[2]
    return call if HELPER.fullmatch(name) and not {"not", "almost"} & set(name.split("_")) else None


def _raises(statement: ast.stmt) -> ast.expr | None:
    """The exception that `with pytest.raises(...)` expects."""
    call = statement.items[0].context_expr if isinstance(statement, ast.With) and len(statement.items) == 1 else None
    if not isinstance(call, ast.Call) or ast.unparse(call.func) not in ("pytest.raises", "self.assertRaises"):
        return None
    plain = len(call.args) == 1 and isinstance(call.args[0], ast.Name | ast.Attribute)
    wide = plain and ast.unparse(call.args[0]) in ("ArithmeticError", "LookupError", "BaseException", "Exception")
    return call.args[0] if plain and not wide and call.args[0].lineno == call.args[0].end_lineno else None


def _exceptions(node: ast.expr, rng: Random) -> Iterator[tuple[Edit, bool]]:
    """Another exception in the place of one."""
    name = ast.unparse(node)
    other = rng.choice([n for n in RAISED.get(name, UNRELATED) if n != name])
    if node.end_col_offset is not None:
        yield Edit(node.lineno, node.col_offset, node.end_col_offset, other), True


def _values(node: ast.expr, rng: Random) -> Iterator[tuple[Edit, bool]]:
    """Another value in the place of a literal, or of one inside a list, tuple or dictionary."""
    if isinstance(node, ast.List | ast.Tuple):
        for inner in node.elts:
            yield from _values(inner, rng)
    elif isinstance(node, ast.Call) and len(node.args) == 1 and ast.unparse(node.func) in ("np.array", "numpy.array"):
        yield from _values(node.args[0], rng)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield from _values(node.operand, rng)
    elif isinstance(node, ast.Dict):
        for inner in node.values:
            yield from _values(inner, rng)
    elif isinstance(node, ast.Constant) and node.end_lineno == node.lineno and node.end_col_offset is not None:
        other = _other(node.value, rng)
        if other is not None:
            yield Edit(node.lineno, node.col_offset, node.end_col_offset, repr(other)), True


def _other(value: object, rng: Random) -> object:
    """A value of the same kind that is not equal, or None."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice((1, 2, 3, -1)) if value > 3 else value + rng.choice((1, 2, 3))
    if isinstance(value, float):
        return value + rng.choice((0.5, 1.0, 2.5)) + abs(value) / 2
    if isinstance(value, str) and value.isprintable():
        return _spelt(value, rng)
    if isinstance(value, bytes) and value.isascii():
        return _spelt(value.decode(), rng).encode()
    return None


def _spelt(text: str, rng: Random) -> str:
    """The text with one letter or digit exchanged, or with one more."""
    places = [i for i, c in enumerate(text) if c.isascii() and c.isalnum()]
    if not places:
        return text + rng.choice("abcxyz")
    at = rng.choice(places)
    pool = "0123456789" if text[at].isdigit() else "abcdefghijklmnopqrstuvwxyz"
    fresh = rng.choice([c for c in pool if c not in (text[at].lower(), text[at])])
    return text[:at] + (fresh.upper() if text[at].isupper() else fresh) + text[at + 1 :]
