import os

import pytest

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Limits
from tugline.core.task import Environment
from tugline.sandboxes import provider as find
from tugline.sandboxes.warden.seccomp import MACHINES, program

PROBE = """
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
numbers = {numbers}
def call(name, *args):
    got = libc.syscall(numbers[name], *args)
    return "ok" if got >= 0 else errno.errorcode[ctypes.get_errno()]
print(*(call("socket", family, 1, 0) for family in (1, 2, 10)), call("socket", 16, 3, 0))
print(*(call("socket", family, 1, 0) for family in (40, 38, 17, 31, 1 << 16 | 40)))
print(*(call(name, 0, 0, 0) for name in ("add_key", "request_key", "keyctl", "io_uring_setup")))
"""


def test_unknown_machines_have_no_filter() -> None:
    assert program("vax") is None


@pytest.mark.parametrize("root", [False, True])
async def test_only_what_namespaces_separate_is_there(tmp_path, root) -> None:
    if os.uname().machine not in MACHINES:
        pytest.skip("no filter for this machine")
    boxes = find("bubblewrap", tmp_path / "state", "test")
    if missing := await boxes.check():
        pytest.skip(missing[0])
    try:
        box = await boxes.start(Environment(image=""), "s", Limits())
        script = PROBE.format(numbers=MACHINES[os.uname().machine][1])
        out = tmp_path / "out"
        end = await box.run(
            Command(("/usr/bin/python3", "-c", script), stdout=out, stderr=out, root=root), Deadline.after(30)
        )
        if end.code == 127:
            pytest.skip("no python in /usr")
        assert out.read_text().splitlines() == [
            "ok ok ok ok",
            " ".join(["EAFNOSUPPORT"] * 5),
            " ".join(["ENOSYS"] * 4),
        ]
    finally:
        await boxes.close()
