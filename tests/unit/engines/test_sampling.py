import math

import pytest

torch = pytest.importorskip("torch")

from tugline.engines.embedded.sampling import processed, sample  # noqa: E402
from tugline.engines.embedded.wire import Draw  # noqa: E402

LOGITS = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.3]]))


def probabilities(draw, logits=LOGITS):
    return [round(p, 4) for p in processed(logits, [draw])[0].exp().tolist()]


def test_the_plain_distribution_is_the_models_own():
    assert probabilities(Draw(1.0, 1.0, 0)) == [0.1, 0.4, 0.2, 0.3]
    assert probabilities(Draw(1.0, 1.0, 9)) == [0.1, 0.4, 0.2, 0.3]
    assert probabilities(Draw(0.0, 0.5, 1)) == [0.1, 0.4, 0.2, 0.3]  # greedy keeps it, see `processed`


def test_temperature_then_top_k_then_top_p():
    assert probabilities(Draw(0.5, 1.0, 0)) == [round(p * p / 0.30, 4) for p in (0.1, 0.4, 0.2, 0.3)]
    assert probabilities(Draw(1.0, 1.0, 2)) == [0, round(4 / 7, 4), 0, round(3 / 7, 4)]
    assert probabilities(Draw(1.0, 0.65, 0)) == [0, round(4 / 7, 4), 0, round(3 / 7, 4)]
    assert probabilities(Draw(1.0, 0.75, 0)) == [0, round(4 / 9, 4), round(2 / 9, 4), round(3 / 9, 4)]
    # top-p is of what top-k has left: 4/7 alone reaches 0.5
    assert probabilities(Draw(1.0, 0.5, 2)) == [0, 1, 0, 0]
    assert probabilities(Draw(1.0, 0.0, 0)) == [0, 1, 0, 0]


def test_rows_do_not_touch_each_other():
    draws = [Draw(1.0, 0.65, 0), Draw(1.0, 1.0, 0), Draw(0.5, 1.0, 0), Draw(0.0, 1.0, 0)]
    together = processed(LOGITS.repeat(4, 1), draws)
    for i, draw in enumerate(draws):
        assert torch.equal(together[i], processed(LOGITS, [draw])[0])


def test_a_number_picks_its_share_and_never_an_impossible_token():
    cases = [(0.0, 1), (0.57, 1), (0.58, 3), (math.nextafter(1.0, 0.0), 3)]
    for uniform, token in cases:
        picked, logprobs = sample(LOGITS, [Draw(1.0, 0.65, 0)], [uniform])
        assert picked == [token]
        assert logprobs == [pytest.approx(math.log((0.4, 0.3)[token == 3] / 0.7), abs=1e-5)]
    assert sample(LOGITS, [Draw(0.0, 1.0, 0)], [0.99])[0] == [1]


def test_shares_over_an_even_grid():
    n = 1000
    picked, _ = sample(LOGITS.repeat(n, 1), [Draw(1.0, 1.0, 0)] * n, [(i + 0.5) / n for i in range(n)])
    counts = [picked.count(t) for t in range(4)]
    assert all(abs(c - w) <= 1 for c, w in zip(counts, (100, 400, 200, 300), strict=True))
