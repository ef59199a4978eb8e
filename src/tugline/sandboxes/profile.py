"""A system call profile for podman: its own, without what it allows and containers of agents must not have.

podman lets processes make namespaces, which gives them every capability within, and use kernel keys and sockets of
families that no network namespace covers. docker's built-in profile has none of these; it stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from tugline.sandboxes.warden.seccomp import AF_INET, AF_INET6, AF_NETLINK, AF_UNIX

PLACES = ("/etc/containers/seccomp.json", "/usr/share/containers/seccomp.json")
TAKEN = frozenset(
    {
        "unshare", "setns", "clone", "clone3", "mount", "umount", "umount2", "pivot_root", "open_tree", "move_mount",
        "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "keyctl", "add_key", "request_key", "socket", "bpf",
        "io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd", "perf_event_open",
    }
)  # fmt: skip
NAMESPACES = 0x7E020000
"""The CLONE_NEW* bits."""
ENOSYS, EPERM = 38, 1


def find_profile() -> Path | None:
    """podman's own profile on this machine."""
    return next((path for place in PLACES if (path := Path(place)).is_file()), None)


def stricter(profile: bytes) -> bytes:
    """The profile with what is TAKEN refused. Raises msgspec.DecodeError, KeyError for what is none."""
    tree: dict[str, Any] = msgspec.json.decode(profile)
    rules = []
    for rule in tree["syscalls"]:
        names = [name for name in rule["names"] if name not in TAKEN]
        if names:
            rules.append({**rule, "names": names})
    unshared = {"index": 0, "value": NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    rules.append(_rule(["clone"], "SCMP_ACT_ALLOW", [unshared]))
    for family in (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK):
        only = {"index": 0, "value": family, "valueTwo": 0, "op": "SCMP_CMP_EQ"}
        rules.append(_rule(["socket"], "SCMP_ACT_ALLOW", [only]))
    # libraries fall back to clone, whose flags a filter can see
    rules.append({**_rule(["clone3", "io_uring_setup"], "SCMP_ACT_ERRNO"), "errnoRet": ENOSYS, "errno": "ENOSYS"})
    rest = sorted(TAKEN - {"clone", "clone3", "socket", "io_uring_setup"})
    rules.append({**_rule(rest, "SCMP_ACT_ERRNO"), "errnoRet": EPERM, "errno": "EPERM"})
    return msgspec.json.encode({**tree, "syscalls": rules})


def refusing() -> bytes:
    """A profile of its own for an engine that has none: everything but what is TAKEN."""
    families = [AF_UNIX, AF_INET, AF_INET6, AF_NETLINK]
    rules = []
    for bit in (1 << n for n in range(32) if NAMESPACES >> n & 1):
        one = {"index": 0, "value": bit, "valueTwo": bit, "op": "SCMP_CMP_MASKED_EQ"}
        rules.append({**_rule(["clone"], "SCMP_ACT_ERRNO", [one]), "errnoRet": EPERM})
    others = sorted(set(range(64)) - set(families))
    for family in others:
        only = {"index": 0, "value": family, "valueTwo": 0, "op": "SCMP_CMP_EQ"}
        rules.append({**_rule(["socket"], "SCMP_ACT_ERRNO", [only]), "errnoRet": EPERM})
    rules.append({**_rule(["clone3", "io_uring_setup"], "SCMP_ACT_ERRNO"), "errnoRet": ENOSYS})
    rest = sorted(TAKEN - {"clone", "clone3", "socket", "io_uring_setup"})
    rules.append({**_rule(rest, "SCMP_ACT_ERRNO"), "errnoRet": EPERM})
    return msgspec.json.encode({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules})


def _rule(names: list[str], action: str, args: Iterable[dict[str, Any]] = ()) -> dict[str, Any]:
    return {"names": names, "action": action, "args": list(args), "comment": "", "includes": {}, "excludes": {}}
