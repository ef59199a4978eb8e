"""What podman forgets when its client is killed.

podman has no daemon: the client itself makes a container, in steps. Killed between the runtime's `create` and its
`start` it leaves `runc init` waiting for a start that never comes, its conmon, ten control groups and the runtime's own
record, of which podman's database knows nothing: `podman rm --force` succeeds and they stay (podman 4.3.1, runc 1.1.5).
Killed before it has written to its database it leaves the container's storage.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable

CLIENT_SECONDS, RUNTIME_SECONDS, CALL_SECONDS = 15.0, 15.0, 20.0
CLIENT, MONITOR = "podman", "conmon"
PROGRAMS = (CLIENT, MONITOR, "runc", "crun")


def is_podman(argv: list[str]) -> bool:
    """Whether an engine's client is podman's."""
    return os.path.basename(argv[0]) == CLIENT


def end_containers(argv: list[str], env: dict[str, str], prefix: str) -> None:
    """End every process, group and runtime record of containers whose names begin with `prefix`. Their entries in
    podman's database stay, for `rm`: until nothing else is left they are the only place that knows the ids."""
    _end(lambda: [pid for pid, program, _ in working([prefix]) if program == CLIENT], CLIENT_SECONDS)
    found = lines([*argv, "ps", "-a", "-q", "--no-trunc", "--filter", f"name=^{prefix}"], env)
    ids = {*found, *_monitored(prefix)}
    if not ids:
        return
    runtime = _runtime(argv, env)
    until = time.monotonic() + RUNTIME_SECONDS
    while True:
        for each in ids:
            # a `create` that is still under way is found by its process, and then by the next round
            lines([runtime, "delete", "--force", each], env)
        busy = working(ids)
        if not busy:
            return
        if time.monotonic() > until:
            break
        time.sleep(0.05)
    _end(lambda: [pid for pid, *_ in working(ids)], 0.0)
    for each in ids:
        lines([runtime, "delete", "--force", each], env)


def drop_storage(argv: list[str], env: dict[str, str], prefix: str) -> int:
    """Remove storage of containers that never reached the database. Returns how many."""
    told = lines([*argv, "ps", "-a", "--no-trunc", "--external", "--format", "{{.ID}}/{{.Names}}"], env)
    # By name here and not by podman's filter, which need not apply to what is external: among that are also
    # containers that another service is just making.
    found = [each for each, _, name in (word.partition("/") for word in told) if name.startswith(prefix)]
    for each in found:
        lines([*argv, "rm", "-f", each], env)
    return len(found)


def working(words: list[str] | set[str]) -> list[tuple[int, str, list[str]]]:
    """Processes of podman and its helpers with one of `words` in their arguments: (pid, program, arguments)."""
    out = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as f:
            args = f.read().decode(errors="replace").split("\0")
            program = os.path.basename(args[0])
            if program in PROGRAMS and any(word in arg for word in words for arg in args):
                out.append((int(name), program, args))
    return out


def lines(argv: list[str], env: dict[str, str]) -> list[str]:
    """Words that a program prints; none when it fails to run."""
    try:
        done = subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=CALL_SECONDS, check=False, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.decode(errors="replace").split()


def _monitored(prefix: str) -> list[str]:
    """Ids of containers that a conmon looks after."""
    monitors = [args for _, program, args in working([prefix]) if program == MONITOR and "-c" in args]
    return [args[args.index("-c") + 1] for args in monitors]


def _runtime(argv: list[str], env: dict[str, str]) -> str:
    if "--runtime" in argv:
        return argv[argv.index("--runtime") + 1]
    told = lines([*argv, "info", "--format", "{{.Host.OCIRuntime.Path}}"], env)
    return told[0] if told else "crun"


def _end(found: Callable[[], list[int]], seconds: float) -> None:
    """Let processes end by themselves for so long, then kill them."""
    until = time.monotonic() + seconds
    while pids := found():
        if time.monotonic() > until:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > until + CALL_SECONDS:
                return
        time.sleep(0.02)
