"""The way out for agents that have one: an HTTP proxy on the session's own socket, for the hosts on a list.

It speaks CONNECT (for TLS, which stays between agent and host) and requests with an absolute http:// address. Names are
looked up here, and a name never leads to this machine or its network: addresses that are not public are refused unless
the list has the address itself. Every attempt is a line of the session's log, up to MAX_LOG. Only heads that everybody
reads alike are passed on: a control character in one could end a line, or a host's name, for somebody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import msgspec

from tugline.core.contracts import Egress
from tugline.core.errors import ConfigError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
HEAD = 64 * 1024
CONNECTIONS = 64
"""Of one session at once."""
CONNECT_SECONDS = 20.0
IDLE_SECONDS = 300.0
PORTS = frozenset({80, 443})
"""Where a rule names none."""
MAX_LOG = 4 << 20
"""Bytes of one session's log; what an agent asks for beyond that is answered and not written down."""
HOP = ("proxy-connection", "proxy-authorization", "connection", "keep-alive", "te", "upgrade", "expect")


_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""What no line of a head may hold."""
_METHOD = re.compile(r"[A-Za-z-]{1,20}")
_NAME = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
TRANSLATED = ("64:ff9b::/96", "2002::/16", "::/96", "fec0::/10", "192.88.99.0/24", "168.63.129.16/32")
"""Not public, although `ipaddress` says so: addresses that gateways turn into others (NAT64, 6to4 and its relays,
IPv4-compatible), site-local ones, and a cloud's own service."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of a list: a host name, `*.` and a domain, an address or a network, with a port or without."""

    text: str
    name: str
    network: ipaddress.IPv4Network | ipaddress.IPv6Network | None
    port: int | None

    def fits(self, host: str, port: int) -> bool:
        """Whether what a client asks for is on the list, by name."""
        if (self.port is None and port not in PORTS) or (self.port is not None and port != self.port):
            return False
        if self.network is not None:
            address = _address(host)
            return address is not None and address in self.network
        if self.name.startswith("*."):
            return host.endswith(self.name[1:]) and len(host) > len(self.name) - 1
        return host == self.name


class Line(msgspec.Struct, frozen=True):
    """One attempt. `why`: nothing, or why it was refused; bytes each way."""

    wall: float
    host: str
    port: int
    allowed: bool
    why: str = ""
    sent: int = 0
    received: int = 0


def parse_rule(text: str) -> Rule:
    """Raises ConfigError."""
    host, port = text.strip().lower(), None
    with contextlib.suppress(ValueError):
        return Rule(text, host, ipaddress.ip_network(host, strict=False), None)
    if ":" in host:
        host, _, number = host.rpartition(":")
        if not number.isdigit() or not 0 < int(number) < 65536:
            raise ConfigError(f"{text!r} is no host with a port", where="sandbox.egress")
        port = int(number)
    with contextlib.suppress(ValueError):
        return Rule(text, host, ipaddress.ip_network(host.strip("[]"), strict=False), port)
    plain = host.removeprefix("*.")
    if not plain or not all(c.isalnum() or c in "-._" for c in plain) or "*" in plain:
        raise ConfigError(f"{text!r} is no host, *.domain, address or network", where="sandbox.egress")
    return Rule(text, host, None, port)


def uncovered(asked: Sequence[str], allowed: Sequence[str]) -> list[str]:
    """Entries of one list that another does not have, exactly or by a wider entry. Raises ConfigError."""
    rules = [parse_rule(text) for text in allowed]

    def covers(other: Rule, rule: Rule) -> bool:
        if other.port not in (None, rule.port) or (other.port is None and rule.port not in (None, *PORTS)):
            return False
        if rule.network is not None:
            wide = other.network
            return wide is not None and wide.version == rule.network.version and rule.network.subnet_of(wide)  # type: ignore[arg-type]
        wildcard = other.name.startswith("*.") and rule.name.removeprefix("*").endswith(other.name[1:])
        return rule.name == other.name or wildcard

    return [text for text in asked if not any(covers(rule, parse_rule(text)) for rule in rules)]


