"""A driver of an engine that takes ids: a frame, and what is asked of such an engine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from tugline.core.columns import Ids, count, ids_array
from tugline.core.contracts import Generation, Piece, Sample
from tugline.core.errors import EngineError
from tugline.engines.remote.frame import LOOK, SPELLING, UPDATE, Frame, Work, kind_of
from tugline.engines.remote.refusal import PEEK
from tugline.engines.remote.reply import Taken
from tugline.engines.streaming import Say, pieces_of

__all__ = ["LOOK", "SPELLING", "UPDATE", "RemoteEngine", "Room", "kind_of"]

SPARE = 4096
"""Events of a stream beyond one per token of the window."""


class Room:
    """How much a stream may still tell: no engine samples more than its window holds. Tokens, or events without any."""

    def __init__(self, context: int) -> None:
        self._left = context + SPARE

    def took(self, fresh: Ids) -> None:
        """One more event. Raises EngineError for a stream without end."""
        self._left -= max(1, count(fresh))
        if self._left < 0:
            raise EngineError("the engine's stream is longer than its window", retryable=False, fault="too_large")


class RemoteEngine(Frame):
    """Core `StreamingEngine` over HTTP."""

    named = False
    """Whether replies were seen to carry the names of their requests: something in between may replace them."""
    _weights: tuple[Path, int] | None = None
    """What was loaded here, and under which version."""
    _newest = 0
    """The version that the engine had last."""

    def name_there(self, request_id: str) -> str | None:
        """What the engine calls a request in its reply; None: nothing."""
        return None

    @abstractmethod
    async def ask(self, request: Generation) -> Taken:
        """One whole generation."""

    @abstractmethod
    async def ask_streamed(self, request: Generation, say: Say) -> Taken:
        """One generation, told piece by piece."""

    @abstractmethod
    async def runs(self, taken: Taken, before: str | None) -> tuple[tuple[int, int], ...]:
        """Version runs of a reply. `before`: what `label` said before it was asked for."""

    @abstractmethod
    async def label(self) -> str | None:
        """The engine's name for its weights, where each reply does not say it; None: it never does."""

    async def generate(self, request: Generation) -> Sample:
        """Sample once, under the request's own name."""
        return await self._generate(request, lambda: self.ask(request))

    def generate_stream(self, request: Generation) -> AsyncGenerator[Piece, None]:
        """As `generate`, with the ids as they are sampled."""
        return pieces_of(lambda say: self._generate(request, lambda: self.ask_streamed(request, say)))

    async def _generate(self, request: Generation, ask: Callable[[], Coroutine[Any, Any, Taken]]) -> Sample:
        self._check(request)

        async def work() -> Work:
            had = self._weights[1] if self._weights is not None else self._newest
            before = await self.label()
            taken = await ask()
            if self.named and taken.name not in (None, self.name_there(request.request_id)):
                why = f"the reply belongs to request {taken.name!r}"[:PEEK]
                raise EngineError(why, fault="other_reply")
            runs = await self.runs(taken, before)
            return self._forward(taken, runs, had), runs

        done = await self.run(request.request_id, work)
        return await self.recorded(request.session_id, request.prompt_ids, done)

    def knows_names(self, taken: Taken, request_id: str) -> None:
        """From a probe's reply: whether later ones can be checked for being answers to what was asked."""
        self.named = taken.name is not None and taken.name == self.name_there(request_id)

    def _forward(self, taken: Taken, runs: tuple[tuple[int, int], ...], had: int) -> Taken:
        """Versions only grow, inside a sample and from one to the next. An engine that has lost the weights that were
        loaded here gets them again (`came_back`) and is asked again; of one that others load, the sample is marked.

        `had`: the version known when the request was made. Raises EngineError.
        """
        versions = [version for _, version in runs]
        if not versions:
            return taken
        if self._weights is not None and versions[0] < had:
            raise EngineError(f"the engine has version {versions[0]} again, not {had}", fault="version_backwards")
        back = versions[0] < had or versions != sorted(versions)
        self._newest = versions[-1]
        return replace(taken, fault=taken.fault or "version_backwards") if back else taken

    def _check(self, request: Generation) -> None:
        length, column = count(request.prompt_ids), ids_array(request.prompt_ids)
        if not 0 < length < self._info.context or request.sampling.max_tokens < 1:
            raise EngineError(
                f"a prompt of {length} tokens, {request.sampling.max_tokens} to sample, context {self._info.context}",
                retryable=False,
                fault="bad_request",
            )
        if int(column.min()) < 0 or int(column.max()) >= self._info.vocab:
            raise EngineError("the prompt has ids outside the vocabulary", retryable=False, fault="bad_request")
