"""Has the client read it? What TCP tells behind the last byte of a response.

A response handed to the transport has not arrived. Afterwards one of these happens, and the first that does decides:

- the next request comes on the connection: the client has read the response before it;
- the client closes and everything was acknowledged: read. A system that closes a socket with unread bytes sends a
  reset, and so does one that gets bytes for a socket that is gone;
- a reset, or a farewell while bytes are still on their way: not read, the delivery is taken back;
- the session ends: read if everything was acknowledged.

What cannot be known: whether a program looked at what it took from its socket; and, while the connection stays open,
whether it took what its system has acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import sys
import termios
from collections.abc import Callable
from typing import Any, Literal

LINE = "tugline.line"
"""Key of a connection's `Line` among the extensions of an ASGI scope."""
LINGER = 2.0
"""Seconds that a connection which we have closed is watched where its client has taken all."""
SLOW = 60.0
"""The same where it has not: it may be busy, or far away."""
PATIENCE = 0.25
"""Seconds that the end of a session waits for acknowledgements; systems put them off by up to 40 ms."""
_CLOSED, _CLOSE_WAIT = 7, 8
"""States of the kernel: closed by both sides, or reset; closed by the other side."""

Fate = Literal["read", "lost"]


class Line:
    """One connection below HTTP. Told of events by the protocol."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.requests = 0
        """Begun on it."""
        self._read = -1
        """The last of them whose answer, and all before it, is known to have been read."""
        self._fate: Fate | None = None
        self._heirs: list[Receipt] = []

    @property
    def over(self) -> bool:
        """Whether the client has left. Known a little before the application is told."""
        return self._fate is not None

    @property
    def lost(self) -> bool:
        """Whether the client left something unread."""
        return self._fate == "lost"

    def look(self) -> None:
        """Ask the system whether the client is there: its word may reach us behind that of the client's next
        connection. Tells nothing where the system does not number states."""
        if self._fate is not None or self._transport.is_closing():
            return
        sock = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError, ValueError, AttributeError):
            copy = socket.socket(fileno=os.dup(sock.fileno()))
            try:
                state = _state(copy)
            finally:
                copy.close()
            if state == _CLOSED:  # and not by us
                self._end("lost")
            elif state == _CLOSE_WAIT:
                self.farewell()

    def arrived(self, *, behind: bool = True) -> None:
        """A request begins. `behind`: all of the response before it had been handed over; one that comes earlier was
        sent without having read that."""
        if behind:
            self._read = self.requests
            self._decide("read")
        self.requests += 1

    def farewell(self) -> None:
        """The client has closed its side. Its last segment acknowledges all that it has taken."""
        self._end("lost" if self.unsent() else "read")

    def ended(self, exc: Exception | None) -> None:
        """The connection is gone. Without a cause and a farewell it was we who closed it: the receipts watch on. Call
        before the socket is closed."""
        if exc is not None:
            self._end("lost")
        for receipt in self._heirs:
            receipt.linger(self._transport)

    def unsent(self) -> int:
        """Bytes handed over that the client's system has not acknowledged, as far as is known."""
        waiting = self._transport.get_write_buffer_size()
        sock = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError, ValueError, AttributeError):
            waiting += _queued(sock.fileno())
        return waiting

    def expect(self, receipt: Receipt) -> None:
        """A response was handed over. Its fate may be known already."""
        if self._fate is not None or receipt.request <= self._read:
            receipt.settle(self._fate if self._fate is not None else "read")
            return
        self._heirs.append(receipt)
        if self._transport.is_closing():
            receipt.linger(self._transport)

    def _end(self, fate: Fate) -> None:
        self._fate = self._fate or fate
        self._decide(fate)

    def _decide(self, fate: Fate) -> None:
        heirs, self._heirs = self._heirs, []
        for receipt in heirs:
            receipt.settle(fate)


