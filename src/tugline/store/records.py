"""Domain values <-> msgpack. Fields are stored by name, so a field added later reads as its default from older runs.

The values of `core` carry no type tags; unions are written as [tag, value].
"""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, TypeVar, get_type_hints

import msgspec

from tugline.core.errors import VerifyError
from tugline.core.items import Assistant, Head, Item, Prefill, System, ToolResult, UserMedia, UserText
from tugline.core.session import (
    Booting,
    Ended,
    Failure,
    Judging,
    Outcome,
    Queued,
    Ready,
    Running,
    SessionState,
    state_name,
)
from tugline.core.trace import Trace
from tugline.core.turn import CallRecord, Turn

T = TypeVar("T")

ITEM_TAGS: tuple[tuple[str, type[Item]], ...] = (
    ("system", System),
    ("user_text", UserText),
    ("user_media", UserMedia),
    ("tool_result", ToolResult),
    ("assistant", Assistant),
    ("prefill", Prefill),
)
STATES: tuple[type[SessionState], ...] = (Queued, Booting, Ready, Running, Judging, Ended)

encode = msgspec.msgpack.encode


@dataclasses.dataclass(frozen=True, slots=True)
class TrajectoryRecord:
    """A trajectory without its rows; `rows` is how many it has."""

    group_id: str
    outcome: Outcome
    failure: Failure
    reward: float | None
    reward_parts: dict[str, float]
    untrained: dict[str, int]
    rows: int


class Shape(Generic[T]):
    """The part of a frozen dataclass that is stored as one record; `columns` are its fields stored elsewhere."""

    def __init__(self, cls: type[T], columns: frozenset[str] = frozenset()) -> None:
        hints = get_type_hints(cls)
        stored = [f for f in dataclasses.fields(cls) if f.name not in columns]  # type: ignore[arg-type]  # a dataclass
        self._cls = cls
        self._names = tuple(f.name for f in stored)
        struct = msgspec.defstruct(
            f"{cls.__name__}Record", [(f.name, hints[f.name], _default(f)) for f in stored], kw_only=True
        )
        self._decoder: msgspec.msgpack.Decoder[msgspec.Struct] = msgspec.msgpack.Decoder(struct)

    def pack(self, value: T) -> bytes:
        """msgpack map of the stored fields."""
        return encode({name: getattr(value, name) for name in self._names})

    def unpack(self, data: bytes, where: str, **columns: object) -> T:
        """The value again; `columns` are the fields stored elsewhere. Raises VerifyError starting with `where`."""
        try:
            record = self._decoder.decode(data)
        except msgspec.MsgspecError as err:
            raise VerifyError(f"{where} cannot be read: {err}") from err
        return self._cls(**{name: getattr(record, name) for name in self._names}, **columns)


class Records:
    """Encoders and decoders of every stored value. Stateless after construction, so threads may share one."""

    def __init__(self) -> None:
        self.turn = Shape(Turn, frozenset({"head", "items", "echo", "bridge", "sampled", "logprobs"}))
        self.trace = Shape(Trace, frozenset({"token_ids", "loss_mask", "logprobs", "routed_experts"}))
        self._call = msgspec.msgpack.Decoder(CallRecord)
        self._trajectory = msgspec.msgpack.Decoder(TrajectoryRecord)
        self._verdict = msgspec.msgpack.Decoder(tuple[float, dict[str, float]])
        self._head = msgspec.msgpack.Decoder(Head)
        self._echo = msgspec.msgpack.Decoder(Assistant)
        self._tagged = msgspec.msgpack.Decoder(list[tuple[str, msgspec.Raw]])
        self._pair = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
        self._item_tag: dict[type, str] = {cls: tag for tag, cls in ITEM_TAGS}
        self._items = {tag: msgspec.msgpack.Decoder(cls) for tag, cls in ITEM_TAGS}
        self._states = {cls.__name__.lower(): msgspec.msgpack.Decoder(cls) for cls in STATES}

    def pack_items(self, items: tuple[Item, ...]) -> bytes:
        """[[tag, fields], ...]."""
        return encode([(self._item_tag[type(item)], item) for item in items])

    def items(self, data: bytes, where: str) -> tuple[Item, ...]:
        """Raises VerifyError starting with `where`."""
        try:
            return tuple(self._items[tag].decode(raw) for tag, raw in self._tagged.decode(data))
        except KeyError as err:
            raise VerifyError(f"{where} has an item of unknown kind {err.args[0]!r}") from err
        except msgspec.MsgspecError as err:
            raise VerifyError(f"{where} cannot be read: {err}") from err

    def pack_state(self, state: SessionState) -> bytes:
        """[state name, fields]."""
        return encode((state_name(state), state))

    def state(self, data: bytes, where: str) -> SessionState:
        """Raises VerifyError starting with `where`."""
        try:
            tag, raw = self._pair.decode(data)
            return self._states[tag].decode(raw)
        except KeyError as err:
            raise VerifyError(f"{where} has the unknown state {err.args[0]!r}") from err
        except msgspec.MsgspecError as err:
            raise VerifyError(f"{where} cannot be read: {err}") from err

    def call(self, data: bytes, where: str) -> CallRecord:
        """Raises VerifyError starting with `where`."""
        return _decode(self._call, data, where)

    def trajectory(self, data: bytes, where: str) -> TrajectoryRecord:
        """Raises VerifyError starting with `where`."""
        return _decode(self._trajectory, data, where)

    def verdict(self, data: bytes, where: str) -> tuple[float, dict[str, float]]:
        """(reward, parts). Raises VerifyError starting with `where`."""
        return _decode(self._verdict, data, where)

    def head(self, data: bytes, where: str) -> Head:
        """Raises VerifyError starting with `where`."""
        return _decode(self._head, data, where)

    def echo(self, data: bytes, where: str) -> Assistant:
        """Raises VerifyError starting with `where`."""
        return _decode(self._echo, data, where)


def _decode(decoder: msgspec.msgpack.Decoder[T], data: bytes, where: str) -> T:
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError as err:
        raise VerifyError(f"{where} cannot be read: {err}") from err


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return msgspec.field(default_factory=field.default_factory)
    return msgspec.field()
