"""The fuzz of templates finds what is planted, names only what was announced, and goes on where it was stopped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tugline.core.columns import concat, ids
from tugline.testing import templates
from tugline.testing.corpus import Case
from tugline.testing.template_fuzz import Tally, fuzz_model
from tugline.testing.template_page import CLASSES, page
from tugline.testing.template_talk import Limits, Talk, hostile
from tugline.tokens.model import Bridge, ChatModel
from unit.tokens.chat_kit import (
    ALIAS,
    CHATML,
    DROPS_CALLS,
    NEXT_ROLE,
    PARSED_ARGS,
    REMEMBERS,
    REORDERS,
    SPECIAL,
    STRIPPING,
    model,
    tokenizer_json,
)

STOPS = {NEXT_ROLE: ("<|user|>", "<|observation|>"), ALIAS: ("<|return|>", "<|call|>")}


def chat(template: str) -> ChatModel:
    return model(template, STOPS.get(template, ("<|im_end|>", "<|endoftext|>")))


@pytest.mark.parametrize(
    "template",
    [CHATML, STRIPPING, PARSED_ARGS, NEXT_ROLE, ALIAS, DROPS_CALLS, REMEMBERS, REORDERS],
    ids=["chatml", "stripping", "parsed", "next-role", "alias", "drops", "remembers", "reorders"],
)
def test_a_few_conversations_of_each_own_template(template: str) -> None:
    tally = fuzz_model(chat(template), 12)
    assert tally.silent == 0, tally.examples
    assert tally.compared > 15
    assert {c.partition(":")[0] if c.startswith("refused") else c for c in tally.classes} <= {
        *CLASSES,
        "refused",
    }


def test_what_is_equal_is_most_of_it() -> None:
    tally = fuzz_model(chat(CHATML), 30)
    assert tally.equal + tally.spelled > 0.8 * tally.compared
    assert set(tally.classes) == {"truncated_extended"}


def test_differences_have_the_names_that_were_announced() -> None:
    assert "reasoning_stripped" in fuzz_model(chat(STRIPPING), 12).classes
    assert "close_alias" in fuzz_model(chat(ALIAS), 20).classes
    assert "format_differs" in fuzz_model(chat(REORDERS), 12).classes


def test_the_same_seeds_give_the_same_tally() -> None:
    first, again = fuzz_model(chat(STRIPPING), 6), fuzz_model(chat(STRIPPING), 6)
    assert first == again
    assert first != fuzz_model(chat(STRIPPING), 6, seed=100)


class Breaks(ChatModel):
    """A model whose bridges are wrong in one way."""

    def __init__(self, template: str, breaks) -> None:
        whole = chat(template)
        super().__init__(whole._files)
        self._breaks = breaks

    def bridge(self, *args, **kwargs) -> Bridge:
        made = super().bridge(*args, **kwargs)
        return self._breaks(made)


@pytest.mark.parametrize("template", [CHATML, STRIPPING, PARSED_ARGS])
@pytest.mark.parametrize(
    "breaks",
    [
        lambda made: replace(made, ids=concat([made.ids, ids((1,))])),
        lambda made: replace(made, ids=made.ids[:-4]),
        lambda made: replace(made, ids=concat([ids((1,)), made.ids])),
        lambda made: replace(made, drop=made.drop + 1) if not made.synthesised else made,
    ],
    ids=["more", "less", "before", "drops"],
)
def test_a_wrong_bridge_is_silent_and_shown(template: str, breaks) -> None:
    tally = fuzz_model(Breaks(template, breaks), 6)
    assert tally.silent > 5
    assert tally.examples and "seed" in tally.examples[0]


def test_a_cut_turn_that_is_not_announced_is_silent() -> None:
    broken = Breaks(CHATML, lambda made: replace(made, drift=()))
    assert any("not called so" in e for e in _examples(fuzz_model(broken, 30)))


def _examples(tally: Tally) -> Iterator[str]:
    yield from tally.examples


def test_the_talk_covers_what_it_should() -> None:
    limits = Limits(frozenset(("user", "tool", "system")), 3, hostile(SPECIAL))
    steps = [step for seed in range(120) for talk in (Talk(seed, limits),) for step in (talk.step(), talk.step())]
    calls = [call for step in steps for call in step.turn.calls]
    assert {len(s.turn.calls) for s in steps} == {0, 1, 2, 3}
    assert {s.cut for s in steps} == {"", "text", "reasoning", "call"}
    assert any(c.arguments == "{}" for c in calls) and any('"deep"' in c.arguments for c in calls)
    texts = [item.text for s in steps for item in s.whole_tail]
    assert "" in texts and any(t.startswith("\n") for t in texts) and any(t.startswith("  ") for t in texts)
    assert any(special in t for t in texts for special in SPECIAL)
    assert {s.turn.reasoning is None for s in steps} == {True, False}
    kinds = {tuple(type(i).__name__ for i in s.whole_tail) for s in steps}
    assert ("ToolResult", "UserText") in kinds and ("ToolResult", "ToolResult", "ToolResult") in kinds


def case(name: str, template: str) -> Case:
    return Case(name, "own 1", template, "own", "small", tokenizer_json(), True, ("<|im_end|>", "<|endoftext|>"))


@pytest.fixture
def corpus(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    found = [case("own/chatml", CHATML), case("own/drops|calls", DROPS_CALLS), case("own/strips", STRIPPING)]
    monkeypatch.setattr(templates, "_corpus", lambda folder: {c.name: c for c in found})
    return found


def test_a_run_writes_its_page_and_goes_on_where_it_was(
    corpus: list[Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, kept = tmp_path / "page.md", tmp_path / "rows.json"
    words = [str(tmp_path), "--conversations", "2", "--jobs", "1", "--out", str(out), "--json", str(kept)]
    ran: list[str] = []
    real = templates.run_case
    monkeypatch.setattr(templates, "run_case", lambda case, *rest: ran.append(case.name) or real(case, *rest))
    assert templates.main([*words, "--only", "own/c*"]) == 0
    assert templates.main(words) == 0
    assert sorted(ran) == sorted(c.name for c in corpus), "each once"
    kept.write_bytes(b"[damaged")
    assert templates.main([*words, "--only", "own/c*"]) == 0
    assert ran.count("own/chatml") == 2
    assert "silent differences: 0" in capsys.readouterr().out
    rows = msgspec.json.decode(kept.read_bytes())
    assert [r["name"] for r in rows] == ["own/chatml"]
    assert "| own/chatml | own 1 | small | qwen3 | 3+ | splice | - |" in out.read_text()


def test_the_page_names_what_cannot_show_tools(corpus: list[Case]) -> None:
    text = page([templates.run_case(c, 2) for c in corpus])
    section = text.split("## Templates that cannot show tools")[1]
    assert "| own/drops|calls | drops calls: the model is never shown what it called |" in section
    assert "| `reasoning_stripped` |" in text
    assert text.count("\n| own/") == 4


def test_a_silent_difference_ends_the_run_with_1(corpus: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "fuzz_model", lambda chat, n: Tally(turns=1, silent=1, examples=["seed 0: x"]))
    assert templates.main(["nowhere", "--jobs", "1", "--conversations", "1"]) == 1
