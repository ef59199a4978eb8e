"""A reply that is shown while it is sampled: one feed per generation, one follower per connection that wants it.

What has left is never mended. The turn is committed before the terminal part leaves; a stream that is not how the
parsed reply begins is cut there, as is one whose engine fails: clients take it for broken and ask again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tugline.core.columns import Ids
from tugline.core.contracts import Dialect, Engine, LiveDialect, LiveStream, StreamingEngine
from tugline.core.errors import VerifyError
from tugline.core.items import Delta, Pending, Reply
from tugline.gateway.connection import Connection
from tugline.gateway.metrics import Metrics
from tugline.tokens.live import LiveParser

_log = logging.getLogger(__name__)


class Feed:
    """What can be shown of a generation under way. Only grows; any number of followers read it."""

    def __init__(self) -> None:
        self.said: list[Delta] = []
        self.prompt = 0
        """Tokens of the prompt."""
        self._parser: LiveParser | None = None
        self._make: Callable[[], LiveParser | None] = lambda: None
        self._news: asyncio.Future[None] | None = None

    def begin(self, prompt: int, make: Callable[[], LiveParser | None]) -> None:
        """The prompt is known. `make` gives a parser for each attempt."""
        self.prompt, self._make = prompt, make
        self._parser = make()

    def heard(self, fresh: Ids) -> None:
        """More ids."""
        new = self._parser.feed(fresh) if self._parser is not None else []
        self.said += new
        if new and self._news is not None and not self._news.done():
            self._news.set_result(None)

    def restart(self) -> bool:
        """Another attempt samples other ids; what was shown would not fit them."""
        if not self.said:
            self._parser = self._make()
        return not self.said

    def beyond(self, at: int) -> asyncio.Future[None]:
        """Done when more than `at` deltas are there."""
        if self._news is None or (self._news.done() and len(self.said) <= at):
            self._news = asyncio.get_running_loop().create_future()
        if len(self.said) > at and not self._news.done():
            self._news.set_result(None)
        return self._news


class Follower:
    """What one connection has seen of a reply that it gets as a stream."""

    def __init__(self, feed: Feed | None, dialect: Dialect, pending: Pending, conn: Connection) -> None:
        """`feed`: None where nothing is shown before the reply is whole."""
        self._feed = feed if feed is not None and isinstance(dialect, LiveDialect) else Feed()
        self._dialect = dialect
        self._pending = pending
        self._conn = conn
        self._stream: LiveStream | None = None
        self._at = 0

    @property
    def begun(self) -> bool:
        """Whether the connection has seen part of the reply."""
        return self._stream is not None

    def news(self) -> asyncio.Future[None]:
        """Done when there is more to show."""
        return self._feed.beyond(self._at)

    def take(self) -> bytes:
        """All that is new, as events; nothing when there is nothing. The caller sends it."""
        new = self._feed.said[self._at :]
        self._at += len(new)
        if not new:
            return b""
        parts = []
        if self._stream is None:
            assert isinstance(self._dialect, LiveDialect), "only such calls have a feed that says something"
            self._stream = self._dialect.live(self._pending, self._conn.beats)
            self._conn.said = True
            parts.append(self._stream.open(self._feed.prompt))
        parts += [self._stream.delta(more) for more in _merged(new)]
        return b"".join(parts)

    def beat(self) -> bytes:
        """A keep-alive: in the middle of a reply, or before it."""
        if self._stream is not None:
            return self._stream.beat()
        self._conn.beats += 1
        return self._dialect.keepalive(self._pending, self._conn.beats - 1)

    def close(self, reply: Reply) -> tuple[bytes, bytes]:
        """The rest and the terminal part. Raises VerifyError when the reply is not what was shown."""
        if self._stream is None:
            parts, terminal = self._dialect.stream(reply, self._conn.beats)
            return b"".join(parts), terminal
        return self._stream.close(reply)


class Live:
    """Who can be shown a reply before it is whole, and how it went: counted."""

    def __init__(self, metrics: Metrics) -> None:
        self._count = metrics.live
        self._said: set[str] = set()

    def feed(self, engine: Engine, dialect: Dialect) -> Feed | None:
        """None, counted and said once, where engine or dialect cannot."""
        if isinstance(engine, StreamingEngine) and isinstance(dialect, LiveDialect):
            return Feed()
        self._count.labels("live_unsupported").inc()
        what = f"{engine.info.kind} engine, {dialect.name} API"
        if what not in self._said:
            self._said.add(what)
            _log.warning('streaming = "live" has no effect (%s): replies are sampled whole, then streamed', what)
        return None

    def close(self, follower: Follower, reply: Reply) -> tuple[bytes, bytes] | None:
        """(the rest, the terminal part); None, counted, when what was shown is not how the reply begins."""
        try:
            parts = follower.close(reply)
        except VerifyError:
            self._count.labels("live_mismatch").inc()
            _log.warning("reply %s is not what was streamed of it; the stream is cut", reply.id)
            return None
        if follower.begun:
            self._count.labels("live_shown").inc()
        return parts


def _merged(deltas: list[Delta]) -> list[Delta]:
    """Neighbours of one kind as one: a slow client gets fewer events."""
    out: list[list[Delta]] = []
    for more in deltas:
        if not out or out[-1][0].kind != more.kind:
            out.append([])
        out[-1].append(more)
    return [Delta(run[0].kind, "".join([more.text for more in run])) for run in out]
