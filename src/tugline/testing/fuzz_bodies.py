"""Bodies to throw at a dialect: drawn from its wire types, put together from parts of good ones, or damaged bytes.

Body number i of a seed is always the same, so that a failure is one number.
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import msgspec
from msgspec import inspect

MAX_DEPTH = 8
DEEP = 3_000
"""Levels of a hostile nesting: beyond Python's recursion limit."""
LONG = 50_000

_WORDS = (
    "", " ", "\n", "a", "user", "assistant", "model", "tool", "system", "developer", "auto", "none", "text", "null",
    "image", "function", "call_1", "{}", "{", '{"a": 1.0}', "data:image/png;base64,@@", "é 漢 👩\u200d💻",
    "\u2028\u2029\x85", "\x00\x7f", "\ufeff", "<|im_end|>", "</think>", "<tool_call>", "\U0010ffff", "x" * 300,
)  # fmt: skip
_RAW = (
    *(b"null", b"0", b"-1", b"1e999", b"-0.0", b"1E400", b"NaN", b'""', b'"\\ud800"', b'"\\udc00\\ud800"'),
    *(b"[]", b"{}", b"true", b"[[]]", b'[{"a":1}]', b'{"type":[]}', b"9" * 30, b"9" * 5000, b'"\xff"'),
    *(b'"\\u0000"', b'"\xed\xa0\x80"'),
    *(b'{"a":1,"a":2}', b'{"type":"text","type":"image"}', b"[" * DEEP, b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP),
    *(b'"' + b"x" * LONG + b'"', b"[" + b"0," * LONG + b"0]", b"-", b"0x1", b"tru", b'"\\x"', b"1.", b"\xef\xbb\xbf{}"),
)  # fmt: skip
_MARK = "@@fuzz@@"
_MARKED = b'"@@fuzz@@"'


class Bodies:
    """`body(i)` gives one. `given` are good bodies of the API; those that are JSON objects are also taken apart."""

    def __init__(self, dialect: str, given: Sequence[bytes], seed: int = 0) -> None:
        """`dialect`: name of one of ours, whose wire types are drawn from, or of any other."""
        self._seed = seed
        self._given = [g for g in given if g] or [b"{}"]
        self._values = _objects(self._given)
        self._parts: dict[str, list[Any]] = defaultdict(list)
        for value in self._values:
            _collect(value, self._parts)
        self._root, self._structs = _wire_types(dialect)
        kinds: list[tuple[int, Callable[[random.Random], bytes]]] = [
            (3, self._drawn), (4, self._recombined), (4, self._respelled), (3, self._planted), (4, self._bytes),
            (1, self._kept),
        ]  # fmt: skip
        self._kinds = [make for weight, make in kinds for _ in range(weight)]

    def body(self, number: int) -> bytes:
        """Body `number`, from 0."""
        rng = random.Random(f"{self._seed}/{number}")
        return rng.choice(self._kinds)(rng)

    # ------------------------------------------------------------------------------------------ whole kinds

    def _kept(self, rng: random.Random) -> bytes:
        return rng.choice(self._given)

    def _drawn(self, rng: random.Random) -> bytes:
        if self._root is None:
            return self._recombined(rng)
        return _encode(self._instance(rng, self._root, 0))

    def _recombined(self, rng: random.Random) -> bytes:
        """A good body with some parts replaced by parts that stood under the same key, or under any other."""
        if not self._values:
            return self._bytes(rng)
        value = rng.choice(self._values)
        for _ in range(rng.randint(1, 4)):
            value = self._changed(rng, value, rng.randint(0, 12))
        return _encode(value)

    def _respelled(self, rng: random.Random) -> bytes:
        """A good body with other strings in it, which mostly stays good."""
        if not self._values:
            return self._bytes(rng)
        return _encode(_respelled(rng, rng.choice(self._values), rng.choice((0.05, 0.2, 0.6))))

    def _planted(self, rng: random.Random) -> bytes:
        """A good body with hostile JSON text, or text that is no JSON, in one place."""
        if not self._values:
            return self._bytes(rng)
        marked = _encode(_planted(rng, rng.choice(self._values), rng.randint(0, 12)))
        return marked.replace(_MARKED, rng.choice(_RAW))

    def _bytes(self, rng: random.Random) -> bytes:
        data = bytearray(rng.choice(self._given))
        for _ in range(rng.choice((1, 1, 2, 5, 20))):
            at = rng.randint(0, len(data))
            match rng.randint(0, 7):
                case 0 if data:
                    data[min(at, len(data) - 1)] ^= 1 << rng.randint(0, 7)
                case 1:
                    del data[at : at + rng.randint(1, 40)]
                case 2:
                    data = data[:at]
                case 3:
                    data[at:at] = rng.choice(_RAW)
                case 4:
                    data[at:at] = rng.randbytes(rng.randint(1, 8))
                case 5:
                    other = rng.choice(self._given)
                    data = data[:at] + other[rng.randint(0, len(other)) :]
                case 6:
                    span = data[at : at + rng.randint(1, 200)]
                    data[at:at] = span * rng.randint(1, 20)
                case _:
                    data[at:at] = rng.choice(_WORDS).encode()
        return bytes(data)

    # ------------------------------------------------------------------------------------------------ parts

    def _changed(self, rng: random.Random, value: Any, steps: int) -> Any:
        """A copy with one place changed that lies about `steps` levels down."""
        if isinstance(value, dict) and value:
            key = rng.choice(list(value))
            copy = dict(value)
            match rng.randint(0, 9) if steps <= 2 else 9:
                case 0:
                    del copy[key]
                case 1:
                    copy[rng.choice((*_WORDS, *self._parts))] = copy.pop(key)
                case 2:
                    copy[rng.choice(list(self._parts))] = self._part(rng, key)
                case 3 | 4:
                    copy[key] = self._part(rng, key)
                case _:
                    copy[key] = self._changed(rng, copy[key], steps - 1)
            return copy
        if isinstance(value, list) and value:
            at = rng.randrange(len(value))
            items = list(value)
            match rng.randint(0, 9) if steps <= 2 else 9:
                case 0:
                    del items[at]
                case 1:
                    items.insert(at, items[rng.randrange(len(items))])
                case 2:
                    rng.shuffle(items)
                case 3:
                    items = items * rng.randint(2, 30)
                case _:
                    items[at] = self._changed(rng, items[at], steps - 1)
            return items
        return self._scalar(rng)

    def _part(self, rng: random.Random, key: str) -> Any:
        if rng.random() < 0.6 and self._parts.get(key):
            return rng.choice(self._parts[key])
        if self._parts and rng.random() < 0.6:
            return rng.choice(self._parts[rng.choice(list(self._parts))])
        return self._scalar(rng)

    def _scalar(self, rng: random.Random) -> Any:
        return rng.choice((None, True, False, 0, 1, -1, 3.5, 1e308, 2**53, 2**63 - 1, [], {}, rng.choice(_WORDS)))

    def _instance(self, rng: random.Random, kind: inspect.Type, depth: int) -> Any:
        """A value of a type, now and then of another one."""
        if depth > MAX_DEPTH or rng.random() < 0.03:
            return self._scalar(rng)
        match kind:
            case inspect.StructType():
                return {
                    f.encode_name: self._field(rng, f, depth)
                    for f in kind.fields
                    if f.required or rng.random() < 0.5
                }  # fmt: skip
            case inspect.UnionType():
                return self._instance(rng, rng.choice(kind.types), depth)
            case inspect.ListType() | inspect.CollectionType() | inspect.VarTupleType():
                return [self._instance(rng, kind.item_type, depth + 1) for _ in range(rng.choice((0, 1, 1, 2, 3, 6)))]
            case inspect.DictType():
                return {
                    w: self._instance(rng, kind.value_type, depth + 1) for w in rng.sample(_WORDS, rng.randint(0, 3))
                }
            case inspect.LiteralType():
                return rng.choice(kind.values)
            case inspect.StrType():
                return rng.choice(_WORDS)
            case inspect.IntType():
                return rng.choice((0, 1, 2, 9, -1, 2**31, 2**53, 2**63))
            case inspect.FloatType():
                return rng.choice((0.0, 0.7, 1.0, -0.1, 1e300))
            case inspect.BoolType():
                return rng.random() < 0.5
            case inspect.NoneType():
                return None
        if self._structs and rng.random() < 0.5:  # Raw and Any: whatever the module reads elsewhere
            return self._instance(rng, rng.choice(self._structs), depth + 1)
        return self._part(rng, "")

    def _field(self, rng: random.Random, field: inspect.Field, depth: int) -> Any:
        """Most strings and free fields hold what good bodies hold under that key: types, roles, ids that fit."""
        free = isinstance(field.type, inspect.StrType | inspect.RawType | inspect.AnyType | inspect.UnionType)
        known = self._parts.get(field.encode_name)
        if known and rng.random() < (0.7 if free else 0.15):
            return rng.choice(known)
        return self._instance(rng, field.type, depth + 1)


