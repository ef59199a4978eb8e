"""Sandbox suite: commands, their ends, their life."""

from __future__ import annotations

import asyncio
import os

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Limits
from tugline.core.errors import SandboxError
from tugline.core.ident import new_id
from tugline.core.task import Environment
from tugline.testing.sandbox_bench import WAIT, Bench, alive, appear, expect, marked


async def check_exit_codes(bench: Bench) -> None:
    box = await bench.start()
    for code in (0, 1, 42):
        end, _ = await bench.sh(box, f"exit {code}")
        expect(end.code == code and not end.timed_out, f"exit {code} was reported as {end}")
    end, _ = await bench.sh(box, "kill -9 $$")
    expect(end.code in (-9, 137), f"death by signal 9 was reported as {end.code}")
    end = await box.run(Command(("no-such-program-here",)), Deadline.after(WAIT))
    expect(end.code == 127, f"an unknown program was reported as {end.code}, not 127")
    await box.close()


async def check_stdin_and_outputs(bench: Bench) -> None:
    box = await bench.start()
    out, err = bench.scratch / "out", bench.scratch / "err"
    data = bytes(range(256)) * 4096
    command = Command(("bash", "-c", "cat; echo oops >&2"), stdin=data, stdout=out, stderr=err)
    end = await box.run(command, Deadline.after(WAIT))
    expect(end.code == 0, f"cat ended with {end.code}")
    expect(await asyncio.to_thread(out.read_bytes) == data, "1 MB through stdin and stdout came back changed")
    expect(await asyncio.to_thread(err.read_bytes) == b"oops\n", "stderr is not what was written to it")
    end = await box.run(Command(("cat",)), Deadline.after(WAIT))
    expect(end.code == 0, "without stdin a command must see its end at once")
    await box.close()


async def check_environment_is_clean(bench: Bench) -> None:
    name = "TUGLINE_SUITE_SECRET_KEY"
    os.environ[name] = "host-secret"
    try:
        box = await bench.start()
        command = Command(
            ("bash", "-c", "env; cat /proc/self/environ"), env={"GIVEN": "yes"}, stdout=bench.scratch / "o"
        )
        await box.run(command, Deadline.after(WAIT))
        text = await asyncio.to_thread((bench.scratch / "o").read_text)
    finally:
        del os.environ[name]
    expect("host-secret" not in text, "the host's environment is visible inside")
    expect("GIVEN=yes" in text.splitlines(), "a given variable is missing")
    await box.close()


async def check_secrets_of_other_processes_are_hidden(bench: Bench) -> None:
    box = await bench.start()
    marker = new_id("sec")
    one = bench.provider.start(Environment(image="", workdir="/app"), "other", Limits(disk=1 << 20))
    other = await one
    sleeper = asyncio.create_task(
        other.run(Command(("sleep", "60"), env={"OPENAI_API_KEY": marker}), Deadline.after(WAIT))
    )
    _, text = await bench.sh(box, "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>&1 | tr '\\0' '\\n'")
    sleeper.cancel()
    await asyncio.gather(sleeper, return_exceptions=True)
    expect(marker not in text, "a process of another sandbox shows its key")
    await other.close()
    await box.close()


async def check_background_child_does_not_hold_the_run(bench: Bench) -> None:
    box = await bench.start()
    end, text = await bench.sh(box, "sleep 1000000 & echo up", deadline=20)
    expect(end.code == 0 and not end.timed_out, f"a background child held the command: {end}")
    expect("up" in text, "output is missing")
    await box.close()


async def check_deadline_kills_everything(bench: Bench) -> None:
    mark = marked()
    box = await bench.start()
    script = f"(setsid nohup bash -c 'exec -a {mark} sleep 1000' &) ; trap '' TERM INT HUP; exec -a {mark} sleep 1001"
    end, _ = await bench.sh(box, script, deadline=0.7)
    expect(end.timed_out, f"the deadline passed but the end is {end}")
    expect(end.seconds < 15, f"it took {end.seconds:.1f} s to end a command with a deadline of 0.7 s")
    expect(not await alive(mark), "a process outlived the deadline")
    end, _ = await bench.sh(box, "true")
    expect(end.code == 0, "the sandbox cannot be used after a deadline")
    await box.close()


