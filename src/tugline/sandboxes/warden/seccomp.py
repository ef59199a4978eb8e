"""A system call filter for what namespaces do not separate. Pure.

Sockets of the families that no network namespace covers (vsock reaches the hypervisor), kernel keys (shared by all
processes of a user, hence by all sandboxes), and io_uring, which opens sockets past any filter.
"""

from __future__ import annotations

import errno
import struct

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
NUMBER, ARCH, FIRST_ARGUMENT = 0, 4, 16
X32 = 0x40000000
"""Numbers from here on are the same calls under a second name on x86_64."""

MACHINES = {
    "x86_64": (0xC000003E, {"socket": 41, "add_key": 248, "request_key": 249, "keyctl": 250, "io_uring_setup": 425}),
    "aarch64": (0xC00000B7, {"socket": 198, "add_key": 217, "request_key": 218, "keyctl": 219, "io_uring_setup": 425}),
}


def program(machine: str) -> bytes | None:
    """The filter as bwrap reads it, for `os.uname().machine`; None for a machine whose call numbers we do not know."""
    if machine not in MACHINES:
        return None
    arch, numbers = MACHINES[machine]
    refused = [n for name, n in numbers.items() if name != "socket"]
    families = (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK)
    absent, no_family = REFUSE | errno.ENOSYS, REFUSE | errno.EAFNOSUPPORT
    lines = [(LOAD, 0, 0, ARCH), (EQUAL, 1, 0, arch), (RETURN, 0, 0, absent), (LOAD, 0, 0, NUMBER)]
    lines += [(AT_LEAST, 0, 1, X32), (RETURN, 0, 0, absent)]
    for number in refused:
        lines += [(EQUAL, 0, 1, number), (RETURN, 0, 0, absent)]
    lines += [(EQUAL, 1, 0, numbers["socket"]), (RETURN, 0, 0, ALLOW), (LOAD, 0, 0, FIRST_ARGUMENT)]
    for family in families:
        lines += [(EQUAL, 0, 1, family), (RETURN, 0, 0, ALLOW)]
    lines += [(RETURN, 0, 0, no_family)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)
