"""Sandbox suite: files, snapshots, clones."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Limits
from tugline.core.errors import SandboxError
from tugline.core.ident import new_id
from tugline.core.task import Copy, Environment
from tugline.testing.sandbox_bench import WAIT, Bench, expect, tree


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
    await asyncio.to_thread(tree, source)
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
    await asyncio.to_thread(tree, source)
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


async def check_what_root_changes_stays(bench: Bench) -> None:
    box = await bench.start()
    script = "mkdir -p /made-here /opt/made && echo one > /made-here/x && echo two > /opt/made/x"
    end = await box.run(Command(("sh", "-c", script), root=True), Deadline.after(WAIT))
    expect(end.code == 0, f"root inside cannot make directories: {end}")
    expect(await box.read("/made-here/x") == b"one\n", "a top directory made by root is gone after its command")
    expect(await box.read("/opt/made/x") == b"two\n", "a file made by root is gone after its command")
    end, text = await bench.sh(box, "cat /made-here/x /opt/made/x; echo no > /opt/made/x")
    expect(text.split()[:2] == ["one", "two"], f"the agent does not see what root has made: {text}")
    expect(end.code != 0, "the agent can change what root has made")
    clone = await box.clone()
    expect(await clone.read("/opt/made/x") is None, "what root changed outside the work directory is in the clone")
    await clone.close()
    await box.close()


async def check_clone_for_judging(bench: Bench) -> None:
    source = bench.scratch / "clone"
    await asyncio.to_thread(tree, source)
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
