"""What services of a test have on this machine, and what of it is still there. Others may use the same machine."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tugline.sandboxes import instance

CLIENTS = ("podman", "docker")
MONITORS = ("conmon", "containerd-shim-runc-v2", "runc", "crun")
RECORDS = (("/run/runc", "state.json"), ("/run/crun", "status"))
"""Where runtimes note their containers, for podman."""


def owners(state):
    for path in state.glob("box_*/owner.json"):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            yield path, msgspec.json.decode(path.read_bytes(), type=instance.Owner)


def processes():
    """(pid, program, arguments joined by blanks) of all that runs."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                args = Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace").split("\0")
                yield int(name), os.path.basename(args[0]), " ".join(args)


@dataclass
class Seen:
    """What belongs to the services of a test."""

    runtime: object = None
    labels: set[str] = field(default_factory=set)
    stages: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    ids: set[str] = field(default_factory=set)
    """Of containers."""

    def look(self, state, pids=()):
        for path, owner in owners(state):
            self.labels.add(path.parent.name)
            self.stages.add(owner.stage)
            self.groups.update(owner.cgroups)
        for pid in pids:
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
                    _, names, group = line.split(":", 2)
                    if "libpod-" in group or "docker" in group or "tugline-" in group:
                        self.groups.add(f"/sys/fs/cgroup/{names or 'unified'}{group}")
                        self.ids.update(re.findall(r"[0-9a-f]{64}", group))
        for _, program, args in processes():
            if program in MONITORS and any(f"tugline-{label}-" in args for label in self.labels):
                self.ids.update(re.findall(r"(?:-c|-id) ([0-9a-f]{64})", args))
        self.ids.update(self._records())

    def ask(self):
        """Containers as the engine knows them."""
        for label in self.labels:
            self.ids.update(self._engine("ps", "-a", "-q", "--no-trunc", "--filter", f"label=tugline={label}"))

    def making(self, state):
        """Whether a client of the engine is at work on a new container of ours."""
        self.labels.update(path.parent.name for path, _ in owners(state))
        return any(program in CLIENTS and " run " in args and self._ours(args) for _, program, args in processes())

    def kill(self, *programs):
        """SIGKILL to programs of an engine that work on our containers. Returns how many."""
        found = [pid for pid, program, args in processes() if program in programs and self._ours(args)]
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        return len(found)

    def left(self):
        """What of it is still there."""
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        self.ids.update(self._records())
        found = {
            "mounts": [line for line in mounts if any(f"{s}/" in line or f"{s} " in line for s in self.stages if s)],
            "stages": [s for s in self.stages if s and os.path.exists(s)],
            "processes": self.processes(),
            "records": list(self._records()),
            "groups": [g for g in self.groups if os.path.exists(g)] + self._groups(),
        }
        for label in self.labels if self.runtime is not None else ():
            for what in (("ps", "-a"), ("images",)):
                found.setdefault(what[0], []).extend(self._engine(*what, "-q", "--filter", f"label=tugline={label}"))
            if self.runtime.kind == "podman":  # what never reached podman's database
                names = self._engine("ps", "-a", "--external", "--format", "{{.Names}}")
                found.setdefault("storage", []).extend(n for n in names if f"tugline-{label}-" in n)
        return {what: things for what, things in found.items() if things}

    def processes(self):
        """Of an engine, working on our containers, or inside one: `runc init` says nothing in its arguments, but shows
        the directory of its command's pipes among its mounts."""
        found = [
            (pid, args[:300])
            for pid, program, args in processes()
            if program in MONITORS + CLIENTS and self._ours(args)
        ]
        for pid, program, _ in processes():
            with contextlib.suppress(OSError):
                roots = [line.split()[3] for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
                if any(root.startswith(f"/io/tugline-{label}-") for root in roots for label in self.labels):
                    found.append((pid, program))
        return found

    def _ours(self, args):
        return any(f"tugline-{label}-" in args for label in self.labels) or any(i in args for i in self.ids)

    def _records(self):
        for top, name in RECORDS:
            for path in Path(top).glob(f"*/{name}"):
                with contextlib.suppress(OSError):
                    text = path.read_text(errors="replace")
                    if any(f"{stage}/" in text for stage in self.stages if stage):
                        yield path.parent.name

    def _groups(self):
        folders = [folder for folder, _, _ in os.walk("/sys/fs/cgroup")] if self.ids else []
        return [f for f in folders if any(i in f for i in self.ids)]

    def _engine(self, *args):
        if self.runtime is None:
            return []
        argv = [*self.runtime.argv, *args]
        done = subprocess.run(argv, env=dict(self.runtime.env), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()
