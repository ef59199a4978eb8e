"""Live progress: sessions per stage, rewards so far. On a pipe it prints a line now and then instead."""

from __future__ import annotations

import time
from collections import Counter
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tugline.core.session import Ended, SessionState, state_name

STAGES = ("queued", "booting", "ready", "running", "judging", "ended")
LINE_SECONDS = 10.0


class Progress:
    """Follows session states. `quiet` shows nothing (for --json)."""

    def __init__(self, console: Console, total: int, *, quiet: bool) -> None:
        self._console = console
        self._total = total
        self._quiet = quiet
        self._stage: dict[tuple[str, int], str] = {}
        self._rewards: list[float] = []
        self._outcomes: Counter[str] = Counter()
        self._begun = time.monotonic()
        self._last_line = self._begun
        self._live = Live(self._render(), console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Progress:
        if not self._quiet and self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        if self._live.is_started:
            self._live.stop()

    def say(self, line: str) -> None:
        """A line of text above the progress display."""
        if not self._quiet:
            self._console.print(line, markup=False)

    def seen(self, state: SessionState) -> None:
        """A session changed its state."""
        self._stage[(state.key.group_id, state.key.index)] = state_name(state)
        if isinstance(state, Ended):
            self._outcomes[state.outcome.value] += 1
            if state.reward is not None:
                self._rewards.append(state.reward)
        if self._quiet:
            return
        if self._live.is_started:
            self._live.update(self._render())
        elif time.monotonic() - self._last_line > LINE_SECONDS:
            self._last_line = time.monotonic()
            self._console.print(self._line(), markup=False)

    def _line(self) -> str:
        counts = Counter(self._stage.values())
        stages = " ".join(f"{s}={counts[s]}" for s in STAGES if counts[s])
        mean = f" reward {sum(self._rewards) / len(self._rewards):.2f}" if self._rewards else ""
        return f"[{time.monotonic() - self._begun:5.0f} s] {counts['ended']}/{self._total} sessions: {stages}{mean}"

    def _render(self) -> Table:
        counts = Counter(self._stage.values())
        grid = Table.grid(padding=(0, 2))
        done = counts["ended"]
        filled = int(30 * done / max(1, self._total))
        grid.add_row(f"[green]{'━' * filled}[/][dim]{'━' * (30 - filled)}[/]", f"{done}/{self._total} sessions")
        grid.add_row("  ".join(f"{s} {counts[s]}" for s in STAGES[:-1] if counts[s]) or "starting")
        if self._rewards:
            grid.add_row(f"mean reward {sum(self._rewards) / len(self._rewards):.2f} over {len(self._rewards)}")
        return grid
