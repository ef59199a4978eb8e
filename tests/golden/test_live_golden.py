"""Every streamed golden transcript, and every reply of the dialect suite, streamed live: the same stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from contract.kits import kits
from golden import anthropic_golden, gemini_golden, responses_golden
from golden.same_stream import parsed, same_form
from tugline.core.items import Pending, Reply, Usage
from tugline.testing.dialect_live import cut, live_stream
from tugline.testing.dialect_suite import ASSISTANTS, WITH_USAGE, reply_of

CUTS = ((1, 0), (1, 1), (3, 0), (5, 2), (100_000, 0))
"""(characters of a delta, characters of the last text that are never a delta)."""


@dataclass(frozen=True)
class Case:
    """`stream`: what the reply is as a buffered stream, beats and all."""

    name: str
    api: str
    reply: Reply
    stream: bytes
    beats: int = 0


def golden() -> Iterator[Case]:
    for name, body in anthropic_golden.requests().items():
        request = anthropic_golden.DIALECT.decode(body, {})
        said, finish, stop = anthropic_golden.ANSWERS[name]
        reply = Reply("0a1b", request.model, 1_790_000_000, said, finish, Usage(1200, 40, 1024, 7), request, stop)
        if request.options.stream:
            text = "\n".join(json.loads(anthropic_golden.expected_path(name).read_text())["answer"])
            yield Case(name, "anthropic", reply, text.encode())
    for name, body in gemini_golden.requests().items():
        params, said, finish = gemini_golden.ANSWERS[name]
        request = gemini_golden.DIALECT.decode(body, params)
        reply = Reply("0a1b", request.model, 1_790_000_000, said, finish, Usage(1200, 40, 1024, 7), request)
        if request.options.stream:
            text = "\n".join(json.loads(gemini_golden.expected_path(name).read_text())["answer"])
            yield Case(name, "gemini", reply, text.encode())
    for path in responses_golden.cases():
        case = json.loads(path.read_text())
        reply = responses_golden.reply_of(case)
        text = (responses_golden.HERE / f"{path.stem}.sse").read_text()
        yield Case(path.stem, "responses", reply, text.encode(), case["beats"])


def suite() -> Iterator[Case]:
    for api, kit in kits().items():
        for n, said in enumerate(ASSISTANTS):
            for finish in ("tool_calls" if said.calls else "stop", "length"):
                for options in (WITH_USAGE, replace(WITH_USAGE, include_usage=False)):
                    reply = reply_of(said, options, finish)
                    parts, terminal = kit.dialect.stream(reply)
                    yield Case(f"{n}-{finish}-{options.include_usage}", api, reply, b"".join(parts) + terminal)


CASES = [*golden(), *suite()]


def live(case: Case, size: int, left: int) -> bytes | None:
    """None for a reply of which nothing is shown before its end: that one is streamed as a buffered one."""
    said = case.reply.assistant
    deltas = list(cut(said, max(size, len((said.text or "") + (said.reasoning or "")) // 60), left))
    if not deltas:
        return None
    dialect: Any = kits()[case.api].dialect
    pending = Pending(case.reply.id, case.reply.model, case.reply.created, case.reply.request)
    stream = dialect.live(pending, case.beats)
    parts = [dialect.keepalive(pending, n) for n in range(case.beats)]
    parts += [stream.open(case.reply.usage.prompt), *[stream.delta(more) for more in deltas]]
    return b"".join([*parts, *stream.close(case.reply)])


def unsealed(api: str, form: list[Any]) -> list[Any]:
    """Sealed reasoning depends on the zlib of the machine: the recorded files have a word in its place."""
    text = json.dumps(form)
    if api == "responses":
        text = responses_golden.TOKEN.sub(b'"tug1.(sealed)"', text.encode()).decode()
    return json.loads(text)  # type: ignore[no-any-return]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.api}-{case.name}")
def test_a_live_stream_is_the_recorded_one(case: Case) -> None:
    expected = unsealed(case.api, same_form(case.api, case.stream))
    for size, left in CUTS:
        stream = live(case, size, left)
        if stream is not None:
            assert unsealed(case.api, same_form(case.api, stream)) == expected, (size, left)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.api}-{case.name}")
def test_with_silences_it_still_is(case: Case) -> None:
    said = case.reply.assistant
    deltas = list(cut(said, max(2, len((said.text or "") + (said.reasoning or "")) // 60)))
    if not deltas or case.beats:
        return
    parts, terminal = live_stream(kits()[case.api].dialect, case.reply, deltas)  # type: ignore[arg-type]
    expected = unsealed(case.api, same_form(case.api, case.stream))
    assert unsealed(case.api, same_form(case.api, parts + terminal)) == expected


def words(reply: Reply) -> list[str]:
    return [
        word
        for word in (reply.assistant.text or "").split()
        if word.isascii() and word.isalpha() and 2 < len(word) < 20
    ]


def blocks(stream: bytes) -> list[bytes]:
    return [block + b"\n\n" for block in stream.split(b"\n\n")[:-1]]


def without(stream: bytes, n: int) -> bytes:
    return b"".join(blocks(stream)[:n] + blocks(stream)[n + 1 :])


def twice(stream: bytes, n: int) -> bytes:
    return b"".join(blocks(stream)[: n + 1] + blocks(stream)[n:])


def swapped(stream: bytes, n: int) -> bytes:
    found = blocks(stream)
    found[n : n + 2] = reversed(found[n : n + 2])
    return b"".join(found)


@pytest.mark.parametrize("harm", [without, twice, swapped])
@pytest.mark.parametrize("api", list(kits()))
def test_the_comparison_notices(api: str, harm: Callable[[bytes, int], bytes]) -> None:
    """Each event of a live stream, left out, said twice, or said too early."""
    case = next(c for c in CASES if c.api == api and c.reply.assistant.calls and c.reply.assistant.text)
    stream = live(case, 4, 1)
    assert stream is not None
    right, found = same_form(api, stream), parsed(stream)
    for n, block in enumerate(blocks(stream)):
        silent = block == b'event: ping\ndata: {"type": "ping"}\n\n'
        pair = blocks(stream)[n : n + 2]
        if silent or (harm is swapped and (len(set(pair)) < 2 or b"event: ping" in b"".join(pair))):
            continue
        try:
            wrong = same_form(api, harm(stream, n))
        except AssertionError:
            continue
        assert wrong != right, (n, block)
    assert len(found) > 8


@pytest.mark.parametrize("api", list(kits()))
def test_the_comparison_notices_a_changed_word(api: str) -> None:
    ours = [case for case in CASES if case.api == api]
    calling = next(case for case in ours if case.reply.assistant.calls and list(cut(case.reply.assistant, 9)))
    speaking = next(case for case in ours if words(case.reply))
    for case, word in (
        (calling, calling.reply.id),
        (calling, f'"{calling.reply.assistant.calls[0].name}"'),
        (speaking, words(speaking.reply)[0]),
    ):
        stream = live(case, 100_000, 0)
        assert stream is not None and word.encode() in stream
        changed = stream.replace(word.encode(), word.encode()[:-2] + b"#" + word.encode()[-1:])
        assert same_form(api, changed) != same_form(api, stream), word
