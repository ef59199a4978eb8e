"""Summaries for people."""

from __future__ import annotations

import io

from rich.console import Console

from tugline.cli.show import show_summary
from tugline.rollout.summary import Summary


def said(summary: Summary) -> str:
    out = io.StringIO()
    show_summary(Console(file=out, width=120), summary)
    return out.getvalue()


def test_a_run_without_sessions_and_of_how_many_a_mean_is() -> None:
    nothing = said(Summary())
    assert "()" not in nothing and "none" in nothing and "no rows" in nothing
    some = Summary(attempts=3, rows=3, sessions_with_rows=2)
    some.sessions.update({"completed": 2, "cancelled": 1})
    assert "3  (cancelled 1  completed 2)" in said(some)
    assert "1.50 (3 rows of 2 sessions that have some)" in said(some)
