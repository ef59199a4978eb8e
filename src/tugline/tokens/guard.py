"""A tokenizer whose control tokens answer to private names only. See `codec` for why and how it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt

from tugline.core.errors import ConfigError, boundary
from tugline.tokens.tokenfile import AddedToken

_FIRST = range(0xF0000, 0xF1000)
"""Letters that a private name can begin with: of a private area, which no normalizer touches."""
_NUMBERS = 0x100000
"""Where the letters that tell one private name from another begin."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A guarded tokenizer. Immutable."""

    tokenizer: Any
    """A `tokenizers.Tokenizer`. Its ids are the stock ones below `size`; `table` gives the rest."""
    first: str
    """The letter that every private name begins with: text to be encoded must not contain it."""
    names: Mapping[str, str]
    """Control token -> private name."""
    size: int
    """From this id on, ids are those of added tokens."""
    real: Mapping[int, int]
    """Id of an added token here -> stock id, for ids from `size` on."""
    table: npt.NDArray[np.int32]
    """int32[ids here]: stock id of each."""

    def hide(self, spelled: str) -> str:
        """The private spelling of a matched control token; white space around it stays."""
        name = self.names.get(spelled)
        if name is not None:
            return name
        bare = bare_of(spelled, self.names)
        return spelled.replace(bare, self.names[bare])


def bare_of(spelled: str, contents: Mapping[str, object]) -> str:
    """The content within a match that may have swallowed white space."""
    bare = spelled.strip()
    return bare if bare in contents else max((c for c in contents if c in spelled), key=len)


def guarded(
    stock: Any, added: Sequence[AddedToken], control: Mapping[str, int], largest: int, *, avoid: str = ""
) -> Guard:
    """A guard that shares the model, normalizer and pre-tokenizer of `stock`: it costs no more than its added tokens.

    `largest`: largest id of the model, -1 for none. `avoid`: text that will be encoded; private names begin with a
    letter that it lacks. Raises ConfigError when the text has every private letter.
    """
    from tokenizers import AddedToken as Added
    from tokenizers import Tokenizer

    first = next((chr(n) for n in _FIRST if chr(n) not in avoid), "")
    if not first:
        raise ConfigError("text with every private letter there is")
    made = Tokenizer(stock.model)
    if stock.normalizer is not None:
        made.normalizer = stock.normalizer
    if stock.pre_tokenizer is not None:
        made.pre_tokenizer = stock.pre_tokenizer
    entries = int(stock.get_vocab_size(with_added_tokens=False))
    size = max(largest + 1, entries)
    # New tokens are numbered from the count of entries on: where ids have gaps, that could be the id of an entry.
    made.add_tokens([Added(_name(first, n, 2), normalized=False) for n in range(size - entries)])
    names = {content: _name(first, n) for n, content in enumerate(control)}
    made.add_tokens(
        [
            Added(
                names.get(token.content, token.content),
                # What matches is decided by whoever renames it in the text.
                single_word=token.single_word and token.content not in names,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=token.normalized,
                special=token.special,
            )
            for token in added
        ]
    )
    real = {int(cast("int", made.token_to_id(names.get(t.content, t.content)))): t.id for t in added}
    table = np.arange(max(size, *real, 0) + 1, dtype=np.int32)
    table[list(real)] = list(real.values())
    return Guard(made, first, names, size, real, table)


def renamed(
    tokenizer_json: bytes, added: Sequence[AddedToken], control: Mapping[str, int], largest: int, *, avoid: str = ""
) -> Guard:
    """A guard over a copy of the model in which the entries of control tokens have private names too.

    For models that find such entries in plain text. `avoid` as in `guarded`. Raises ConfigError when the copy cannot
    be read or the text has every private letter.
    """
    from tokenizers import Tokenizer

    first = next((chr(n) for n in _FIRST if chr(n) not in avoid), "")
    if not first:
        raise ConfigError("text with every private letter there is")
    spec: dict[str, Any] = msgspec.json.decode(tokenizer_json)
    spec["added_tokens"] = []
    spec["post_processor"] = None
    names = {content: _name(first, n, 1) for n, content in enumerate(control)}
    model = spec["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(t, t): n for t, n in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(t, t), score] for t, score in model["vocab"]]
    if "merges" in model:
        pairs = (m if isinstance(m, list) else m.split(" ", 1) for m in model["merges"])
        model["merges"] = [p for p in pairs if not ({p[0], p[1], p[0] + p[1]} & names.keys())]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    with boundary(ConfigError, "the tokenizer cannot be told to ignore its control tokens"):
        return guarded(Tokenizer.from_buffer(msgspec.json.encode(spec)), added, control, largest, avoid=avoid)


def _name(first: str, number: int, kind: int = 0) -> str:
    """Names of one kind have one length, so that none begins another: letter, kind, two digits of the number."""
    high, low = divmod(number, 0x1000)
    return first + "".join(chr(_NUMBERS + n) for n in (kind, high, low))
