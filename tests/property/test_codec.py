"""Control tokens, screens and placeholders against plain definitions of them."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from tugline.core.columns import ids_list
from tugline.tokens.codec import Codec
from tugline.tokens.marks import Marks, Screen, unused
from tugline.tokens.tokenfile import trie
from unit.tokens.odd_tokenizers import CONTROL, KINDS, TAGS, TEMPLATE, tokenizer

_ABC = st.text("ab<|>", min_size=1, max_size=5)
_PIECES = st.sampled_from(
    (*CONTROL, *TAGS, "<|im_", "end|>", "<", ">", "|", "<|", "s>", "think", "im_end", " ", "\n", "é")
)
hostile = st.lists(_PIECES | st.text(max_size=3), max_size=6).map("".join)
_CODECS = {
    name: Codec(tokenizer(name), TEMPLATE, ()) for name in ("byte-level", "prepend", "nfkc-normalized", "swallows-both")
}


@given(st.sets(_ABC, min_size=1, max_size=12), st.text("ab<|>", max_size=30))
def test_a_trie_finds_what_alternatives_find(words: set[str], text: str) -> None:
    plain = "|".join(re.escape(w) for w in sorted(words, key=len, reverse=True))
    assert [m.span() for m in re.finditer(trie(words), text)] == [m.span() for m in re.finditer(plain, text)]


_SIGNS = st.text("[<|>]", min_size=1, max_size=5)


@given(st.sets(_SIGNS, min_size=1, max_size=5), st.lists(st.text("[<|>]", max_size=6), min_size=1, max_size=4))
def test_screened_texts_never_make_a_token_together(words: set[str], texts: list[str]) -> None:
    """Neither in themselves nor side by side nor between pieces of tokens that a template writes."""
    marks = Marks(Screen(words), "NONCE", {}, set())
    shown = "".join(marks.text(t) for t in texts)
    assert marks.restore(shown) == "".join(texts)
    for before in ("", *(w[:n] for w in words for n in range(len(w)))):
        for behind in ("", *(w[n:] for w in words for n in range(1, len(w) + 1))):
            joined = before + shown + behind
            spans = [m.span() for w in words for m in re.finditer(f"(?={re.escape(w)})", joined)]
            ends = [(at, at + len(w)) for w in words for at, _ in spans if joined.startswith(w, at)]
            first, last = len(before), len(before + shown)
            assert first == last or all(end <= first or start >= last for start, end in ends)


@given(st.sets(_ABC, min_size=1, max_size=5), st.text("ab<|>", max_size=8))
def test_a_clean_text_is_one_without_anything_to_swap(words: set[str], text: str) -> None:
    screen = Screen(words)
    heads = {w[:n] for w in words for n in range(1, len(w))}
    tails = {w[n:] for w in words for n in range(1, len(w))}
    touches = any(text.endswith(h) for h in heads) or any(text.startswith(t) for t in tails)
    inside = any(text in w for w in words) if text else False
    assert screen.clean(text) == (not (touches or inside or any(w in text for w in words)))
    assert screen.clean(text) == (not screen.pieces(text))


@settings(deadline=None)
@given(st.sampled_from(sorted(_CODECS)), st.lists(hostile, min_size=1, max_size=4))
def test_only_the_template_writes_control_tokens(kind: str, texts: list[str]) -> None:
    codec = _CODECS[kind]
    marks = Marks(Screen(codec.control), unused("NONCE", texts), {}, set())
    prompt = "<s>" + "".join(f"<|im_start|>user\n{marks.text(t)}<think>" for t in texts)
    column = codec.encode_marked(prompt, marks.restore)
    found = [i for i in ids_list(column) if i in codec.control.values()]
    assert found == [codec.control["<s>"], *[codec.control[c] for _ in texts for c in ("<|im_start|>", "<think>")]]


@settings(deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.lists(st.text(max_size=8), min_size=1, max_size=3))
def test_clean_prompts_have_the_stock_ids(kind: str, texts: list[str]) -> None:
    codec = Codec(tokenizer(kind), TEMPLATE, ())
    if not all(Screen(codec.control).clean(t) for t in texts) or any(
        "\u0300" <= c <= "\u036f" for t in texts for c in t
    ):
        return
    prompt = "<s>" + "".join(f"<|im_start|>{t}<|im_end|>" for t in texts)
    assert codec.encode_marked(prompt, str) == codec.encode(prompt)