async def check_cancellation_kills_everything(bench: Bench) -> None:
    mark = marked()
    box = await bench.start()
    script = f"(setsid nohup bash -c 'exec -a {mark} sleep 1000' &) ; exec -a {mark} sleep 1001"
    task = asyncio.create_task(bench.sh(box, script))
    await appear(mark, 2)
    task.cancel()
    result = (await asyncio.gather(task, return_exceptions=True))[0]
    expect(isinstance(result, asyncio.CancelledError), f"cancelled, but it ended with {result!r}")
    expect(not await alive(mark), "a process outlived its cancelled command")
    await box.close()


async def check_escaped_child_dies_with_the_command(bench: Bench) -> None:
    mark = marked()
    box = await bench.start()
    await bench.sh(box, f"setsid nohup bash -c 'exec -a {mark} sleep 1000' >/dev/null 2>&1 & disown; exit 3")
    expect(not await alive(mark), "a detached child outlived its command")
    await box.close()


async def check_output_arrives_while_the_command_runs(bench: Bench) -> None:
    box = await bench.start()
    log = bench.scratch / "live"
    command = Command(("bash", "-c", "echo first; exec sleep 100"), stdout=log)
    task = asyncio.create_task(box.run(command, Deadline.after(WAIT)))
    async with asyncio.timeout(WAIT):
        while not await asyncio.to_thread(log.exists) or not await asyncio.to_thread(log.read_bytes):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    expect(not task.done(), "the command ended before its time")
    task.cancel()
    await asyncio.wait([task])
    await box.close()


async def check_output_is_capped_not_blocking(bench: Bench) -> None:
    box = await bench.start()
    log = bench.scratch / "big"
    end = await box.run(Command(("bash", "-c", "head -c 90000000 /dev/zero"), stdout=log), Deadline.after(WAIT))
    size = (await asyncio.to_thread(log.stat)).st_size
    expect(end.code == 0, f"a command with much output ended with {end}")
    expect(size < 80_000_000, f"{size} bytes of output were kept: there is no cap")
    await box.close()


async def check_eight_at_once(bench: Bench) -> None:
    async def one(index: int) -> str:
        box = await bench.start()
        _, text = await bench.sh(box, f"echo {index} > me; sleep 0.1; cat me")
        await box.close()
        return text.strip()

    found = await asyncio.gather(*(one(i) for i in range(8)))
    expect(found == [str(i) for i in range(8)], f"eight sandboxes at once answered {found}")


async def check_large_arguments(bench: Bench) -> None:
    box = await bench.start()
    text = "ä'\"$`\\ \n" * 10_000
    command = Command(("printf", "%s", text), stdout=bench.scratch / "o")
    end = await box.run(command, Deadline.after(WAIT))
    expect(end.code == 0, f"a 90 kB argument ended with {end.code}")
    expect(await asyncio.to_thread((bench.scratch / "o").read_text) == text, "an argument was changed on its way")
    await box.close()


async def check_close(bench: Bench) -> None:
    box = await bench.start()
    mark = marked()
    task = asyncio.create_task(bench.sh(box, f"exec -a {mark} sleep 1000"))
    await appear(mark, 1)
    await box.close()
    await box.close()
    await asyncio.wait([task], timeout=WAIT)
    expect(task.done(), "a command goes on although its sandbox is closed")
    task.exception()
    expect(not await alive(mark), "a process outlived its sandbox")
    try:
        await bench.sh(box, "true")
    except SandboxError:
        return
    raise AssertionError("a closed sandbox ran a command")
