"""What every sandbox provider must do. Run it on your own: `await run_suite(provider, scratch_dir)`.

Each check is an async function that gets a `Bench` and raises AssertionError with what went wrong. The sandboxes need
sh, bash and the usual file tools inside; nothing else.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Exit, Gateway, Limits, Sandbox, SandboxProvider
from tugline.core.errors import SandboxError, describe
from tugline.core.ident import new_id
from tugline.core.task import Copy, Environment

WAIT = 30.0


@dataclass(frozen=True, slots=True)
class Bench:
    """What a check works with. `scratch` is a host directory of its own."""

    provider: SandboxProvider
    scratch: Path

    async def start(self, steps: tuple[Copy | str, ...] = (), limits: Limits | None = None) -> Sandbox:
        """A sandbox with /app as its work directory."""
        digest = new_id("env") if steps else ""
        environment = Environment(image="", workdir="/app", steps=steps, digest=digest)
        return await self.provider.start(environment, new_id("s"), limits or Limits(disk=64 << 20))

    async def sh(
        self, box: Sandbox, script: str, *, deadline: float = WAIT, gateway: Gateway | None = None
    ) -> tuple[Exit, str]:
        """Run a bash script; (how it ended, its output)."""
        log = self.scratch / new_id("log")
        command = Command(("bash", "-c", script), env={"PATH": "/usr/bin:/bin"}, stdout=log, stderr=log)
        end = await box.run(command, Deadline.after(deadline), gateway)
        return end, await asyncio.to_thread(log.read_text, errors="replace")


@dataclass(frozen=True, slots=True)
class Check:
    """One promise. `isolating` = asked only of providers that isolate."""

    run: Callable[[Bench], Awaitable[None]]
    isolating: bool = False

    @property
    def name(self) -> str:
        """The promise in words."""
        return self.run.__name__.removeprefix("check_")


def expect(condition: bool, otherwise: str) -> None:
    """Raise AssertionError in words."""
    if not condition:
        raise AssertionError(otherwise)


async def run_suite(provider: SandboxProvider, scratch: Path) -> list[str]:
    """All checks that apply, one after the other. One line per failure; empty = the provider keeps the contract."""
    failures = []
    for check in CHECKS:
        if check.isolating and not provider.isolating:
            continue
        place = scratch / check.name
        await asyncio.to_thread(place.mkdir, parents=True)
        try:
            await check.run(Bench(provider, place))
        except (AssertionError, SandboxError, TimeoutError) as err:
            failures.append(f"{check.name}: {describe(err)}")
    return failures


# ------------------------------------------------------------------------------------------------- commands


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
    mark = _marked()
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
    mark = _marked()
    box = await bench.start()
    script = f"(setsid nohup bash -c 'exec -a {mark} sleep 1000' &) ; exec -a {mark} sleep 1001"
    task = asyncio.create_task(bench.sh(box, script))
    await _appear(mark, 2)
    task.cancel()
    result = (await asyncio.gather(task, return_exceptions=True))[0]
    expect(isinstance(result, asyncio.CancelledError), f"cancelled, but it ended with {result!r}")
    expect(not await alive(mark), "a process outlived its cancelled command")
    await box.close()


async def check_escaped_child_dies_with_the_command(bench: Bench) -> None:
    mark = _marked()
    box = await bench.start()
    await bench.sh(box, f"setsid nohup bash -c 'exec -a {mark} sleep 1000' >/dev/null 2>&1 & disown; exit 3")
    expect(not await alive(mark), "a detached child outlived its command")
    await box.close()


async def check_output_is_capped_not_blocking(bench: Bench) -> None:
    box = await bench.start()
    log = bench.scratch / "big"
    end = await box.run(Command(("bash", "-c", "head -c 90000000 /dev/zero"), stdout=log), Deadline.after(WAIT))
    size = (await asyncio.to_thread(log.stat)).st_size
    expect(end.code == 0, f"a command with much output ended with {end}")
    expect(size < 80_000_000, f"{size} bytes of output were kept: there is no cap")
    await box.close()


# ---------------------------------------------------------------------------------------------------- files


async def check_write_and_read(bench: Bench) -> None:
    box = await bench.start()
    data = bytes(range(256)) * 1000
    await box.write("/app/a/b c/d'e.bin", data)
    await box.write("/logs/agent/x.sh", b"#!/bin/sh\necho ran\n", 0o755)
    expect(await box.read("/app/a/b c/d'e.bin") == data, "what was written does not come back")
    await box.write("/app/a/b c/d'e.bin", b"")
    expect(await box.read("/app/a/b c/d'e.bin") == b"", "a file cannot be replaced by an empty one")
    end, text = await bench.sh(box, "ls 'a/b c'")
    expect(end.code == 0 and "d'e.bin" in text, "commands do not see written files in the work directory")
    await box.close()


async def check_read_of_absent_huge_and_odd(bench: Bench) -> None:
    box = await bench.start()
    await bench.sh(box, "mkfifo pipe; mkdir dir; ln -s nowhere dangling; head -c 2000000 /dev/zero > big; : > locked")
    for path in ("/app/none", "/app/dir/none", "/app/dangling", "/app/big/none"):
        expect(await box.read(path) is None, f"{path} is absent, but something was read")
    for path, limit in (("/app/big", 1 << 20), ("/app/pipe", 10), ("/app/dir", 10)):
        try:
            async with asyncio.timeout(WAIT):
                await box.read(path, limit)
        except SandboxError:
            continue
        raise AssertionError(f"reading {path} (a huge file, a pipe or a directory) did not raise SandboxError")
    expect(len(await box.read("/app/big", 2_000_000) or b"") == 2_000_000, "a file of exactly the limit is refused")
    await box.close()


async def check_links_never_lead_to_the_host(bench: Bench) -> None:
    box = await bench.start()
    secret = bench.scratch / "secret"
    await asyncio.to_thread(secret.write_text, "host secret")
    await bench.sh(box, f"ln -s {secret} link; ln -s {bench.scratch} dir; ln -s /proc/self/root/{secret} magic")
    for path in ("/app/link", "/app/dir/secret", "/app/magic"):
        try:
            data = await box.read(path)
        except SandboxError:
            data = None
        expect(data is None, f"{path}, a link planted inside, showed a file of the host")
    try:
        await box.write("/app/dir/planted", b"x")
        await box.write("/app/link", b"mine")
    except SandboxError:
        pass
    planted = await asyncio.to_thread((bench.scratch / "planted").exists)
    expect(not planted, "a write followed a planted link to the host")
    expect(await asyncio.to_thread(secret.read_text) == "host secret", "a write through a link changed a host file")
    await box.close()


async def check_upload(bench: Bench) -> None:
    source = bench.scratch / "up"
    await asyncio.to_thread(_tree, source)
    box = await bench.start()
    await box.upload(source, "/tests")
    expect(await box.read("/tests/sub/deep/x.txt") == b"deep", "a nested file is missing")
    expect(await box.read("/tests/link") == b"deep", "a relative link inside the upload is broken")
    path = "/tests/run.sh" if box.isolated else f"{Path(box.workdir).parent}/tests/run.sh"
    end, text = await bench.sh(box, path)
    expect(end.code == 0 and text == "ran\n", f"an uploaded script lost its mode: {end} {text}")
    await box.close()


async def check_prepared_snapshot_is_copied_on_write(bench: Bench) -> None:
    source = bench.scratch / "snap"
    await asyncio.to_thread(_tree, source)
    environment = Environment("", "/app", steps=(Copy(source, "/app/"),), digest=new_id("env"))
    limits = Limits(disk=64 << 20)
    boxes = await asyncio.gather(*(bench.provider.start(environment, f"c{i}", limits) for i in range(4)))
    for index, box in enumerate(boxes):
        end, text = await bench.sh(box, f"test -f run.sh && echo {index} > sub/deep/x.txt && rm run.sh && ls")
        expect(end.code == 0 and "sub" in text, f"the snapshot is not there or not writable: {text}")
    for index, box in enumerate(boxes):
        expect(await box.read("/app/sub/deep/x.txt") == f"{index}\n".encode(), "sandboxes share what they wrote")
        await box.close()
    late = await bench.provider.start(environment, "late", limits)
    expect(await late.read("/app/sub/deep/x.txt") == b"deep", "a session changed the snapshot itself")
    await late.close()


async def check_clone_for_judging(bench: Bench) -> None:
    source = bench.scratch / "clone"
    await asyncio.to_thread(_tree, source)
    box = await bench.start((Copy(source, "/app/"),))
    await bench.sh(
        box, 'echo made > new; rm run.sh; rm -r sub; mkdir sub; echo bad > "$HOME/.bashrc"; echo l > /tmp/left'
    )
    await box.write("/logs/verifier/reward.txt", b"1")
    await box.write("/home/agent/.profile", b"bad")
    clone = await box.clone()
    expect(await clone.read("/app/new") == b"made\n", "what the agent made is missing in the clone")
    expect(await clone.read("/app/run.sh") is None, "what the agent deleted is back in the clone")
    expect(await clone.read("/app/sub/deep/x.txt") is None, "a directory made anew shows its old content")
    for path in ("/logs/verifier/reward.txt", "/home/agent/.profile"):
        expect(await clone.read(path) is None, f"{path}, written by the agent, is in the clone")
    await clone.write("/app/new", b"judge")
    expect(await box.read("/app/new") == b"made\n", "judging changes the agent's sandbox")
    await box.write("/app/new", b"agent")
    expect(await clone.read("/app/new") == b"judge", "the agent's sandbox changes what is judged")
    await box.close()
    expect(await clone.read("/app/new") == b"judge", "the clone dies with the original")
    again = await clone.clone()
    expect(await again.read("/app/new") == b"judge", "a clone cannot be cloned")
    await clone.close()
    await again.close()


# ------------------------------------------------------------------------------------------ limits, isolation


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
    outside = await asyncio.start_server(_greet("host"), "127.0.0.1", 0)
    port = outside.sockets[0].getsockname()[1]
    targets = [f"127.0.0.1/{port}", "1.1.1.1/53", "8.8.8.8/443", "169.254.169.254/80", "10.0.0.1/80"]
    script = "".join(f"(timeout 3 bash -c 'exec 3<>/dev/tcp/{t}') 2>&1 && echo REACHED {t}\n" for t in targets)
    script += "timeout 3 getent hosts example.com && echo REACHED dns\n" + _talk(8111)
    gateway = Gateway(8111, _server("gateway"))
    _, text = await bench.sh(box, script, gateway=gateway)
    outside.close()
    await outside.wait_closed()
    expect("REACHED" not in text, f"reachable from inside: {text}")
    expect("gateway" in text.splitlines(), f"the gateway was not reached: {text}")
    _, text = await bench.sh(box, _talk(8111))
    expect("gateway" not in text.splitlines(), "a command without a gateway reached one")
    await box.close()


async def check_same_port_is_never_confused(bench: Bench) -> None:
    async def one(index: int) -> None:
        box = await bench.start()
        served: list[int] = []
        gateway = Gateway(8222, _server(f"session-{index}", served))
        _, text = await bench.sh(box, "".join(_talk(8222) for _ in range(5)), gateway=gateway)
        expect(text.split() == [f"session-{index}"] * 5, f"sandbox {index} heard {text!r}")
        expect(len(served) == 5, f"listener {index} saw {len(served)} of 5 connections")
        await box.close()

    await asyncio.gather(*(one(i) for i in range(8)))


async def check_gateway_is_closed_after_the_run(bench: Bench) -> None:
    box = await bench.start()
    closed = []

    async def serve(listener: socket.socket) -> Callable[[], Awaitable[None]]:
        async def close() -> None:
            listener.close()
            closed.append(1)

        return close

    await bench.sh(box, "true", gateway=Gateway(8000, serve))
    await bench.sh(box, "sleep 100", gateway=Gateway(8000, serve), deadline=0.3)
    expect(len(closed) == 2, f"the gateway's closer was called {len(closed)} times for 2 commands")

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


# ------------------------------------------------------------------------------------------------- life cycle


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
    mark = _marked()
    task = asyncio.create_task(bench.sh(box, f"exec -a {mark} sleep 1000"))
    await _appear(mark, 1)
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


def _marked() -> str:
    return "tugmark" + new_id("m")[2:]


async def _appear(mark: str, count: int) -> None:
    async with asyncio.timeout(WAIT):
        while len(await alive(mark)) < count:  # noqa: ASYNC110 - another process's start has no event here
            await asyncio.sleep(0.02)


async def alive(mark: str) -> list[int]:
    """Host pids of processes whose command line starts with `mark`."""

    def look() -> list[int]:
        out = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    line = Path(f"/proc/{entry}/cmdline").read_bytes()
                except OSError:
                    continue
                if line.startswith(mark.encode()):
                    out.append(int(entry))
        return out

    return await asyncio.to_thread(look)


def _tree(path: Path) -> None:
    (path / "sub/deep").mkdir(parents=True)
    (path / "sub/deep/x.txt").write_text("deep")
    (path / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (path / "run.sh").chmod(0o755)
    (path / "link").symlink_to("sub/deep/x.txt")


def _talk(port: int) -> str:
    return f"exec 5<>/dev/tcp/127.0.0.1/{port} && cat <&5; exec 5>&-\n"


def _greet(
    text: str, seen: list[int] | None = None
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if seen is not None:
            seen.append(1)
        writer.write(f"{text}\n".encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    return greet


def _server(
    text: str, seen: list[int] | None = None
) -> Callable[[socket.socket], Awaitable[Callable[[], Awaitable[None]]]]:
    async def serve(listener: socket.socket) -> Callable[[], Awaitable[None]]:
        server = await asyncio.start_server(_greet(text, seen), sock=listener)

        async def close() -> None:
            server.close()
            await server.wait_closed()

        return close

    return serve


CHECKS: tuple[Check, ...] = (
    Check(check_exit_codes),
    Check(check_stdin_and_outputs),
    Check(check_environment_is_clean),
    Check(check_secrets_of_other_processes_are_hidden, isolating=True),
    Check(check_background_child_does_not_hold_the_run),
    Check(check_deadline_kills_everything),
    Check(check_cancellation_kills_everything),
    Check(check_escaped_child_dies_with_the_command),
    Check(check_output_is_capped_not_blocking),
    Check(check_write_and_read),
    Check(check_read_of_absent_huge_and_odd),
    Check(check_links_never_lead_to_the_host),
    Check(check_upload),
    Check(check_prepared_snapshot_is_copied_on_write),
    Check(check_clone_for_judging),
    Check(check_disk_limit, isolating=True),
    Check(check_memory_limit, isolating=True),
    Check(check_process_limit, isolating=True),
    Check(check_host_is_out_of_reach, isolating=True),
    Check(check_only_the_gateway_is_reachable, isolating=True),
    Check(check_same_port_is_never_confused, isolating=True),
    Check(check_gateway_is_closed_after_the_run, isolating=True),
    Check(check_eight_at_once),
    Check(check_large_arguments),
    Check(check_close),
)
