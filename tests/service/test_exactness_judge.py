"""The judge can fail: for each promise gateways that break it, one small fault each, and it says which and where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from service.meddler import Body, broken, judged, meddler, with_ids
from tugline.cli.wiring import PILOT
from tugline.core.columns import ids, ids_list
from tugline.testing.exactness.fake import FakeEngine
from tugline.testing.exactness.own import own_gateway
from tugline.testing.exactness.reach import http_client
from tugline.testing.exactness.suite import Plan, fake_server, run_suite

SCENES = ("user_turns", "parallel")
PILOTS = FakeEngine(PILOT)


async def test_without_a_fault_everything_holds() -> None:
    """The same relay, scenes and sampling as below: what is found there is the fault's."""
    for mode in ("whole", "streamed"):
        report = await judged(*SCENES, asks=with_ids, noncanonical=0.0, mode=mode)
        assert broken(report) == {} and report.ok
        assert all(score.of for score in report.verdicts["chat"].scores.values()), "every promise was looked at"


# -------------------------------------------------------------------------------------------------------------- E


def choice(body: Body) -> Body:
    found: Body = body["choices"][0]
    return found


def another_id(body: Body) -> Body:
    choice(body)["token_ids"][1] += 1
    return body


def another_prompt_id(body: Body) -> Body:
    body["prompt_token_ids"][3] += 1
    return body


def prompt_of_the_last_message(body: Body) -> Body:
    body["prompt_token_ids"] = body["prompt_token_ids"][20:]
    return body


def stop_trimmed(body: Body) -> Body:
    choice(body)["token_ids"].pop()
    choice(body)["logprobs"]["content"].pop()
    return body


def one_more(body: Body) -> Body:
    choice(body)["token_ids"].append(choice(body)["token_ids"][-1])
    choice(body)["logprobs"]["content"].append(choice(body)["logprobs"]["content"][-1])
    return body


def other_logprob(body: Body) -> Body:
    choice(body)["logprobs"]["content"][1]["logprob"] -= 0.01
    return body


def shifted_logprobs(body: Body) -> Body:
    rows = choice(body)["logprobs"]["content"]
    choice(body)["logprobs"]["content"] = [*rows[1:], rows[0]]
    return body


def no_logprobs(body: Body) -> Body:
    choice(body)["logprobs"] = None
    return body


