"""Real tokenizers out of package files, each as the bytes of a `tokenizer.json`.

Where a package has ranks or a sibling model's file only, the list of added tokens is written here after the model's
published `tokenizer_config.json`; `NOTES` says so, tokenizer by tokenizer.
"""

from __future__ import annotations

import base64
import os
import re
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tugline.core.errors import ConfigError

NOTES: Mapping[str, str] = {
    "qwen2_5": "qwen3 without the four added tokens that came later",
    "qwen3_6": "ranks and token list of the package; which tokens are special is as in qwen3",
    "llama3_1": "the package names reserved tokens; renamed as the 3.1 release does",
    "llama2": "vocabulary and scores of the vocabulary file; merges by transformers' rule",
    "phi3": "as llama2, with the added tokens of the release, which swallow white space behind them",
    "mistral_v1": "the package calls it llama2; its vocabulary is that of the first Mistral release",
    "gemma4": "vocabulary, merges and token types of the vocabulary file; normalizer and pre-tokenizer as in gemma3",
    "command_r": "vocabulary, merges and token types of the vocabulary file; pre-tokenizer of the release",
}
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN35_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>",
    "</think>", "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>",
    "<tts_text_bos_single>", "<|audio_pad|>",
)  # fmt: skip
_ORDINARY = re.compile(r"</?(tool_call|tool_response|think)>|<\|(fim_.*|repo_name|file_sep)\|>")
_PHI3 = (
    "<|endoftext|>", "<|assistant|>", "<|placeholder1|>", "<|placeholder2|>", "<|placeholder3|>", "<|placeholder4|>",
    "<|system|>", "<|end|>", "<|placeholder5|>", "<|placeholder6|>", "<|user|>",
)  # fmt: skip
_STANDIN_MERGES = 8_000

Json = dict[str, Any]


def added(token_id: int, content: str, *, special: bool = True, rstrip: bool = False) -> Json:
    """One entry of `added_tokens`."""
    flags = {"single_word": False, "lstrip": False, "rstrip": rstrip, "normalized": False, "special": special}
    return {"id": token_id, "content": content, **flags}


def qwen2_5(qwen3: bytes) -> bytes:
    spec: Json = msgspec.json.decode(qwen3)
    later = {"<tool_response>", "</tool_response>", "<think>", "</think>"}
    spec["added_tokens"] = [a for a in spec["added_tokens"] if a["content"] not in later]
    return msgspec.json.encode(spec)


def llama3_1(package: bytes) -> bytes:
    spec: Json = msgspec.json.decode(package)
    named = {128004: "<|finetune_right_pad_id|>", 128008: "<|eom_id|>", 128010: "<|python_tag|>"}
    reserved = 0
    renamed: dict[str, str] = {}
    for token in spec["added_tokens"]:
        new = named.get(token["id"])
        if new is None and token["content"].startswith("<|reserved_special_token_"):
            new, reserved = f"<|reserved_special_token_{reserved}|>", reserved + 1
        renamed[token["content"]] = new or token["content"]
        token["content"] = new or token["content"]
    return msgspec.json.encode(spec)


def spm(gguf: bytes, skeleton: bytes) -> bytes:
    """A SentencePiece vocabulary with scores as BPE, by the rule that transformers converts such models with.

    `skeleton`: a tokenizer.json of the same style (space becomes a letter that is also put in front, byte fallback).
    """
    from transformers.convert_slow_tokenizer import generate_merges

    fields = gguf_fields(gguf)
    spec: Json = msgspec.json.decode(skeleton)
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    vocab = {t: n for n, t in enumerate(tokens) if kinds[n] in (1, 6) or n < 3}
    scores = {t: fields["tokenizer.ggml.scores"][n] for t, n in vocab.items()}
    spec["model"]["vocab"] = vocab
    spec["model"]["merges"] = [list(m) for m in generate_merges(vocab, scores)]
    spec["added_tokens"] = [added(n, tokens[n]) for n in range(3)]
    spec["post_processor"] = None  # templates write the BOS token
    return msgspec.json.encode(spec)


def phi3(gguf: bytes, skeleton: bytes) -> bytes:
    spec: Json = msgspec.json.decode(spm(gguf, skeleton))
    spec["added_tokens"][2] |= {"rstrip": True, "special": False}
    spec["added_tokens"] += [added(32000 + n, c, rstrip=c != "<|endoftext|>") for n, c in enumerate(_PHI3)]
    return msgspec.json.encode(spec)


def qwen3_6(ranks: bytes) -> bytes:
    """Through transformers' converter for tiktoken ranks."""
    from tokenizers import AddedToken, normalizers
    from transformers.convert_slow_tokenizer import TikTokenConverter

    table = {base64.b64decode(t): int(r) for t, r in (line.split() for line in ranks.splitlines() if line)}

    class Converter(TikTokenConverter):  # type: ignore[misc]
        @staticmethod
        def load_tiktoken_bpe(tiktoken_url: str) -> dict[bytes, int]:
            return table

    tokenizer = Converter(vocab_file="", pattern=_QWEN35).converted()
    tokenizer.model.ignore_merges = False
    tokenizer.normalizer = normalizers.NFC()
    for content in _QWEN35_TOKENS:
        special = _ORDINARY.fullmatch(content) is None
        token = AddedToken(content, normalized=False, special=special)
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([token])
    return str(tokenizer.to_str()).encode()


