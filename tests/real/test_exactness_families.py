"""Our own gateway under the exactness suite, on real templates and tokenizers.

Needs the corpus, see corpus_kit. One template of each large family, each in one of the four APIs: half a minute of CPU.
With TUGLINE_TEST_SEEDS one template per family and tokenizer, in all four: half a minute or more for each.
"""

from __future__ import annotations

import os
from itertools import cycle
from pathlib import Path

import msgspec
import pytest

from adversary.corpus import SMALL
from corpus_kit import HOW, corpus_cases
from tugline.core.errors import ConfigError
from tugline.testing.corpus import Case
from tugline.testing.exactness import FakeEngine, Plan, fake_server, http_client, run_suite
from tugline.testing.exactness.clients import CLIENTS
from tugline.testing.exactness.own import own_gateway
from tugline.tokens.families import detect

pytestmark = [pytest.mark.real, pytest.mark.corpus, pytest.mark.timeout(600)]

REFUSING = ("llama.cpp/llama-cpp-deepseek-r1",)
"""Writes a generator as JSON, which Jinja2 cannot: by docs/reference/templates.md it refuses every conversation."""

NOT_SHOWN = ("trl/deepseekv3",)
"""Writes the second call of a history on from the first one's results, and not as its generation prompt begins a turn
(`prompt_not_shown` on that page): what was sampled stands, so C is kept and F is not."""


def one_of_each() -> list[Case]:
    """The first real case of each family of the program and each tokenizer."""
    found: dict[tuple[str, str], Case] = {}
    added: dict[str, list[str]] = {}
    for case in (c for c in corpus_cases() if c.real and c.name not in REFUSING and not c.name.endswith("_training")):
        if case.tokenizer not in added:
            tokens = msgspec.json.decode(case.tokenizer_json, type=_Added).added_tokens
            added[case.tokenizer] = [token.content for token in tokens]
        try:
            family = detect(case.template, added[case.tokenizer]).name
        except ConfigError:
            continue
        found.setdefault((family, case.tokenizer), case)
    return list(found.values())


class _Token(msgspec.Struct):
    content: str


class _Added(msgspec.Struct):
    added_tokens: list[_Token]


def model_dir(case: Case, at: Path) -> Path:
    at.mkdir()
    (at / "tokenizer.json").write_bytes(case.tokenizer_json)
    (at / "chat_template.jinja").write_text(case.template, encoding="utf-8")
    (at / "tokenizer_config.json").write_bytes(msgspec.json.encode(dict(case.specials)))
    (at / "tugline.json").write_bytes(msgspec.json.encode({"stop": list(case.stop), "context": 100_000}))
    return at


ALL = "TUGLINE_TEST_SEEDS" in os.environ
PLAYED = [(case.name, tuple(CLIENTS)) for case in one_of_each()] if ALL else [*zip(SMALL, cycle((d,) for d in CLIENTS))]


@pytest.mark.parametrize(("name", "dialects"), PLAYED, ids=[name for name, _ in PLAYED])
async def test_our_own_gateway(name: str, dialects: tuple[str, ...], tmp_path: Path) -> None:
    case = next((case for case in corpus_cases() if case.name == name), None)
    if case is None:
        pytest.skip(f"{name} is not there; {HOW}")
    engine = FakeEngine(model_dir(case, tmp_path / "model"), seed=3)
    async with fake_server(engine) as url, http_client() as http, own_gateway(url, engine) as own:
        report = await run_suite(engine, own, http, Plan.small(dialects=dialects))
    assert set(report.verdicts) == set(dialects)
    for verdict in report.verdicts.values():
        told = [f for f in verdict.findings if f.promise != "F" or name not in NOT_SHOWN]
        assert [f.text() for f in (*told, *verdict.failures)] == []
        assert all(verdict.scores[p].of for p in "ECS"), "these can be looked at in every format"
    assert report.ok is (name not in NOT_SHOWN)