@pytest.mark.parametrize(
    ("tells", "said"),
    [
        (another_id, "sampled token 1 of"),
        (another_prompt_id, "differs from prompt token 3 of"),
        (prompt_of_the_last_message, "differs from prompt token 0 of"),
        (stop_trimmed, "no record holds its ids"),
        (one_more, "the engine did not sample"),
        (other_logprob, "log-probability of sampled token 1"),
        (shifted_logprobs, "log-probability of sampled token 0"),
        (no_logprobs, "without log-probabilities"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_records_that_are_not_what_was_sampled(tells: Callable[[Body], Body], said: str) -> None:
    report = await judged("user_turns", noncanonical=0.0, asks=with_ids, tells=tells)
    assert set(broken(report)) == {"E"} and said in broken(report)["E"]


async def test_records_made_of_text_again() -> None:
    """Ids that an encoder gives for the sampled text: right only where the policy sampled as encoders do."""

    def again(body: Body) -> Body:
        text = PILOTS.decode(ids(choice(body)["token_ids"]))
        choice(body)["token_ids"] = ids_list(PILOTS.model.encode(text))
        rows = choice(body)["logprobs"]["content"]
        choice(body)["logprobs"]["content"] = rows[:1] * len(choice(body)["token_ids"])
        return body

    assert "E" in broken(await judged("user_turns", asks=with_ids, tells=again))


async def test_a_gateway_that_records_another_prompt_than_it_sent() -> None:
    """Between our gateway and its engine a token is lost; the echo does not tell."""
    sent: list[list[int]] = []

    def loses(body: Body) -> Body:
        sent.append(body["token_ids"])
        return body | {"token_ids": [*body["token_ids"][:5], *body["token_ids"][6:]]}

    def lies(body: Body) -> Body:
        return body | {"prompt_token_ids": sent[-1]} if "prompt_token_ids" in body else body

    engine = FakeEngine(PILOT)
    async with (
        fake_server(engine) as url,
        meddler(url, asks=_past_probes(loses), tells=lies) as between,
        own_gateway(between, engine) as own,
        http_client() as http,
    ):
        report = await run_suite(engine, own, http, Plan(("chat",), ("user_turns",), ("whole",)))
    assert {"E", "F"} <= set(broken(report)) and "prompt token 5" in broken(report)["E"]


def _past_probes(change: Callable[[Body], Body]) -> Callable[[Body], Body]:
    return lambda body: change(body) if "token_ids" in body else body


# -------------------------------------------------------------------------------------------------------------- C


async def test_prompts_made_of_text_again() -> None:
    """A relay is exact, and goes on from what was sampled only where an encoder would give the same ids."""
    report = await judged("user_turns", asks=with_ids)
    assert set(broken(report)) == {"C"} and "sampled token" in broken(report)["C"]


def turns(body: Body) -> list[Body]:
    return [m for m in body["messages"] if m["role"] == "assistant"]


def drops_reasoning(body: Body) -> Body:
    for message in turns(body):
        message.pop("reasoning", None)
        message.pop("reasoning_content", None)
    return with_ids(body)


def forgets_calls_order(body: Body) -> Body:
    for message in turns(body):
        message.get("tool_calls", []).reverse()
    return with_ids(body)


def parses_arguments(body: Body) -> Body:
    for message in turns(body):
        for one in message.get("tool_calls", ()):
            one["function"]["arguments"] = one["function"]["arguments"].upper()
    return with_ids(body)


@pytest.mark.parametrize(
    ("asks", "scene", "said"),
    [
        (drops_reasoning, "verbatim", "Let me look"),
        (forgets_calls_order, "parallel", "does not go on from the turn before"),
        (parses_arguments, "parallel", "does not go on from the turn before"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_a_history_that_is_not_what_was_sampled(asks: Callable[[Body], Body], scene: str, said: str) -> None:
    """The turn before stands otherwise than sampled (C) and otherwise than the template would write it (F)."""
    report = await judged(scene, asks=asks, noncanonical=0.0)
    assert set(broken(report)) == {"C", "F"} and said in broken(report)["C"]
    assert "neither as sampled nor as the template writes it" in broken(report)["F"]


# -------------------------------------------------------------------------------------------------------------- F


def trims_system(body: Body) -> Body:
    body["messages"][0]["content"] = body["messages"][0]["content"].strip()
    return with_ids(body)


def own_system(body: Body) -> Body:
    body["messages"][0]["content"] += "Be brief."
    return with_ids(body)


def system_as_user(body: Body) -> Body:
    first, second, *rest = body["messages"]
    said = {"role": "user", "content": f"{first['content']}{second['content']}"}
    return with_ids(body | {"messages": [said, *rest]})


def tools_reordered(body: Body) -> Body:
    return with_ids(body | {"tools": body["tools"][::-1]})


def results_reordered(body: Body) -> Body:
    results = [m for m in body["messages"] if m["role"] == "tool"]
    others = [m for m in body["messages"] if m["role"] != "tool"]
    return with_ids(body | {"messages": [*others, *results[::-1]]})


def double_blanks(body: Body) -> Body:
    for message in body["messages"]:
        if message["role"] == "user":
            message["content"] += " "
    return with_ids(body)


@pytest.mark.parametrize(
    ("asks", "scene"),
    [
        (trims_system, "user_turns"),
        (own_system, "user_turns"),
        (system_as_user, "user_turns"),
        (tools_reordered, "user_turns"),
        (results_reordered, "parallel"),
        (double_blanks, "user_turns"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_a_format_of_the_gateways_own(asks: Callable[[Body], Body], scene: str) -> None:
    report = await judged(scene, asks=asks, noncanonical=0.0)
    assert set(broken(report)) == {"F"} and " instead of " in broken(report)["F"]


async def test_turns_that_nobody_said() -> None:
    def reworded(body: Body) -> Body:
        for message in turns(body):
            message["content"] = "Something that nobody said."
        return body

    report = await judged("user_turns", asks=reworded, noncanonical=0.0)
    assert set(broken(report)) == {"C", "F"} and "neither as sampled nor" in broken(report)["F"]


# -------------------------------------------------------------------------------------------------------------- S


def hides_results(body: Body) -> Body:
    for message in body["messages"]:
        if message["role"] == "tool":
            message["content"] = "(hidden)"
    return body


def merges_blanks(body: Body) -> Body:
    for message in body["messages"]:
        if message["role"] == "tool":
            message["content"] = " ".join(message["content"].split())
    return body


def hides_tools(body: Body) -> Body:
    return {k: v for k, v in body.items() if k != "tools"}


def keeps_old_words(body: Body) -> Body:
    for message in body["messages"]:
        if "Bertram the" in (message["content"] or ""):
            message["content"] = "My name is Alfred the first."
    return body


def loses_the_last_question(body: Body) -> Body:
    return body | {"messages": body["messages"][:2] if len(body["messages"]) > 2 else body["messages"]}


def questions_reordered(body: Body) -> Body:
    places = [n for n, m in enumerate(body["messages"]) if m["role"] == "user"]
    said = [body["messages"][n]["content"] for n in places][::-1]
    for n, text in zip(places, said, strict=True):
        body["messages"][n]["content"] = text
    return body


@pytest.mark.parametrize(
    ("asks", "scene", "promises", "said"),
    [
        (hides_results, "verbatim", {"C", "F", "S"}, "does not read 'a.txt"),
        (merges_blanks, "verbatim", {"C", "F", "S"}, "does not read 'a.txt\\nb.txt'"),
        (hides_tools, "verbatim", {"C", "F", "S"}, "not told of the tool 'bash'"),
        (keeps_old_words, "text_rewritten", {"S"}, "its words 'Bertram the second'"),
        (loses_the_last_question, "user_turns", {"C", "F", "S"}, "does not read 'And 3 + 3?'"),
        (questions_reordered, "user_turns", {"C", "F", "S"}, "in its place"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_what_the_model_reads(asks: Callable[[Body], Body], scene: str, promises: set[str], said: str) -> None:
    report = await judged(scene, asks=asks, noncanonical=0.0)
    assert set(broken(report)) == promises and said in broken(report)["S"]


async def test_words_that_become_control_tokens() -> None:
    """Chat endpoints of engines read control tokens in anybody's words."""
    report = await judged("hostile", noncanonical=0.0)
    assert "control tokens" in broken(report)["S"] and "F" not in broken(report)


def message(body: Body) -> Body:
    found: Body = choice(body)["message"]
    return found


def other_words(body: Body) -> Body:
    message(body)["content"] = "FOUR."
    return body


def merged_blanks(body: Body) -> Body:
    message(body)["content"] = " ".join((message(body)["content"] or "").split())
    return body


def no_reasoning(body: Body) -> Body:
    message(body)["reasoning"] = None
    return body


def other_reasoning(body: Body) -> Body:
    message(body)["reasoning"] = "I was told what to think."
    return body


def calls_reversed(body: Body) -> Body:
    message(body).get("tool_calls", []).reverse()
    return body


def call_lost(body: Body) -> Body:
    message(body)["tool_calls"] = message(body).get("tool_calls", [])[:2]
    return body


def other_argument(body: Body) -> Body:
    for one in message(body).get("tool_calls", ()):
        one["function"]["arguments"] = one["function"]["arguments"].replace("two", "2")
    return body


def end_untold(body: Body) -> Body:
    choice(body)["finish_reason"] = "stop"
    return body


@pytest.mark.parametrize(
    ("tells", "scene", "said"),
    [
        (other_words, "user_turns", "the harness reads 'FOUR.'"),
        (merged_blanks, "text_trimmed", "the model said '  Let me look"),
        (no_reasoning, "user_turns", "the model thought 'Simple arithmetic.', the harness reads ''"),
        (other_reasoning, "user_turns", "the harness reads 'I was told"),
        (calls_reversed, "parallel", "the model called [('bash', {'command': 'one'})"),
        (call_lost, "parallel", "the model called [('bash', {'command': 'one'})"),
        (other_argument, "parallel", "the model called [('bash', {'command': 'one'})"),
        (end_untold, "truncated", "the model ended with 'length', the harness is told 'stop'"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_what_the_harness_reads(tells: Callable[[Body], Body], scene: str, said: str) -> None:
    report = await judged(scene, tells=tells, noncanonical=0.0)
    assert said in broken(report)["S"]


def deltas(chunks: list[Body], key: str) -> list[int]:
    """Places of the chunks that bring something of that name."""
    return [n for n, c in enumerate(chunks) if c["choices"] and c["choices"][0]["delta"].get(key)]


def without(key: str, which: int) -> Callable[[list[Body]], list[Body]]:
    def lose(chunks: list[Body]) -> list[Body]:
        places = deltas(chunks, key)
        return [c for n, c in enumerate(chunks) if not places or n != places[which]]

    return lose


def twice(chunks: list[Body]) -> list[Body]:
    places = deltas(chunks, "content")
    return [c for n, c in enumerate(chunks) for _ in range(1 + (n == places[0]))]


def swapped(chunks: list[Body]) -> list[Body]:
    first, second, *_ = deltas(chunks, "content")
    chunks[first], chunks[second] = chunks[second], chunks[first]
    return chunks


@pytest.mark.parametrize(
    ("streams", "scene", "said"),
    [
        (without("content", 0), "user_turns", "the model said 'Four.', the harness reads 'ur.'"),
        (without("content", -1), "user_turns", "the model said 'Four.', the harness reads 'Four'"),
        (without("reasoning", 1), "user_turns", "the model thought 'Simple arithmetic.', the harness reads"),
        (without("tool_calls", -1), "parallel", "the model called"),
        (twice, "user_turns", "the harness reads 'FoFour.'"),
        (swapped, "user_turns", "the harness reads 'urFo.'"),
    ],
    ids=["first chunk", "last chunk", "chunk of reasoning", "chunk of a call", "twice", "swapped"],
)
async def test_streams_that_lose_something(streams: Callable[[list[Body]], list[Body]], scene: str, said: str) -> None:
    report = await judged(scene, streams=streams, mode="streamed", noncanonical=0.0)
    assert said in broken(report)["S"]


async def test_a_stream_that_loses_ids() -> None:
    """A lost chunk takes its ids along: then it is E besides."""
    report = await judged("user_turns", asks=with_ids, streams=without("content", 0), mode="streamed", noncanonical=0.0)
    assert {"E", "S"} <= set(broken(report))


async def test_a_stream_without_its_end() -> None:
    """That is no reply at all."""

    def cut(chunks: list[Body]) -> list[Any]:
        return chunks[:3]

    report = await judged("user_turns", streams=cut, mode="streamed")
    verdict = report.verdicts["chat"]
    assert not report.ok and verdict.answered == 0 and "no end" in verdict.failures[0].message
