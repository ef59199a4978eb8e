"""`tugline bench exactness` beside servers that are no gateways: a clear word each time, an end each time."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tugline.cli import exactness as command_module
from tugline.cli.main import app

Answer = Callable[[socket.socket], None]
SHORT = ("--scenes", "verbatim,parallel", "--dialects", "chat", "--patience", "4", "--wait", "1")
HASTY = ("--patience", "0.4")


def command(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["bench", "exactness", *words])
    return result.exit_code, result.stdout, result.stderr


class Server(socketserver.ThreadingTCPServer):
    """One answer for every request, on connections that it then closes."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, answer: Answer, context: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        self._answer, self._context = answer, context

    def get_request(self) -> tuple[socket.socket, Any]:
        conn, peer = super().get_request()
        conn.settimeout(20)
        return conn if self._context is None else self._context.wrap_socket(conn, server_side=True), peer

    def finish_request(self, request: Any, _peer: object) -> None:
        with contextlib.suppress(OSError):
            data = b""
            while b"\r\n\r\n" not in data:
                data += request.recv(65536) or b"\r\n\r\n"
                if not data[:1].isalpha():  # a TLS greeting, say
                    request.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
                    return
            head, _, body = data.partition(b"\r\n\r\n")
            length = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            while length and len(body) < length[0]:
                body += request.recv(65536)
            self._answer(request)


