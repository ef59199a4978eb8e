import asyncio
from collections import Counter

import pytest

from tugline.core.errors import EngineError
from tugline.engines.remote.breaker import Breaker
from tugline.engines.remote.guard import Guard
from tugline.engines.remote.refusal import Refusal
from tugline.engines.remote.where import Remote


def test_it_opens_after_as_many_failures_in_a_row_as_it_is_told() -> None:
    breaker = Breaker(limit=3)
    assert [breaker.failed(1.0, "x"), breaker.failed(2.0, "x")] == [False, False] and not breaker.open
    breaker.succeeded()
    assert [breaker.failed(3.0, "x"), breaker.failed(4.0, "x"), breaker.failed(5.0, "y")] == [False, False, True]
    assert breaker.open and (breaker.since, breaker.why) == (5.0, "y")
    assert not breaker.failed(6.0, "z"), "it opens once"


def test_nobody_there_needs_no_second_opinion() -> None:
    breaker = Breaker(limit=3)
    assert breaker.failed(1.0, "unreachable", gone=True) and breaker.open


def test_looks_keep_their_distance() -> None:
    breaker = Breaker(limit=1, first=0.25, longest=5.0)
    assert breaker.pause(0.0) == 0.0, "closed: calls pass"
    breaker.failed(0.0, "x")
    pauses = []
    for _ in range(7):
        pauses.append(breaker.pause(0.0))
        breaker.looked()
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    breaker.succeeded()
    assert not breaker.open and breaker.pause(0.0) == 0.0


def test_an_engine_that_is_well_until_it_is_called_is_looked_at_less_and_less() -> None:
    breaker = Breaker(limit=1, first=0.25)
    pauses = []
    for _ in range(3):
        breaker.failed(0.0, "http_500")
        pauses.append(breaker.pause(0.0))
        breaker.recovered()
    assert pauses == [0.25, 0.5, 1.0]
    breaker.succeeded()
    breaker.failed(0.0, "http_500")
    assert breaker.pause(0.0) == 0.25, "a call that succeeds makes up for it"


def test_an_engine_that_asks_for_silence_gets_it() -> None:
    breaker = Breaker()
    breaker.hold(10.0)
    breaker.hold(8.0)
    assert [breaker.pause(9.0), breaker.pause(10.0)] == [1.0, 0.0]


def guard(looks: list[bool | EngineError], patience: float = 5.0) -> tuple[Guard, list[str]]:
    """A guard whose looks find these, one after the other, and how they went."""
    seen: list[str] = []

    async def look() -> bool:
        seen.append(made.breaker.phase)
        found = looks.pop(0)
        await asyncio.sleep(0)
        if isinstance(found, EngineError):
            raise found
        return found

    made = Guard(Remote("http://h", patience=patience), Counter(), look)
    made.breaker.first = 0.01
    return made, seen


def gone() -> EngineError:
    return EngineError("nobody there", fault="unreachable")


async def test_one_looks_for_all_who_wait() -> None:
    made, seen = guard([False, False, True])
    made.failed(gone())
    assert made.breaker.phase == "open"
    await asyncio.gather(*[made.admit() for _ in range(50)])
    assert seen == ["half_open"] * 3 and made.breaker.phase == "closed"


async def test_all_who_wait_in_vain_learn_it_at_once_and_why() -> None:
    made, _ = guard([False] * 100, patience=0.1)
    made.failed(gone())
    begun = asyncio.get_running_loop().time()
    found = await asyncio.gather(*[made.admit() for _ in range(50)], return_exceptions=True)
    assert asyncio.get_running_loop().time() - begun < 2.0, "nobody waits for the others' looks"
    assert {type(each) for each in found} == {EngineError}
    (text,) = {str(each) for each in found}
    assert "the circuit is" in text and "after unreachable" in text
    made.close()


async def test_an_engine_that_came_back_as_another_fails_all_who_wait() -> None:
    other = EngineError("another tokenizer", retryable=False, fault="other_model")
    made, _ = guard([other])
    made.failed(gone())
    found = await asyncio.gather(*[made.admit() for _ in range(5)], return_exceptions=True)
    assert [(e.fault, e.retryable) for e in found if isinstance(e, EngineError)] == [("other_model", False)] * 5
    assert made.breaker.open


async def test_what_a_look_breaks_on_is_a_failed_look() -> None:
    made, seen = guard([True])

    async def look() -> bool:
        seen.append("broken")
        made._look = found
        raise KeyError("a bug")

    found, made._look = made._look, look
    made.failed(gone())
    await made.admit()
    assert seen == ["broken", "half_open"]


@pytest.mark.parametrize(("after", "fault"), [(9.0, "rate_limited"), (0.05, None)])
async def test_silence_that_is_asked_for_is_kept_and_too_much_of_it_said_at_once(
    after: float, fault: str | None
) -> None:
    made, seen = guard([], patience=1.0)
    made.failed(Refusal("slow down", retryable=True, fault="http_429", after=after))
    loop = asyncio.get_running_loop()
    begun, caught = loop.time(), None
    try:
        await made.admit()
    except EngineError as err:
        caught = err.fault
    assert caught == fault and seen == []
    assert loop.time() - begun < 0.04 if fault else loop.time() - begun >= 0.04
