"""The text of a Dockerfile: instructions with their line numbers, and words with their variables. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_DIRECTIVE = re.compile(r"^#\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*(.+?)\s*$")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:(:?[-+?])((?:[^{}$]|\$\w+|\$\{\w+\})*))?\})")
_HERE = re.compile(r"(?:^|[\s;|&(])\d*<<-?\s*['\"]?[A-Za-z_]")


class DockerfileProblem(ValueError):
    """What is wrong with the text; the caller knows the file and adds the line."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """`line` is where it begins, from 1. `rest` is everything behind the first word, continuations joined."""

    line: int
    name: str
    rest: str


@dataclass(frozen=True, slots=True)
class Lines:
    """A parsed Dockerfile. `escape` is the character that continues lines and quotes."""

    escape: str
    instructions: tuple[Instruction, ...]


def parse(text: str) -> Lines:
    """Split into instructions. Raises DockerfileProblem for an impossible escape directive."""
    lines = text.removeprefix("\ufeff").splitlines()
    escape = _escape(lines)
    more = re.compile(rf"(^|[^{re.escape(escape)}]){re.escape(escape)}[ \t]*$")
    found: list[Instruction] = []
    begun, pending = 0, ""
    for number, line in enumerate([*lines, ""], 1):
        last = number > len(lines)
        if not last and (line.lstrip().startswith("#") or not line.strip()):
            continue
        joined = pending + (line if pending else line.lstrip())
        begun = begun if pending else number
        cut = more.search(joined)
        if cut and not last:
            pending = joined[: cut.start()] + cut.group(1)
            pending = pending or " "
            continue
        pending = ""
        word, rest = _split_first(joined.strip())
        if word:
            found.append(Instruction(begun, word.upper(), rest))
    return Lines(escape, tuple(found))


def _escape(lines: list[str]) -> str:
    """The escape directive: only among the comments at the very top."""
    for line in lines:
        found = _DIRECTIVE.match(line.strip())
        if found is None:
            break
        if found.group(1).lower() == "escape":
            if found.group(2) not in ("\\", "`"):
                raise DockerfileProblem(f"the escape directive must be \\ or `, not {found.group(2)[:20]!r}")
            return found.group(2)
    return "\\"


def _split_first(text: str) -> tuple[str, str]:
    parts = text.split(None, 1)
    return (parts[0], parts[1] if len(parts) > 1 else "") if parts else ("", "")


def has_here_document(text: str) -> bool:
    """Whether a RUN, COPY or ADD goes on behind its line."""
    return bool(_HERE.search(text))


def words(text: str, escape: str) -> list[str]:
    """Split at white space outside quotes; quotes and escapes stay, for `expand`."""
    out: list[str] = []
    word, quote, at = "", "", 0
    while at < len(text):
        char = text[at]
        if char == escape and quote != "'" and at + 1 < len(text):
            word += text[at : at + 2]
            at += 2
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        if char.isspace() and not quote:
            if word:
                out.append(word)
            word = ""
        else:
            word += char
        at += 1
    if quote:
        raise DockerfileProblem("a quote is not closed")
    return [*out, word] if word else out


def expand(word: str, values: Mapping[str, str], escape: str) -> str:
    """Remove quotes and escapes, fill variables in, as Docker does outside RUN. Raises DockerfileProblem."""
    out: list[str] = []
    quote, at = "", 0
    while at < len(word):
        char = word[at]
        if char == escape and quote != "'" and at + 1 < len(word):
            kept = quote == '"' and word[at + 1] not in f'"${escape}'
            out.append(word[at : at + 2] if kept else word[at + 1])
            at += 2
        elif char in "\"'" and quote in ("", char):
            quote = "" if quote else char
            at += 1
        elif char == "$" and quote != "'":
            found = _VARIABLE.match(word, at)
            if found is None:
                if word.startswith("${", at):
                    raise DockerfileProblem(f"{word[at : at + 40]!r} cannot be filled in")
                out.append("$")
                at += 1
                continue
            out.append(_value(found, values, escape))
            at = found.end()
        else:
            out.append(char)
            at += 1
    return "".join(out)


def _value(found: re.Match[str], values: Mapping[str, str], escape: str) -> str:
    name, way, other = found.group(1) or found.group(2), found.group(3), found.group(4) or ""
    value = values.get(name)
    present = value is not None and (value != "" or not (way or "").startswith(":"))
    if way in ("-", ":-"):
        return value or "" if present else expand(other, values, escape)
    if way in ("+", ":+"):
        return expand(other, values, escape) if present else ""
    if way in ("?", ":?") and not present:
        raise DockerfileProblem(f"{name}: {other or 'is not set'}")
    return value or ""
