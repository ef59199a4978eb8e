from tugline.engines.remote.breaker import Breaker


def test_it_opens_after_as_many_failures_in_a_row_as_it_is_told() -> None:
    breaker = Breaker(limit=3)
    assert [breaker.failed(1.0), breaker.failed(2.0)] == [False, False] and not breaker.open
    breaker.succeeded()
    assert [breaker.failed(3.0), breaker.failed(4.0), breaker.failed(5.0)] == [False, False, True]
    assert breaker.open and breaker.since == 5.0
    assert not breaker.failed(6.0), "it opens once"


def test_nobody_there_needs_no_second_opinion() -> None:
    breaker = Breaker(limit=3)
    assert breaker.failed(1.0, gone=True) and breaker.open


def test_looks_keep_their_distance() -> None:
    breaker = Breaker(limit=1, first=0.25, longest=5.0)
    assert breaker.pause(0.0) == 0.0, "closed: calls pass"
    breaker.failed(0.0)
    pauses = []
    for _ in range(7):
        pauses.append(breaker.pause(0.0))
        breaker.looked()
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    breaker.succeeded()
    assert not breaker.open and breaker.pause(0.0) == 0.0


def test_an_engine_that_asks_for_silence_gets_it() -> None:
    breaker = Breaker()
    breaker.hold(10.0)
    breaker.hold(8.0)
    assert [breaker.pause(9.0), breaker.pause(10.0)] == [1.0, 0.0]
