"""Our own gateway under the exactness suite, in four APIs, on a real template and tokenizer of every family there is.

Needs the corpus, see corpus_kit. One template per family and tokenizer; the whole choice of scenes for each takes some
half a minute.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from corpus_kit import HOW, corpus_cases
from tugline.core.errors import ConfigError
from tugline.testing.corpus import Case
from tugline.testing.exactness import FakeEngine, Plan, fake_server, http_client, run_suite
from tugline.testing.exactness.own import own_gateway
from tugline.tokens.families import detect

pytestmark = [pytest.mark.real, pytest.mark.corpus, pytest.mark.timeout(600)]


def one_of_each() -> list[Case]:
    """The first real case of each family of the program and each tokenizer."""
    found: dict[tuple[str, str], Case] = {}
    added: dict[str, list[str]] = {}
    for case in (c for c in corpus_cases() if c.real and not c.name.endswith("_training")):
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


CASES = one_of_each()
if not CASES:
    pytest.skip(HOW, allow_module_level=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_our_own_gateway(case: Case, tmp_path: Path) -> None:
    engine = FakeEngine(model_dir(case, tmp_path / "model"), seed=3)
    async with fake_server(engine) as url, http_client() as http, own_gateway(url, engine) as own:
        report = await run_suite(engine, own, http, Plan.small())
    for verdict in report.verdicts.values():
        assert [f.text() for f in (*verdict.findings, *verdict.failures)] == []
        assert all(verdict.scores[p].of for p in "ECS"), "these can be looked at in every format"
    assert report.ok
