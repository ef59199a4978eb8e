import math

import pytest

from tugline.core.columns import floats_array
from tugline.core.errors import ConfigError, EngineError
from tugline.engines.openai_wire import Completed
from tugline.engines.remote import client, promtext, reply
from tugline.engines.remote.refusal import Answer, retry_after
from tugline.engines.vllm_wire import Generated


@pytest.mark.parametrize(
    ("label", "version"),
    [
        ("default", 0),
        ("7", 7),
        ("step-7", 7),
        ("run3/step_0012", 12),
        ("v1.2", 2),
        ("abc", None),
        ("7b", None),
        ("", None),
    ],
)
def test_a_label_is_the_number_at_its_end(label: str, version: int | None) -> None:
    assert reply.version_of(label) == version


@pytest.mark.parametrize(
    ("labels", "n", "runs"),
    [
        ([("default", 0)], 5, ((0, 0),)),
        ([("step-1", 0), ("step-2", 3)], 5, ((0, 1), (3, 2))),
        ([("1", 0), ("1", 3)], 5, ((0, 1),)),
        ([("1", 0), ("2", 5)], 5, ((0, 1),)),
        ([("1", 2)], 5, ()),
        ([("sha-of-something", 0)], 5, ()),
        ([("1", 0), ("x", 2)], 5, ()),
        ([], 5, ()),
        ([("1", 0)], 0, ()),
    ],
)
def test_version_runs(labels: list[tuple[str, int]], n: int, runs: tuple[tuple[int, int], ...]) -> None:
    assert reply.runs_of(labels, n) == runs


def test_what_stands_for_an_unknown_value_is_unknown() -> None:
    values = floats_array(reply.known_floats([-1.0, None, -9999.0, -0.5]))
    assert [math.isnan(v) for v in values] == [False, True, True, False]


def test_numbers_that_are_no_json_count_as_unknown() -> None:
    entries = b'{"token_id": 1, "logprob": NaN}, {"token_id": 2, "logprob":-Infinity}'
    body = b'{"choices": [{"logprobs": {"content": [' + entries + b"]}}]}"
    made = reply.decode_json(body, Generated)
    assert isinstance(made, Generated) and made.choices[0].logprobs is not None
    assert [entry.logprob for entry in made.choices[0].logprobs.content or ()] == [None, None]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff{}", b'{"choices": 3}', b'"NaN"'])
def test_what_cannot_be_read_is_said(body: bytes) -> None:
    with pytest.raises(EngineError) as caught:
        reply.decode_json(body, Generated)
    assert caught.value.fault == "unreadable" and caught.value.retryable


def test_an_unknown_end_is_a_fault_with_its_name() -> None:
    with pytest.raises(EngineError) as caught:
        reply.finish_of("repetition")
    assert caught.value.fault == "finish_repetition"


@pytest.mark.parametrize(
    ("text", "url"),
    [("http://h:1/", "http://h:1"), ("https://h/api/v1", "https://h/api/v1")],
)
def test_urls(text: str, url: str) -> None:
    assert client.remote_url(text) == url


@pytest.mark.parametrize("text", ["h:1", "ftp://h", "http://", "http://user:secret@h"])
def test_what_is_no_url_is_refused_without_its_secret(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        client.remote_url(text)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": {"message": "no  room"}}', "no room"),
        (b'{"error": "plain"}', "plain"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b"<html>gateway</html>", "<html>gateway</html>"),
        (b"", ""),
    ],
)
def test_error_bodies_of_every_shape(body: bytes, text: str) -> None:
    assert client.refusal_text(body) == text


@pytest.mark.parametrize(
    ("status", "again"), [(400, False), (401, False), (404, False), (408, True), (429, True), (503, True)]
)
def test_which_answers_are_worth_another_try(status: int, again: bool) -> None:
    err = client.refused(client.Answer(status, b"", {}))
    assert (err.retryable, err.fault) == (again, f"http_{status}")


def test_retry_after() -> None:
    told = [{"retry-after": "3"}, {"retry-after-ms": "250"}, {"retry-after": "soon"}, {}, {"retry-after": "99999"}]
    assert [client.retry_after(client.Answer(429, b"", h)) for h in told] == [3.0, 0.25, None, None, 600.0]


def test_metrics_are_summed_over_their_labels() -> None:
    text = (
        '# HELP a b\na{x="1}"} 2\na{x="2"} 3\nb_total 4\nc NaN\nd 1e3\nother 9\nshare{x="1"} 0.5\nshare{x="2"} 0.75\n'
    )
    found = promtext.totals(text, ["a", "b", "c", "d", "share"], ["share"])
    assert found == {"a": 5.0, "b": 4.0, "d": 1000.0, "share": 0.75}


@pytest.mark.parametrize("text", ["a{", 'a{x="1} 2\n', "a 1 2 3 four\n", "a x\n"])
def test_metrics_that_cannot_be_read(text: str) -> None:
    with pytest.raises(EngineError):
        promtext.totals(text, ["a"])


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (429, {"retry-after": "Thu, 01 Jan 1970 00:02:00 GMT"}, 20.0),
        (503, {"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        (429, {"retry-after": "nan"}, None),
        (429, {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, 360.0),
        (429, {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "20ms"}, 0.02),
        (429, {"x-ratelimit-remaining-requests": "3", "x-ratelimit-reset-requests": "20ms"}, None),
        (429, {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "soon"}, None),
        (500, {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1s"}, None),
        (429, {"retry-after": "2", "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "9s"}, 2.0),
    ],
)
def test_how_an_api_says_when(status: int, headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(Answer(status, b"", headers), now=100.0) == pytest.approx(seconds)


def test_texts_beside_a_number_that_is_none_stay_as_they_are() -> None:
    said = b'{"finish_reason": "a \\" NaN ,", "logprobs": {"content": [{"logprob": NaN}]}}'
    body = b'{"id": "say NaN, or -Infinity", "choices": [' + said + b"]}"
    made = reply.decode_json(body, Completed)
    assert isinstance(made, Completed) and made.id == "say NaN, or -Infinity"
    assert made.choices[0].finish_reason == 'a " NaN ,' and made.choices[0].logprobs is not None


def test_replies_that_nest_without_end_are_unreadable() -> None:
    with pytest.raises(EngineError) as caught:
        reply.decode_json(b'{"x": ' + b"[" * 200_000, Completed)
    assert caught.value.fault == "unreadable"
