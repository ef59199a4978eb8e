"""Samples whose tokens may not train, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tugline.core.columns import Floats, Ids, floats, ids
from tugline.core.contracts import EngineInfo, Generation, Sample
from tugline.core.turn import Sampling
from tugline.forest.check import check_sample

INFO = EngineInfo("scripted", "m", Path("."), context=100, vocab=50, stop_ids=(7, 8))
ASKED = Generation("r", "s", ids([1, 2, 3]), Sampling(max_tokens=4))
GOOD = Sample(ids([4, 5, 7]), floats([-0.5, -1.0, 0.0]), "stop", ((0, 3),), ids([1, 2, 3]))


def test_good() -> None:
    assert check_sample(ASKED, GOOD, INFO) is None
    assert check_sample(ASKED, replace(GOOD, version_runs=((0, 3), (2, 4))), INFO) is None
    assert check_sample(ASKED, replace(GOOD, ids=ids([4, 5, 6]), finish="length"), INFO) is None
    assert check_sample(ASKED, replace(GOOD, logprobs=floats([-1, -1, 5e-5])), INFO) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"prompt_ids": ids([1, 2, 4])}, "engine_echo_mismatch"),
        ({"prompt_ids": ids([1, 2])}, "engine_echo_mismatch"),
        ({"prompt_ids": Ids(b"")}, "engine_echo_mismatch"),
        ({"prompt_ids": None}, "no_prompt_ids"),
        ({"ids": Ids(b""), "logprobs": Floats(b"")}, "empty_sample"),
        ({"logprobs": floats([-1, -1])}, "length_mismatch"),
        ({"logprobs": Floats(b"\0" * 13)}, "length_mismatch"),
        ({"logprobs": floats([-1, float("nan"), -1])}, "nonfinite_logprob"),
        ({"logprobs": floats([-1, float("-inf"), -1])}, "nonfinite_logprob"),
        ({"logprobs": floats([-1, 0.01, -1])}, "positive_logprob"),
        ({"ids": ids([4, 50, 7])}, "id_out_of_vocab"),
        ({"ids": ids([4, -1, 7])}, "id_out_of_vocab"),
        ({"ids": ids([4, 5, 6])}, "bad_stop"),
        ({"ids": ids([4, 5, 5, 5, 7]), "logprobs": floats([-1] * 5)}, "too_many_tokens"),
        ({"version_runs": ()}, "bad_version_runs"),
        ({"version_runs": ((1, 3),)}, "bad_version_runs"),
        ({"version_runs": ((0, 3), (3, 4))}, "bad_version_runs"),
        ({"version_runs": ((0, 3), (0, 4))}, "bad_version_runs"),
        ({"version_runs": ((0, 3), (2, 4), (1, 5))}, "bad_version_runs"),
    ],
)
def test_bad(change: dict[str, object], reason: str) -> None:
    assert check_sample(ASKED, replace(GOOD, **change), INFO) == reason  # type: ignore[arg-type]


def test_a_stop_string_may_end_anywhere() -> None:
    sample = replace(GOOD, ids=ids([4, 5, 6]))
    assert check_sample(replace(ASKED, stop=("END",)), sample, INFO) is None
    assert check_sample(ASKED, sample, INFO) == "bad_stop"


def test_engines_that_cannot_echo_are_not_asked_to() -> None:
    sample = replace(GOOD, prompt_ids=None)
    assert check_sample(ASKED, sample, replace(INFO, echoes_prompt=False)) is None
    assert check_sample(ASKED, sample, replace(INFO, level="L2")) is None
