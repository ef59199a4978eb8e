"""The way out: allowed hosts by proxy, everything else refused and written down, the gateway beside it as ever."""

from __future__ import annotations

import asyncio
import json

import pytest

from redteam.attacks import Attack, py
from redteam.range import make_task, shooting_range
from service.gateway_kit import gateway
from tugline.core.contracts import Egress, Gateway

pytestmark = pytest.mark.timeout(300)

ASK = py(
    "import json, os, socket, urllib.request\n"
    "url, port = os.environ['URL'], os.environ['PORT']\n"
    "proxy = urllib.request.build_opener(urllib.request.ProxyHandler({'http': url}))\n"
    "def get(where):\n"
    "    try: print(where, proxy.open(where, timeout=20).read().decode())\n"
    "    except OSError as e: print(where, getattr(e, 'code', e))\n"
    "get('http://127.0.0.1:%s/hello?x=1' % port)\n"
    "get('http://localhost:%s/hello' % os.environ['CONTROL'])\n"
    "get('http://127.0.0.2:%s/hello' % port)\n"
    "get('http://127.0.0.1:%s/hello' % os.environ['CONTROL'])\n"
    "def tunnel(where):\n"
    "    s = socket.create_connection(('127.0.0.1', 8000), 20)\n"
    "    s.sendall(b'CON'); s.sendall(('NECT %s HTTP/1.1\\r\\n\\r\\n' % where).encode())\n"
    "    f = s.makefile('rb'); status = f.readline().split()[1].decode()\n"
    "    while f.readline().strip(): pass\n"
    "    if status == '200':\n"
    "        s.sendall(b'GET /through HTTP/1.0\\r\\n\\r\\n')\n"
    "        status += ' ' + f.read().decode().split('\\r\\n\\r\\n')[1]\n"
    "    print('tunnel', where, status)\n"
    "tunnel('127.0.0.1:%s' % port); tunnel('127.0.0.1:%s' % os.environ['CONTROL']); tunnel('8.8.8.8:53')\n"
    "def raw(data):\n"
    "    s = socket.create_connection(('127.0.0.1', 8000), 20); s.sendall(data)\n"
    "    print('raw', s.makefile('rb').readline().split()[1].decode())\n"
    "if os.environ.get('OPEN'):\n"
    "    raw(('GET http://127.0.0.1:%s/x HTTP/1.1\\r\\nX: 1\\nHost: other\\r\\n\\r\\n' % port).encode())\n"
    "    raw(('CONNECT 127.0.0.1\\0.example.com:%s HTTP/1.1\\r\\n\\r\\n' % port).encode())\n"
    "body = json.dumps({'model': 'm', 'messages': [{'role': 'user', 'content': 'hi'}]}).encode()\n"
    "r = urllib.request.Request(url + '/v1/chat/completions', body, {'content-type': 'application/json'})\n"
    "print('model', json.load(urllib.request.urlopen(r, timeout=20))['choices'][0]['message']['content'])\n"
    "try: socket.create_connection(('127.0.0.1', int(port)), 2); print('PAST THE PROXY')\n"
    "except OSError as e: print('past', e)\n"
)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    path = head.split()[1]
    writer.write(f"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nyou asked {path}".encode())
    await writer.drain()
    writer.close()


@pytest.mark.parametrize("open_", [True, False])
async def test_the_way_out(provider, open_, tmp_path):
    mirror, control = [await asyncio.start_server(serve, "127.0.0.1", 0) for _ in range(2)]
    port, other = (str(s.sockets[0].getsockname()[1]) for s in [mirror, control])
    task = await asyncio.to_thread(make_task, tmp_path / "task", "harbor")
    log = tmp_path / "egress.jsonl"
    hosts = (f"127.0.0.1:{port}", f"localhost:{other}", f"*.example.com:{port}") if open_ else ()
    async with gateway(tmp_path / "host", [{"text": "hello"}]) as kit, shooting_range(provider, tmp_path) as range_:
        await kit.session("ses_a", egress=Egress(hosts, log))
        env = {"URL": "http://127.0.0.1:8000", "PORT": port, "CONTROL": other, "OPEN": "1" if open_ else ""}
        listener = Gateway(8000, lambda sock: kit.gateway.serve("ses_a", sock))
        box, ended, printed = await range_.attack(task, Attack("ask", "", "", ASK), env, listener, 60.0)
        await box.close()
        calls = await kit.gateway.close("ses_a")
    mirror.close()
    control.close()
    lines = printed.splitlines()
    assert ended.code == 0 if open_ else True, printed
    assert "PAST THE PROXY" not in printed
    if not open_:
        assert "you asked" not in printed
        assert not log.exists()
        return
    assert lines[:4] == [
        f"http://127.0.0.1:{port}/hello?x=1 you asked /hello?x=1", f"http://localhost:{other}/hello 403",
        f"http://127.0.0.2:{port}/hello 403", f"http://127.0.0.1:{other}/hello 403",
    ]  # fmt: skip
    assert lines[4:7] == [f"tunnel 127.0.0.1:{port} 200 you asked /through", f"tunnel 127.0.0.1:{other} 403",
                          "tunnel 8.8.8.8:53 403"]  # fmt: skip
    assert lines.count("raw 403") == 2
    assert "model hello" in lines
    assert calls.turns == 1
    written = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(w["host"], w["port"], w["allowed"]) for w in sorted(written, key=lambda w: w["wall"])] == [
        ("127.0.0.1", int(port), True), ("localhost", int(other), False), ("127.0.0.2", int(port), False),
        ("127.0.0.1", int(other), False), ("127.0.0.1", int(port), True), ("127.0.0.1", int(other), False),
        ("8.8.8.8", 53, False), ("", 0, False), ("", 0, False),
    ]  # fmt: skip
    assert written[1]["why"] == "its address is not a public one"
    assert sum(w["received"] > 0 for w in written) >= 2
