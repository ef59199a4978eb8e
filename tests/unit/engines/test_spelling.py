"""Other spellings of the same text, and turns spelled for every family."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tugline.core.errors import ConfigError
from tugline.core.items import Assistant, ToolCall
from tugline.engines.script import Call, Step
from tugline.engines.spelling import Respeller, spell, stop_of
from tugline.testing.models import make_tokenizer_dir
from tugline.tokens.families import families

TEXT = "The file notes.txt holds: 12 é 漢\n\n  def f(x):\n\treturn x  "


def byte_level(tmp_path: Path) -> bytes:
    return (make_tokenizer_dir(tmp_path / "m") / "tokenizer.json").read_bytes()


def sentence_piece(strip: bool) -> bytes:
    """As Gemma (`strip` False) and Llama 2 have it: blanks are a character of their own, rare characters are bytes."""
    chars = sorted(set("\u2581\n\t.:()" + "abcdefghijklmnopqrstuvwxyzT0123456789<>x"))
    merges = [("\u2581", "f"), ("i", "l"), ("il", "e"), ("\u2581f", "ile"), ("T", "h"), ("Th", "e"), ("n", "o"),
              ("t", "e"), ("no", "te"), ("note", "s"), ("r", "e"), ("re", "t"), ("u", "r"), ("ret", "ur"), 
              ("retur", "n"),
              ("1", "2"), ("\u2581", "\u2581"), ("\n", "\n"), ("d", "e"), ("de", "f")]  # fmt: skip
    words = [f"<0x{n:02X}>" for n in range(256)] + ["<s>", "<end>", *chars, *(a + b for a, b in merges)]
    vocab = {word: n for n, word in enumerate(dict.fromkeys(words))}
    blank = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    decoders = [blank, {"type": "ByteFallback"}, {"type": "Fuse"}]
    normalizers = [{"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]
    if strip:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        normalizers.insert(0, {"type": "Prepend", "prepend": "\u2581"})
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "pre_tokenizer": None, "post_processor": None,
        "added_tokens": [{"id": vocab[w], "content": w, "special": w == "<s>", **added} for w in ("<s>", "<end>")],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": vocab, "merges": [list(m) for m in merges]},
    }).encode()  # fmt: skip


@pytest.mark.parametrize("kind", ["byte-level", "gemma", "llama 2"])
def test_other_ids_of_the_same_text(tmp_path: Path, kind: str) -> None:
    raw = byte_level(tmp_path) if kind == "byte-level" else sentence_piece(strip=kind == "llama 2")
    tokenizer = Tokenizer.from_buffer(raw)
    respeller = Respeller(raw, tokenizer)
    end = "<|im_end|>" if kind == "byte-level" else "<end>"
    column = tokenizer.encode(f"{TEXT}{end}{TEXT}", add_special_tokens=False).ids
    text = tokenizer.decode(column, skip_special_tokens=False)
    changed = 0
    for seed in range(30):
        made = respeller.respell(column, 0.5, random.Random(seed))
        assert tokenizer.decode(made, skip_special_tokens=False) == text
        assert made.count(tokenizer.token_to_id(end)) == 1, "control tokens are neither made nor lost"
        changed += made != column
    assert changed >= 25
    assert respeller.respell(column, 0.0, random.Random(0)) == column


def test_a_character_may_fall_into_its_bytes() -> None:
    raw = sentence_piece(strip=False)
    tokenizer = Tokenizer.from_buffer(raw)
    made = Respeller(raw, tokenizer).respell([tokenizer.token_to_id("a")], 1.0, random.Random(0))
    assert made == [tokenizer.token_to_id("<0x61>")] and tokenizer.decode(made) == "a"


def test_byte_tokens_are_never_read_as_their_names(tmp_path: Path) -> None:
    raw = sentence_piece(strip=False)
    tokenizer = Tokenizer.from_buffer(raw)
    newline = tokenizer.token_to_id("<0x0A>")
    for seed in range(20):
        assert Respeller(raw, tokenizer).respell([newline], 1.0, random.Random(seed)) == [newline]


FULL = Step(reasoning="Think.", text="I look.", calls=(Call("run", '{"cmd": "ls"}'),))


@pytest.mark.parametrize("name", sorted(families()))
def test_every_family_spells_and_ends_a_turn(name: str) -> None:
    family = families()[name]
    said = Assistant("I look.", None, ())
    assert "I look." in spell(name, Step(text="I look."))
    if name not in ("plain", "schema"):
        assert "run" in family.spell(Assistant(None, None, (ToolCall("", "run", '{"cmd": "ls"}'),)))
    assert stop_of(name, Step(text="I look."), ("<own>",)) == "<own>"
    if family.stop:
        assert family.end(said) in family.stop
        assert stop_of(name, Step(text="x"), ("<own>", *family.stop)) in family.stop


@pytest.mark.parametrize("name", [n for n, f in sorted(families().items()) if f.reasoning[0] and f.reasoning[1]])
def test_reasoning_that_the_prompt_has_opened_is_gone_on_with(name: str) -> None:
    family = families()[name]
    opening, closing = family.reasoning
    whole = spell(name, FULL)
    assert opening in whole
    whole = whole[whole.index(opening) :]
    lead = whole[: whole.index("Think.")]
    for given in (opening, lead):
        assert given + spell(name, FULL, f"<prompt>{given}") == whole
    assert spell(name, FULL, f"<prompt>{opening}\n").lstrip() == whole.removeprefix(opening).lstrip()
    silent = spell(name, Step(text="I look."), f"<prompt>{lead}")
    assert opening not in silent and silent.strip().startswith(closing)
    closed = f"<prompt>{opening}\n\n{closing}\n\n"
    assert spell(name, Step(text="I look."), closed) == spell(name, Step(text="I look."))


def test_an_unknown_family_is_named() -> None:
    with pytest.raises(ConfigError, match="parser 'klingon'"):
        spell("klingon", FULL)
