# ruff: noqa: E501 - tables
"""Lists of hosts: what fits, what covers what, and what a proxy's request asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tugline.core.errors import ConfigError
from tugline.gateway.egress import parse_rule, target, uncovered


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
