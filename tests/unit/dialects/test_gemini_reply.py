"""The spelling of Gemini replies, streams, errors and routes."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from contract.gemini_kit import events
from tugline.core.errors import EngineError, NotFound, Unsupported
from tugline.core.items import Assistant, Options, ToolCall, Usage, UserText
from tugline.dialects import DIALECTS, GeminiDialect
from tugline.dialects.gemini_wire import Seal, signature, unseal
from tugline.gateway.app import Router
from tugline.testing.dialect_suite import pending_of, reply_of

DIALECT = GeminiDialect()
CALLS = (ToolCall("call_1", "f", '{"a" :  1.0}'), ToolCall("call_2", "g", "{"))
SAID = Assistant("text", "why", CALLS)


def parts(said: Assistant) -> list[dict[str, object]]:
    reply = json.loads(DIALECT.encode(reply_of(said)))
    return reply["candidates"][0]["content"]["parts"]  # type: ignore[no-any-return]


def test_a_whole_reply() -> None:
    body = DIALECT.encode(reply_of(SAID))
    assert b'"args":{"a":1.0}' in body, "numbers as the model spelled them"
    reply = json.loads(body)
    sign = signature(reply_of(SAID), sealed=True)
    assert reply == {
        "candidates": [
            {
                "content": {
                    "parts": [
                        {"text": "why", "thought": True},
                        {"text": "text"},
                        {
                            "functionCall": {"name": "f", "args": {"a": 1}, "id": "call_1"},
                            "thoughtSignature": sign,
                        },
                        {"functionCall": {"name": "g", "args": {"__raw_arguments": "{"}, "id": "call_2"}},
                    ],
                    "role": "model",
                },
                "finishReason": "STOP",
                "index": 0,
            }
        ],
        "usageMetadata": {
            "promptTokenCount": 1000,
            "cachedContentTokenCount": 900,
            "candidatesTokenCount": 43,
            "thoughtsTokenCount": 7,
            "totalTokenCount": 1050,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 1000}],
        },
        "modelVersion": "policy",
        "responseId": "0123abc",
    }


def test_the_signature_stands_on_the_first_call_or_on_the_text() -> None:
    signed = [[("thoughtSignature" in part) for part in parts(said)] for said in (SAID, Assistant("t", "r"))]
    assert signed == [[False, False, True, False], [False, True]]
    assert "thoughtSignature" in parts(Assistant(None, "r"))[0]
    assert parts(Assistant()) == [{"text": ""}]


def test_signatures_are_the_replys_and_ours() -> None:
    one = signature(reply_of(SAID), sealed=True)
    assert one == signature(reply_of(SAID), sealed=True)
    seal = unseal(one, 100)
    assert seal is not None and seal.reasoning == "why"
    assert unseal(signature(reply_of(SAID), sealed=False), 0) == Seal(seal.mark, None)
    others = [reply_of(replace(SAID, text="other")), replace(reply_of(SAID), id="2"), reply_of(Assistant("text"))]
    marks = {unseal(signature(r, sealed=True), 100).mark for r in others} | {seal.mark}  # type: ignore[union-attr]
    assert len(marks) == 4
    altered = ("A" if one[0] != "A" else "B") + one[1:]
    for foreign in ("", "skip_thought_signature_validator", "AAAA", altered, one * 2, "x" * 10_000, "\u00e9"):
        assert unseal(foreign, 100) is None
    assert unseal(one.replace("+", "-").replace("/", "_"), 100) == seal
    assert re.fullmatch(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", one), "Pi drops others"


def test_a_signature_unpacks_to_a_bounded_size() -> None:
    bomb = signature(reply_of(Assistant("a", "0" * 1_000_000)), sealed=True)
    assert len(bomb) < 10_000
    assert unseal(bomb, 999_999) is None
    assert unseal(bomb, 1_000_000) is not None


def test_absent_arguments() -> None:
    assert parts(Assistant(calls=(ToolCall("c", "f", ""),)))[0]["functionCall"] == {"name": "f", "id": "c"}


def test_a_cut_reply_says_so_even_with_calls() -> None:
    reply = reply_of(SAID, finish="length")
    assert json.loads(DIALECT.encode(reply))["candidates"][0]["finishReason"] == "MAX_TOKENS"
    assert b'"finishReason":"MAX_TOKENS"' in DIALECT.stream(reply)[1]


def test_counts_of_nothing_are_left_out_or_zero() -> None:
    reply = replace(reply_of(Assistant()), usage=Usage(3, 0))
    assert json.loads(DIALECT.encode(reply))["usageMetadata"] == {
        "promptTokenCount": 3,
        "candidatesTokenCount": 0,
        "totalTokenCount": 3,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 3}],
    }


def test_a_stream_is_one_part_per_chunk() -> None:
    chunks, terminal = DIALECT.stream(reply_of(SAID))
    got = [json.loads(text) for text in events(b"".join(chunks))]
    kinds = [[sorted(p) for p in c["candidates"][0]["content"]["parts"]] for c in got]
    assert kinds == [
        [["text", "thought", "thoughtSignature"]],
        [["text", "thoughtSignature"]],
        [["functionCall", "thoughtSignature"]],
        [["functionCall", "thoughtSignature"]],
    ]
    (last,) = map(json.loads, events(terminal))
    assert last["candidates"] == [
        {"content": {"parts": [{"text": ""}], "role": "model"}, "finishReason": "STOP", "index": 0}
    ]


def test_an_array_holds_the_chunks_of_the_stream() -> None:
    for said in (SAID, Assistant("x" * 100_000, "y" * 50_000), Assistant()):
        whole = DIALECT.encode(reply_of(said, Options(form="array")))
        chunks, terminal = DIALECT.stream(reply_of(said, Options(stream=True)))
        assert json.loads(whole) == [json.loads(text) for text in events(b"".join(chunks) + terminal)]


def test_an_error_in_a_stream_ends_in_something_that_is_no_event() -> None:
    """An SDK that skips error chunks must not take the end of the stream for that of an answer."""
    data = DIALECT.stream_error(EngineError("gone"), pending_of(reply_of(SAID)), 2)
    event, rest = data.split(b"\n\n", 1)
    assert json.loads(event[6:])["error"]["code"] == 502
    assert rest.strip() and rest.startswith(b":")


ROUTER = Router(DIALECTS)
GOOGLE = {"x-goog-api-key": "k"}


@pytest.mark.parametrize("version", ["/v1beta", "/v1", "/v1alpha", ""])
def test_routes(version: str) -> None:
    for action, kind, params in (
        ("generateContent", "generate", {}),
        ("streamGenerateContent", "generate", {"stream": "1"}),
        ("countTokens", "count", {}),
    ):
        for model in ("gemini-2.5-pro", "models/a", "a:b"):
            found = ROUTER.find("POST", f"{version}/models/{model}:{action}", {})
            assert (found.dialect.name, found.route.kind) == ("gemini", kind)
            assert found.params == {"model": model, **params}
    assert ROUTER.find("GET", f"{version}/models", GOOGLE).dialect.name == "gemini"
    assert ROUTER.find("GET", f"{version}/models/m", {"x-goog-api-client": "x"}).dialect.name == "gemini"


def test_shared_paths_are_chats_unless_a_google_client_asks() -> None:
    for path in ("/v1/models", "/models", "/v1/models/m"):
        assert ROUTER.find("GET", path, {"authorization": "Bearer k"}).dialect.name != "gemini"


@pytest.mark.parametrize(
    "path",
    [
        "/v1beta/models/m:embedContent",
        "/v1/models/m:batchEmbedContents",
        "/v1beta/models/m:batchGenerateContent",
        "/v1beta/cachedContents",
        "/v1beta/files",
        "/upload/v1beta/files",
    ],
)
def test_what_is_known_and_not_served(path: str) -> None:
    found = ROUTER.find("POST", path, GOOGLE)
    assert (found.dialect.name, found.route.kind) == ("gemini", "refuse")
    err = DIALECT.refusal(path)
    assert isinstance(err, Unsupported) and path.rpartition("/")[2].rpartition(":")[2] in err.message


def test_a_model_by_any_name() -> None:
    assert json.loads(DIALECT.model("models/x", 5))["name"] == json.loads(DIALECT.model("x", 5))["name"] == "models/x"


def test_count() -> None:
    counted = json.loads(DIALECT.counted(7))
    assert counted == {"totalTokens": 7, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 7}]}


def test_unknown_paths_are_not_ours() -> None:
    with pytest.raises(NotFound):
        ROUTER.find("POST", "/v1beta/models/m:unknown", GOOGLE)


def test_keys() -> None:
    both = {"x-goog-api-key": "one", "authorization": "Bearer two"}
    assert DIALECT.credential(both, {"key": "three"}) == "one"
    assert DIALECT.credential({"authorization": "Bearer two"}, {"key": "three"}) == "three"
    assert DIALECT.credential({"x-goog-api-key": " "}, {"key": ""}) is None


def test_a_prefilled_turn_is_found_again() -> None:
    chunk = json.loads(DIALECT.encode(reply_of(Assistant(" b."))))["candidates"][0]["content"]
    user = {"role": "user", "parts": [{"text": "q"}]}
    contents = [user, {"role": "model", "parts": [{"text": "a"}]}, chunk, user]
    body = json.dumps({"contents": contents}).encode()
    assert DIALECT.decode(body, {}).items == (UserText("q"), Assistant("a b."), UserText("q"))
