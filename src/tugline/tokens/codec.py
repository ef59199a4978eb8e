"""Text to ids and back, with one rule added to the tokenizer's own: text from a harness never becomes a control token.

A *control* token is an added token that structures a conversation: a special one, or one that the chat template or the
reply parser writes or reads. `encode` is the stock one-pass encoding. `encode_marked` takes text in which harness text
carries placeholders where it would have spelled a control token; it cuts the text at the template's own control
tokens and encodes each run between two of them as one string with control matching off, so that merges inside a run
are the stock ones. No merge crosses an added token, so both give equal ids when there is no placeholder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tugline.core.columns import Ids, concat, ids, ids_array, ids_list
from tugline.core.errors import ConfigError, Unsupported, boundary

LONG = 16_384
"""Characters from which on a text is encoded as a batch of one: only that lets other threads run meanwhile, and one
megabyte of text would hold up the gateway's event loop for a second."""
SHORT = 512
"""Bytes of a column up to which plain Python is faster than numpy."""


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    special: bool = False


class _AddedTokens(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


class Codec:
    """A tokenizer and its control tokens. Immutable after construction; safe to share between threads."""

    def __init__(self, tokenizer_json: bytes, template: str, markers: Sequence[str]) -> None:
        """`markers` are the strings that the reply parser reads. Raises ConfigError when unreadable."""
        from tokenizers import Tokenizer

        with boundary(ConfigError, "tokenizer.json cannot be read"):
            added = msgspec.json.decode(tokenizer_json, type=_AddedTokens).added_tokens
            self._stock = Tokenizer.from_buffer(tokenizer_json)
        self._stock.no_truncation()
        self._stock.no_padding()
        self._json = tokenizer_json
        control = [a for a in added if a.content and (a.special or _structural(a.content, template, markers))]
        self.control: Mapping[str, int] = {a.content: a.id for a in control}
        """Control tokens: content -> id."""
        self.pattern = re.compile(_alternatives(control))
        """Matches a control token as the tokenizer would, with the white space that the token swallows."""
        self.vocab: int = max(self._stock.get_vocab(with_added_tokens=True).values()) + 1
        """Largest id plus one."""
        self._controls = frozenset(self.control.values())
        self._control_ids = np.asarray(sorted(self.control.values()), dtype=np.int32)

    @cached_property
    def _literal(self) -> Any:
        """The same tokenizer, blind to control tokens. Loaded at first need: few sessions contain such text.

        Its added tokens keep their ids; only the control ones are declared special, which is what the switch skips.
        """
        from tokenizers import Tokenizer

        spec: dict[str, Any] = msgspec.json.decode(self._json)
        for token in spec["added_tokens"]:
            token["special"] = token["content"] in self.control
        blind = Tokenizer.from_buffer(msgspec.json.encode(spec))
        blind.no_truncation()
        blind.no_padding()
        blind.encode_special_tokens = True
        return blind

    def token(self, content: str) -> int | None:
        """The id of a token by its exact content, or None."""
        found = self._stock.token_to_id(content)
        return None if found is None else int(found)

    def encode(self, text: str) -> Ids:
        """Stock one-pass encoding, no BOS added. Control tokens spelled in `text` become control ids."""
        return _encoded(self._stock, text)

    def encode_marked(self, text: str, restore: Callable[[str], str]) -> Ids:
        """Encode template output whose harness text lost its control tokens; `restore` puts them back into a run.

        Control tokens found in `text` are the template's own. Raises Unsupported when the tokenizer builds a control
        id out of plain text, which no escape could prevent.
        """
        parts: list[Ids] = []
        at = 0
        for match in self.pattern.finditer(text):
            parts.append(self._encode_run(text[at : match.start()], restore))
            parts.append(ids([self.control_id(match.group())]))
            at = match.end()
        parts.append(self._encode_run(text[at:], restore))
        return concat(parts)

    def controls_in(self, column: Ids) -> int:
        """How many control ids a column holds."""
        if len(column) <= SHORT:
            return sum(i in self._controls for i in ids_list(column))
        return int(np.isin(ids_array(column), self._control_ids).sum())

    def decode(self, column: Ids | list[int], *, specials: bool = True) -> str:
        """Ids to text; bytes that are no UTF-8 become U+FFFD. `specials` keeps special tokens in the text."""
        values = column if isinstance(column, list) else ids_list(column)
        return str(self._stock.decode(values, skip_special_tokens=not specials))

    def control_id(self, spelled: str) -> int:
        """The id of a match of `pattern`."""
        return self.control[spelled] if spelled in self.control else self.control[spelled.strip()]

    def _encode_run(self, run: str, restore: Callable[[str], str]) -> Ids:
        if not run:
            return ids(())
        column = _encoded(self._literal, restore(run))
        if self.controls_in(column):
            raise Unsupported("the tokenizer turns this text into control tokens even when told not to")
        return column


def _encoded(tokenizer: Any, text: str) -> Ids:
    if len(text) < LONG:
        return ids(tokenizer.encode(text, add_special_tokens=False).ids)
    return ids(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)


_PIPED = re.compile(r"<[|\uff5c].*[|\uff5c]>")
"""How many families spell tokens that structure text, also those that are not declared special (`<|fim_prefix|>`)."""


def _structural(content: str, template: str, markers: Sequence[str]) -> bool:
    """Whether an added token that is not special still structures a conversation (`<think>`, `<tool_call>`, ...)."""
    return not content.isspace() and (content in markers or content in template or bool(_PIPED.fullmatch(content)))


def _alternatives(tokens: Iterable[_AddedToken]) -> str:
    """Leftmost-longest, as the tokenizer matches: longer contents come first."""
    ordered = sorted(tokens, key=lambda a: len(a.content), reverse=True)
    return "|".join(map(_one, ordered)) or r"(?!)"


def _one(token: _AddedToken) -> str:
    body = re.escape(token.content)
    if token.single_word:
        body = rf"(?<!\w){body}(?!\w)"
    return (r"\s*" if token.lstrip else "") + body + (r"\s*" if token.rstrip else "")


def positions(column: Ids, wanted: Iterable[int]) -> npt.NDArray[np.intp]:
    """Ascending token positions that hold one of `wanted`: intp[k]."""
    return np.flatnonzero(np.isin(ids_array(column), np.asarray(list(wanted), dtype=np.int32)))
