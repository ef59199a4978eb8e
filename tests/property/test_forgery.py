"""P16 with real templates and real tokenizers: no hostile string becomes a control token, and all of them read back.

A few hundred strings per tokenizer; `soak` runs ten thousand.
"""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from corpus_kit import HOW, corpus_cases, corpus_tokenizers, each
from tugline.testing.corpus import Case
from tugline.testing.forgery import chosen, forge, model_of
from tugline.tokens.codec import Codec
from tugline.tokens.spellings import boundary_probe, forgery_probe
from unit.tokens.chat_kit import CHATML, model

pytestmark = pytest.mark.corpus
_REAL = chosen(corpus_cases())
_NAMES = sorted(corpus_tokenizers())
_EACH = _NAMES or [pytest.param("", marks=pytest.mark.skip(reason=HOW))]


def _check(case: Case, strings: int, seed: int) -> None:
    done = forge(model_of(case), strings, seed)
    assert not done.failures, "\n".join(done.failures)
    assert done.strings >= strings
    assert done.prompts > 0


@pytest.mark.parametrize("case", each(_REAL))
def test_hostile_text_stays_text(case: Case) -> None:
    _check(case, 300, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", each(_REAL))
def test_ten_thousand_hostile_strings_stay_text(case: Case) -> None:
    _check(case, 10_000, seed=0)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", each([c for c in corpus_cases() if not c.name.endswith("_training")]))
def test_hostile_text_stays_text_in_every_template(case: Case) -> None:
    done = forge(model_of(case), 1_000, seed=2)
    forged = [f for f in done.failures if " in place of " in f]
    assert not forged, "\n".join(forged)


@pytest.mark.parametrize("name", _EACH)
def test_tokens_beside_control_tokens_are_the_stock_ones(name: str) -> None:
    found = boundary_probe(Codec(corpus_tokenizers()[name], "", ()))
    assert found.ok, found


@pytest.mark.parametrize("name", _EACH)
def test_no_spelling_of_a_control_token_becomes_one(name: str) -> None:
    found = forgery_probe(Codec(corpus_tokenizers()[name], "", ()), 1_000)
    assert found.ok, found
    assert not [n for n in found.notes if "read back" in n], found.notes


def test_a_model_that_can_be_forged_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself: with harness text left as it is, it finds forged tokens at once."""
    chat = model(CHATML)
    assert not forge(chat, 300).failures
    monkeypatch.setattr("tugline.tokens.marks.Screen.clean", lambda *_, **__: True)
    assert any("in place of" in f for f in forge(chat, 300).failures)


@pytest.mark.timeout(300)
def test_every_case_has_a_tokenizer_that_knows_its_tokens() -> None:
    if not corpus_cases():
        pytest.skip(HOW)
    made: dict[str, Tokenizer] = {}
    for case in corpus_cases():
        name = case.tokenizer if case.real else case.name
        tokenizer = made.get(name) or Tokenizer.from_buffer(case.tokenizer_json)
        made[name] = tokenizer
        for content in (*case.stop, *case.specials.values()):
            assert tokenizer.encode(content, add_special_tokens=False).ids == [tokenizer.token_to_id(content)], (
                case.name
            )
        assert tokenizer.decode(tokenizer.encode("The file, 日本.", add_special_tokens=False).ids) == "The file, 日本."
    assert len({case.family for case in corpus_cases()}) > 10
