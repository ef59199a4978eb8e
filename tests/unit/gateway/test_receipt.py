"""What the system knows of a client before the event loop has said it."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys

import pytest

from tugline.gateway.receipt import Line, Receipts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux numbers the states of a connection")


class Quiet(asyncio.Protocol):
    """Takes a connection and tells nobody what happens on it."""

    def __init__(self, made: asyncio.Future[asyncio.Transport]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()  # the loop hears of nothing from here on
        self._made.set_result(transport)


async def connected() -> tuple[Line, asyncio.Transport, socket.socket, asyncio.Server]:
    loop = asyncio.get_running_loop()
    made: asyncio.Future[asyncio.Transport] = loop.create_future()
    server = await loop.create_server(lambda: Quiet(made), "127.0.0.1", 0)
    client = socket.create_connection(server.sockets[0].getsockname())
    transport = await made
    return Line(transport), transport, client, server


@pytest.mark.parametrize(
    ("how", "fate"), [("stays", None), ("reads_and_closes", "read"), ("closes_unread", "lost"), ("resets", "lost")]
)
async def test_who_has_left_is_known_without_an_event(how: str, fate: str | None) -> None:
    line, transport, client, server = await connected()
    lost: list[bool] = []
    receipts = Receipts()
    transport.write(b"a reply")
    receipts.expect(line, 0, "turn_0", lost.append)
    if how == "reads_and_closes":
        assert client.recv(100) == b"a reply"
    if how == "resets":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how != "stays":
        client.close()
    receipts.look()
    assert not line.over, "nothing was asked"
    receipts.look(ask=True)
    assert (line.over, line.lost, lost) == (fate is not None, fate == "lost", [True] if fate == "lost" else [])
    client.close()
    transport.abort()
    server.close()
    await server.wait_closed()


async def test_a_client_that_left_before_anything_was_sent() -> None:
    line, transport, client, server = await connected()
    client.close()
    line.look()
    assert line.over and not line.lost
    transport.abort()
    server.close()
    await server.wait_closed()


async def test_a_request_that_was_sent_before_the_reply_says_nothing_of_it() -> None:
    line, transport, client, server = await connected()
    lost: list[bool] = []
    receipts = Receipts()
    line.arrived()
    first = line.requests
    line.arrived(behind=False)  # pipelined
    transport.write(b"one")
    receipts.expect(line, first, "turn_0", lost.append)
    transport.write(b"two")
    receipts.expect(line, line.requests, "turn_1", lost.append)
    client.close()
    receipts.look(ask=True)
    assert lost == [True, True]
    transport.abort()
    server.close()
    await server.wait_closed()


async def test_a_request_behind_the_reply_says_that_it_was_read() -> None:
    line, transport, client, server = await connected()
    lost: list[bool] = []
    receipts = Receipts()
    line.arrived()
    first = line.requests
    transport.write(b"one")
    line.arrived()  # faster than the news that the reply was handed over
    receipts.expect(line, first, "turn_0", lost.append)
    assert not receipts._open
    client.close()
    receipts.look(ask=True)
    assert lost == []
    transport.abort()
    server.close()
    await server.wait_closed()


async def test_where_the_system_numbers_no_states_nothing_is_taken_for_lost() -> None:
    """A socket that is no TCP."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    line, lost = Line(transport), list[bool]()
    receipts = Receipts()
    transport.write(b"a reply")
    transport.close()  # as the client had asked
    receipts.expect(line, 0, "turn_0", lost.append)
    receipts.look(ask=True)
    assert (len(receipts._open), theirs.recv(100)) == (1, b"a reply")
    await receipts.end()
    assert (len(receipts._open), lost) == (0, [])
    theirs.close()
