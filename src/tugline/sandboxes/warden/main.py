"""The warden's loop: requests in, events out. One thread, one selector, nothing blocks for long.

A request is one datagram of JSON (or, when large, a memfd that holds it) with descriptors attached; the reply has
the same `id`. The end of the socket means the service is gone: everything is killed and removed.
argv: FOLDER CONTROL_FD CONFIG_JSON
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from . import cgroups, engine, jobs, keeper, kernel, seccomp
from .mounts import Box, Tree
from .settle import settle

Message = dict[str, Any]


class Warden:
    """All state: the tree of mounts, the groups, the running jobs."""

    def __init__(self, control: socket.socket, config: Message) -> None:
        self._control = control
        self._folder = sys.argv[1]
        self._user = os.geteuid()
        self._tree, self._drop, self._bwrap = settle(config)
        self._engine: Message = config.get("engine") or {}
        self._cgroups = cgroups.Cgroups(0, ()) if self._engine else cgroups.detect(config["label"])
        self._filter = seccomp.program(os.uname().machine)
        self._selector = selectors.DefaultSelector()
        self._jobs: dict[int, jobs.Job] = {}
        self._helpers: dict[int, Callable[[int], None]] = {}
        self._tools: dict[int, int] = {}
        self._whole: set[int] = set()
        self._alive = True

    @property
    def hello(self) -> Message:
        """The first message: where the limits come from, where the stage is."""
        user = self._drop[0] if self._drop else self._user
        return {"id": 0, "ok": {"limits": self._cgroups.text, "cgroups": list(self._cgroups.bases), "user": user}}

    def serve(self) -> None:
        """Until the service goes."""
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._terminate)
        self._watch(wake, lambda: self._reap(wake))
        self._watch(self._control.fileno(), self._receive)
        self._send(self.hello)
        while self._alive:
            for key, _ in self._selector.select():
                with contextlib.suppress(KeyError):  # unregistered by an earlier event of this round
                    self._selector.get_key(key.fileobj)
                    key.data()
        self._shut(wake)

    # -------------------------------------------------------------------------------------------- requests

    def _receive(self) -> None:
        try:
            data, fds = jobs.receive(self._control)
        except ConnectionResetError:  # the service died with replies of ours unread
            data, fds = b"", []
        if not data:
            self._alive = False
            return
        request: Message = json.loads(data)
        if request.get("big"):
            with open(fds.pop(0), "rb") as f:
                request = json.loads(f.read())
        try:
            reply = getattr(self, f"op_{request['op']}")(request, fds)
        except OSError as err:
            reply = {"error": str(err)}
        finally:
            for fd in fds:
                os.close(fd)
        if reply is not None:
            self._send({"id": request["id"], **reply})

    def op_bind(self, request: Message, _fds: list[int]) -> Message:
        """{source} -> path under the stage."""
        return {"ok": self._boxes.bind(request["source"])}

    def op_box(self, request: Message, _fds: list[int]) -> Message:
        """{name, memory, pids, disk, root: [lowers], work: [lowers], on_disk?}: a new box."""
        box = Box(request["name"], request["memory"], request["pids"], request["root"], on_disk=request.get("on_disk"))
        box.workdir = request.get("workdir", "")
        self._cgroups.make(box.name, box.memory, box.pids)
        try:
            self._boxes.make(box, request["disk"], request["work"])
        except OSError:
            self._boxes.boxes.pop(box.name, None)
            self._boxes.unmount(self._boxes.loose(box.name))
            self._cgroups.drop(box.name)
            raise
        return {"ok": None}

    def op_seal(self, request: Message, _fds: list[int]) -> Message:
        """{name} -> frozen layers of the work directory."""
        return {"ok": self._boxes.seal(request["name"])}

    def op_drop(self, request: Message, _fds: list[int]) -> None:
        """{name}: kill what runs in the box and remove it."""
        name = request["name"]
        for job in self._jobs.values():
            if job.box == name:
                job.kill()

        def gone(_: int) -> None:
            self._cgroups.drop(name)
            self._send({"id": request["id"], "ok": None})

        if self._tree is None or self._tree.boxes.pop(name, None) is None:
            gone(0)
            return
        paths = self._boxes.loose(name)
        self._helper(lambda: self._boxes.unmount(paths), gone)

    def op_remove(self, request: Message, _fds: list[int]) -> None:
        """{path}: delete a directory tree of ours."""
        self._helper(lambda: remove(request["path"]), lambda _: self._send({"id": request["id"], "ok": None}))

    def op_run(self, request: Message, fds: list[int]) -> Message | None:
        """{box, argv, outputs: [numbers], limit, port?, dests, env, cwd} + stdin, [args], files: start a command.

        Events: {event: "listening"} with the socket when `port` is given, and at last the reply {ok: {code, ...}}.
        Without a port the command starts at once, else after `go`.
        """
        if self._tree is not None and (link := self._tree.links_in(request["box"], request["dests"])):
            return {"error": f"{link} was replaced by a link inside the sandbox"}
        stdin, args = fds[0], fds[1] if self._tree else -1
        files = dict(zip(request["outputs"], [os.dup(fd) for fd in fds[1 + (args >= 0) :]], strict=True))
        outputs = jobs.open_outputs(files, request["limit"])
        status, status_child = os.pipe()
        gate_child, gate = os.pipe()
        os.set_blocking(status, False)
        child = {0: stdin, **outputs.child, 4: status_child, 5: gate_child}
        if self._tree is not None:
            head = [self._bwrap, "--args", "3", "--json-status-fd", "4", "--block-fd", "5"]
            child[3] = args
            if self._filter is not None:
                head += ["--seccomp", "6"]
                child[6] = jobs.holding(self._filter)
                fds.append(child[6])
            pid = jobs.start([*head, "--", *request["argv"]], {}, child, self._drop, signal.SIGKILL)
        else:
            argv = jobs.interpreter(self._folder, "keeper", "4", "5", request["cwd"], *request["argv"])
            env = request["env"] if "LC_CTYPE" in request["env"] else {**request["env"], "TUGLINE_NO_CTYPE": "1"}
            pid = jobs.start(argv, env, child, None, signal.SIGTERM)
        for fd in (*outputs.child.values(), status_child, gate_child):
            os.close(fd)
        job = jobs.Job(request["id"], request["box"], pid, status, gate, request["port"], keeper=self._tree is None)
        job.pumps = outputs.pumps
        job.ooms = self._cgroups.ooms(job.box)
        self._watch(status, lambda: self._status(job))
        self._follow(job)
        return None

    def _follow(self, job: jobs.Job) -> None:
        self._jobs[job.id] = job
        for pump in job.pumps:
            self._watch(pump.source, lambda p=pump: self._pump(p))  # type: ignore[misc]

    def op_attach(self, request: Message, fds: list[int]) -> None:
        """{box, init, io, outputs: [numbers], limit, port?} + files: follow a container that waits at its gate.

        Events as for `run`; the exit code is the engine's to tell.
        """
        job = engine.attach(request, [os.dup(fd) for fd in fds])
        self._follow(job)
        self._watch(job.pidfd, lambda: self._init_dead(job))
        self._open_gate(job)

    def op_tool(self, request: Message, fds: list[int]) -> None:
        """{argv, env, whole} + stdin, stdout, stderr: run a program of the host to its end; the reply is its exit code.

        One that is `whole` is not killed with us: it would leave half of what it makes, see `podman`.
        """
        wish = 0 if request["whole"] else signal.SIGKILL
        pid = jobs.start(request["argv"], request["env"], dict(enumerate(fds)), None, wish)
        number = request["id"]
        self._tools[number] = pid
        if not wish:
            self._whole.add(pid)

        def done(wait: int) -> None:
            self._tools.pop(number, None)
            self._whole.discard(pid)
            self._send({"id": number, "ok": os.waitstatus_to_exitcode(wait)})

        self._helpers[pid] = done

    def op_clear(self, request: Message, _fds: list[int]) -> None:
        """{name}: remove a container and all that a client killed half-way has left of it."""
        argv, env, label = self._engine["argv"], self._engine["env"], self._engine["label"]
        done = {"id": request["id"], "ok": None}
        self._helper(lambda: engine.sweep(argv, env, label, request["name"]), lambda _: self._send(done))

    def op_go(self, request: Message, _fds: list[int]) -> None:
        """{job}: let a command start that waited for its listener."""
        if request["job"] in self._jobs:
            self._jobs[request["job"]].release()

    def op_kill(self, request: Message, _fds: list[int]) -> None:
        """{job}: the end comes as the job's own reply."""
        if request["job"] in self._jobs:
            self._jobs[request["job"]].kill()
        if request["job"] in self._tools:
            os.kill(self._tools[request["job"]], signal.SIGKILL)

    # ---------------------------------------------------------------------------------------------- events

    def _status(self, job: jobs.Job) -> None:
        born = job.read_status()
        if job.ended:
            self._unwatch(job.status)
        if not born:
            return
        self._watch(job.pidfd, lambda: self._init_dead(job))
        if job.killed:
            job.kill()
            return
        limits = self._tree.boxes.get(job.box) if self._tree else None
        try:
            with open(f"/proc/{job.init}/oom_score_adj", "w") as f:
                f.write("600")
            if limits is not None:
                self._cgroups.enter(job.box, job.init, limits.memory, limits.pids)
        except OSError as err:
            job.trouble = str(err)
            job.kill()
            return
        self._open_gate(job)

    def _open_gate(self, job: jobs.Job) -> None:
        """Let a command start, or hand over its listener first; `go` starts it then."""
        try:
            if job.port is not None and not job.keeper:
                with jobs.listen_inside(job.init, job.port) as listener:
                    self._send({"id": job.id, "event": "listening"}, [listener.fileno()])
                return
        except OSError as err:
            job.trouble = str(err)
            job.kill()
            return
        job.release()

    def _init_dead(self, job: jobs.Job) -> None:
        self._unwatch(job.pidfd)
        job.init_dead = True
        self._finish(job)

    def _pump(self, pump: jobs.Pump) -> None:
        if pump.step() == 0:
            self._unwatch(pump.source)

    def _reap(self, wake: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 4096)
        while True:
            try:
                pid, wait = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pid = 0
            if pid == 0:
                break
            if pid in self._helpers:
                self._helpers.pop(pid)(wait)
            for job in [j for j in self._jobs.values() if j.pid == pid]:
                job.wait = wait
                if job.pidfd < 0 and job.read_status():  # the report may have come together with the end
                    self._watch(job.pidfd, lambda j=job: self._init_dead(j))  # type: ignore[misc]
                if not job.init_dead and job.pidfd >= 0 and not job.keeper:
                    job.kill_rest()
        for job in list(self._jobs.values()):
            self._finish(job)

    def _finish(self, job: jobs.Job) -> None:
        if not job.over or job.id not in self._jobs:
            return
        if job.keeper and self._kill_strays():
            return  # the end of each of them calls again
        del self._jobs[job.id]
        job.read_status()
        for fd in (job.status, *(p.source for p in job.pumps)):
            self._unwatch(fd)
        result = job.result()
        ooms = job.meter.read() if job.meter else self._cgroups.ooms(job.box)
        result["oom"] = ooms > job.ooms
        job.close()
        self._send({"id": job.id, "ok": result})

    def _kill_strays(self) -> int:
        """A keeper that was itself killed leaves its children to us. Returns how many there are still."""
        known = {job.pid for job in self._jobs.values()} | set(self._helpers)
        strays = [pid for pid in keeper.children(os.getpid()) if pid not in known]
        for pid in strays:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(strays)

    # --------------------------------------------------------------------------------------------- plumbing

    @property
    def _boxes(self) -> Tree:
        if self._tree is None:
            raise OSError("no namespaces in plain mode")
        return self._tree

    def _helper(self, work: Callable[[], object], done: Callable[[int], None]) -> None:
        """Do slow file work in a forked child."""
        pid = os.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                work()
            finally:
                os._exit(0)
        self._helpers[pid] = done

    def _watch(self, fd: int, callback: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def _unwatch(self, fd: int) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(fd)

    def _send(self, message: Message, fds: list[int] | None = None) -> None:
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], fds or [])
        except OSError:
            self._alive = False

    def _terminate(self, *_: object) -> None:
        self._alive = False

    def _shut(self, wake: int) -> None:
        """The service is gone or wants us to go: kill, wait for the end of every process, remove."""
        while self._jobs:
            for job in self._jobs.values():
                job.kill()
            for key, _ in self._selector.select(1.0):
                if key.fileobj != self._control.fileno():
                    with contextlib.suppress(KeyError):
                        self._selector.get_key(key.fileobj)
                        key.data()
        for pid in set(self._tools.values()) - self._whole:  # the sweep waits for those
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._engine.get("label"):
            engine.sweep(self._engine["argv"], self._engine["env"], self._engine["label"])
        self._kill_strays()
        os.close(wake)
        if self._tree is not None:
            self._tree.close()
        self._cgroups.close()


def remove(path: str) -> None:
    """rmtree that also enters directories made unreadable; links are never followed."""
    with contextlib.suppress(OSError):
        os.chmod(path, 0o700)
    for folder, names, _ in os.walk(path):
        for name in names:
            if not os.path.islink(f"{folder}/{name}"):
                with contextlib.suppress(OSError):
                    os.chmod(f"{folder}/{name}", 0o700)
    shutil.rmtree(path, ignore_errors=True)


def main() -> None:
    """Entry point of the warden program."""
    control = socket.socket(fileno=int(sys.argv[2]))
    control.setblocking(True)
    os.set_inheritable(control.fileno(), False)
    try:
        warden = Warden(control, json.loads(sys.argv[3]))
    except OSError as err:
        control.send(json.dumps({"id": 0, "error": str(err)}).encode())
        return
    warden.serve()
