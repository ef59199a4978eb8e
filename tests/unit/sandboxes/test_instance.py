"""Providers' directories: found and removed whatever moment their owner died in, never while it lives."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

import msgspec

from tugline.sandboxes import instance
from tugline.sandboxes.client import LOCK, start_warden


def dead_pid():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_an_instance_is_made_signed_and_discarded(tmp_path):
    made = instance.create(tmp_path, "run", staged=True)
    assert Path(made.stage).is_dir() and os.stat(made.stage).st_mode & 0o777 == 0o711
    assert instance.reap(tmp_path) == 0, "a living owner's was removed"
    instance.discard(made)
    assert list(tmp_path.iterdir()) == [] and not os.path.exists(made.stage)


def test_one_that_was_not_signed_yet_is_found_by_its_name(tmp_path):
    me = os.getpid()
    mine = tmp_path / f".new-{me}-{instance.start_time(me)}-box_1"
    other = tmp_path / f".new-{dead_pid()}-12345-box_2"
    for path in (mine, other):
        (path / "snapshots").mkdir(parents=True)
    assert instance.reap(tmp_path) == 1
    assert mine.exists() and not other.exists()


def test_a_mount_point_that_was_noted_but_not_made_is_no_obstacle(tmp_path):
    made = instance.create(tmp_path, "run", staged=True)
    os.rmdir(made.stage)
    instance.note(made, instance.Owner(dead_pid(), 1, "run", made.stage, boot=instance.boot_id()))
    assert instance.reap(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_names_that_are_none_of_ours_are_no_obstacle(tmp_path):
    names = (".new-", ".new-x-1-box", ".new-1", ".new--1-2-box", ".new-\u0661-1-box", ".new-%d-5-box_3" % dead_pid())
    for name in names:
        (tmp_path / name).mkdir()
    assert instance.reap(tmp_path) == 1
    assert {p.name for p in tmp_path.iterdir()} == set(names[:-1])


def test_a_directory_from_elsewhere_is_removed_and_what_it_says_is_not_done(tmp_path):
    """Somebody else's run, unpacked here: its words would kill, unmount and start programs."""
    stage = tmp_path / "stage"
    stage.mkdir()
    shutil.copy("/bin/sleep", stage / "sleep")
    running = subprocess.Popen([str(stage / "sleep"), "100"])
    while not Path(f"/proc/{running.pid}/cmdline").read_bytes().startswith(str(stage).encode()):
        time.sleep(0.01)
    me, precious = os.getpid(), tmp_path / "precious"
    precious.mkdir()
    program = tmp_path / "podman"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/done\n")
    program.chmod(0o755)
    for boot in ("", "00000000-0000-0000-0000-000000000000"):
        made = instance.create(tmp_path / "state" / boot, "run", staged=False)
        engine = instance.EngineOf((str(program),), {"PATH": str(tmp_path)})
        owner = instance.Owner(
            me, instance.start_time(me), "run", str(stage), running.pid, instance.start_time(running.pid),
            (str(precious),), engine, boot,
        )  # fmt: skip
        instance.note(made, owner)
        assert instance.reap(tmp_path / "state" / boot) == 1
        assert not made.path.exists()
    assert running.poll() is None
    assert precious.exists() and stage.exists() and not (tmp_path / "done").exists()
    running.kill()
    running.wait()


def test_programs_of_a_stage_are_ended_and_others_are_not(tmp_path):
    stage = tmp_path / "stage"
    stage.mkdir()
    shutil.copy("/bin/sleep", stage / "sleep")
    ours = subprocess.Popen([str(stage / "sleep"), "100"])
    other = subprocess.Popen(["sleep", "100"])
    while not Path(f"/proc/{ours.pid}/cmdline").read_bytes().startswith(str(stage).encode()):
        time.sleep(0.01)  # until it has become that program
    instance.end_programs_of(str(stage))
    assert ours.wait(10) == -9 and other.poll() is None
    other.kill()
    other.wait()


def test_a_warden_that_nobody_signed_is_waited_for(tmp_path):
    made = instance.create(tmp_path, "run", staged=False)
    instance.note(made, instance.Owner(dead_pid(), 1, "run", boot=instance.boot_id()))
    held = f"exec 9>{made.path / LOCK}; flock -s 9; echo there; sleep 0.5; touch {tmp_path / 'late'}"
    with subprocess.Popen(["bash", "-c", held], stdout=subprocess.PIPE) as warden:
        assert warden.stdout is not None and warden.stdout.readline() == b"there\n"
        assert instance.reap(tmp_path) == 1
        assert (tmp_path / "late").exists(), "removed while the warden was still at work"


async def test_a_warden_whose_service_died_without_reading_its_replies_ends_in_good_order(tmp_path):
    warden = await start_warden({"mode": "plain", "label": f"test{os.getpid()}"}, tmp_path / "log")
    asyncio.get_running_loop().remove_reader(warden.control.fileno())
    for number in range(1, 50):
        message = {"id": number, "op": "drop", "name": "none"}
        warden.control.send(msgspec.json.encode(message))
    async with asyncio.timeout(10):
        while not select.select([warden.control], [], [], 0)[0]:
            await asyncio.sleep(0.01)
    warden.control.close()
    assert await asyncio.to_thread(warden.process.wait, 20) == 0
    assert (tmp_path / "log").read_text() == ""
