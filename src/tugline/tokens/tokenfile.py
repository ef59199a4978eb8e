"""What a tokenizer.json says about its added tokens, and which of them structure a conversation."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

import msgspec

SPACE = r"[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
"""White space as the tokenizer library understands it (Unicode White_Space), for tokens that swallow it."""
_DEEPEST = 200
"""Characters of a token up to which a trie of them is written as nested groups."""


class AddedToken(msgspec.Struct, frozen=True):
    """An entry of `added_tokens`."""

    id: int
    content: str
    lstrip: bool = False
    """Swallows white space in front of it."""
    rstrip: bool = False
    """Swallows white space behind it."""
    single_word: bool = False
    """Is found only where no letter or digit touches it."""
    normalized: bool = False
    """Is looked for in normalized text."""
    special: bool = False


class _Model(msgspec.Struct):
    unk_token: str | None = None
    unk_id: int | None = None


class TokenizerFile(msgspec.Struct):
    """The part of a tokenizer.json that is read here."""

    added_tokens: list[AddedToken] = []
    model: _Model = msgspec.field(default_factory=_Model)


def decode_file(data: bytes) -> TokenizerFile:
    """Raises msgspec.DecodeError for anything that is no tokenizer.json."""
    return msgspec.json.decode(data, type=TokenizerFile)


def controls(added: Sequence[AddedToken], template: str, markers: Collection[str]) -> list[AddedToken]:
    """The added tokens that structure a conversation, in file order. See `codec` for the rule."""
    chosen = {a.content for a in added if a.special or _structural(a.content, template, markers)}
    heads, tails = ends(chosen)
    for token in added:
        text = token.content
        overlaps = any(text[n:] in heads or text[:n] in tails for n in range(1, len(text)))
        if overlaps or (not text.isspace() and any(c in text for c in chosen if len(c) < len(text))):
            chosen.add(text)
    return [a for a in added if a.content in chosen]


def ends(contents: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Every proper beginning and every proper end of `contents`."""
    known = tuple(contents)
    heads = frozenset(t[:n] for t in known for n in range(1, len(t)))
    return heads, frozenset(t[n:] for t in known for n in range(1, len(t)))


_PIPED = re.compile(r"<[|\uff5c].*[|\uff5c]>")
"""How many families spell tokens that structure text, also those that are not declared special (`<|fim_prefix|>`)."""
_NAMED = frozenset(("<s>", "</s>", "<bos>", "<eos>", "<pad>", "<unk>"))
"""Tokens that begin, end or fill texts wherever they occur: some tokenizers forget to declare them special."""
_PUNCTUATED = re.compile(r"[^\w\s]")
_SHORTEST = 3
"""Characters of a token from which on it counts that the template's source contains it: shorter ones are code."""


def _structural(content: str, template: str, markers: Collection[str]) -> bool:
    """Whether an added token that is not special still structures a conversation (`<think>`, `<tool_call>`, ...)."""
    if content in markers or content in _NAMED or _PIPED.fullmatch(content):
        return True
    return len(content) >= _SHORTEST and _PUNCTUATED.search(content) is not None and content in template


def alternatives(tokens: Iterable[AddedToken]) -> str:
    """A pattern for the tokens, leftmost-longest as the tokenizer matches, with the white space that they swallow."""
    plain: list[AddedToken] = []
    odd: list[AddedToken] = []
    for token in tokens:
        (odd if token.lstrip or token.rstrip or token.single_word else plain).append(token)
    if not odd:
        return trie(t.content for t in plain) or r"(?!)"
    return "|".join(map(_one, sorted([*plain, *odd], key=lambda a: -len(a.content))))


def _one(token: AddedToken) -> str:
    body = re.escape(token.content)
    if token.single_word:
        body = rf"(?<!\w){body}(?!\w)"
    # Starting at the first of several blanks only: a long run of them is looked through once.
    before = rf"(?:(?<!{SPACE}){SPACE}+)?" if token.lstrip else ""
    return before + body + (f"{SPACE}*" if token.rstrip else "")


def trie(contents: Iterable[str]) -> str:
    """One pattern for many strings, longest first, whose cost per character does not grow with their number."""
    known = sorted(set(contents), key=len, reverse=True)
    if known and len(known[0]) > _DEEPEST:
        return "|".join(map(re.escape, known))
    return _branches(known)


def _branches(words: Collection[str]) -> str:
    """`words` are distinct and do not include the empty string."""
    by_first: dict[str, list[str]] = {}
    for word in words:
        by_first.setdefault(word[0], []).append(word[1:])
    return "|".join(re.escape(first) + _rest(rests) for first, rests in by_first.items())


def _rest(rests: list[str]) -> str:
    longer = [r for r in rests if r]
    if not longer:
        return ""
    if len(longer) == 1:
        inner = re.escape(longer[0])
        return f"(?:{inner})?" if len(rests) > 1 else inner
    shared = 0
    while all(len(r) > shared and r[shared] == longer[0][shared] for r in longer):
        shared += 1
    cut = [r[shared:] for r in longer]
    body = re.escape(longer[0][:shared]) + ("(?:" + _branches([c for c in cut if c]) + ")" + ("?" if "" in cut else ""))
    return f"(?:{body})?" if len(rests) > len(longer) else body
