"""Everything that is wrong with some tasks, gathered before it is said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tugline.core.errors import TaskError

MAX_SHOWN = 20


class BrokenTasks(TaskError):
    """Several problems at once. `problems` holds all of them; the message shows the first 20."""

    def __init__(self, problems: Sequence[TaskError], what: str) -> None:
        lines = "\n".join(f"  {p.message}" for p in problems[:MAX_SHOWN])
        more = f"\n  and {len(problems) - MAX_SHOWN} more" if len(problems) > MAX_SHOWN else ""
        super().__init__(f"{len(problems)} problems:\n{lines}{more}", where=what)
        self.problems = tuple(problems)


class Findings:
    """Collects TaskErrors of checks that do not depend on each other."""

    def __init__(self) -> None:
        self.found: list[TaskError] = []

    @contextmanager
    def gather(self) -> Iterator[None]:
        """Keep a TaskError of the block instead of raising it."""
        try:
            yield
        except TaskError as err:
            self.found.extend(problems_of(err))

    def add(self, message: str, *, where: str, field: str = "") -> None:
        """Note one problem."""
        self.found.append(TaskError(message, where=where, field=field))

    def settle(self, what: str) -> None:
        """Raises what was found: the one TaskError, or BrokenTasks."""
        if len(self.found) == 1:
            raise self.found[0]
        if self.found:
            raise BrokenTasks(self.found, what)


def problems_of(err: TaskError) -> tuple[TaskError, ...]:
    """The single problems behind an error."""
    return err.problems if isinstance(err, BrokenTasks) else (err,)
