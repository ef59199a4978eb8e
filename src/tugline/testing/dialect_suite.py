"""What every dialect must do. Run it on your own: `run_suite(DialectKit(...))` gives the broken promises, in words.

A dialect reads requests and writes replies. The kit holds the other half, a client of that API, which you write for
the suite: it writes requests as a harness would and reads replies and event streams as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tugline.core.contracts import Dialect
from tugline.core.errors import (
    BadRequest,
    ContextOverflow,
    EngineError,
    Forbidden,
    NotFound,
    Overloaded,
    StoreError,
    TooLarge,
    TuglineError,
    Unauthorized,
    Unsupported,
    VerifyError,
    boundary,
)
from tugline.core.items import (
    Assistant,
    Head,
    Item,
    Options,
    Pending,
    Prefill,
    Reply,
    Request,
    System,
    ToolCall,
    ToolResult,
    Usage,
    UserText,
)

NO_OPTIONS = Options()

Credential = tuple[Mapping[str, str], Mapping[str, str]]
"""(headers with lower-case names, query parameters)."""


@dataclass(frozen=True, slots=True)
class DialectKit:
    """A dialect and a client of its API.

    `write(items, options)` gives the body that a harness sends for a conversation; its Assistant items are verbatim
    echoes. `read(body)` and `assemble(stream)` give the model turn that a client makes of a whole reply or of an event
    stream, and must raise when either is not complete and well formed. `credentials(secret)` lists every place where
    the API carries its key. `params` are the path parameters of the generate route.
    """

    dialect: Dialect
    write: Callable[[Sequence[Item], Options], bytes]
    read: Callable[[bytes], Assistant]
    assemble: Callable[[bytes], Assistant]
    credentials: Callable[[str], Sequence[Credential]]
    params: Mapping[str, str]

    def decode(self, items: Sequence[Item], options: Options = NO_OPTIONS) -> Request:
        """The conversation, written by the client and read by the dialect."""
        return self.dialect.decode(self.write(items, options), self.params)


ODD = '  a "b" \\ \n\t\r\x00\x7f\x85 é 漢 \u2028\u2029 \ufeff 👩\u200d💻 \u202e \U0010ffff data: x\n\n: y  \n'
"""Text that breaks careless encoders: blanks at both ends, controls, separators, joiners, the last code point."""

ASSISTANTS: tuple[Assistant, ...] = (
    Assistant(text="Done."),
    Assistant(text=ODD),
    Assistant(text=" "),
    Assistant(text="x" * 200_000),
    Assistant(text="漢" * 70_000, reasoning="🙂" * 70_000),
    Assistant(reasoning=ODD),
    Assistant(text="  text ", reasoning=" thoughts "),
    Assistant(),
    Assistant(calls=(ToolCall("call_1", "bash", '{"command" :  "ls \\u00e9"}'),)),
    Assistant(calls=(ToolCall("call_1", "f", '{"n": 1.0, "e": 1e3, "big": 12345678901234567890, "z": null}'),)),
    Assistant("Both.", "r", (ToolCall("a", "x", "{}"), ToolCall("b", "x", '{"a":"' + "q" * 90_000 + '"}'))),
)
"""Turns that every API can carry."""

VERBATIM_ARGUMENTS: tuple[str, ...] = ("", "{", '{"a": 1, }', "not json", '"text"', "[1]", "null", ODD)
"""Arguments that are no JSON object; only an API that carries them as text can keep them."""

CONVERSATION: tuple[Item, ...] = (
    System("You are careful.\n"),
    UserText("Do it. "),
    Assistant(text="  First.\n", reasoning="Think. ", calls=(ToolCall("call_1", "bash", '{"command":"ls"}'),)),
    ToolResult("call_1", "a.txt\n"),
    Assistant(calls=(ToolCall("call_2", "bash", '{"command":"a"}'), ToolCall("call_3", "bash", '{"command":"b"}'))),
    ToolResult("call_3", ""),
    ToolResult("call_2", ODD),
    Assistant(text="Ready."),
    UserText("Thanks, one more."),
    Assistant(text="Ok."),
    UserText("And?"),
)

_BASE = Usage(prompt=1000, completion=50, cached=900, reasoning=7)


def reply_of(assistant: Assistant, options: Options = NO_OPTIONS, finish: str | None = None) -> Reply:
    """A reply that says `assistant`."""
    finish = finish or ("tool_calls" if assistant.calls else "stop")
    request = Request("policy", Head(), (UserText("a"),), options)
    return Reply("0123abc", "policy", 1_790_000_000, assistant, finish, _BASE, request)


def pending_of(reply: Reply) -> Pending:
    """What was known of a reply before it was there."""
    return Pending(reply.id, reply.model, reply.created, reply.request)


WITH_USAGE = Options(stream=True, include_usage=True)


def errors() -> Iterator[TuglineError]:
    """One error of every class that a gateway may answer with."""
    yield BadRequest("expected a string", path="messages[3].content")
    yield BadRequest("quotes \ud800 hostile\n\ninput \u2028", path="messages[0].role")
    yield Unsupported("not here", path="n")
    yield ContextOverflow(70_123, 65_536)
    yield Unauthorized("unknown key")
    yield Forbidden("this session has ended")
    yield Forbidden("the budget is used up", code="budget_turns")
    yield NotFound("no route GET /x")
    yield TooLarge("the body has 9 bytes, the limit is 8")
    yield Overloaded("try again", retry_after=2.5)
    yield EngineError("the engine is gone")
    yield EngineError("the engine answered nonsense", retryable=False)
    yield StoreError("no space left")


def check_echo_is_what_a_verbatim_echo_decodes_to(kit: DialectKit) -> None:
    for said in ASSISTANTS:
        echo = kit.dialect.echo(reply_of(said))
        decoded = kit.decode((UserText("a"), echo, UserText("b"))).items
        assert decoded[1] == echo, f"{show(decoded[1])} is not the registered echo {show(echo)}"
        assert kit.dialect.echo(reply_of(echo)) == echo, "an echo of an echo differs"


def check_echo_keeps_what_was_said(kit: DialectKit) -> None:
    for said in ASSISTANTS:
        echo = kit.dialect.echo(reply_of(said))
        assert (echo.text, echo.reasoning) == (said.text, said.reasoning), f"text of {show(said)}"
        assert [(c.id, c.name) for c in echo.calls] == [(c.id, c.name) for c in said.calls], f"calls of {show(said)}"


def check_whole_reply_reads_back(kit: DialectKit) -> None:
    for said in ASSISTANTS:
        got = kit.read(kit.dialect.encode(reply_of(said)))
        assert got == kit.dialect.echo(reply_of(said)), f"encode says {show(got)} for {show(said)}"


def check_stream_says_the_same_as_the_whole_reply(kit: DialectKit) -> None:
    for said in ASSISTANTS:
        for usage in (False, True):
            reply = reply_of(said, Options(stream=True, include_usage=usage))
            parts, terminal = kit.dialect.stream(reply)
            got = kit.assemble(b"".join(parts) + terminal)
            assert got == kit.read(kit.dialect.encode(reply)), f"the stream says {show(got)} for {show(said)}"


def check_stream_without_its_end_is_noticed(kit: DialectKit) -> None:
    parts, terminal = kit.dialect.stream(reply_of(ASSISTANTS[0], WITH_USAGE))
    assert terminal, "the terminal part is empty"
    try:
        kit.assemble(b"".join(parts))
    except (AssertionError, ValueError, EOFError):
        return
    raise AssertionError("a client takes a stream without its terminal part for complete")


def check_events_are_whole_and_lines_are_safe(kit: DialectKit) -> None:
    for said in ASSISTANTS:
        parts, terminal = kit.dialect.stream(reply_of(said, WITH_USAGE))
        for part in (*parts, terminal):
            assert part.endswith(b"\n\n"), f"a part of a stream ends inside an event: {part[-40:]!r}"
            for separator in ("\u2028", "\u2029", "\x85", "\r"):
                assert separator.encode() not in part, f"a raw {separator!r} splits lines in some clients"
            assert len(part) < 1 << 20, "one event is larger than 1 MiB"


def check_keepalives_change_nothing(kit: DialectKit) -> None:
    for said in (ASSISTANTS[0], ASSISTANTS[-1]):
        reply = reply_of(said, WITH_USAGE)
        for n in (1, 2, 7):
            beats = [kit.dialect.keepalive(pending_of(reply), i) for i in range(n)]
            assert all(beat.endswith(b"\n\n") for beat in beats), "a keep-alive ends inside an event"
            parts, terminal = kit.dialect.stream(reply, n)
            got = kit.assemble(b"".join([*beats, *parts, terminal]))
            assert got == kit.dialect.echo(reply), "keep-alives changed the reply"


def check_prefix_of_a_conversation_gives_a_prefix_of_items(kit: DialectKit) -> None:
    before: tuple[Item, ...] = ()
    for n in range(1, len(CONVERSATION) + 1):
        items = kit.decode(CONVERSATION[:n]).items
        if before and isinstance(before[-1], Prefill):
            before = before[:-1]  # the last turn of a request is one that the model is to go on with
        assert items[: len(before)] == before, f"{n} items do not begin with the translation of {n - 1}"
        before = items


def check_text_is_verbatim(kit: DialectKit) -> None:
    for text in (ODD, " ", "\n", "", "a\r\nb", "x" * 300_000):
        items = kit.decode((System(text), UserText(text), Assistant(text="k"), UserText(text))).items
        assert [i.text for i in items if isinstance(i, System | UserText)] == [text] * 3, f"{text[:40]!r} changed"


def check_hostile_bodies_are_bad_requests(kit: DialectKit) -> None:
    for body in hostile(kit.write(CONVERSATION, Options())):
        try:
            with boundary(VerifyError, f"body {body[:200]!r}"):
                kit.dialect.decode(body, kit.params)
        except BadRequest:
            continue
        except VerifyError as err:
            raise AssertionError(err.message) from err


def check_errors_have_the_right_shape(kit: DialectKit) -> None:
    for err in errors():
        status, headers, body = kit.dialect.error(err)
        name = type(err).__name__
        assert status == err.status, f"{name} answers {status}, not {err.status}"
        assert headers.get("content-type", "").startswith("application/json"), f"{name} has no content type"
        assert isinstance(msgspec.json.decode(body), dict), f"{name} is no JSON object"
        assert ("retry-after" in headers) == isinstance(err, Overloaded), f"retry-after of {name}"
        if isinstance(err, ContextOverflow):
            assert b"70123" in body and b"65536" in body, "a context error must name both counts"
        event = kit.dialect.stream_error(err, pending_of(reply_of(ASSISTANTS[0], WITH_USAGE)), 3)
        assert event.endswith(b"\n\n") and b"\r" not in event, f"{name} is no event"
        assert event.startswith((b"data:", b"event:")), f"{name} is no event"


def check_credentials_are_found(kit: DialectKit) -> None:
    for headers, query in kit.credentials("tug-secret_1"):
        assert kit.dialect.credential(headers, query) == "tug-secret_1", f"no key found in {headers} {query}"
    for bad in ({}, {"authorization": ""}, {"authorization": "Bearer "}, {"authorization": "Basic dTpw"}):
        assert kit.dialect.credential(bad, {}) is None, f"{bad} is no credential"


def check_models_name_the_policy(kit: DialectKit) -> None:
    body = kit.dialect.models('odd "name"', 4096)
    assert isinstance(msgspec.json.decode(body), dict)
    assert b'odd \\"name\\"' in body, "the model list does not name the model"
    assert b"other" in kit.dialect.model("other", 4096), "a model asked for by name is not described"


def check_routes_are_plain(kit: DialectKit) -> None:
    assert any(route.kind == "generate" for route in kit.dialect.routes)
    for route in kit.dialect.routes:
        assert route.path.startswith("/") and route.path.count("{model}") == route.path.count("{"), route.path
        if route.kind == "refuse":
            assert 400 <= kit.dialect.refusal(route.path).status < 500, f"{route.path} is refused with no client error"
        if route.kind == "count":
            assert b"12345" in kit.dialect.counted(12345), "a count call is not told the count"


CHECKS: tuple[Callable[[DialectKit], None], ...] = (
    check_echo_is_what_a_verbatim_echo_decodes_to,
    check_echo_keeps_what_was_said,
    check_whole_reply_reads_back,
    check_stream_says_the_same_as_the_whole_reply,
    check_stream_without_its_end_is_noticed,
    check_events_are_whole_and_lines_are_safe,
    check_keepalives_change_nothing,
    check_prefix_of_a_conversation_gives_a_prefix_of_items,
    check_text_is_verbatim,
    check_hostile_bodies_are_bad_requests,
    check_errors_have_the_right_shape,
    check_credentials_are_found,
    check_models_name_the_policy,
    check_routes_are_plain,
)


def run_suite(kit: DialectKit) -> list[str]:
    """Broken promises, one line each; empty = the dialect keeps them all."""
    from tugline.testing.dialect_live import LIVE_CHECKS

    broken = []
    for check in CHECKS + LIVE_CHECKS:
        try:
            check(kit)
        except AssertionError as err:
            broken.append(f"{check.__name__.removeprefix('check_').replace('_', ' ')}: {err}")
    return broken


_WRONG = (
    *(b"null", b"0", b"-1", b"1e999", b"-0.5", b"NaN", b'""', b'"\\ud800"', b'"\\u0000"', b"[]", b"{}", b"true"),
    *(b"[[]]", b'[{"a":1}]', b'{"type":[]}', b"9" * 30, b"9" * 5000, b'"\xff"', b'"\xed\xa0\x80"', b'{"a":1,"a":2}'),
)


def hostile(good: bytes) -> Iterator[bytes]:
    """Bodies to throw at a decoder: a good one with every value replaced by every wrong one, cut, or buried."""
    yield from (b"", b" ", b"{", b"null", b"[]", b"0", b'"x"', b"\xff\xfe", b"\xef\xbb\xbf" + good, good + b"x")
    yield from (good[:cut] for cut in range(1, len(good), max(1, len(good) // 50)))
    yield good.decode().encode("utf-16")
    deep = 20_000
    yield b"[" * deep
    for wrong in _replaced(msgspec.json.decode(good)):
        yield msgspec.json.encode(wrong).replace(b'"@@"', b"[" * deep + b"]" * deep)
        for value in _WRONG:
            yield msgspec.json.encode(wrong).replace(b'"@@"', value)


def _replaced(value: object) -> Iterator[object]:
    """Copies of a JSON value with one place at a time, at any depth, holding the mark `@@`."""
    yield "@@"
    if isinstance(value, dict):
        for key in value:
            for inner in _replaced(value[key]):
                yield {**value, key: inner}
        yield {**value, "surprise": "@@"}
    elif isinstance(value, list):
        for i in range(len(value)):
            for inner in _replaced(value[i]):
                yield [*value[:i], inner, *value[i + 1 :]]


def show(item: object) -> str:
    """An item in a message, shortened."""
    text = repr(item)
    return text if len(text) < 300 else f"{text[:200]}...{text[-80:]}"
