"""Values to store: consistent trees of turns with their calls and rows."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from tugline.core.columns import Floats, Ids, concat, count, floats, ids, nans, take
from tugline.core.items import (
    Assistant,
    Head,
    Prefill,
    System,
    Tool,
    ToolCall,
    ToolResult,
    UserMedia,
    UserText,
)
from tugline.core.trace import Span, Trace
from tugline.core.turn import CallOutcome, CallRecord, Sampling, Turn

HEAD = Head((Tool("bash", '{"type":"function","function":{"name":"bash","parameters":{}}}'),), '{"a": 1}')
ITEMS = (
    System("You are.", "developer"),
    UserText("héllo\n"),
    UserText("more", joined=True),
    UserMedia("image/png", "d1", joined=True),
    Assistant("text", "why", (ToolCall("c1", "bash", '{"command": "ls'),)),
    ToolResult("c1", "out", None),
    ToolResult("c2", "", "bash"),
    Prefill("<answer>"),
)


def some_logprobs(n: int, seed: int = 0) -> Floats:
    """float32[n] with NaN, -0.0, an infinity and a signalling NaN's bits among them."""
    values = np.random.default_rng(seed).normal(-1, 1, n).astype("<f4")
    raw = bytearray(values.tobytes())
    for at, bits in enumerate((0x7FC00000, 0x80000000, 0xFF800000, 0x7F800001)):
        if at < n:
            raw[4 * at : 4 * at + 4] = bits.to_bytes(4, "little")
    return Floats(bytes(raw))


@dataclass
class Builder:
    """Makes turns whose keep, bridge and prompt_len agree, for any shape of tree."""

    session_id: str
    seed: int = 0

    def __post_init__(self) -> None:
        self.turns: list[Turn] = []
        self.full: dict[str, Ids] = {}
        self._rng = random.Random(self.seed)

    def add(self, parent: str | None = None, *, bridge: int = 5, sampled: int = 4, trim: int = 0) -> Turn:
        n = len(self.turns)
        before = self.full[parent] if parent is not None else Ids(b"")
        keep = max(0, count(before) - trim)
        tail = ids(self._rng.randrange(-(2**31), 2**31) for _ in range(bridge))
        drawn = ids(self._rng.randrange(152_000) for _ in range(sampled))
        prompt = concat([take(before, 0, keep), tail])
        turn = Turn(
            turn_id=f"{self.session_id}.t{n}",
            session_id=self.session_id,
            seq=n,
            parent=parent,
            keep=keep,
            bridge=tail,
            sampled=drawn,
            logprobs=some_logprobs(sampled, n),
            version_runs=((0, 3), (2, 4)) if sampled > 2 else ((0, 3),),
            finish="stop",
            prompt_len=count(prompt),
            head=HEAD if n % 3 else Head(),
            items=ITEMS[: 1 + n % len(ITEMS)],
            echo=Assistant(f"reply {n}", None, (ToolCall("c", "bash", "{}"),)),
            key_exact=bytes([n % 256]) * 16,
            key_lenient=b"",
            sampling=Sampling(0.7, 0.9, 20, 512, None if n % 2 else 7),
            level="L4",
            role="main" if n % 2 else "subagent",
            drift=("stop_trim",) if trim else (),
            untrainable=None if n % 5 else "echo_mismatch",
        )
        self.full[turn.turn_id] = concat([prompt, drawn])
        self.turns.append(turn)
        return turn

    def chain(self, n: int) -> list[Turn]:
        parent: str | None = None
        for _ in range(n):
            parent = self.add(parent).turn_id
        return self.turns


def call_for(turn: Turn, **changes: object) -> CallRecord:
    """The answered call of a turn."""
    return CallRecord(
        **{
            "call_id": f"call-{turn.turn_id}",
            "session_id": turn.session_id,
            "seq": turn.seq,
            "dialect": "chat",
            "path": "/v1/chat/completions",
            "turn_id": turn.turn_id,
            "outcome": CallOutcome.ANSWERED,
            "status": 200,
            "started": 1_700_000_000.25,
            "duration": 0.5,
            "asked": '{"max_tokens": 5}',
            "engine_ref": f"ref-{turn.turn_id}",
            "drift": turn.drift,
            **changes,
        }
    )


def failed_call(session_id: str, call_id: str, **changes: object) -> CallRecord:
    """A call that gave no turn."""
    return CallRecord(
        **{
            "call_id": call_id,
            "session_id": session_id,
            "seq": 0,
            "dialect": "chat",
            "path": "/v1/chat/completions",
            "turn_id": None,
            "outcome": CallOutcome.REJECTED,
            "status": 400,
            "started": 1.0,
            "duration": 0.0,
            "error": "BadRequest: no",
            **changes,
        }
    )


def row_of(builder: Builder, leaf: Turn, trace_id: str = "trace-0") -> Trace:
    """The training row that ends with `leaf`."""
    by_id = {t.turn_id: t for t in builder.turns}
    path: list[Turn] = []
    step: str | None = leaf.turn_id
    while step is not None:
        path.append(by_id[step])
        step = by_id[step].parent
    full = builder.full[leaf.turn_id]
    mask, logprobs = bytearray(count(full)), bytearray(nans(count(full)))
    spans = []
    for turn in reversed(path):
        start, end = turn.prompt_len, min(turn.prompt_len + count(turn.sampled), count(full))
        mask[start:end] = b"\x01" * (end - start)
        logprobs[4 * start : 4 * end] = turn.logprobs[: 4 * (end - start)]
        spans.append(Span(start, end, turn.turn_id, turn.role, turn.finish, trained=True))
    return Trace(
        trace_id=trace_id,
        session_id=leaf.session_id,
        group_id="grp",
        kind="main",
        parent=None,
        order=0,
        token_ids=full,
        loss_mask=bytes(mask),
        logprobs=Floats(bytes(logprobs)),
        version_runs=((0, 3),),
        spans=tuple(spans),
        sampling=leaf.sampling,
        loss_weight=0.5,
        drift={"stop_trim": 1},
    )


def bare_row(session_id: str, trace_id: str) -> Trace:
    """A row that no turn stands behind."""
    return Trace(
        trace_id=trace_id,
        session_id=session_id,
        group_id="grp",
        kind="auxiliary",
        parent="trace-0",
        order=1,
        token_ids=ids([1, 2, 3]),
        loss_mask=b"\0\1\1",
        logprobs=floats([float("nan"), -1.0, -2.0]),
        version_runs=(),
        spans=(Span(1, 3, "unknown", "auxiliary", "length", trained=False),),
        sampling=Sampling(),
    )
