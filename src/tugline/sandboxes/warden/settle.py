"""Where the warden lives: which namespaces, and whose user the sandboxed processes are."""

from __future__ import annotations

import os
from typing import Any

from . import kernel
from .mounts import Tree


def settle(config: dict[str, Any]) -> tuple[Tree | None, tuple[int, int] | None, str]:
    """Enter our own namespaces and choose the user of sandboxed processes. Returns (tree, user to drop to, bwrap).

    Raises OSError: this machine cannot do it.
    """
    if config["mode"] == "plain":
        return None, None, ""
    if config["mode"] == "engine":
        # A daemon must see the mounts: they are the host's, and `instance.reap` finds them should we be killed.
        return Tree(config["stage"], config["snapshots"], tuple(config["owner"]), False, whole=True), None, ""
    owner, drop = (0, 0), None
    if os.geteuid() == 0 and _maps(65533):
        # Never the host's root, even without capabilities: it could write to /proc/sys, e.g. core_pattern.
        owner = drop = (65533, 65533)
        kernel.unshare(kernel.NEWNS)
    else:
        if os.geteuid() == 0 and _maps_real_root():
            raise OSError("runs as root, but user 65533 does not exist in this container")
        uid, gid = os.geteuid(), os.getegid()
        kernel.unshare(kernel.NEWUSER | kernel.NEWNS)
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as f:
                f.write(text)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_SLAVE)
    tree = Tree(config["stage"], config["snapshots"], owner, unprivileged=drop is None)
    return tree, drop, tree.install(config["bwrap"], config["libs"])


def _ranges() -> list[tuple[int, int, int]]:
    with open("/proc/self/uid_map") as f:
        return [(int(a), int(b), int(n)) for a, b, n in (line.split() for line in f)]


def _maps(uid: int) -> bool:
    return any(a <= uid < a + n for a, _, n in _ranges())


def _maps_real_root() -> bool:
    return any(a == 0 and b == 0 for a, b, _ in _ranges())
