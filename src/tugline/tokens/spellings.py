"""Two start-up probes of a tokenizer: P15, tokens beside a control token; P16, hostile text makes no control token.

Both are pure, deterministic and take a fraction of a second. They check the claims of `codec` on the tokenizer at hand.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from tugline.core.columns import Ids, ids_list
from tugline.core.errors import Unsupported
from tugline.tokens.codec import Codec
from tugline.tokens.marks import Marks, Screen, unused

_BEFORE = ("", "x", "word ", "\n", " \n\t", "é", "日本", "9", ".")
_BEHIND = ("", "x", " y", "\n", "\n\nz", "  ", "日本", "9", "é")
_MOST = 24
"""Control tokens that are tried beside text: those asked for first, then the first of the file."""
_MARK = "\u2581"
"""The letter that SentencePiece models write for a blank; their decoders read it as one."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a probe found. `what` is empty when nothing breaks."""

    what: str = ""
    """What breaks, in words."""
    example: str = ""
    """The text and the ids around the place."""
    notes: tuple[str, ...] = ()
    """Properties worth knowing that break nothing."""
    checks: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing breaks."""
        return not self.what


def boundary_probe(codec: Codec, tokens: Collection[str] = ()) -> Found:
    """P15. For control tokens s between texts a and b: ids are the stock ones, and a prompt may be cut in front of s.

    That is: guarded(c a s b) = stock(c a s b) = guarded(c a s) ++ what guarded(s b) has behind s, for a control token
    c. `tokens`: control tokens that matter most (stop tokens, those that the template writes); they come first.
    """
    chosen = [t for t in dict.fromkeys((*tokens, *codec.control)) if t in codec.control][:_MOST]
    if not chosen:
        return Found("the tokenizer has no control tokens")
    notes, checks, first = _habits(codec, chosen), 0, chosen[0]
    for token in chosen:
        for before in _BEFORE:
            left = _guarded(codec, first + before + token)
            for behind in _BEHIND:
                text = first + before + token + behind
                whole = _guarded(codec, text)
                checks += 1
                if whole != ids_list(codec.encode(text)):
                    what = f"beside {token} the stock tokenizer gives other ids than the guarded one"
                    return Found(what, _example(codec, text), notes, checks)
                right = _guarded(codec, token + behind)
                if whole != left + right[1:] or right[0] != codec.control[token]:
                    return Found(f"a cut in front of {token} changes ids", _example(codec, text), notes, checks)
    return Found(notes=notes, checks=checks)


def forgery_probe(codec: Codec, n: int = 400, seed: int = 0) -> Found:
    """P16. `n` hostile strings between two control tokens: no other control id appears, and the text reads back."""
    rng = random.Random(seed)
    screen, tokens = Screen(codec.control), tuple(codec.control)
    if not tokens:
        return Found("the tokenizer has no control tokens")
    notes: dict[str, str] = {}
    fence, ids = tokens[0], frozenset(codec.control.values())
    for number, text in enumerate(hostile_strings(tokens, rng, n)):
        texts = (text,) if number % 3 else _halves(text, rng)
        try:
            column = fenced(codec, screen, fence, texts)
        except Unsupported as err:
            return Found(f"hostile text cannot be shown: {err}", repr(text), tuple(notes.values()), number)
        opening, *inner, closing = ids_list(column)
        made = [i for i in inner if i in ids and i != codec.unknown]
        if made:
            return Found("hostile text makes a control token", f"{text!r}: {made}", tuple(notes.values()), number)
        if opening != closing or opening != codec.control[fence]:
            return Found(f"beside a letter {fence} is no token", repr(text), tuple(notes.values()), number)
        if note := unread(codec, inner, f"x{''.join(texts)}x"):
            notes.setdefault(note.partition(":")[0], note)
    return Found(notes=tuple(notes.values()), checks=n)


def fenced(codec: Codec, screen: Screen, fence: str, texts: Sequence[str]) -> Ids:
    """Ids of `texts`, made harmless one by one as in a prompt, between two control tokens. Raises Unsupported."""
    marks = Marks(screen, unused("TgNeutraL", texts), {}, set())
    shown = "".join(marks.text(t) for t in texts)
    return codec.encode_marked(f"{fence}x{shown}x{fence}", marks.restore)


def unread(codec: Codec, column: list[int], text: str) -> str:
    """Why `column` does not read back as `text`, a sentence; empty when it does, normal forms aside."""
    read = codec.decode(column)
    if _plain(read) == _plain(text):
        return ""
    if codec.unknown is not None and codec.unknown in column:
        return "some characters have no token and become the unknown one"
    if text.count("<0x") > read.count("<0x"):
        return "text that spells a byte token (<0x0A>) becomes that byte"
    return f"some text does not read back: {text[:60]!r} becomes {read[:60]!r}"


def hostile_strings(tokens: Sequence[str], rng: random.Random, n: int) -> Iterator[str]:
    """`n` strings built to become control tokens: each token in turn in one of the ways, alone or in a sentence."""
    for number in range(n):
        token = tokens[number % len(tokens)] if number < 2 * len(tokens) else rng.choice(tokens)
        other = rng.choice(tokens)
        spelled = _WAYS[(number + number // len(tokens)) % len(_WAYS)](token, other, rng)
        before, behind = rng.choice(_AROUND)
        yield before + spelled + behind


def _split(token: str, rng: random.Random, joint: str) -> str:
    at = rng.randrange(1, max(2, len(token)))
    return token[:at] + joint + token[at:]


def _fullwidth(token: str) -> str:
    return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in token)


_AROUND = (("", ""), ("", ""), ("a ", " b"), ("\n", "\n"), (" ", ""), ("", " "), ("é", "日"), ('{"k": "', '"}'))
_BLANKS = (" ", "\n", "\n\n", "\t", "\u00a0", "\u3000", "\u2003", "\x1c")
_WAYS = (
    lambda t, o, r: t,
    lambda t, o, r: t + o,
    lambda t, o, r: _split(t, r, t),
    lambda t, o, r: _split(t, r, o),
    lambda t, o, r: _split(t, r, r.choice(("\u200b", "\u200d", "\ufeff", "\u00ad", "\u2060", "\x00", "\u0338"))),
    lambda t, o, r: t + r.choice(("\u0338", "\u0301", "\u200d", "\ufe0f")),
    lambda t, o, r: _fullwidth(t),
    lambda t, o, r: r.choice((t.upper(), t.lower(), t.title(), t.swapcase())),
    lambda t, o, r: r.choice(_BLANKS) + t + r.choice(_BLANKS),
    lambda t, o, r: "".join(f"\\u{ord(c):04x}" for c in t),
    lambda t, o, r: t.replace("<", "\\u003c").replace(">", "\\u003e"),
    lambda t, o, r: t.replace("<", "&lt;").replace(">", "&gt;"),
    lambda t, o, r: t.replace('"', '\\"').replace("/", "\\/"),
    lambda t, o, r: t[: r.randrange(1, max(2, len(t)))],
    lambda t, o, r: t[r.randrange(0, max(1, len(t) - 1)) :],
    lambda t, o, r: t[1:] + t[:1],
    lambda t, o, r: t[1:-1],
    lambda t, o, r: t.strip("<>[]|/\uff5c"),
    lambda t, o, r: "".join(f"<0x{b:02X}>" for b in t.encode()),
    lambda t, o, r: t.replace(_MARK, " "),
    lambda t, o, r: f"{t}{t}{t}",
    lambda t, o, r: unicodedata.normalize("NFD", t) + chr(r.randrange(0xF0000, 0xF0010)) + t,
    lambda t, o, r: "\U0001fae0" + t + "\u0378" + chr(r.randrange(0x10000, 0x2FA00)) + chr(r.randrange(0x370, 0xD800)),
)  # fmt: skip


def _halves(text: str, rng: random.Random) -> tuple[str, str]:
    at = rng.randrange(len(text) + 1)
    return text[:at], text[at:]


def _guarded(codec: Codec, text: str) -> list[int]:
    return ids_list(codec.encode_marked(text, str))


def _habits(codec: Codec, tokens: Sequence[str]) -> tuple[str, ...]:
    """How a tokenizer treats text beside control tokens, where it is not as if the text stood alone."""
    flags = {a.content: a for a in codec.added}
    found = []
    swallowing = [t for t in tokens if flags[t].lstrip or flags[t].rstrip]
    if swallowing:
        found.append(f"white space beside a control token is swallowed: {' '.join(swallowing[:6])}")
    alone, behind = ids_list(codec.encode("word")), _guarded(codec, tokens[0] + "word")[1:]
    if alone != behind:
        found.append("a text behind a control token has other ids than the same text alone")
    if len(ids_list(codec.encode("word"))) and codec.decode(codec.encode("\u212b")) != "\u212b":
        found.append("text is normalized before it is encoded")
    return tuple(found)


def _example(codec: Codec, text: str) -> str:
    return f"{text!r}: stock {ids_list(codec.encode(text))}, guarded {_guarded(codec, text)}"


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKD", text.replace(_MARK, " "))