def _wire_types(dialect: str) -> tuple[inspect.Type | None, list[inspect.Type]]:
    """The request type of one of our dialects and every other type that requests are read with."""
    try:
        module: ModuleType = import_module(f"tugline.dialects.{dialect}_wire")
    except ImportError:
        return None, []
    structs = [
        v
        for name, v in vars(module).items()
        if isinstance(v, type) and issubclass(v, msgspec.Struct) and not name.startswith("Out")
    ]
    root = getattr(module, "Body", None)
    types = [inspect.type_info(s) for s in structs]
    return (inspect.type_info(root) if root is not None else None), types


def _objects(given: Sequence[bytes]) -> list[dict[str, Any]]:
    found = []
    for data in given:
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def _collect(value: Any, parts: dict[str, list[Any]], key: str = "") -> None:
    """Every part of a value under the key it stands under; those of a list under the list's."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if len(parts[name]) < 200:
                parts[name].append(inner)
            _collect(inner, parts, name)
    elif isinstance(value, list):
        for inner in value[:50]:
            _collect(inner, parts, key)


def _respelled(rng: random.Random, value: Any, share: float, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _respelled(rng, inner, share, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_respelled(rng, inner, share, key) for inner in value]
    if isinstance(value, str) and key not in ("type", "role") and rng.random() < share:
        return "".join(rng.choices(_WORDS, k=rng.randint(0, 4)))
    return value


def _planted(rng: random.Random, value: Any, steps: int) -> Any:
    if steps > 0 and isinstance(value, dict) and value:
        key = rng.choice(list(value))
        return {**value, key: _planted(rng, value[key], steps - 1)}
    if steps > 0 and isinstance(value, list) and value:
        at = rng.randrange(len(value))
        return [*value[:at], _planted(rng, value[at], steps - 1), *value[at + 1 :]]
    return _MARK


def _encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (OverflowError, RecursionError, msgspec.MsgspecError):
        return b"9" * min(LONG, sys.maxsize)