class Proxy:
    """One session's way out."""

    def __init__(self, egress: Egress) -> None:
        self._rules = tuple(parse_rule(text) for text in egress.hosts)
        self._log = egress.log
        self._written = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.undecided: set[Front] = set()
        """Connections that have not said yet what they are."""

    def front(self, inner: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        """A protocol that becomes the proxy, or what `inner` makes, with the first bytes of its connection."""
        return Front(self, inner)

    async def close(self) -> None:
        """End every connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def take(self, transport: asyncio.Transport, data: bytes) -> None:
        """Serve a connection from its first bytes on."""
        if len(self._tasks) >= CONNECTIONS:
            transport.abort()
            return
        reader = asyncio.StreamReader(limit=HEAD)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        reader.feed_data(data)
        writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            await self._request(head, reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.transport.abort()

    async def _request(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tunnel, host, port, onward = target(head)
        why = "" if host else "not a request for a proxy"
        addresses: list[str] = []
        if host:
            addresses, why = await self._lookup(host, port)
        if why:
            await self._note(Line(time.time(), host, port, allowed=False, why=why))
            body = f"Tugline: {host or 'this'}: {why}\n".encode()
            writer.write(b"HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-type: text/plain\r\n"
                         b"content-length: %d\r\n\r\n%b" % (len(body), body))  # fmt: skip
            await writer.drain()
            return
        far = await self._connect(addresses, port)
        if far is None:
            await self._note(Line(time.time(), host, port, allowed=True, why="unreachable"))
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()
            return
        if tunnel:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            far[1].write(onward)
        begun = time.time()
        counts = [len(onward), 0]
        try:
            await both(((reader, far[1]), (far[0], writer)), counts)
        finally:
            far[1].transport.abort()
            await self._note(Line(begun, host, port, allowed=True, sent=counts[0], received=counts[1]))

    async def _lookup(self, host: str, port: int) -> tuple[list[str], str]:
        """(addresses to try, why not)."""
        fitting = [rule for rule in self._rules if rule.fits(host, port)]
        if not fitting:
            return [], "not on the list"
        given = _address(host)
        if given is not None:
            return [str(given)], ""  # a rule has the address itself
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError, UnicodeError):
            return [], "no such host"
        addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
        named = [rule for rule in self._rules if rule.network is not None]
        good = [a for a in addresses if _public(a) or any(rule.fits(a, port) for rule in named)]
        return good, "" if good else "its address is not a public one"

    async def _connect(
        self, addresses: Sequence[str], port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for address in addresses[:4]:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_SECONDS):
                    return await asyncio.open_connection(address, port)
        return None

    async def _note(self, line: Line) -> None:
        data = msgspec.json.encode(line) + b"\n"
        if self._log is not None and self._written + len(data) <= MAX_LOG:
            self._written += len(data)
            await asyncio.to_thread(_append, self._log, data)


class Front(asyncio.Protocol):
    """Waits for enough of a connection to know whose it is."""

    def __init__(self, proxy: Proxy, inner: Callable[[], asyncio.Protocol]) -> None:
        self._proxy = proxy
        self._inner = inner
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Nothing is known yet. Of those that say nothing there is a limit as well."""
        self._transport = cast("asyncio.Transport", transport)
        self._proxy.undecided.add(self)
        if len(self._proxy.undecided) > CONNECTIONS:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody will say any more what it was."""
        self._proxy.undecided.discard(self)

    def data_received(self, data: bytes) -> None:
        """Decide with the first words of the request line."""
        self._data += data
        transport = self._transport
        if transport is None:
            return
        method, space, rest = self._data.partition(b" ")
        if not space and len(self._data) < 16:
            return
        if method == b"CONNECT" or rest[:7].lower() == b"http://":
            self._proxy.undecided.discard(self)
            self._proxy.take(transport, self._data)
        elif len(rest) >= 7 or not b"http://".startswith(rest.lower()):
            self._proxy.undecided.discard(self)
            protocol = self._inner()
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            protocol.data_received(self._data)


def target(head: bytes) -> tuple[bool, str, int, bytes]:
    """(whether a tunnel is asked for, host, port, the request as the host wants it). An empty host: no such request."""
    first, _, rest = head.partition(b"\r\n")
    parts = first.decode("latin-1").split(" ")
    if len(parts) != 3 or not _METHOD.fullmatch(parts[0]) or any(_CONTROL.search(x) for x in head.split(b"\r\n")):
        return False, "", 0, b""
    method, where, _ = parts
    try:
        split = urlsplit(f"//{where}" if method == "CONNECT" else where)
        host, port = (split.hostname or "").removesuffix("."), split.port
    except ValueError:
        return False, "", 0, b""
    if "\t" in where or (_address(host) is None and not _NAME.fullmatch(host)):
        return False, "", 0, b""
    if method == "CONNECT":
        return True, host, port or 443, b""
    if split.scheme.lower() != "http":
        return False, "", 0, b""
    path = split.path or "/"
    lines = [f"{method} {path}{'?' + split.query if split.query else ''} HTTP/1.1".encode("latin-1")]
    for line in rest.split(b"\r\n"):
        name = line.partition(b":")[0].strip().lower().decode("latin-1")
        if line and name not in HOP and name != "host":
            lines.append(line)
    lines += [f"host: {split.netloc.rpartition('@')[2]}".encode("latin-1"), b"connection: close"]
    return False, host, port or 80, b"\r\n".join(lines) + b"\r\n\r\n"


async def both(ways: Sequence[tuple[asyncio.StreamReader, asyncio.StreamWriter]], counts: list[int]) -> None:
    """Carry bytes each way until the far side has ended, or nothing has moved for a while."""

    async def one(way: int) -> None:
        reader, writer = ways[way]
        while True:
            async with asyncio.timeout(IDLE_SECONDS):
                data = await reader.read(1 << 16)
            if not data:
                break
            counts[way] += len(data)
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    up = asyncio.create_task(one(0))
    try:
        await one(1)
    finally:
        up.cancel()
        await asyncio.gather(up, return_exceptions=True)


def _address(host: str) -> Address | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host)
    return None


def _public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None) or found
    apart = any(mapped in network for network in map(ipaddress.ip_network, TRANSLATED))
    return mapped.is_global and not found.is_multicast and not apart


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)
