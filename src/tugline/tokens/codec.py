"""Text to ids and back, with one rule added to the tokenizer's own: text from a harness never becomes a control token.

A *control* token is an added token that structures a conversation:

- every one that is declared special;
- every other one that the chat template, the reply parser or the stop set spells (`<think>`, `<tool_call>`, ...);
- every other one that is written between bars (`<|fim_prefix|>`), that is called `<s>`, `</s>`, `<bos>`, `<eos>`,
  `<pad>` or `<unk>`, or that overlaps with one of the above.

All other added tokens (runs of white space, `<unused7>`, tags of a markup language) are content: harness text that
spells them gets their ids, as it would from the stock tokenizer. Markers that are plain text to the tokenizer
(`<function=`, `to=`) are not tokens; nothing here can tell who wrote them.

`encode` is the stock one-pass encoding. `encode_marked` takes the output of a template, in which harness text carries
placeholders where it would have spelled a control token, so that each control token found is the template's own.

Why no content can become a control id (P16). `encode_marked` runs a *guarded* tokenizer: the stock model, normalizer
and pre-tokenizer, whose control tokens have private names in place of their contents. A private name begins with a
letter that the text at hand does not contain. The template's control tokens are renamed in the text, then the harness
text is restored, then the text is encoded in one pass. An id can only come from two places: from an added token, and
those of control tokens match private names alone, which no harness text contains, in whatever spelling, case or
Unicode form; or from the model, whose ids are compared with the control ids on every call. A model that makes one (a
Unigram model finds `</s>` in plain text) is replaced by a copy whose entries for control tokens are renamed too; if
one is made even so, the text is refused. The one exception is the unknown token, where it structures nothing.

Why the ids are the stock ones (P15). It is one pass over the same text: prefixes that are put in front of the first
word, white space that a token swallows and the normalizer see what they would see. `spellings.boundary_probe` proves it
per tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tugline.core.columns import WIDTH, Ids, ids, ids_array, ids_list
from tugline.core.errors import ConfigError, Unsupported, boundary
from tugline.tokens.guard import Guard, bare_of, guarded, renamed
from tugline.tokens.tokenfile import AddedToken, TokenizerFile, alternatives, controls, decode_file

LONG = 16_384
"""Characters from which on a text is encoded as a batch of one: only that lets other threads run meanwhile, and one
megabyte of text would hold up the gateway's event loop for a second."""
SHORT = 512
"""Bytes of a column up to which plain Python is faster than numpy."""


class Codec:
    """A tokenizer and its control tokens. Immutable after construction; safe to share between threads."""

    def __init__(self, tokenizer_json: bytes, template: str, markers: Sequence[str]) -> None:
        """`markers`: the strings that the reply parser reads and the tokens that end a turn. Raises ConfigError when
        unreadable."""
        from tokenizers import Tokenizer

        with boundary(ConfigError, "tokenizer.json cannot be read"):
            file = decode_file(tokenizer_json)
            self._stock = Tokenizer.from_buffer(tokenizer_json)
        self._stock.no_truncation()
        self._stock.no_padding()
        self._json = tokenizer_json
        self.added: tuple[AddedToken, ...] = tuple(a for a in file.added_tokens if a.content)
        """Every added token, control or not."""
        control = controls(self.added, template, markers)
        self.control: Mapping[str, int] = {a.content: a.id for a in control}
        """Control tokens: content -> id."""
        self.pattern = re.compile(alternatives(control))
        """Matches a control token as the tokenizer would, with the white space that the token swallows."""
        self._largest = max(self._stock.get_vocab(with_added_tokens=False).values(), default=-1)
        self.vocab: int = 1 + max(self._largest, *(a.id for a in self.added), 0)
        """Largest id plus one."""
        self._controls = frozenset(self.control.values())
        self._control_ids = np.asarray(sorted(self.control.values()), dtype=np.int32)
        unknown, structural = _unknown(file, self._stock, template, markers)
        self.unknown: int | None = None if structural else unknown
        """Id that the model gives to what it cannot spell. None: no such id, or one that structures conversations."""
        self._never = (self._controls | ({unknown} if unknown is not None else set())) - {self.unknown}
        """Ids that the model may not make out of text."""
        self._never_ids = np.asarray(sorted(self._never), dtype=np.int32)

    @cached_property
    def _guard(self) -> Guard:
        return guarded(self._stock, self.added, self.control, self._largest)

    @cached_property
    def _renamed(self) -> Guard:
        """For models that find control tokens in plain text. Loaded at first need: it is a second model."""
        return renamed(self._json, self.added, self.control, self._largest)

    def token(self, content: str) -> int | None:
        """The id of a token by its exact content, or None."""
        found = self._stock.token_to_id(content)
        return None if found is None else int(found)

    def encode(self, text: str) -> Ids:
        """Stock one-pass encoding, no BOS added. Control tokens spelled in `text` become control ids."""
        return ids(_encoded(self._stock, text))

    def encode_marked(self, text: str, restore: Callable[[str], str]) -> Ids:
        """Encode template output whose harness text lost its control tokens; `restore` puts them back.

        Control tokens found in `text` are the template's own. Raises Unsupported when the tokenizer builds a control
        id out of plain text whatever is done.
        """
        guard = self._guard
        if guard.first in text:
            guard = guarded(self._stock, self.added, self.control, self._largest, avoid=text)
        column, made = self._pass(guard, text, restore)
        if made:
            copy = self._renamed
            if copy.first in text:  # rare and dear: another copy, whose names begin with a letter that the text lacks
                copy = renamed(self._json, self.added, self.control, self._largest, avoid=text)
            column, made = self._pass(copy, text, restore)
        if made:
            raise Unsupported("the tokenizer turns this text into control tokens even when told not to")
        return column

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
        return self.control[spelled if spelled in self.control else bare_of(spelled, self.control)]

    def _pass(self, guard: Guard, text: str, restore: Callable[[str], str]) -> tuple[Ids, bool]:
        """Ids, and whether the model made a control id out of plain text."""
        private = self.pattern.sub(lambda m: guard.hide(m.group()), text)
        values = _encoded(guard.tokenizer, restore(private))
        if len(values) * WIDTH <= SHORT:
            made = any(i < guard.size and i in self._never for i in values)
            return ids(guard.real.get(i, i) for i in values), made
        column = np.asarray(values, dtype=np.int32)
        made = bool(np.isin(column[column < guard.size], self._never_ids).any())
        return Ids(guard.table[column].tobytes()), made


def _encoded(tokenizer: Any, text: str) -> list[int]:
    if len(text) < LONG:
        return cast("list[int]", tokenizer.encode(text, add_special_tokens=False).ids)
    return cast("list[int]", tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)


def _unknown(file: TokenizerFile, stock: Any, template: str, markers: Sequence[str]) -> tuple[int | None, bool]:
    """The unknown token's id, and whether it structures conversations."""
    content = file.model.unk_token
    if content is None and file.model.unk_id is not None:
        content = stock.id_to_token(file.model.unk_id)
    if content is None:
        return None, False
    found = stock.token_to_id(content)
    return None if found is None else int(found), content in template or content in markers


def positions(column: Ids, wanted: Iterable[int]) -> npt.NDArray[np.intp]:
    """Ascending token positions that hold one of `wanted`: intp[k]."""
    return np.flatnonzero(np.isin(ids_array(column), np.asarray(list(wanted), dtype=np.int32)))
