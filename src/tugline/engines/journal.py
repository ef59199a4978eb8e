"""The engine's own append-only journal, kept apart from the gateway's store so that one can prove the other.

A file is a magic string and frames: payload length, crc32 of the payload, crc32 of those two (little-endian uint32),
payload (msgpack). A process killed while it writes leaves a torn last frame, which readers drop; nothing was answered
from it, since a frame reaches the operating system before its reply leaves the engine. Other damage is a VerifyError.
A prompt is stored as a delta against an earlier record of its session in the same file.
"""

from __future__ import annotations

import mmap
import os
import re
import secrets
import struct
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tugline.core.columns import WIDTH, Floats, Ids, common_prefix, concat, count, take
from tugline.core.contracts import JournalEntry
from tugline.core.errors import StoreError, VerifyError, boundary
from tugline.core.routes import Routes, read_npy
from tugline.core.turn import Finish

FULL_EVERY = 50
"""A chain of deltas ends in a full copy after so many records, which bounds the cost of one read."""

_MAGIC = b"TUGJRNL1"
_FRAME = struct.Struct("<III")
_CHECKED = struct.Struct("<II")
_LEAVES = 8
_REMEMBERED = 32 << 20
_WORTH = 16
"""A delta that keeps fewer tokens than this is no smaller than a full copy."""
_RESOLVED = 128
_NAME = re.compile(r"journal-(\d+)-[0-9a-f]+\.bin")


class _Record(msgspec.Struct, array_like=True, frozen=True):
    ref: str
    session: str
    base: str | None
    keep: int
    suffix: bytes
    sampled: bytes
    logprobs: bytes
    finish: Finish
    version_runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Leaf:
    ref: str
    full: Ids
    depth: int


def next_boot(directory: Path) -> str:
    """A name for an engine's next life in `directory`; names sort by age."""
    numbers = [int(m.group(1)) for p in directory.glob("journal-*.bin") if (m := _NAME.fullmatch(p.name))]
    return f"{max(numbers, default=0) + 1:04d}-{secrets.token_hex(3)}"


def routes_path(directory: Path, engine_ref: str) -> Path:
    """Where the routes of one generation lie, as the engine spelled them."""
    return directory / "experts" / f"{engine_ref}.npy"


def journal_path(directory: Path, boot: str) -> Path:
    """Where the journal of one boot lies."""
    return directory / f"journal-{boot}.bin"


class JournalWriter:
    """Appends to a new file. Not thread-safe. What `append` took is safe from kill -9 once `flush` has returned."""

    def __init__(self, path: Path) -> None:
        """Raises StoreError when the file exists or cannot be created."""
        with boundary(StoreError, f"create journal {path}"):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._path = path
        self._end = 0
        self._buffer = bytearray(_MAGIC)
        self._leaves: OrderedDict[str, list[_Leaf]] = OrderedDict()
        self._held = 0
        self.flush()

    def append(self, entry: JournalEntry) -> None:
        """Queue one record."""
        if self._fd < 0:
            raise StoreError(f"journal {self._path} is closed")
        base, keep = self._base(entry)
        record = _Record(
            ref=entry.engine_ref,
            session=entry.session_id,
            base=base.ref if base else None,
            keep=keep,
            suffix=take(entry.prompt_ids, keep),
            sampled=entry.ids,
            logprobs=entry.logprobs,
            finish=entry.finish,
            version_runs=entry.version_runs,
        )
        payload = msgspec.msgpack.encode(record)
        head = _CHECKED.pack(len(payload), zlib.crc32(payload))
        self._buffer += head + zlib.crc32(head).to_bytes(4, "little") + payload
        self._remember(entry, base, keep)

    def flush(self) -> None:
        """Hand what is queued to the operating system. Raises StoreError; nothing of it is then in the file."""
        if not self._buffer:
            return
        view = memoryview(bytes(self._buffer))
        done = 0
        try:
            while done < len(view):
                done += os.write(self._fd, view[done:])
        except OSError as err:
            os.ftruncate(self._fd, self._end)  # else the next frame would follow half a frame
            os.lseek(self._fd, self._end, os.SEEK_SET)
            self._leaves.clear()
            self._held = 0
            raise StoreError(f"write journal {self._path}: {err}") from err
        finally:
            self._buffer.clear()
        self._end += done

    def forget(self, session_id: str) -> None:
        """The session has ended: later records of it would be full copies."""
        self._held -= sum(len(leaf.full) for leaf in self._leaves.pop(session_id, []))

    def close(self) -> None:
        """Flush and close; idempotent. `append` and `flush` after it raise StoreError."""
        if self._fd >= 0:
            try:
                self.flush()
            finally:
                os.close(self._fd)
                self._fd = -1

    def _base(self, entry: JournalEntry) -> tuple[_Leaf | None, int]:
        best: _Leaf | None = None
        keep = 0
        for leaf in reversed(self._leaves.get(entry.session_id, [])):
            shared = common_prefix(entry.prompt_ids, leaf.full)
            if shared > keep:
                best, keep = leaf, shared
        if best is None or keep < _WORTH or best.depth + 1 >= FULL_EVERY:
            return None, 0
        return best, keep

    def _remember(self, entry: JournalEntry, base: _Leaf | None, keep: int) -> None:
        leaves = self._leaves.setdefault(entry.session_id, [])
        self._leaves.move_to_end(entry.session_id)
        if base is not None and keep == count(base.full):
            leaves.remove(base)
            self._held -= len(base.full)
        elif len(leaves) >= _LEAVES:
            self._held -= len(leaves.pop(0).full)
        full = concat([entry.prompt_ids, entry.ids])
        leaves.append(_Leaf(entry.engine_ref, full, base.depth + 1 if base else 0))
        self._held += len(full)
        while self._held > _REMEMBERED and len(self._leaves) > 1:
            self.forget(next(iter(self._leaves)))


