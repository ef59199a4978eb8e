"""What people read of sessions."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tugline.cli.session_text import ago, described, listed

NOW = 1_800_000_000.0


def view(**changes: object) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "session": "ses_1", "group": "g", "task": "t", "index": 2, "name": "first", "state": "running",
        "changed": NOW - 720, "outcome": None, "reward": None, "parts": {}, "reason": None, "metadata": {},
    }  # fmt: skip
    return plain | changes


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (0.4, "0 s"), (119, "119 s"), (720, "12 min"), (3 * 3600, "3 h"), (86_400 * 9, "9 d")],
)
def test_ages(seconds: float, text: str) -> None:
    assert ago(seconds) == text


def test_a_list_has_a_header_and_aligned_columns() -> None:
    ended = view(session="ses_22", state="ended", outcome="completed", reward=0.5, name=None)
    header, one, two = listed([view(), ended], NOW).splitlines()
    assert header.split() == ["session", "state", "reward", "group", "name", "since"]
    assert one.split() == ["ses_1", "running", "g#2", "first", "12", "min"]
    assert two.split() == ["ses_22", "completed", "0.5", "g#2", "12", "min"]
    assert header.index("group") == one.index("g#2") == two.index("g#2")
    assert listed([], NOW).split()[0] == "session"


def test_one_session_is_told_in_words_and_local_time() -> None:
    usage = {"calls": {"answered": 3}, "turns": 3, "sampled_tokens": 9, "prompt_tokens": 90, "drift": {}}
    shown = described(
        view(state="ended", outcome="completed", reward=1.0, parts={"tests": 1.0}, usage=usage,
             options={"ttl": 600.0}, history=[["running", NOW - 900], ["ended", NOW - 720]]), NOW,
    )  # fmt: skip
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(NOW - 720))
    assert shown["state"] == f"ended as completed, 12 min ago ({clock})"
    assert (shown["reward"], shown["calls"], shown["asked for"]) == ("1 (tests 1)", "answered 3", "ttl 600")
    assert shown["history"].endswith(f"ended {clock}") and "reason" not in shown and "drift" not in shown
    assert not any("{" in text or "1799999" in text for text in shown.values())