class Receipt:
    """One response on its way. `lost` is called when it turns out not to have been read."""

    def __init__(self, line: Line, lost: Callable[[], None], done: Callable[[Receipt], None], request: int) -> None:
        self.request = request
        """How many requests the connection had begun with the one that this answers."""
        self._line = line
        self._lost = lost
        self._done = done
        self._open = True
        self._watch: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None

    def settle(self, fate: Fate) -> None:
        """The first word counts."""
        if not self._open:
            return
        self._open = False
        if self._socket is not None:
            self._socket.close()
        if self._watch is not None:
            self._watch.cancel()
        self._done(self)
        if fate == "lost":
            self._lost()

    def linger(self, transport: asyncio.Transport) -> None:
        """We close the connection behind the response, as the client has asked, or because it has been silent: watch a
        copy of the socket."""
        if not self._open or self._socket is not None:
            return
        sock = transport.get_extra_info("socket")
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._socket = socket.socket(fileno=os.dup(sock.fileno()))
            self._watch = asyncio.ensure_future(self._follow(transport))

    def look(self, *, ask: bool = False) -> None:
        """Settle now if the fate of a watched connection is known; `ask`: of one that goes on, too."""
        if self._socket is None or not self._open:
            if ask:
                self._line.look()
            return
        try:
            closed = _state(self._socket) == _CLOSED
            broken = closed and self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
        except OSError:  # no TCP: what is queued tells in the end
            return
        if closed:
            self.settle("lost" if broken else "read")

    async def end(self) -> None:
        """The session ends: settle, waiting a moment for acknowledgements."""
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while self._open and self._waiting():
            if asyncio.get_running_loop().time() > deadline:
                self.settle("lost")
            await asyncio.sleep(0.01)
            self.look()
        self.settle("read")

    def _waiting(self) -> int:
        if self._socket is None:
            return self._line.unsent()
        with contextlib.suppress(OSError):
            return _queued(self._socket.fileno())
        return 0

    async def _follow(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        begun, wait, farewell = loop.time(), 0.002, False
        while self._open and loop.time() - begun < (SLOW if self._waiting() else LINGER):
            if not farewell and self._socket is not None and not transport.get_write_buffer_size():
                farewell = True  # the copy would keep the client waiting for the end
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_WR)
            self.look()
            await asyncio.sleep(wait)
            wait = min(0.1, wait * 2)
        self._watch = None
        self.settle("lost" if self._waiting() else "read")


class Receipts:
    """Of one session: responses whose fate is open, and how many clients have each turn."""

    def __init__(self) -> None:
        self._open: set[Receipt] = set()
        self._holders: dict[str, int] = {}

    def expect(self, line: Line | None, request: int, turn_id: str, lost: Callable[[bool], None]) -> None:
        """A reply was handed over. `lost(last)` is called if it was not read; `last`: no other client has the turn."""
        self._holders[turn_id] = self._holders.get(turn_id, 0) + 1
        if line is None:
            return

        def gone() -> None:
            self._holders[turn_id] -= 1
            lost(not self._holders[turn_id])

        receipt = Receipt(line, gone, self._open.discard, request)
        self._open.add(receipt)
        line.expect(receipt)

    def look(self, *, ask: bool = False) -> None:
        """Settle what is known by now; `ask`: what the system knows of connections that go on, too."""
        for receipt in list(self._open):
            receipt.look(ask=ask)

    async def end(self) -> None:
        """Settle everything."""
        await asyncio.gather(*(receipt.end() for receipt in list(self._open)))


def _queued(fd: int) -> int:
    """Bytes in the kernel that the other side has not acknowledged; 0 where the kernel does not tell."""
    if sys.platform != "linux":
        return 0
    return int.from_bytes(fcntl.ioctl(fd, termios.TIOCOUTQ, b"\0" * 4), sys.byteorder)


def _state(sock: socket.socket) -> int:
    """State of the connection as the kernel numbers it."""
    if sys.platform != "linux":
        return 0
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def line_of(scope: Any) -> Line | None:
    """The connection of an ASGI scope, if the server has said."""
    line = scope.get("extensions", {}).get(LINE)
    return line if isinstance(line, Line) else None
