"""Command lines of container engines, the script that a container starts with, podman's system call profile."""

from __future__ import annotations

import itertools
import subprocess

import msgspec
import pytest

from tugline.core.errors import ConfigError
from tugline.sandboxes import profile, runtimes
from tugline.sandboxes.advice import advice
from tugline.sandboxes.runtimes import Bind, Runtime, Shape, entry_script, find, run_args

PODMAN, DOCKER = Runtime("podman", ("podman",), {}), Runtime("docker", ("docker",), {})
SHAPE = Shape("n", "box_1", "/stage/b1.root", "1000", 64 << 20, 32, 0.5, (Bind("/stage/io", "/run/tugline"),))


def pairs(args):
    return list(itertools.pairwise(args))


@pytest.mark.parametrize("runtime", [PODMAN, DOCKER], ids=lambda r: r.kind)
@pytest.mark.parametrize("user", ["0", "1000"])
def test_no_container_has_a_network_capabilities_or_no_limits(runtime, user):
    shape = Shape("n", "l", "/r", user, 64 << 20, 32, 0.5, image="i", tops=("/usr",))
    args = run_args(runtime, shape)
    for pair in (
        ("--network", "none"), ("--cap-drop", "ALL"), ("--security-opt", "no-new-privileges"), ("--pids-limit", "32"),
        ("--memory", str(64 << 20)), ("--memory-swap", str(64 << 20)), ("--cpus", "0.5"), ("--log-driver", "none"),
        ("--user", f"{user}:{user}"), ("--label", "tugline=l"),
    ):  # fmt: skip
        assert pair in pairs(args), pair
    added = [value for flag, value in pairs(args) if flag == "--cap-add"]
    assert added == (list(runtimes.BUILD_CAPS) if user == "0" else [])
    assert not {"NET_RAW", "NET_ADMIN", "SYS_ADMIN", "SYS_PTRACE", "MKNOD", "SYS_CHROOT"} & set(added)
    assert ("--read-only" in args) == (user == "1000")
    assert "--privileged" not in args


def test_podman_gets_the_tree_and_docker_its_top_directories():
    assert run_args(PODMAN, SHAPE)[-5:-3] == ["--rootfs", "/stage/b1.root"]
    shape = Shape(
        "n", "l", "/r", "1000", 1, 1, None, (Bind("/r/app", "/app", True),), image="skeleton", tops=("/usr", "/app")
    )
    args = run_args(DOCKER, shape)
    assert [value for flag, value in pairs(args) if flag == "--volume"] == ["/r/usr:/usr:ro", "/r/app:/app:rw"]
    assert args[-4] == "skeleton"


def test_the_command_gets_exactly_its_words_and_its_environment(tmp_path):
    words = ["printf", "%s|", "it's", "two words", "$HOME", "`id`", "new\nline", "", "a=b", "-n", "ä"]
    script = entry_script(words, {"X": "a 'b' $c", "PATH": "/usr/bin:/bin"}, str(tmp_path))
    (tmp_path / "entry").write_bytes(script)
    done = subprocess.run(["sh", "-c", f". {tmp_path}/entry"], env={"SECRET": "s"}, capture_output=True, text=True)
    assert done.stdout == "|".join(words[2:]) + "|" and done.returncode == 0
    (tmp_path / "entry").write_bytes(entry_script(["env"], {"X": "a 'b' $c", "PATH": "/usr/bin:/bin"}, "/"))
    done = subprocess.run(["sh", "-c", f". {tmp_path}/entry"], env={"SECRET": "s"}, capture_output=True, text=True)
    assert "X=a 'b' $c" in done.stdout.splitlines() and "SECRET" not in done.stdout
    (tmp_path / "entry").write_bytes(entry_script(["no-such-program"], {"PATH": "/bin"}, "/"))
    assert subprocess.run(["sh", "-c", f". {tmp_path}/entry"], capture_output=True).returncode == 127


def test_the_first_engine_there_is_is_taken(tmp_path):
    environ = {"PATH": str(tmp_path), "DOCKER_HOST": "unix:///x", "SECRET_KEY": "s", "CONTAINER_NAME": "mine"}
    with pytest.raises(ConfigError, match="no podman or docker program"):
        find("auto", environ)
    with pytest.raises(ConfigError, match="unknown container engine"):
        find("rkt", environ)
    (tmp_path / "docker").write_text("#!/bin/sh\n")
    (tmp_path / "docker").chmod(0o755)
    found = find("auto", environ)
    assert found.kind == "docker" and found.argv == (str(tmp_path / "docker"),)
    assert found.env == {"PATH": str(tmp_path), "HOME": "/root", "DOCKER_HOST": "unix:///x"}
    (tmp_path / "podman").symlink_to(tmp_path / "docker")
    assert find("auto", environ).kind == "podman"
    assert find("docker", environ).kind == "docker"


def test_a_root_file_system_is_shown_by_its_top_entries(tmp_path):
    for name in ("usr", "proc", "dev", "sys", "etc"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "mark").write_text("x")
    (tmp_path / ".dockerenv").write_text("")
    assert runtimes.tops_of(tmp_path) == (("/etc", "/mark", "/usr"), (("bin", "usr/bin"),))


def test_the_profile_refuses_what_podman_allows():
    rules = [
        {"names": ["read", "unshare", "clone", "keyctl", "socket"], "action": "SCMP_ACT_ALLOW", "args": []},
        {"names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
    ]
    made = msgspec.json.decode(
        profile.stricter(msgspec.json.encode({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": rules}))
    )
    allowed = [r for r in made["syscalls"] if r["action"] == "SCMP_ACT_ALLOW"]
    free = {name for r in allowed if not r["args"] for name in r["names"]}
    assert free == {"read"}
    assert [r["args"][0]["value"] for r in allowed if r["names"] == ["socket"]] == [1, 2, 10, 16]
    (clone,) = [r for r in allowed if r["names"] == ["clone"]]
    assert clone["args"][0] == {"index": 0, "value": 0x7E020000, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    refused = {name for r in made["syscalls"] if r["action"] == "SCMP_ACT_ERRNO" for name in r["names"]}
    assert {"unshare", "setns", "mount", "keyctl", "clone3", "io_uring_setup", "bpf"} <= refused


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("Cannot connect to the Docker daemon at unix:///x", "Start it"),
        ("crun: cgroups in hybrid mode not supported", "runc"),
        ("crun: setrlimit RLIMIT_NOFILE: Operation not permitted", "ulimit -n"),
        ("container sandboxes need root, to mount", "bubblewrap needs none"),
        ("mount overlay on /x: Operation not permitted", "--privileged"),
        ("something else", ""),
    ],
)
def test_advice(said, words):
    assert words in advice(said)
    if not words:
        assert advice(said) == ""
