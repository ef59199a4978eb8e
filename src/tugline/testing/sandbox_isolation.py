"""Sandbox suite: limits, network, the host."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Gateway, Limits
from tugline.core.errors import SandboxError
from tugline.testing.sandbox_bench import WAIT, Bench, expect, greet, server, talk


async def check_disk_limit(bench: Bench) -> None:
    box = await bench.start(limits=Limits(disk=8 << 20))
    for place in ("/app", "/tmp", "/home/agent", "/dev/shm"):
        end, text = await bench.sh(box, f"head -c 20000000 /dev/zero > {place}/big; echo $?; rm -f {place}/big")
        expect("No space left" in text, f"20 MB fit on {place} of a sandbox with 8 MB: {end} {text}")
    await box.close()


async def check_memory_limit(bench: Bench) -> None:
    box = await bench.start(limits=Limits(memory=64 << 20, disk=8 << 20))
    end, _ = await bench.sh(box, "x=$(head -c 300000000 /dev/zero | tr '\\0' x); echo ${#x}")
    expect(end.code != 0, "a process used five times the memory limit")
    await box.close()


async def check_out_of_memory_is_told_from_other_ends(bench: Bench) -> None:
    box = await bench.start(limits=Limits(memory=64 << 20, disk=8 << 20))
    end, _ = await bench.sh(box, "x=$(head -c 300000000 /dev/zero | tr '\\0' x)")
    if end.code in (-9, 137):  # else the process was refused the memory and ended by itself
        expect(end.oom, f"a process was killed for its memory, and the end says {end}")
    end, _ = await bench.sh(box, "kill -9 $$")
    expect(not end.oom, f"a process that killed itself is said to have run out of memory: {end}")
    await box.close()


async def check_process_limit(bench: Bench) -> None:
    box = await bench.start(limits=Limits(pids=24, disk=8 << 20))
    log = bench.scratch / "log"
    script = "n=0; while [ $n -lt 60 ]; do sleep 20 & n=$((n+1)); echo $n; done"  # sh gives up at once, bash waits
    await box.run(Command(("sh", "-c", script), stdout=log), Deadline.after(WAIT))
    made = len((await asyncio.to_thread(log.read_text)).split())
    expect(0 < made < 30, f"{made} processes under a limit of 24")
    await box.close()


async def check_host_is_out_of_reach(bench: Bench) -> None:
    box = await bench.start()
    probes = {
        "touch /usr/x": "wrote to /usr", "touch /etc/x": "wrote to /etc", "ls /root/.": "listed /root of the host",
        "echo core > /proc/sys/kernel/core_pattern": "changed a kernel setting", "unshare -Ur true": "made a namespace",
        f"cat {bench.scratch}/*": "read the run directory", "cat /etc/shadow": "read /etc/shadow",
        "mount -t tmpfs x /tmp": "mounted",
    }  # fmt: skip
    for script, deed in probes.items():
        end, text = await bench.sh(box, script)
        empty = script.startswith("ls") and not text.strip()
        expect(end.code != 0 or empty, f"a program inside {deed}")
    _, text = await bench.sh(box, "grep -h CapEff /proc/self/status; ls -l /proc/self/fd; ls /proc | grep -c '^[0-9]'")
    expect("CapEff:\t0000000000000000" in text, f"capabilities inside: {text}")
    expect(str(bench.scratch) not in text.replace("/log_", ""), f"host files are open inside: {text}")
    await box.close()


async def check_only_the_gateway_is_reachable(bench: Bench) -> None:
    box = await bench.start()
    outside = await asyncio.start_server(greet("host"), "127.0.0.1", 0)
    port = outside.sockets[0].getsockname()[1]
    targets = [f"127.0.0.1/{port}", "1.1.1.1/53", "8.8.8.8/443", "169.254.169.254/80", "10.0.0.1/80"]
    script = "".join(f"(timeout 3 bash -c 'exec 3<>/dev/tcp/{t}') 2>&1 && echo REACHED {t}\n" for t in targets)
    script += "timeout 3 getent hosts example.com && echo REACHED dns\n" + talk(8111)
    gateway = Gateway(8111, server("gateway"))
    _, text = await bench.sh(box, script, gateway=gateway)
    outside.close()
    await outside.wait_closed()
    expect("REACHED" not in text, f"reachable from inside: {text}")
    expect("gateway" in text.splitlines(), f"the gateway was not reached: {text}")
    _, text = await bench.sh(box, talk(8111))
    expect("gateway" not in text.splitlines(), "a command without a gateway reached one")
    await box.close()


async def check_same_port_is_never_confused(bench: Bench) -> None:
    async def one(index: int) -> None:
        box = await bench.start()
        served: list[int] = []
        gateway = Gateway(8222, server(f"session-{index}", served))
        _, text = await bench.sh(box, "".join(talk(8222) for _ in range(5)), gateway=gateway)
        expect(text.split() == [f"session-{index}"] * 5, f"sandbox {index} heard {text!r}")
        expect(len(served) == 5, f"listener {index} saw {len(served)} of 5 connections")
        await box.close()

    await asyncio.gather(*(one(i) for i in range(8)))


async def check_gateway_is_closed_after_the_run(bench: Bench) -> None:
    box = await bench.start()
    opened, closed = [], []

    async def serve(listener: socket.socket) -> Callable[[], Awaitable[None]]:
        opened.append(1)

        async def close() -> None:
            listener.close()
            closed.append(1)

        return close

    await bench.sh(box, "true", gateway=Gateway(8000, serve))
    expect(len(opened) == len(closed) == 1, f"the closer was called {len(closed)} times for {len(opened)} gateways")
    await bench.sh(box, "sleep 100", gateway=Gateway(8000, serve), deadline=0.3)  # may pass before there is a gateway
    expect(len(opened) == len(closed), f"the closer was called {len(closed)} times for {len(opened)} gateways")

    async def broken(listener: socket.socket) -> Callable[[], Awaitable[None]]:
        listener.close()
        raise SandboxError("no gateway today")

    try:
        await bench.sh(box, "touch /app/ran", gateway=Gateway(8000, broken))
    except SandboxError:
        expect(await box.read("/app/ran") is None, "the command ran although its gateway failed")
    else:
        raise AssertionError("a failing gateway went unnoticed")
    await box.close()
