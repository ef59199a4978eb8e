"""Ids of calls on the wire, and what a model calls them.

Some models write an id with each call and read it again with the result (`functions.run:3`). Agents need ids that are
unique in a session and made of letters that every API allows (`[A-Za-z0-9_-]`). So the id on the wire is one of ours
with the sampled one spelled into it: nothing needs to be stored, and whoever has the wire id can show the model its own
word for the call.
"""

from __future__ import annotations

import hashlib
import re

_MARK = "_m-"
"""Stands in front of the sampled id. What comes before it holds no `-`."""
_LIMIT = 96
"""Letters of a sampled id, as spelled, beyond which it is taken for noise and not kept."""
_OURS = re.compile(r"call_[A-Za-z0-9]+_[0-9]+_m-([A-Za-z0-9-]*(?:_[0-9a-f]{2}[A-Za-z0-9-]*)*)")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def wire_id(stem: str, place: int, sampled: str) -> str:
    """The id of call number `place` of the reply `stem` (letters and digits). `sampled`: the model's own, or ""."""
    made = f"call_{stem}_{place}"
    spelled = "".join(chr(b) if _plain(b) else f"_{b:02x}" for b in sampled.encode("utf-8", "surrogatepass"))
    return f"{made}{_MARK}{spelled}" if 0 < len(spelled) <= _LIMIT else made


def sampled_id(wire: str) -> str:
    """What the model called the call; the id itself where that is unknown, or the id is not one of ours."""
    found = _OURS.fullmatch(wire)
    if found is None:
        return wire
    parts = re.split(r"_([0-9a-f]{2})", found.group(1))
    spelled = b"".join(bytes.fromhex(p) if n % 2 else p.encode() for n, p in enumerate(parts))
    return spelled.decode("utf-8", "replace")


def short_id(wire: str) -> str:
    """Nine letters and digits in the place of an id, as some templates demand. An id of that form stays."""
    if len(wire) == 9 and wire.isascii() and wire.isalnum():
        return wire
    number = int.from_bytes(hashlib.blake2b(wire.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
    out = ""
    for _ in range(9):
        number, digit = divmod(number, len(_LETTERS))
        out += _LETTERS[digit]
    return out


def _plain(byte: int) -> bool:
    return chr(byte).isascii() and (chr(byte).isalnum() or byte == ord("-"))