@dataclass(slots=True)
class _File:
    path: Path
    data: mmap.mmap | bytes
    scanned: int


class JournalIndex:
    """Generations by `engine_ref`, over every journal file of a directory (or one file).

    Holds a name and an offset per record; ids are read when asked for. Files that grow are read on at a miss.
    """

    def __init__(self, path: Path, *, strict: bool = True) -> None:
        """A missing directory is an empty journal. Raises VerifyError for damage, naming file and offset.

        `strict=False` reads around damage instead: intact records are found, and `get` of one that is not raises the
        damage, so that each generation it hides is named.
        """
        self._path = path
        self._strict = strict
        self._damage: list[VerifyError] = []
        self._files: list[_File] = []
        self._where: dict[str, tuple[_File, int]] = {}
        self._resolved: OrderedDict[str, Ids] = OrderedDict()
        self._refresh()

    def __len__(self) -> int:
        return len(self._where)

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def get(self, engine_ref: str) -> JournalEntry | None:
        """The generation of that name, or None. Raises VerifyError when its delta chain is broken."""
        if engine_ref not in self._where:
            self._refresh()
        if engine_ref not in self._where:
            if self._damage:
                raise VerifyError(f"{engine_ref}: not readable: {self._damage[0].message}")
            return None
        record = self._record(engine_ref)
        prompt_ids = self._prompt(record)
        return JournalEntry(
            engine_ref=record.ref,
            session_id=record.session,
            prompt_ids=prompt_ids,
            ids=Ids(record.sampled),
            logprobs=Floats(record.logprobs),
            finish=record.finish,
            version_runs=record.version_runs,
            routes=self._routes(record.ref, count(prompt_ids) + len(record.sampled) // WIDTH - 1),
        )

    def _routes(self, engine_ref: str, end: int) -> Routes | None:
        """Which experts the tokens in front of position `end` went to, where that was written down."""
        place = routes_path(self._path if self._path.is_dir() else self._path.parent, engine_ref)
        try:
            return read_npy(place.read_bytes(), end)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as err:
            raise VerifyError(f"{engine_ref}: {place.name} cannot be read: {err}") from err

    def entries(self) -> Iterator[JournalEntry]:
        """Every generation, oldest first."""
        for ref in list(self._where):
            entry = self.get(ref)
            if entry is not None:
                yield entry

    def _prompt(self, record: _Record) -> Ids:
        chain = [record]
        while chain[-1].base is not None and chain[-1].base not in self._resolved:
            chain.append(self._base_of(chain[-1]))
        prompt = Ids(b"")
        for link in reversed(chain):
            before = self._resolved[link.base] if link.base is not None else Ids(b"")
            if link.keep * WIDTH > len(before):
                raise VerifyError(f"{self._at(link.ref)}: keeps {link.keep} tokens of a base with {count(before)}")
            prompt = concat([take(before, 0, link.keep), Ids(link.suffix)])
            self._resolved[link.ref] = concat([prompt, Ids(link.sampled)])
            self._resolved.move_to_end(link.ref)
        while len(self._resolved) > _RESOLVED:
            self._resolved.popitem(last=False)
        return prompt

    def _base_of(self, record: _Record) -> _Record:
        base = record.base or ""
        file, offset = self._where[record.ref]
        found = self._where.get(base)
        if found is None or found[0] is not file or found[1] >= offset:  # only earlier records: so chains end
            raise VerifyError(f"{self._at(record.ref)}: its base {base!r} is no earlier record of this file")
        return self._record(base)

    def _record(self, ref: str) -> _Record:
        file, offset = self._where[ref]
        length = _FRAME.unpack_from(file.data, offset)[0]
        return _decode(file.data[offset + _FRAME.size : offset + _FRAME.size + length], file.path, offset)

    def _at(self, ref: str) -> str:
        file, offset = self._where[ref]
        return f"{file.path} at byte {offset}"

    def _refresh(self) -> None:
        known = {f.path: f for f in self._files}
        paths = sorted(self._path.glob("journal-*.bin")) if self._path.is_dir() else [self._path]
        for path in paths:
            size = path.stat().st_size if path.is_file() else 0
            file = known.get(path)
            if file is None:
                file = _File(path, b"", 0)
                self._files.append(file)
            if size > len(file.data):
                file.data = _map(path)
                self._scan(file)

    def _scan(self, file: _File) -> None:
        for offset, payload in _frames(file.data, file.path, file.scanned, None if self._strict else self._damage):
            record = _decode(payload, file.path, offset)
            if record.ref in self._where:
                raise VerifyError(f"{file.path} at byte {offset}: {record.ref!r} is journalled twice")
            self._where[record.ref] = (file, offset)
            file.scanned = offset + _FRAME.size + len(payload)


def read_journal(path: Path) -> Iterator[JournalEntry]:
    """Every generation of a journal file, or of all files of a directory, oldest first. Raises VerifyError."""
    return JournalIndex(path).entries()


def _map(path: Path) -> mmap.mmap:
    with boundary(VerifyError, f"read journal {path}"), path.open("rb") as handle:
        return mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)


