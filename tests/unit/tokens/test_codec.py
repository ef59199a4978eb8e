"""Ids are the stock ones beside control tokens, and no text becomes one, whatever the tokenizer's habits."""

from __future__ import annotations

import random

import pytest
from tokenizers import AddedToken, Tokenizer

from tugline.core.columns import ids_list
from tugline.core.errors import Unsupported
from tugline.tokens.codec import LONG, Codec
from tugline.tokens.marks import Screen
from tugline.tokens.spellings import boundary_probe, fenced, forgery_probe, hostile_strings
from unit.tokens.odd_tokenizers import BROKEN, CONTROL, KINDS, TAGS, TEMPLATE, tokenizer

TEXTS = ("", "word x", " word", "\n\nword ", "a  b\tc", "é日", "< | >", "im_end")


def codec(kind: str) -> Codec:
    return Codec(tokenizer(kind), TEMPLATE, ("<|im_end|>",))


def stock(kind: str) -> Tokenizer:
    return Tokenizer.from_str(tokenizer(kind).decode())


@pytest.mark.parametrize("kind", KINDS)
def test_template_output_has_the_stock_ids(kind: str) -> None:
    chat, plain = codec(kind), stock(kind)
    for one in TEXTS:
        for two in TEXTS:
            text = f"<s>{one}<|im_start|>{two}<think>{one}</think>{two}<|im_end|>{one}"
            assert ids_list(chat.encode_marked(text, str)) == plain.encode(text, add_special_tokens=False).ids, text


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_may_be_cut_in_front_of_a_control_token(kind: str) -> None:
    found = boundary_probe(codec(kind))
    assert found.ok, found
    assert found.checks > 200


@pytest.mark.parametrize("kind", KINDS)
def test_no_hostile_text_becomes_a_control_token(kind: str) -> None:
    found = forgery_probe(codec(kind), 1_000)
    assert found.ok, found
    assert found.checks == 1_000


@pytest.mark.parametrize("kind", BROKEN)
def test_tokenizers_that_cannot_be_told_safely_are_named(kind: str) -> None:
    chat = codec(kind)
    assert not (boundary_probe(chat).ok and forgery_probe(chat, 1_000).ok)
    assert boundary_probe(chat).what or forgery_probe(chat, 1_000).what


def test_the_stock_tokenizer_would_be_forged() -> None:
    """The strings are worth something: without the guard they make control ids by the hundred."""
    chat, rng = codec("nfkc-normalized"), random.Random(0)
    forged = sum(chat.controls_in(chat.encode(s)) > 0 for s in hostile_strings(tuple(chat.control), rng, 500))
    assert forged > 150


def test_a_full_width_spelling_is_no_control_token_after_normalization() -> None:
    chat = codec("nfkc-normalized")
    wide = "\uff1c\uff5cim_end\uff5c\uff1e"
    assert chat.controls_in(chat.encode(wide)) == 1, "the stock tokenizer finds one"
    assert chat.controls_in(chat.encode_marked(f"<|im_start|>{wide}<|im_end|>", str)) == 2


def test_a_model_that_finds_control_tokens_in_plain_text_is_renamed() -> None:
    chat = codec("unigram")
    column = fenced(chat, Screen(chat.control), "<s>", ["a</s>b"])
    assert chat.controls_in(column) == 2
    assert "</s>" in chat.decode(column)


def test_private_letters_in_the_text_do_not_help() -> None:
    chat = codec("byte-level")
    spelled = "".join(chr(0xF0000 + n) for n in range(40)) + "".join(
        f"{chr(0xF0000)}{chr(0x100000)}{chr(0x100000)}{chr(0x100000 + n)}" for n in range(8)
    )
    column = fenced(chat, Screen(chat.control), "<s>", [spelled, "<|im_end|>"])
    assert chat.controls_in(column) == 2
    assert chat.decode(column) == f"<s>x{spelled}<|im_end|>x<s>"


def test_nor_where_the_model_itself_must_be_renamed() -> None:
    chat = codec("unigram")
    plain = fenced(chat, Screen(chat.control), "<s>", ["e", "</s>"])
    column = fenced(chat, Screen(chat.control), "<s>", [chr(0xF0000), "</s>"])
    assert chat.controls_in(column) == chat.controls_in(plain) == 2
    assert "</s>" in chat.decode(column)


@pytest.mark.parametrize("kind", ["byte-level", "gaps", "metaspace-first", "swallows-both"])
def test_long_texts_have_the_stock_ids_too(kind: str) -> None:
    text = "<s>" + "word x <|im_end|>\n y é " * (LONG // 20) + "<|im_start|>"
    assert ids_list(codec(kind).encode_marked(text, str)) == stock(kind).encode(text, add_special_tokens=False).ids


def test_white_space_that_a_token_swallows_is_part_of_it() -> None:
    chat = codec("swallows-both")
    match = chat.pattern.search("a \n<|im_end|>\t b")
    assert match is not None
    assert match.group() == " \n<|im_end|>\t "
    assert chat.control_id(match.group()) == chat.control["<|im_end|>"]
    assert chat.pattern.search("a\x1c<|im_end|>").group() == "<|im_end|>"  # type: ignore[union-attr]


def test_a_long_run_of_blanks_is_looked_through_once() -> None:
    chat = codec("swallows-left")
    assert chat.pattern.search(" " * 300_000) is None


def test_what_is_control_and_what_is_content() -> None:
    chat = Codec(tokenizer("byte-level"), "{{ x }}<think>", ("<tool_call>",))
    assert set(chat.control) == {*CONTROL, "<think>", "<tool_call>"}
    assert chat.controls_in(chat.encode_marked("<td>   </think>", str)) == 0
    assert ids_list(chat.encode_marked("<td>", str)) == [chat.token("<td>")], "other added tokens are content"
    assert set(TAGS) <= set(codec("byte-level").control)


def test_a_token_named_as_an_end_of_text_is_control_though_it_is_not_special() -> None:
    spec = tokenizer("prepend-swallows").replace(b'"special":true', b'"special":false')
    chat = Codec(spec, "", ())
    assert {"<s>", "</s>"} <= set(chat.control)
    column = fenced(chat, Screen(chat.control), "<s>", ["a </s>", "<"])
    assert chat.controls_in(column) == 2
    assert chat.decode(column).startswith("<s> xa </s><x")


def test_the_unknown_token_is_content_unless_it_structures() -> None:
    chat = codec("word-level")
    column = fenced(chat, Screen(chat.control), "<s>", ["quite unknown"])
    assert chat.unknown == chat.token("<unk>")
    assert chat.unknown in ids_list(column)
    ending = Codec(tokenizer("word-level"), TEMPLATE, ("<|im_end|>", "<unk>"))
    with pytest.raises(Unsupported, match="control tokens"):
        fenced(ending, Screen(ending.control), "<s>", ["quite unknown"])


def test_a_token_with_blanks_of_its_own_is_found_among_those_that_it_swallows() -> None:
    made = Tokenizer.from_str(tokenizer("byte-level").decode())
    made.add_special_tokens([AddedToken("\n<turn>", normalized=False, special=True, rstrip=True)])
    chat = Codec(str(made.to_str()).encode(), TEMPLATE, ())
    text = "<s>a\n<turn>  b\n<turn>"
    assert ids_list(chat.encode_marked(text, str)) == made.encode(text, add_special_tokens=False).ids
    match = chat.pattern.search(text, 3)
    assert match is not None
    assert chat.control_id(match.group()) == made.token_to_id("\n<turn>")
