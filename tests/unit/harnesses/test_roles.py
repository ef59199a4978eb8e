"""What requests say of themselves, harness by harness. Every text here is made up."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tugline.core.items import Assistant, Head, Item, Options, Request, System, Tool, UserText
from tugline.core.roles import MAX_THREAD, NO_HINT, Hint, first_hint
from tugline.harnesses.roles import RULES, aider, claude_code, opencode, pi, qwen_code, terminus
from tugline.harnesses.roles.marks import Opening

BASH = Tool("bash", "{}")
LOOK = UserText("look around")


def ask(*items: Item, tools: tuple[Tool, ...] = (BASH,), model: str = "m", output: str | None = None) -> Request:
    return Request(model, Head(tools), items or (LOOK,), Options(output=output))


def hint(headers: Mapping[str, str], request: Request) -> Hint:
    return first_hint(RULES, headers, request)


CLAUDE = {"x-claude-code-session-id": "S"}
NESTED = System("x-billing: v=1; cc_is_subagent=true;")
COMPACT = UserText("Write <analysis> first, then <summary>.")


def test_claude_code() -> None:
    assert hint(CLAUDE, ask()) == Hint(None, "S")
    assert hint(CLAUDE, ask(LOOK, Assistant("a"), COMPACT, System("late"))) == Hint("compaction", "S")
    first = hint(CLAUDE | {"x-claude-code-agent-id": "A"}, ask(NESTED, LOOK))
    assert first == Hint("subagent", "A", "S")
    below = CLAUDE | {"x-claude-code-agent-id": "B", "x-claude-code-parent-agent-id": "A"}
    assert hint(below, ask(NESTED, LOOK)) == Hint("subagent", "B", "A")
    assert hint(below, ask(NESTED, LOOK, Assistant("a"), COMPACT)) == Hint("compaction", "B", "A")
    assert hint(CLAUDE, ask(NESTED, LOOK)) == Hint("subagent"), "without an id its thread is not the session's"
    assert hint({}, ask(UserText("cc_is_subagent=true"))) == NO_HINT, "the user's words are no mark"


def test_checks_of_claude_codes_hooks_are_side_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claude_code, "HOOK", Opening.of("You judge"))
    front = (System("x-billing: v=1;"), System("You are a program."), System("\nYou judge a command."))
    assert hint(CLAUDE, ask(*front, LOOK)) == Hint("auxiliary", "S")
    assert hint(CLAUDE, ask(*front, LOOK, Assistant("a"), LOOK)) == Hint("auxiliary", "S")
    assert hint(CLAUDE, ask(*front[:2], LOOK, UserText("You judge."))) == Hint(None, "S")


def test_what_claude_code_is_asked_by_the_way_is_a_side_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claude_code, "RECAP", Opening.of("Recap this"))
    monkeypatch.setattr(claude_code, "ASIDE", "<reminder>By the way")
    for words in ("Recap this in a line.", "Count them.\n<reminder>By the way</reminder>\nwhat is a heron?"):
        assert hint(CLAUDE, ask(LOOK, Assistant("a"), UserText(words))) == Hint("auxiliary", "S")
        assert hint(CLAUDE, ask(LOOK, Assistant("a"), UserText(words), UserText("Go on."))) == Hint(None, "S")


def test_aider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aider, "SUMMARY", Opening.of("I sum up talks"))
    monkeypatch.setattr(aider, "COMMIT", Opening.of("I name changes"))
    assert hint({}, ask(System("I sum up talks."), LOOK, tools=())) == Hint("compaction")
    assert hint({}, ask(System("I name changes."), LOOK, tools=())) == Hint("auxiliary")
    assert hint({}, ask(System("I write code."), LOOK, tools=())) == NO_HINT
    assert hint({}, ask(System("I sum up talks."), LOOK)) == NO_HINT


ABOUT = "x-codex-turn-metadata"
CODEX = {"thread-id": "T", "x-codex-window-id": "T:0", ABOUT: '{"request_kind":"turn","more":[1]}'}


def test_codex() -> None:
    assert hint(CODEX, ask()) == Hint("main", "T")
    assert hint(CODEX | {ABOUT: '{"request_kind":"compaction"}'}, ask(tools=())) == Hint("compaction", "T")
    below = CODEX | {"thread-id": "U", "x-openai-subagent": "collab_spawn", "x-codex-parent-thread-id": "T"}
    assert hint(below, ask()) == Hint("subagent", "U", "T")
    assert hint(CODEX | {"x-openai-subagent": "compact"}, ask()).role == "compaction"
    assert hint(CODEX | {"x-openai-subagent": "memory_notes"}, ask()).role == "auxiliary"
    assert hint({"x-codex-window-id": "T:3"}, ask()) == Hint(None, "T")
    assert hint({ABOUT: '{"thread_id":"T","request_kind":"turn"}'}, ask()) == Hint("main", "T")
    assert hint({"thread-id": "T", "session-id": "S"}, ask()) == NO_HINT, "others have such ids too"


@pytest.mark.parametrize("about", ["", "{", "[]", '{"request_kind": 3}', "\xff", '{"thread_id": {"a": 1}}', "[" * 9000])
def test_codex_headers_that_are_no_json_say_nothing(about: str) -> None:
    assert hint({ABOUT: about, "thread-id": "T"}, ask()) == Hint(None, "T")


def test_opencode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencode, "TITLE", Opening.of("I make up names"))
    monkeypatch.setattr(opencode, "SUMMARY", Opening.of("I sum up talks"))
    headers = {"user-agent": "opencode/9.9 more", "x-session-id": "S"}
    assert opencode.rule(headers, ask()) == Hint(None, "S")
    assert opencode.rule(headers, ask(System("  I make up names. Be short."), LOOK, tools=())) == Hint("auxiliary", "S")
    assert opencode.rule(headers, ask(System("I sum up talks."), LOOK, tools=())) == Hint("compaction", "S")
    assert opencode.rule(headers, ask(System("I do something else"), LOOK, tools=())) == Hint(None, "S")
    below = headers | {"x-session-id": "T", "x-parent-session-id": "S"}
    assert hint(below, ask()) == Hint("subagent", "T", "S")
    assert opencode.rule({"x-session-id": "S"}, ask()) is None


GEMINI = {"user-agent": "GeminiCLI-tui/1 (x)"}


def test_gemini_cli() -> None:
    assert hint(GEMINI, ask()) == Hint()
    assert hint(GEMINI, ask(tools=(), output="json_object")).role == "auxiliary"
    assert hint(GEMINI, ask(tools=(), model="some-flash-lite")).role == "auxiliary"
    assert hint(GEMINI, ask(model="some-flash-lite")).role is None, "a main model may be small"
    assert hint(GEMINI, ask(tools=(BASH, Tool("complete_task", "{}")))).role == "subagent"
    told = ask(LOOK, Assistant("a"), UserText("Use the scratchpad, then write <state_snapshot>."), tools=())
    assert hint(GEMINI, told).role == "compaction"


QWEN = {"user-agent": "QwenCode/9 (x)"}


def test_qwen_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qwen_code, "MEMORY", Opening.of("I take notes"))
    assert hint(QWEN, ask()) == Hint()
    told = UserText("Think in <analysis>, then write <state_snapshot>.")
    assert hint(QWEN, ask(LOOK, Assistant("a"), told)).role == "compaction"
    assert hint(QWEN, ask(UserText("<state_snapshot>so far</state_snapshot>"), Assistant("ok"))).role is None
    assert qwen_code.rule(QWEN, ask(System("I take notes for later"), LOOK)) == Hint("auxiliary")
    who = System("I am the notes subagent of another.")
    said = hint(QWEN, ask(who, LOOK, Assistant("a")))
    assert said == Hint(carrying="auxiliary"), "sub-agents at work call themselves so too"


def test_pi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pi, "SUMMARY", Opening.of("I sum up talks"))
    headers = {"user-agent": "pi/1.0 (x)"}
    assert pi.rule(headers, ask()) == Hint()
    assert pi.rule(headers, ask(System("I sum up talks."), LOOK, tools=())) == Hint("compaction")
    assert pi.rule(headers, ask(System("I sum up talks."), LOOK)) == Hint()


def test_openhands() -> None:
    assert hint({"x-title": "OpenHands"}, ask()) == Hint()
    assert hint({"x-title": "OpenHands"}, ask(tools=())) == Hint("compaction")
    assert hint({"x-title": "Other"}, ask(tools=())) == NO_HINT


@pytest.mark.parametrize("step", ["summary", "questions", "answers"])
def test_terminus(step: str) -> None:
    assert hint({"x-session-id": f"run-1-summarization-2-{step}"}, ask(tools=())) == Hint("compaction")
    assert hint({"x-session-id": "run-1"}, ask(tools=())) == NO_HINT
    assert hint({"x-session-id": f"run-1-summarization-2-{step}-more"}, ask(tools=())) == NO_HINT


def test_a_summary_of_terminus_is_known_by_its_words_where_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminus, "SUMMARY", (Opening.of("Hand over"), Opening.of("More questions")))
    for words in ("Hand over what you have.", "  More questions:\nwhich?"):
        asked = ask(LOOK, Assistant("a"), UserText(words), tools=())
        assert hint({"x-session-id": "run-1"}, asked) == hint({}, asked) == Hint("compaction")
        assert hint({}, ask(LOOK, Assistant("a"), UserText(words))) == NO_HINT, "it has no tools"
    assert hint({}, ask(UserText("Go on. Hand over."), tools=())) == NO_HINT


def test_long_names_are_cut() -> None:
    named = hint({"x-claude-code-session-id": "s" * 5000, "x-claude-code-agent-id": "a" * 5000}, ask())
    assert named == Hint("subagent", "a" * MAX_THREAD, "s" * MAX_THREAD)


NAMES = st.sampled_from(
    [
        "user-agent", "x-session-id", "x-parent-session-id", "thread-id", "x-codex-window-id", "x-codex-turn-metadata",
        "x-openai-subagent", "x-codex-parent-thread-id", "x-claude-code-session-id", "x-claude-code-agent-id",
        "x-title",
    ]
)  # fmt: skip
VALUES = st.sampled_from(["opencode/1", "GeminiCLI/1", "QwenCode/1", "pi/1", "OpenHands", ":", "{}"]) | st.text()
ITEMS = st.lists(st.builds(System, st.text()) | st.builds(UserText, st.text()) | st.builds(Assistant, st.text()))


@given(st.dictionaries(NAMES, VALUES), ITEMS, st.booleans())
def test_no_request_breaks_a_rule(headers: dict[str, str], items: list[Item], tools: bool) -> None:
    request = Request("m", Head((BASH,) if tools else ()), tuple(items))
    assert isinstance(first_hint(RULES, headers, request), Hint)
