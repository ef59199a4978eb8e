# ruff: noqa: E501 - tables
"""Lists of hosts: what fits, what covers what, and what a proxy's request asks for."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tugline.core.contracts import Egress
from tugline.core.errors import ConfigError
from tugline.gateway.egress import CONNECTIONS, Line, Proxy, _public, parse_rule, target, uncovered


@pytest.mark.parametrize(
    ("rule", "host", "port", "fits"),
    [
        ("a.example", "a.example", 443, True), ("a.example", "a.example", 80, True), ("a.example", "a.example", 22, False),
        ("a.example", "b.a.example", 443, False), ("*.a.example", "b.a.example", 443, True),
        ("*.a.example", "c.b.a.example", 443, True), ("*.a.example", "a.example", 443, False),
        ("*.a.example", "bada.example", 443, False), ("a.example:8080", "a.example", 8080, True),
        ("a.example:8080", "a.example", 443, False), ("10.0.0.0/8", "10.2.3.4", 443, True),
        ("10.0.0.0/8", "11.2.3.4", 443, False), ("10.0.0.0/8", "ten.example", 443, False),
        ("127.0.0.1:99", "127.0.0.1", 99, True), ("::1", "::1", 80, True), ("[::1]:99", "::1", 99, True),
        ("A.Example", "a.example", 443, True),
    ],
)  # fmt: skip
def test_rules(rule, host, port, fits):
    assert parse_rule(rule).fits(host, port) is fits


@pytest.mark.parametrize("text", ["", "*", "*.", "a b", "http://a", "a:b", "a:0", "a:99999", "a.*.b", "a/b", "a,b"])
def test_what_is_no_rule_is_refused(text):
    with pytest.raises(ConfigError):
        parse_rule(text)


def test_a_list_within_a_list():
    allowed = ["a.example", "*.b.example", "10.0.0.0/8", "c.example:8080"]
    fine = ["a.example", "x.b.example", "*.x.b.example", "10.1.0.0/16", "10.1.1.1", "c.example:8080", "a.example:443"]
    assert uncovered(fine, allowed) == []
    wrong = ["b.example", "*.example", "11.0.0.1", "c.example", "a.example:8080", "*.a.example"]
    assert uncovered(wrong, allowed) == wrong


@pytest.mark.parametrize(
    ("head", "tunnel", "host", "port", "onward"),
    [
        (b"CONNECT a.example:8443 HTTP/1.1\r\nHost: x\r\n\r\n", True, "a.example", 8443, b""),
        (b"CONNECT [::1]:443 HTTP/1.1\r\n\r\n", True, "::1", 443, b""),
        (b"GET http://u:p@A.example/x?y=1 HTTP/1.1\r\nHost: evil\r\nProxy-Authorization: z\r\nX: 1\r\n\r\n", False, "a.example",
         80, b"GET /x?y=1 HTTP/1.1\r\nX: 1\r\nhost: A.example\r\nconnection: close\r\n\r\n"),
        (b"GET /x HTTP/1.1\r\n\r\n", False, "", 0, b""), (b"GET https://a/ HTTP/1.1\r\n\r\n", False, "", 0, b""),
        (b"CONNECT A.example.:443 HTTP/1.1\r\n\r\n", True, "a.example", 443, b""),
        (b"nonsense\r\n\r\n", False, "", 0, b""), (b"CONNECT a:x HTTP/1.1\r\n\r\n", False, "", 0, b""),
    ],
)  # fmt: skip
def test_what_is_asked_for(head, tunnel, host, port, onward):
    assert target(head) == (tunnel, host, port, onward)


@given(st.binary(max_size=300))
def test_any_bytes_have_an_answer(head):
    tunnel, host, port, onward = target(head + b"\r\n\r\n")
    assert isinstance(tunnel, bool)
    assert 0 <= port < 65536
    assert isinstance(host, str)
    assert isinstance(onward, bytes)


@pytest.mark.parametrize(
    "head",
    [
        b"CONNECT evil.test\0.a.example:443 HTTP/1.1\r\n\r\n",  # getaddrinfo reads as far as the null
        b"GET http://evil.test\0.a.example/ HTTP/1.1\r\n\r\n", b"CONNECT evil.test%00.a.example:443 HTTP/1.1\r\n\r\n",
        b"GET http://a.example/ HTTP/1.1\r\nX: 1\nHost: other\r\n\r\n", b"GET http://a.example/ HTTP/1.1\r\nX: 1\rHost: other\r\n\r\n",
        b"GET\t/\tHTTP/1.1\nHost:other\nX: http://a.example/ HTTP/1.1\r\n\r\n", b"GET http://a.example/\tx HTTP/1.1\r\n\r\n",
        b"GET http://a.example/ HTTP/1.1\r\nX: 1\0\r\n\r\n", b"CONNECT a.example..:443 HTTP/1.1\r\n\r\n",
        b"CONNECT .a.example:443 HTTP/1.1\r\n\r\n", b"CONNECT %61.example:443 HTTP/1.1\r\n\r\n", b"CONNECT \xe4.a.example:443 HTTP/1.1\r\n\r\n",
        b"CONNECT a b.a.example:443 HTTP/1.1\r\n\r\n", b"CONNECT " + b"a" * 64 + b".a.example:443 HTTP/1.1\r\n\r\n",
    ],
)  # fmt: skip
def test_what_others_would_read_otherwise_is_no_request(head):
    assert target(head) == (False, "", 0, b"")


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True), ("2606:2800:220:1::1", True), ("::ffff:93.184.216.34", True), ("127.0.0.1", False),
        ("169.254.169.254", False), ("::1", False), ("fe80::1%lo", False), ("::ffff:127.0.0.1", False), ("224.0.0.1", False),
        ("64:ff9b::7f00:1", False), ("2002:7f00:1::", False), ("::7f00:1", False), ("fec0::1", False), ("100.64.0.1", False),
        ("168.63.129.16", False), ("fd00:ec2::254", False),
    ],
)  # fmt: skip
def test_addresses_that_lead_elsewhere_are_not_public(address, public):
    assert _public(address) is public


async def test_names_lead_where_the_rule_says_and_the_log_has_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr("tugline.gateway.egress.MAX_LOG", 1000)
    proxy = Proxy(Egress(("*.a.example",), tmp_path / "log"))
    assert await proxy._lookup(f"{'a' * 64}.a.example", 80) == ([], "no such host")
    for _ in range(100):
        await proxy._note(Line(1.0, "x" * 100, 80, allowed=False))
    assert 0 < (tmp_path / "log").stat().st_size <= 1000


class Transport(asyncio.Transport):
    aborted = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


def test_connections_that_say_nothing_are_counted():
    proxy = Proxy(Egress((), None))
    fronts = [(proxy.front(asyncio.Protocol), Transport()) for _ in range(CONNECTIONS + 9)]
    for front, transport in fronts:
        front.connection_made(transport)
        if transport.aborted:
            front.connection_lost(None)
    assert sum(t.aborted for _, t in fronts) == 9
    for front, _ in fronts:
        front.data_received(b"GET /v1/models HTTP/1.1")
    assert not proxy.undecided