def _frames(
    data: mmap.mmap | bytes, path: Path, start: int, damage: list[VerifyError] | None = None
) -> Iterator[tuple[int, bytes]]:
    """(offset, payload) of each whole frame from `start`; a torn tail ends the walk in silence.

    Damage is raised, or noted in `damage` and passed over: to the next frame while headers hold, else to the end.
    """
    at, end = start, len(data)
    if at == 0:
        head = data[: len(_MAGIC)]
        if head != _MAGIC[: len(head)]:
            raise VerifyError(f"{path} at byte 0: not an engine journal")
        at = len(_MAGIC)
    while at + _FRAME.size <= end:
        length, crc, own = _FRAME.unpack_from(data, at)
        if zlib.crc32(data[at : at + _CHECKED.size]) != own:
            _note(VerifyError(f"{path} at byte {at}: damaged frame header"), damage)
            return
        body = at + _FRAME.size
        if body + length > end:
            return
        payload = data[body : body + length]
        if zlib.crc32(payload) == crc:
            yield at, payload
        else:
            _note(VerifyError(f"{path} at byte {at}: damaged record (checksum)"), damage)
        at = body + length


def _note(err: VerifyError, damage: list[VerifyError] | None) -> None:
    if damage is None:
        raise err
    damage.append(err)


def _decode(payload: bytes, path: Path, offset: int) -> _Record:
    with boundary(VerifyError, f"{path} at byte {offset}: unreadable record"):
        return msgspec.msgpack.decode(payload, type=_Record)
