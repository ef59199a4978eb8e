"""A stand-in for a tokenizer that is not at hand: every byte is a token, and so is all that the template means as one.

With it a template's structure can be judged (what survives, what may follow, where a turn ends), never its ids.
"""

from __future__ import annotations

import re

import msgspec

_MEANT = re.compile(
    r"<[|\uff5c][^|\uff5c<>\s'\"{}]{1,40}[|\uff5c]>"  # <|im_end|>
    r"|</?[a-z][a-z_]{2,30}>"  # <think>, <start_of_turn>
    r"|<\|[a-z_]{2,20}>|<[a-z_]{2,20}\|>"  # <|turn>, <turn|>
    r"|\[/?[A-Z][A-Z_]{2,30}\]"  # [TOOL_CALLS]
)
SPECIALS = {
    "bos_token": "<|standin_bos|>",
    "eos_token": "<|standin_eos|>",
    "pad_token": "<|standin_pad|>",
    "unk_token": "<|standin_unk|>",
}
"""What stands for the names that templates use, where nobody says what they are."""


def meant_as_tokens(template: str) -> tuple[str, ...]:
    """Strings in the source that look like one token each, in alphabetical order."""
    return tuple(sorted(set(_MEANT.findall(template))))


def standin_tokenizer(template: str, more: tuple[str, ...] = ()) -> bytes:
    """A tokenizer.json of bytes, the template's tokens, `SPECIALS` and `more`."""
    names = list(dict.fromkeys((*SPECIALS.values(), *meant_as_tokens(template), *more)))
    vocab = {char: i for i, char in enumerate(_byte_letters())}
    added = [
        {
            "id": len(vocab) + i,
            "content": name,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, name in enumerate(names)
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    model: dict[str, object] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": [],
    }
    spec = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": model,
    }
    return msgspec.json.encode(spec)


def _byte_letters() -> list[str]:
    """The 256 characters that stand for bytes in byte-level tokenizers: printable ones for themselves."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(spare)) for b in range(256)]
