"""What recorded conversations are, held against labels; on small recordings written by hand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tugline.core.errors import ConfigError
from tugline.core.items import Assistant, Head, Request, ToolCall, UserText
from tugline.testing.replay import How, main, replay
from tugline.testing.replay_labels import compared, load_labels
from tugline.testing.replay_report import markdown
from tugline.testing.replay_said import as_echoed, as_quoted
from unit.testing.test_replay import chat, record, user

TESTS = Path(__file__).resolve().parents[2]
LABELS = TESTS / "golden" / "labels.toml"
TABLE = TESTS.parent / "docs" / "recorded-runs.md"
TOOLS = [{"type": "function", "function": {"name": "bash"}}]
SUMMARY = "Nothing is done yet, but the file was found."


def told(text: str) -> dict[str, Any]:
    return {"what": "json", "body": {"choices": [{"message": {"content": text}}]}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    talk = [user("a"), {"role": "assistant", "content": "found it"}]
    requests = [
        chat(user("a"), tools=TOOLS),
        chat(*talk, user("Hand over.")),
        chat(user(f"Before: {SUMMARY}"), tools=TOOLS),
        chat(user("a"), tools=TOOLS),
    ]
    replies = [told("found it"), told(SUMMARY), told("ok"), told("found it again")]
    record(tmp_path / "in", "h/compact", [{"body": b} for b in requests], replies)
    record(tmp_path / "in", "h/plain", [{"body": requests[0]}], [told("hi")])
    return tmp_path


GOOD = """
[plain]
h = ["plain"]
[run."h/compact"]
roots = ["main root_first", "compaction root_compaction", "main root_compacted", "main root_repeated"]
links = { compaction_of = 2, resample_of = 1 }
"""


def labelled(folder: Path, text: str) -> list[str]:
    (folder / "labels.toml").write_text(text)
    return [str(folder / "in"), "--labels", str(folder / "labels.toml")]


def test_what_is_found_is_printed_beside_what_was_expected(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(labelled(folder, GOOD)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "h  main root_first  expected 2  found 2" in lines
    assert "h  turns  main 4  compaction 1" in lines
    assert lines[-1] == "2 of 2 runs without faults: 0 roots that nothing explains"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (('"main root_first", ', ""), "h/compact  roots: expected"),
        (("resample_of = 1", "spawned_by = 1"), "h/compact  links: expected"),
        (("links", 'inline = ["compaction"]\nlinks'), "h/compact  inline: expected"),
        (('["plain"]', "[]"), "h/plain  is not among the labels"),
        (('["plain"]', '["plain", "more"]'), "h/more  was not recorded"),
    ],
)
def test_a_difference_is_named_and_fails(
    folder: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], line: str
) -> None:
    assert main(labelled(folder, GOOD.replace(*change))) == 1
    assert line in capsys.readouterr().out


def test_a_root_that_nothing_explains_fails_though_it_was_expected(folder: Path) -> None:
    record(folder / "in", "h/odd", [{"body": chat(user(t), tools=TOOLS)} for t in "xy"], [told("1"), told("2")])
    odd = '[run."h/odd"]\nroots = ["main root_first", "main root_unknown"]\n'
    assert main(labelled(folder, GOOD + odd)) == 1
    assert main(labelled(folder, GOOD + odd + "faults = true\n")) == 0


def test_without_labels_every_run_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder / "in")]) == 0
    out = capsys.readouterr().out
    assert (
        "h/compact  sampled 4  unattached 0  unknown 0  main root_first, compaction root_compaction, "
        "main root_compacted, main root_repeated; compaction_of 2; resample_of 1\n"
    ) in out
    assert out.endswith("2 of 2 runs without faults: 0 roots that nothing explains, 0 unattached\n")
    talk = [user("y"), {"role": "assistant", "content": "never said"}, user("z")]
    odd = [{"body": chat(*m, tools=TOOLS)} for m in ([user("x")], [user("y")], talk)]
    record(folder / "in", "h/odd", odd, [told("1"), told("2"), told("3")])
    assert main([str(folder / "in")]) == 1
    out = capsys.readouterr().out
    assert "h/odd  sampled 3  unattached 1  unknown 1  main root_first, main root_unknown" in out
    assert out.endswith("3 of 3 runs without faults: 1 roots that nothing explains, 1 unattached\n")


@pytest.mark.parametrize("fault", ["a reply is missing", "a fault is recorded", "the scenario has one"])
def test_a_root_that_nothing_explains_does_not_fail_a_run_with_faults(folder: Path, fault: str) -> None:
    replies: list[dict[str, Any]] = [told("1"), told("2"), told("3")]
    if fault == "a reply is missing":
        replies.pop()
    elif fault == "a fault is recorded":
        replies.append({"what": "fault-cut"})
    else:
        replies.append({"scenario": {"faults": [{"step": 1}]}})
    record(folder / "in", "h/odd", [{"body": chat(user(t), tools=TOOLS)} for t in "xyz"], replies)
    assert main([str(folder / "in")]) == 0


def test_what_is_found_as_markdown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*labelled(folder, GOOD.replace("resample_of = 1", "spawned_by = 1")), "--markdown"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "| harness | runs | turns | what | expected | found |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    assert "| h | 2 | 5 | begins: main (`root_first`) | 2 | 2 |" in lines
    assert "| h | 2 | 5 | link `spawned_by` | 1 | 0 |" in lines
    assert main([str(folder / "in"), "--markdown"]) == 0
    assert "| h/plain |  | 1 | 0 | 0 | main root_first |" in capsys.readouterr().out.splitlines()


def test_agents_that_were_asked_the_same_are_told_apart_by_the_ids_of_their_calls() -> None:
    asked = Request("m", Head(), (UserText("count"),))
    first = Assistant(None, None, (ToolCall("c1", "look", '{"at": "aaaa"}'),))
    second = Assistant(None, None, (ToolCall("c2", "look", '{"at": "bbbb"}'),))
    later = [Request("m", Head(), (UserText("count"), said, UserText("x"))) for said in (first, second)]
    ours = Assistant(None, None, (ToolCall("c2", "look", '{"at": "sand"}'),))
    assert as_echoed(ours, asked, later) == second
    renamed = Assistant(None, None, (ToolCall("c9", "look", '{"at": "sand"}'),))
    assert as_echoed(renamed, asked, later).calls[0].arguments == '{"at": "aaaa"}'


@pytest.mark.parametrize("text", ["[plain", "[other]\n", "[plain]\nh = 3\n", '[run."h/x"]\nroot = []\n'])
def test_files_that_are_no_labels_are_refused(folder: Path, text: str) -> None:
    assert main(labelled(folder, text)) == 2


def test_a_run_listed_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "l.toml").write_text('[plain]\nh = ["a"]\n[faulty]\nh = ["a"]\n')
    with pytest.raises(ConfigError, match="twice"):
        load_labels(tmp_path / "l.toml")


def test_a_masked_summary_is_found_by_its_shape() -> None:
    asked = Request("m", Head(), (UserText("x\nNnnnnnn oo dddd yyy, but the gggg was fffff.\ny"),))
    made = as_quoted(Assistant(f"<a>b</a>\n{SUMMARY}"), [asked])
    assert made.text == "<a>b</a>\nNnnnnnn oo dddd yyy, but the gggg was fffff."
    assert as_quoted(Assistant("short"), [asked]).text == "short"
    assert as_quoted(Assistant(SUMMARY), []).text == SUMMARY


def test_the_shipped_labels_can_be_read() -> None:
    labels = load_labels(LABELS)
    assert len(labels) > 100
    assert not [run for run, label in labels.items() if not label.faults and "root_unknown" in str(label.roots)]


@pytest.mark.skipif("TUGLINE_CAPTURES" not in os.environ, reason="set TUGLINE_CAPTURES to a folder of recordings")
def test_real_conversations_are_what_was_written_down() -> None:
    found = replay(Path(os.environ["TUGLINE_CAPTURES"]), How({"tool_choice": "auto"}, masked=True))
    runs = {f"{h}/{run}": one for h, tally in found.items() for run, one in tally.runs.items()}
    text, same = compared(load_labels(LABELS), runs)
    assert same, text
    assert markdown(runs, load_labels(LABELS)) in TABLE.read_text("utf-8"), "the page is not of these recordings"
