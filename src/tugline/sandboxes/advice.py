"""What usually stands in the way of a container engine, and what to do about it."""

from __future__ import annotations

import os

INSTALL = (
    "Install one: on Debian and Ubuntu `apt-get install podman runc`, or `apt-get install docker.io`; on Fedora "
    "`dnf install podman`"
)
_FILES = "The engine does not see this machine's files: its daemon must run here, not behind a remote DOCKER_HOST"
KNOWN = (
    ("no apptainer program", "Install it from https://apptainer.org, or use --sandbox container"),
    ("need root", "Run as root; --sandbox bubblewrap needs none"),
    ("connect to the docker daemon", "Start it (`systemctl start docker`, or `dockerd`), or set DOCKER_HOST"),
    ("permission denied while trying to connect", "Run as root, or let your user into the group `docker`"),
    ("hybrid mode", "Install runc (`apt-get install runc`): crun refuses a mix of control groups of version 1 and 2"),
    ("rlimit", "podman asks for more open files than this machine gives: raise the hard limit of `ulimit -n`"),
    ("systemd", "podman is set up for systemd, which does not run here: set cgroup_manager = cgroupfs for it"),
    ("invalid mount config", _FILES),
    ("bind source path does not exist", _FILES),
    ("mount overlay", "The kernel or this container refuses overlay mounts: run on the host, or with --privileged"),
    ("mount tmpfs", "This container refuses mounts: run on the host, or with --privileged"),
    ("cgroup", "Control groups are not writable here; in a container of your own, use --privileged or bubblewrap"),
)
"""(words of an engine or of the kernel, what to do); the first that fits counts."""


def advice(message: str) -> str:
    """One sentence, or nothing."""
    said = message.lower()
    for words, what in KNOWN:
        if words in said:
            return what
    return "" if os.path.isdir("/sys/fs/cgroup") else KNOWN[-1][1]
