"""Opening and closing sessions for ever costs nothing for ever: memory, descriptors, tables, threads."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from service.control_kit import Control, control
from service.wire_kit import Streaming
from tugline.rollout.options import Ending

SESSIONS = "/api/v1/sessions"
every_mode = pytest.mark.parametrize("mode", ["buffered", "live"])


def rss() -> int:
    """Bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def sizes(c: Control) -> dict[str, int]:
    """Entries of every table that sessions pass through."""
    gateway: Any = c.kit.gateway
    engine: Any = c.kit.engine
    found = {f"gateway.{k}": len(v) for k, v in vars(gateway).items() if hasattr(v, "__len__")}
    found |= {f"secrets.{k}": len(v) for k, v in vars(gateway._secrets).items() if hasattr(v, "__len__")}
    found |= {f"delivery.{k}": len(v) for k, v in vars(gateway._delivery).items() if hasattr(v, "__len__")}
    found |= {f"engine.{k}": len(v) for k, v in vars(engine._state).items() if hasattr(v, "__len__")}
    found |= {f"journal.{k}": len(v) for k, v in vars(engine._journal).items() if hasattr(v, "__len__")}
    sessions = gateway._sessions.values()
    found |= {"serving": sum(len(s.serving) for s in sessions), "sending": sum(len(s.sending) for s in sessions)}
    found |= {"manual.open": c.manual.open_count, "manual.groups": len(c.manual._groups.known)}
    return found


async def stream(c: Control, key: str, text: str) -> None:
    """A streamed call, read to its end; every other client leaves at its first event."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": True}
    headers = {"authorization": f"Bearer {key}"}
    async with c.kit.http.post(c.kit.gateway.url + "/v1/chat/completions", json=body, headers=headers) as answer:
        assert answer.status == 200
        if text.endswith(("1", "3")):
            assert await answer.content.readany()
        else:
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")


async def lives(c: Control, number: int, *, calls: bool, groups: int = 3, streams: bool = False) -> None:
    """Sessions, eight at a time, opened and ended through the service; every one makes a call if asked to."""

    async def one(n: int) -> None:
        made = await c.open(group=f"g{n % groups}" if groups else None)
        if calls and streams:
            await stream(c, made["key"], f"hi {n % 5}")
        elif calls:
            assert (await c.chat(made["key"], text=f"hi {n % 5}"))[0] == 200
        status, _ = await c.ask("POST", f"{SESSIONS}/{made['session']}/end", {"reward": 1.0})
        assert status == 200

    for start in range(0, number, 8):
        await asyncio.gather(*(one(n) for n in range(start, min(number, start + 8))))


async def measure(c: Control, number: int, **how: Any) -> tuple[dict[str, int], dict[str, int]]:
    """(before, after) of `number` sessions."""

    def now() -> dict[str, int]:
        gc.collect()
        return sizes(c) | {
            "rss": rss(),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count(),
            "tasks": len(asyncio.all_tasks()),
        }

    before = now()
    await lives(c, number, **how)
    return before, now()


@every_mode
async def test_sessions_leave_nothing_in_memory(tmp_path: Path, mode: Streaming) -> None:
    streams = mode == "live"
    async with control(tmp_path, [{"settings": {"repeat": True}}, {"text": "hello"}], streaming=mode) as c:
        await lives(c, 64, calls=True, streams=streams)
        before, after = await measure(c, 200, calls=True, groups=3, streams=streams)
        bounded = {"gateway._closed", "secrets._ended"}
        grown = {k: (before.get(k, 0), v) for k, v in after.items() if v > before.get(k, 0) and k not in bounded}
        allowed = {"rss", "descriptors", "threads", "tasks"}
        assert not grown.keys() - allowed, grown
        assert after["descriptors"] <= before["descriptors"] + 16  # connections that the client keeps
        assert after["threads"] <= before["threads"] + 4
        assert after["tasks"] <= before["tasks"] + 16
        # what is in memory afterwards is in the store alone
        assert len(c.kit.store.page(1000)) == 264


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("calls", "mode"), [(False, "buffered"), (True, "buffered"), (True, "live")])
async def test_ten_thousand_sessions(tmp_path: Path, calls: bool, mode: Streaming) -> None:
    number, streams = int(os.environ.get("TUGLINE_TEST_SESSIONS", "10000")), mode == "live"
    async with control(tmp_path, [{"settings": {"repeat": True}}, {"text": "hello"}], streaming=mode) as c:
        await lives(c, 1000, calls=calls, streams=streams)
        before, after = await measure(c, number, calls=calls, groups=0, streams=streams)
        print({k: (before.get(k, 0), v) for k, v in after.items() if v != before.get(k, 0)})
        grown = (after["rss"] - before["rss"]) / number
        assert grown < 2048, f"{grown:.0f} bytes per session"
        assert after["descriptors"] <= before["descriptors"] + 16
        assert after["manual.groups"] <= 4096 and after["manual.open"] == 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_deleted_sessions_give_their_room_back(tmp_path: Path) -> None:
    """A store from which all is deleted stops growing: pages are used again."""
    async with control(tmp_path, [{"settings": {"repeat": True}}, {"text": "hello"}]) as c:

        async def round() -> int:
            for _ in range(200):
                made = await c.open()
                await c.chat(made["key"])
                await c.manual.end(made["session"], Ending(1.0))
                await c.manual.delete(made["session"])
            return (c.kit.run / "run.db").stat().st_size

        first = await round()
        later = [await round() for _ in range(5)]
        assert later[-1] <= first * 1.5, (first, later)
