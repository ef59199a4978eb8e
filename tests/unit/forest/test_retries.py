"""An identical request: retry or resample? As transcripts of one fingerprint."""

from __future__ import annotations

from tugline.forest.retries import Fresh, Join, Replay, RetryBook

FP = b"fingerprint"


def test_nothing_known_is_fresh() -> None:
    assert RetryBook().decide(FP) == Fresh()


def test_running_with_its_client_there_is_a_genuine_parallel_sample() -> None:
    book = RetryBook()
    book.begin(FP, "a")
    assert book.decide(FP) == Fresh()


def test_running_without_its_client_is_joined() -> None:
    book = RetryBook()
    book.begin(FP, "a")
    book.abandon(FP)
    assert book.decide(FP) == Join("a")


def test_finished_but_not_delivered_is_replayed_until_delivered() -> None:
    book = RetryBook()
    book.begin(FP, "a")
    book.abandon(FP)
    book.undelivered(FP, "turn_1")
    assert book.decide(FP) == Replay("turn_1")
    assert book.decide(FP) == Replay("turn_1")
    book.delivered(FP)
    assert book.decide(FP) == Fresh(resample=True)


def test_delivered_is_sampled_again() -> None:
    book = RetryBook()
    book.begin(FP, "a")
    book.delivered(FP)
    assert book.decide(FP) == Fresh(resample=True)
    book.begin(FP, "b")
    book.undelivered(FP, "turn_2")
    assert book.decide(FP) == Replay("turn_2")


def test_failed_starts_anew() -> None:
    book = RetryBook()
    book.begin(FP, "a")
    book.abandon(FP)
    book.failed(FP)
    assert book.decide(FP) == Fresh()


def test_a_failed_resample_does_not_undo_the_delivery_before_it() -> None:
    book = RetryBook()
    book.begin(FP, "a")
    book.delivered(FP)
    book.begin(FP, "b")
    book.failed(FP)
    assert book.decide(FP) == Fresh(resample=True)


def test_joined_delivery_counts_whatever_the_first_client_says_later() -> None:
    book = RetryBook()
    book.begin(FP, "a")
    book.abandon(FP, "a")
    assert book.decide(FP) == Join("a")
    book.delivered(FP, "turn_1")  # the one that joined
    book.undelivered(FP, "turn_1", "a")  # the one that had left
    assert book.decide(FP) == Fresh(resample=True)


def test_first_client_settles_before_the_joined_one() -> None:
    book = RetryBook()
    book.begin(FP, "a")
    book.abandon(FP, "a")
    book.undelivered(FP, "turn_1", "a")
    book.delivered(FP, "turn_1")
    assert book.decide(FP) == Fresh(resample=True)


def test_parallel_samples_are_told_apart() -> None:
    book = RetryBook()
    book.begin(FP, "a")
    book.begin(FP, "b")
    book.abandon(FP, "b")
    assert book.decide(FP) == Join("b")
    book.delivered(FP, "turn_a", "a")
    assert book.decide(FP) == Join("b")
    book.undelivered(FP, "turn_b", "b")
    assert book.decide(FP) == Replay("turn_b")


def test_requests_do_not_mix() -> None:
    book = RetryBook()
    book.begin(b"one", "a")
    book.undelivered(b"one", "turn_1")
    assert book.decide(b"two") == Fresh()
    book.failed(b"two")
    book.abandon(b"two")
    assert book.decide(b"one") == Replay("turn_1")


def test_deciding_changes_nothing() -> None:
    book = RetryBook()
    book.begin(FP, "a")
    book.abandon(FP)
    assert [book.decide(FP) for _ in range(3)] == [Join("a")] * 3
