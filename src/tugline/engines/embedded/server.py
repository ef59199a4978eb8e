"""The engine process: `python -m tugline.engines.embedded.server --fd N ...`, started by `EmbeddedEngine`.

One thread reads the socket, one runs the model. Anything unexpected ends the process; the parent starts another.
A generation is in the journal, and the journal with the operating system, before its reply is sent.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import queue
import random
import resource
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

import msgspec

from tugline.core.columns import WIDTH, Floats, Ids, concat_floats, count, nans
from tugline.core.contracts import JournalEntry
from tugline.core.errors import EngineError, StoreError
from tugline.engines.embedded import wire
from tugline.engines.embedded.scheduler import Ended, Row, Scheduler
from tugline.engines.journal import JournalWriter, journal_path
from tugline.engines.modeldir import ModelFiles, read_model_dir
from tugline.engines.stopping import Decoder, StopStrings

_PR_SET_PDEATHSIG = 1


class Server:
    """Requests from a queue to the scheduler, results to the socket."""

    def __init__(self, options: wire.Options, sock: socket.socket) -> None:
        from tugline.engines.embedded.model import SlotModel
        from tugline.engines.embedded.sampling import sample

        self._files: ModelFiles = read_model_dir(Path(options.model_dir), options.asked)
        self._model = SlotModel(
            self._files.path, slots=options.slots, context=self._files.context, device=options.device
        )
        if options.weights is not None:
            self._model.load(Path(options.weights))
        stop = frozenset(self._files.stop_ids)
        self._scheduler = Scheduler(self._model, sample, options.slots, stop, options.version)
        self._journal = JournalWriter(journal_path(Path(options.journal_dir), options.boot))
        self._options = options
        self._sock = sock
        self._salt = str(options.seed) if options.seed is not None else secrets.token_hex(8)
        self._served = 0
        self._tokenizer: Decoder | None = None
        """Made when the first stop string is asked for."""
        self._asked: dict[str, int] = {}

    def run(self, inbox: queue.SimpleQueue[wire.ToChild]) -> None:
        """Until told to stop. Sleeps while there is nothing to do."""
        self._send([wire.Ready(self._options.slots, self._scheduler.version)])
        while True:
            out: list[wire.FromChild] = []
            ended: list[Ended] = []
            wait = not self._scheduler.busy
            while wait or not inbox.empty():
                wait = False
                message = inbox.get()
                if isinstance(message, wire.Stop):
                    self._journal.close()
                    return
                self._handle(message, out, ended)
            ended += self._scheduler.step()
            news = [wire.Partial(name, ids) for name, ids in self._scheduler.news(time.monotonic())]
            self._send([*out, *news, *self._finish(ended)])

    def _handle(self, message: wire.ToChild, out: list[wire.FromChild], ended: list[Ended]) -> None:
        match message:
            case wire.Generate():
                out += self._admit(message)
            case wire.Abort(request_id):
                gone = self._scheduler.abort(request_id)
                ended += [gone] if gone is not None else []
            case wire.Release(session_id):
                self._scheduler.release(session_id)
                self._journal.forget(session_id)
                self._asked.pop(session_id, None)
            case wire.Load():
                out.append(self._load(message))
            case wire.Score():
                out.append(self._score(message))
            case wire.Health(request_id):
                out.append(self._status(request_id))
            case wire.Stop():
                pass

    def _admit(self, ask: wire.Generate) -> list[wire.FromChild]:
        size = len(ask.prompt) // WIDTH
        room = min(ask.max_tokens, self._files.context - size)
        if size < 1 or room < 1:
            message = f"a prompt of {size} tokens, {ask.max_tokens} to sample, context {self._files.context}"
            return [wire.Failed(ask.request_id, message, retryable=False)]
        self._asked[ask.session_id] = nth = self._asked.get(ask.session_id, 0) + 1
        seed = ask.seed
        if seed is None:  # of the session's own history only, so that the rest of the batch does not matter
            name = f"{self._salt}/{ask.session_id}/{nth}".encode()
            seed = int.from_bytes(blake2b(name, digest_size=8).digest(), "little")
        self._scheduler.add(Row(ask, room, random.Random(seed), self._stops(ask.stop)))
        return []

    def _stops(self, stop: tuple[str, ...]) -> StopStrings | None:
        if not stop:
            return None
        if self._tokenizer is None:
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_buffer(self._files.tokenizer_json)
        return StopStrings(self._tokenizer, stop)

    def _finish(self, ended: Iterable[Ended]) -> list[wire.FromChild]:
        out: list[wire.FromChild] = []
        for end in ended:
            if end.finish is None:
                out.append(wire.Failed(end.row.ask.request_id, end.error, retryable=False))
                continue
            self._served += 1
            ref = f"{self._options.boot}.{self._served}"
            row = end.row
            runs = tuple(row.runs)
            entry = JournalEntry(
                ref, row.ask.session_id, Ids(row.ask.prompt), row.sampled, end.logprobs(), end.finish, runs
            )
            self._journal.append(entry)
            out.append(wire.Done(row.ask.request_id, row.sampled, entry.logprobs, end.finish, runs, ref, row.cached))
        try:
            self._journal.flush()
        except StoreError as err:  # disk full: nothing of this batch is in the journal, so nothing of it is answered
            out = [
                wire.Failed(m.request_id, err.message, retryable=True)
                for m in out
                if not isinstance(m, wire.Ready | wire.Partial)
            ]
        return out

    def _load(self, ask: wire.Load) -> wire.FromChild:
        try:
            self._scheduler.load_weights(Path(ask.path), ask.version, ask.in_flight)
        except (EngineError, OSError) as err:
            return wire.Failed(ask.request_id, str(err), retryable=False)
        return wire.Loaded(ask.request_id)

    def _score(self, ask: wire.Score) -> wire.FromChild:
        row = Ids(ask.row)
        if not 1 <= count(row) <= self._files.context:
            return wire.Failed(ask.request_id, f"a row of {count(row)} tokens cannot be scored", retryable=False)
        known = Floats(b"")
        if count(row) > 1:
            known = Floats(self._model.score(row, ask.draw).cpu().numpy().astype("<f4").tobytes())
        return wire.Scored(ask.request_id, concat_floats([nans(1), known]))

    def _status(self, request_id: str) -> wire.Status:
        counters, (running, waiting) = self._scheduler.counters, self._scheduler.load
        return wire.Status(
            request_id,
            self._scheduler.version,
            running,
            waiting,
            counters.sampled,
            counters.prefilled,
            counters.cached,
            counters.steps,
            time.process_time(),
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )

    def _send(self, messages: list[wire.FromChild]) -> None:
        if messages:
            self._sock.sendall(b"".join(map(wire.frame, messages)))


def read_loop(sock: socket.socket, inbox: queue.SimpleQueue[wire.ToChild]) -> None:
    """Messages into `inbox`; a `Stop` at the parent's end of file."""
    with sock.makefile("rb") as stream:
        while len(head := stream.read(wire.LENGTH.size)) == wire.LENGTH.size:
            payload = stream.read(wire.LENGTH.unpack(head)[0])
            inbox.put(wire.to_child(payload))
    inbox.put(wire.Stop())


def main() -> None:
    """Entry of the process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("options", help="JSON of wire.Options")
    options = msgspec.json.decode(parser.parse_args().options, type=wire.Options)
    # the kernel kills us when the parent dies, even while the model loads; its death before this line shows in getppid
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != options.parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides when we stop
    import torch

    torch.set_num_threads(options.threads)
    with socket.socket(fileno=options.fd) as sock:
        inbox: queue.SimpleQueue[wire.ToChild] = queue.SimpleQueue()
        threading.Thread(target=read_loop, args=(sock, inbox), daemon=True).start()
        Server(options, sock).run(inbox)


if __name__ == "__main__":
    main()