def standin(qwen3_6: bytes) -> bytes:
    """A small real tokenizer without added tokens: the first merges of a large one, a vocabulary of their own."""
    spec: Json = msgspec.json.decode(qwen3_6)
    model = spec["model"]
    pairs = (m if isinstance(m, list) else m.split(" ", 1) for m in model["merges"])
    singles = [t for t in model["vocab"] if len(t) == 1]
    vocab = dict.fromkeys(sorted(singles, key=lambda t: model["vocab"][t]))
    pieces: list[list[str]] = []
    for left, right in pairs:
        # Lists made of ranks name pieces that only come about later: such merges are left out.
        if left in vocab and right in vocab and len(pieces) < _STANDIN_MERGES:
            vocab[left + right] = None
            pieces.append([left, right])
    model["vocab"] = {token: n for n, token in enumerate(vocab)}
    model["merges"] = pieces
    spec["added_tokens"] = []
    return msgspec.json.encode(spec)


def extended(base: bytes, contents: Sequence[str], ordinary: Callable[[str], bool]) -> bytes:
    """`base` with added tokens; those that `ordinary` picks are not special, as families declare their tags."""
    spec: Json = msgspec.json.decode(base)
    first = len(spec["model"]["vocab"])
    spec["added_tokens"] = [added(first + n, c, special=not ordinary(c)) for n, c in enumerate(contents)]
    return msgspec.json.encode(spec)


def gemma4(gguf: bytes, gemma3: bytes) -> bytes:
    fields = gguf_fields(gguf)
    spec: Json = msgspec.json.decode(gemma3)
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    spec["model"]["vocab"] = {token: n for n, token in reversed(list(enumerate(tokens)))}
    spec["model"]["merges"] = [_pair(m) for m in fields["tokenizer.ggml.merges"]]
    spec["added_tokens"] = _typed(tokens, kinds, spec["model"]["vocab"])
    spec["post_processor"] = None
    return msgspec.json.encode(spec)


def command_r(gguf: bytes) -> bytes:
    fields = gguf_fields(gguf)
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    real = [(n, t) for n, t in enumerate(tokens) if not t.startswith("[PAD")]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    spec: Json = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [a for a in _typed(tokens, kinds, None) if not a["content"].startswith("[PAD")],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, level],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {t: n for n, t in real}, "merges": [_pair(m) for m in fields["tokenizer.ggml.merges"]],
        },
    }  # fmt: skip
    return msgspec.json.encode(spec)


def _pair(merge: str) -> list[str]:
    left, _, right = merge.partition(" ")
    return [left, right]


def _typed(tokens: Sequence[str], kinds: Sequence[int], vocab: Mapping[str, int] | None) -> list[Json]:
    """Added tokens by type: 3 is a control token, 4 one that users or templates add."""
    found = [(n, t, k) for n, (t, k) in enumerate(zip(tokens, kinds, strict=True)) if k in (3, 4)]
    return [added(n, t, special=k == 3) for n, t, k in found if vocab is None or vocab[t] == n]


_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def gguf_fields(data: bytes) -> Json:
    """The key-value head of a GGUF file, version 2 or 3 (little-endian). Raises ConfigError for anything else."""
    if data[:4] != b"GGUF":
        raise ConfigError("not a GGUF file")
    _, _, count = struct.unpack_from("<IQQ", data, 4)
    at, fields = 24, {}
    for _ in range(count):
        key, at = _text(data, at)
        kind, at = struct.unpack_from("<I", data, at)[0], at + 4
        fields[key], at = _value(data, at, kind)
    return fields


def _text(data: bytes, at: int) -> tuple[str, int]:
    size = struct.unpack_from("<Q", data, at)[0]
    return data[at + 8 : at + 8 + size].decode("utf-8", "replace"), at + 8 + size


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind == _STRING:
        return _text(data, at)
    if kind != _ARRAY:
        code = "<" + _SCALARS[kind]
        return struct.unpack_from(code, data, at)[0], at + struct.calcsize(code)
    inner, size = struct.unpack_from("<IQ", data, at)
    at += 12
    if inner in _SCALARS:
        code = f"<{size}{_SCALARS[inner]}"
        return list(struct.unpack_from(code, data, at)), at + struct.calcsize(code)
    items = []
    for _ in range(size):
        item, at = _value(data, at, inner)
        items.append(item)
    return items, at


def write(path: Path, data: bytes) -> None:
    """Write whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as out:
        out.write(data)
    Path(name).replace(path)
