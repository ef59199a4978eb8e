"""Stop strings: where a sample ends that spells one. For engines whose sampling is ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tugline.core.columns import Ids, count, ids_list, take


class Decoder(Protocol):
    """The slice of `tokenizers.Tokenizer` that is needed."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...


class StopStrings:
    """Tells when a sample has come to spell one of `stop`. Looks at so many last tokens as can spell the longest."""

    def __init__(self, tokenizer: Decoder, stop: Sequence[str]) -> None:
        self._decode = tokenizer.decode
        self._stop = tuple(s for s in stop if s)
        # a token spells a byte at least; up to four more may hold the beginning of a character
        self._window = max((len(s.encode()) for s in self._stop), default=0) + 4

    def ended(self, sampled: Ids) -> bool:
        """Whether the last token of `sampled` (int32[n]) completes a stop string."""
        if not self._stop:
            return False
        n = count(sampled)
        text = self._decode(ids_list(take(sampled, max(0, n - self._window), n)), skip_special_tokens=False)
        return any(s in text for s in self._stop)

    def cut(self, sampled: Ids) -> Ids | None:
        """`sampled` up to the token that completes the first stop string, or None when it spells none."""
        if not self._stop:
            return None
        return next((p for p in (take(sampled, 0, n) for n in range(1, count(sampled) + 1)) if self.ended(p)), None)
