"""Marks in texts. Whole sentences of a product stand here as digests only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from tugline.core.items import Request, System


@dataclass(frozen=True, slots=True)
class Opening:
    """How a text begins: so many characters with that BLAKE2b-64 digest (of their UTF-8)."""

    length: int
    digest: str

    @classmethod
    def of(cls, text: str) -> Opening:
        """How texts begin that begin with this one."""
        return cls(len(text), _digest(text))

    def opens(self, text: str) -> bool:
        """Whether the text begins so, but for blanks in front."""
        start = text[: self.length + 80].lstrip()[: self.length]
        return _digest(start) == self.digest


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def system(request: Request) -> str:
    """The first system text; "" without one."""
    return next((item.text for item in request.items if isinstance(item, System)), "")


def agent(headers: Mapping[str, str]) -> str:
    """The program's name for itself: User-Agent."""
    return headers.get("user-agent", "")
