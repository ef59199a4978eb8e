"""The part of the dialect suite that is about live streams; `run_suite` has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tugline.core.contracts import LiveDialect
from tugline.core.errors import VerifyError
from tugline.core.items import Assistant, Delta, Reply
from tugline.testing.dialect_suite import ASSISTANTS, WITH_USAGE, DialectKit, pending_of, reply_of, show


def cut(said: Assistant, size: int, left: int = 0) -> Iterator[Delta]:
    """The texts of a turn in deltas of `size` characters; all but `left` characters of the last text."""
    reasoning, text = said.reasoning or "", said.text or ""
    if text:
        text = text[: len(text) - left]
    else:
        reasoning = reasoning[: len(reasoning) - left]
    yield from (Delta("reasoning", reasoning[i : i + size]) for i in range(0, len(reasoning), size))
    yield from (Delta("text", text[i : i + size]) for i in range(0, len(text), size))


def live_stream(dialect: LiveDialect, reply: Reply, deltas: Sequence[Delta], beats: int = 0) -> tuple[bytes, bytes]:
    """(all before the terminal part, the terminal part) of a reply streamed live, a beat behind every third delta."""
    parts = [dialect.keepalive(pending_of(reply), n) for n in range(beats)]
    stream = dialect.live(pending_of(reply), beats)
    parts.append(stream.open(reply.usage.prompt))
    for n, more in enumerate(deltas):
        parts.append(stream.delta(more))
        if n % 3 == 1:
            parts.append(stream.beat())
    rest, terminal = stream.close(reply)
    return b"".join([*parts, rest]), terminal


def check_live_streams_say_the_same_as_whole_ones(kit: DialectKit) -> None:
    if not isinstance(kit.dialect, LiveDialect):
        return
    for said in ASSISTANTS:
        for finish in ("tool_calls" if said.calls else "stop", "length"):
            reply = reply_of(said, WITH_USAGE, finish)
            buffered, end = kit.dialect.stream(reply)
            expected = kit.assemble(b"".join(buffered) + end)
            for size, left, beats in ((max(1, len(said.text or said.reasoning or "") // 9), 1, 0), (70_000, 0, 2)):
                deltas = list(cut(said, size, left))
                if not deltas:
                    continue
                parts, terminal = live_stream(kit.dialect, reply, deltas, beats)
                assert kit.assemble(parts + terminal) == expected, f"a live stream differs for {show(said)}"
                assert parts.endswith(b"\n\n") and terminal, "a part of a live stream ends inside an event"
                for separator in ("\u2028", "\u2029", "\x85", "\r"):
                    assert separator.encode() not in parts, f"a raw {separator!r} splits lines in some clients"
                try:
                    kit.assemble(parts)
                except (AssertionError, ValueError, EOFError):
                    continue
                raise AssertionError("a client takes a live stream without its terminal part for complete")


def check_live_streams_never_mend(kit: DialectKit) -> None:
    if not isinstance(kit.dialect, LiveDialect):
        return
    for said, shown in (
        (Assistant("Done."), [Delta("text", "Dane")]),
        (Assistant("Done.", "Hm."), [Delta("reasoning", "H"), Delta("text", "Do")]),
        (Assistant(None, "Hm."), [Delta("reasoning", "Hm. No")]),
    ):
        try:
            live_stream(kit.dialect, reply_of(said), shown)
        except VerifyError:
            continue
        raise AssertionError(f"{shown} is taken for the beginning of {show(said)}")


LIVE_CHECKS: tuple[Callable[[DialectKit], None], ...] = (
    check_live_streams_say_the_same_as_whole_ones,
    check_live_streams_never_mend,
)
