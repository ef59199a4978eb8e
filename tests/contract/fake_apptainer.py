"""A stand-in for apptainer: `exec` of a directory with the options that Tugline uses, done with bare namespaces.

It refuses options that it does not know, so that a changed command line is noticed. Root only.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import time

from tugline.sandboxes.warden import cgroups, kernel

FLAGS = {"--containall", "--cleanenv", "--no-home", "--pid", "--ipc", "--uts", "--net", "--writable", "--no-privs"}
VALUES = {"--hostname", "--network", "--no-mount", "--env", "--drop-caps", "--add-caps", "--security", "--memory",
          "--memory-swap", "--pids-limit", "--cpus", "--bind"}  # fmt: skip
NODES = ("null", "zero", "full", "random", "urandom", "tty")
NEWPID, NEWIPC, NEWUTS = 0x20000000, 0x08000000, 0x04000000
MS_RDONLY = 1


def parse(words):
    options, flags = {}, set()
    while words and words[0].startswith("--"):
        word = words.pop(0)
        if word in FLAGS:
            flags.add(word)
        elif word in VALUES:
            options.setdefault(word, []).append(words.pop(0))
        else:
            sys.exit(f"unknown option {word}")
    return flags, options, words[0], words[1:]


def lay_out(root, flags, options):
    """Mount the tree at a place of our own and go there."""
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    place = "/mnt"
    kernel.mount(root, place, None, kernel.MS_BIND)
    kernel.mount("proc", f"{place}/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV)
    kernel.mount("dev", f"{place}/dev", "tmpfs", kernel.MS_NOSUID, "mode=0755")
    os.mkdir(f"{place}/dev/shm")
    for name in NODES:
        open(f"{place}/dev/{name}", "w").close()
        kernel.mount(f"/dev/{name}", f"{place}/dev/{name}", None, kernel.MS_BIND)
    os.symlink("/proc/self/fd", f"{place}/dev/fd")
    for bind in options["--bind"]:
        source, target, mode = bind.split(":")
        kernel.mount(source, place + target, None, kernel.MS_BIND)
        if mode == "ro":
            kernel.mount("none", place + target, None, kernel.MS_BIND | kernel.MS_REMOUNT | MS_RDONLY)
    if "--writable" not in flags:
        kernel.mount("none", place, None, kernel.MS_BIND | kernel.MS_REMOUNT | MS_RDONLY)
    os.chroot(place)
    os.chdir("/")


def raise_loopback():
    with socket.socket() as s:
        request = array.array("B", struct.pack("16sh14x", b"lo", 0x1 | 0x40))
        fcntl.ioctl(s, 0x8914, request)


def become(options):
    given = dict(entry.split(":", 1) for entry in options["--security"])
    for key in ("uid", "gid"):
        assert given[key].isdigit(), given
    assert options["--drop-caps"] == ["all"] and options["--network"] == ["none"]
    kept = {c for caps in options.get("--add-caps", []) for c in caps.split(",")}
    numbers = {"CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_FOWNER": 3, "CAP_FSETID": 4, "CAP_KILL": 5,
               "CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_SETFCAP": 31}  # fmt: skip
    for number in range(41):
        if number not in {numbers[c] for c in kept}:
            kernel.prctl(24, number)  # PR_CAPBSET_DROP
    os.setgroups([])
    os.setresgid(*[int(given["gid"])] * 3)
    os.setresuid(*[int(given["uid"])] * 3)
    ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS


def run(words):
    flags, options, root, argv = parse(words)
    missing = {"--containall", "--cleanenv", "--pid", "--net", "--ipc"} - flags
    assert not missing, missing
    profile = next(entry for entry in options["--security"] if entry.startswith("seccomp:"))
    with open(profile.partition(":")[2]) as f:
        assert json.load(f)["defaultAction"] == "SCMP_ACT_ALLOW"
    groups = cgroups.detect(f"fake-{os.getpid()}")
    groups.make("c", int(options["--memory"][0]), int(options["--pids-limit"][0]))
    groups.enter("c", os.getpid(), 0, 0)
    kernel.unshare(kernel.NEWNS | kernel.NEWNET | NEWPID | NEWIPC | NEWUTS)
    raise_loopback()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        socket.sethostname(options["--hostname"][0])
        lay_out(root, flags, options)
        become(options)
        env = dict(entry.split("=", 1) for entry in options["--env"])
        os.execve(argv[0], argv, {"PATH": "/usr/bin:/bin", **env})
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    time.sleep(0.3)  # whoever counts kills in our control group has that long
    for base in groups.bases:
        with contextlib.suppress(OSError), open(f"{os.path.dirname(base)}/cgroup.procs", "w") as f:
            f.write(str(parent))
    groups.drop("c")
    groups.close()
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    if sys.argv[1] == "--version":
        print("apptainer version 1.3.0 (stand-in)")
    elif sys.argv[1] == "exec":
        run(sys.argv[2:])
    else:
        sys.exit(f"unknown command {sys.argv[1]}")
