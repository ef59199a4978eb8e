"""A driver of an engine that takes ids: a frame, and what is asked of such an engine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from tugline.core.columns import count, ids_array
from tugline.core.contracts import Generation, Piece, Sample
from tugline.core.errors import EngineError
from tugline.engines.remote.frame import LOOK, SPELLING, UPDATE, Frame, Work, kind_of
from tugline.engines.remote.reply import Taken
from tugline.engines.streaming import Say, pieces_of

__all__ = ["LOOK", "SPELLING", "UPDATE", "RemoteEngine", "kind_of"]


class RemoteEngine(Frame):
    """Core `StreamingEngine` over HTTP."""

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
            before = await self.label()
            taken = await ask()
            return taken, await self.runs(taken, before)

        done = await self.run(request.request_id, work)
        return await self.recorded(request.session_id, request.prompt_ids, done)

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