@contextmanager
def server(answer: Answer, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Its address, `http://127.0.0.1:PORT`."""
    with Server(answer, context) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http{'s' if context else ''}://127.0.0.1:{made.server_address[1]}"
        finally:
            made.shutdown()
            thread.join(10)


def said(status: str, kind: str, body: str, *more: str) -> Answer:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"content-type: {kind}", f"content-length: {len(body)}", *more])
    return lambda conn: conn.sendall(f"{head}\r\nconnection: close\r\n\r\n{body}".encode())


def silent(conn: socket.socket) -> None:
    """Says nothing until the other side goes away."""
    conn.recv(1)


def hangs_up(_conn: socket.socket) -> None:
    """Closes without a word."""


def other_protocol(conn: socket.socket) -> None:
    conn.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")


def half(conn: socket.socket) -> None:
    conn.sendall(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{"id": ')


def endless(block: bytes, pause: float) -> Answer:
    def answer(conn: socket.socket) -> None:
        conn.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        gone = threading.Event()
        while not gone.wait(pause):
            conn.sendall(block)  # fails when the other side is gone

    return answer


PAGE = "<!doctype html><html><body>Welcome to nginx!</body></html>"


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (said("200 OK", "text/html; charset=utf-8", PAGE), "a web page, not as an API: is the path of the URL right?"),
        (said("200 OK", "text/plain", PAGE), "a web page, not as an API"),
        (said("200 OK", "application/json", ""), "Input data was truncated"),
        (said("200 OK", "application/json", "[1, 2]"), "Expected `object`, got `array`"),
        (said("200 OK", "application/json", '{"choices": [7]}'), "a shape of its own"),
        (said("404 Not Found", "application/json", '{"detail":"Not Found"}'), "HTTP 404: {\"detail\":\"Not Found\"}"),
        (said("404 Not Found", "text/plain", "nope"), "no API is served there: is the path of the URL right?"),
        (said("401 Unauthorized", "text/plain", "no"), "HTTP 401 (--key?): no"),
        (said("500 Oops", "text/plain", ""), "HTTP 500: an empty body"),
        (said("307 Temporary Redirect", "text/plain", "", "location: /there"), "sends one on to '/there'"),
    ],
)  # fmt: skip
def test_a_server_that_is_no_gateway(answer: Answer, found: str) -> None:
    with server(answer) as url:
        code, out, _ = command("--url", url, *SHORT)
    assert code == 1 and found in out, out
    assert "given up after 3 sessions without a usable reply" in out


@pytest.mark.parametrize(
    ("answer", "patience", "found"),
    [
        (half, "4", "its reply broke off after 7 bytes"),
        (endless(b"data: {}\n\n", 0.02), "0.4", "its reply did not end within 0.4 s ("),
        (endless(b"x" * (1 << 20), 0), "30", "the reply is longer than 64 MB"),
    ],
)
def test_replies_that_are_not_whole(answer: Answer, patience: str, found: str) -> None:
    with server(answer) as url:
        code, out, _ = command("--url", url, *SHORT, "--patience", patience)
    assert code == 1 and found in out
    assert "given up after 2 of 4 sessions: no whole reply any more" in out


@pytest.mark.parametrize(
    ("answer", "found"),
    [(silent, "no reply within"), (hangs_up, "is it https:// ?"), (other_protocol, "it does not answer in HTTP")],
)
def test_nothing_that_answers_in_http(answer: Answer, found: str) -> None:
    with server(answer) as url:
        code, out, err = command("--url", url, *SHORT)
        as_json = command("--url", url, *SHORT, "--json")[1]
    assert code == 1 and "nobody answers at" in err and found in err and out == ""
    assert found in json.loads(as_json)["error"]["message"]


def test_one_that_falls_silent() -> None:
    """It answers the look at the start and nothing that is posted."""

    def answer(conn: socket.socket) -> None:
        if seen:
            silent(conn)
        else:
            seen.append(1)
            said("200 OK", "text/plain", "hello")(conn)

    seen: list[int] = []
    with server(answer) as url:
        code, out, _ = command("--url", url, *SHORT, *HASTY, "--dialects", "chat,gemini", "--json")
    report = json.loads(out)
    assert code == 1 and report["notes"] == ["given up after 2 of 8 sessions: no whole reply any more"]
    assert "no reply within 0.4 s" in report["dialects"]["chat"]["failures"][0]["message"]
    assert report["sessions"] == 2 and not report["dialects"]["gemini"]["ok"]


def certificate(folder: Path) -> ssl.SSLContext:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl command makes the certificate")
    made = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=here"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([openssl, *made, *files, *names], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


def test_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = said("200 OK", "text/html", PAGE)
    with server(page, certificate(tmp_path)) as url:
        code, _, err = command("--url", url, *SHORT, "--wait", "60")
        assert code == 1 and "its certificate is not believed (self-signed certificate)" in err
        assert "SSL_CERT_FILE" in err
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        assert "a web page" in command("--url", url, *SHORT)[1]
        plain = command("--url", url.replace("https", "http"), *SHORT)
        assert plain[0] == 1 and "https:// ?" in plain[2]
    monkeypatch.delenv("SSL_CERT_FILE")
    with server(page) as url:
        code, _, err = command("--url", url.replace("http", "https"), *SHORT, "--wait", "60")
    assert code == 1 and "it does not speak TLS" in err and "is it http:// ?" in err


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--url", "127.0.0.1:4000"), "is no URL such as"),
        (("--url", "localhost"), "is no URL such as"),
        (("--url", "ftp://127.0.0.1"), "is no URL such as"),
        (("--url", "http://127.0.0.1:99999"), "is no URL"),
        (("--url", "http://[::1"), "is no URL"),
        (("--url", "http://127.0.0.1:4000/v1/chat/completions"), "leave '/chat/completions' away"),
        (("--url", "http://127.0.0.1:4000", "--records", "traces"), "is no URL such as"),
        (("--engine-port", "99999"), "--engine-port"),
        (("--patience", "0"), "--patience"),
        (("--wait", "-1"), "--wait"),
        (("--noncanonical", "1.5"), "--noncanonical"),
    ],
)
def test_a_request_that_is_wrong(words: tuple[str, ...], found: str) -> None:
    code, out, err = command(*words)
    assert code == 2 and found in err and out == ""


@pytest.mark.parametrize("flag", ["--open", "--records"])
@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (silent, "no reply within 0.4 s"),
        (said("200 OK", "text/html", PAGE), "a web page, not as an API"),
        (said("403 Forbidden", "text/plain", "no"), "HTTP 403 (--key?): no"),
        (said("200 OK", "application/json", '{"name": 1}'), ""),
    ],
)
def test_doors_and_records_that_are_none(flag: str, answer: Answer, found: str) -> None:
    with server(said("200 OK", "text/html", PAGE)) as url, server(answer) as other:
        code, out, err = command("--url", url, flag, other, *SHORT, *HASTY)
    assert code == 1 and found in out + err
    if flag == "--open" and not found:
        assert "gave no session_id" in err


def test_a_port_that_is_taken() -> None:
    with server(silent) as url:
        code, _, err = command("--engine-port", url.rpartition(":")[2])
    assert code == 1 and "cannot listen on 127.0.0.1:" in err


class Terminal(list[str]):
    """A stream that is a terminal, or is not."""

    def __init__(self, *, tty: bool) -> None:
        super().__init__()
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty

    def write(self, text: str) -> None:
        self.append(text)

    def flush(self) -> None:
        """Nothing waits."""


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(*, tty: bool, quiet: bool, every: float = 10.0) -> list[str]:
        screen = Terminal(tty=tty)
        monkeypatch.setattr(command_module.sys, "stderr", screen)
        monkeypatch.setattr(command_module, "LINE_SECONDS", every)
        with command_module._Progress(quiet=quiet) as say:
            say("chat-verbatim-whole", 0, 40)
            say("chat-verbatim-streamed", 20, 40)
        return list(screen)

    first, second, end = shown(tty=True, quiet=False)
    assert first.endswith("[....................] 1/40 chat-verbatim-whole")
    assert second.endswith("[##########..........] 21/40 chat-verbatim-streamed") and end == "\r\x1b[2K"
    assert shown(tty=False, quiet=False) == [] and shown(tty=True, quiet=True) == []
    assert shown(tty=False, quiet=False, every=-1.0)[1].endswith(" s] 21/40 chat-verbatim-streamed\n")
