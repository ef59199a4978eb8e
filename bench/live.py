"""What a live stream costs: CPU of the gateway per streamed call, beside a buffered one. Linux, two cores.

    python bench/live.py [ROUNDS] [CALLS]

Two gateways on one core, asked in turns, so that what the machine does otherwise hits both. The engine is the
benchmark's: it costs nothing and hands out 8 tokens at a time. Every call is a session's first, of about 300 tokens.
"""

from __future__ import annotations

import socket
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tugline.testing.bench_gateway import _Opened
from tugline.testing.bench_proc import child, cpu_seconds, two_cores
from tugline.testing.bench_talk import PATH, Talk


def stream(sock: socket.socket, key: str, body: bytes) -> int:
    """One streamed call; bytes of its reply."""
    head = f"POST {PATH} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    sock.sendall(head.encode() + body)
    got = b""
    while not got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
        data = sock.recv(1 << 20)
        assert data, got[-300:]
        got += data
    return len(got)


def main(rounds: int, calls: int) -> None:
    """Print milliseconds per call and the ratio of both, per round and in all."""
    cores = two_cores()
    modes = ("buffered", "live")
    took: dict[str, list[float]] = {mode: [] for mode in modes}
    size: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        servers = {}
        for mode in modes:
            run = str(Path(scratch) / mode)
            servers[mode] = stack.enter_context(child("bench_server", run, mode, core=cores[0] if cores else None))
        for n in range(-1, rounds):  # the first is for warming up
            for mode in modes if n % 2 else modes[::-1]:
                names = [f"{n}.{i}" for i in range(calls)]
                opened = servers[mode].ask({"do": "open", "names": names}, _Opened)
                bodies = [(opened.keys[name], Talk(name).body()[:-1] + b',"stream":true}') for name in names]
                with socket.create_connection(("127.0.0.1", opened.port)) as sock:
                    before = cpu_seconds(servers[mode].pid)
                    size[mode] = sum(stream(sock, key, body) for key, body in bodies) // calls
                    if n >= 0:
                        took[mode].append((cpu_seconds(servers[mode].pid) - before) / calls * 1000)
    ratios = [b / a for a, b in zip(took["buffered"], took["live"], strict=True)]
    for mode in modes:
        print(f"{mode}: {statistics.median(took[mode]):.2f} ms CPU per call, {size[mode]} bytes of stream")
    print(f"ratio: {statistics.median(ratios):.2f} (rounds {min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main(*(int(word) for word in (sys.argv[1:] + ["7", "60"][len(sys.argv) - 1 :])))
