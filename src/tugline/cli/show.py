"""Summaries and proofs for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tugline.engines.spending import Spent
from tugline.rollout.audit import Audit
from tugline.rollout.drift_report import DriftReport, Seen
from tugline.rollout.proof import Proof
from tugline.rollout.summary import Summary


class Rescored(Protocol):
    """The result of re-scoring."""

    @property
    def calls(self) -> int: ...
    @property
    def worst(self) -> float: ...
    @property
    def ok(self) -> bool: ...


def show_summary(console: Console, summary: Summary, *, drift: bool = True) -> None:
    """Outcomes, rewards, rows, drift."""
    data = summary.as_json()
    grid = Table.grid(padding=(0, 2))
    outcomes = "  ".join(f"{k} {v}" for k, v in sorted(summary.sessions.items()))
    grid.add_row("sessions", f"{summary.total}  ({outcomes})" if summary.total else "none")
    if summary.attempts > summary.total:
        grid.add_row("attempts", f"{summary.attempts} (infrastructure failures are retried)")
    n = len(summary.rewards)
    if n:
        good = sum(r > 0 for r in summary.rewards)
        grid.add_row("reward", f"mean {sum(summary.rewards) / n:.3f} over {n} sessions; {good} above 0")
    else:
        grid.add_row("reward", "none: no session was judged")
    rows = data["rows_per_session"]
    grid.add_row("rows per session", _rows_of(summary, rows))
    tokens = summary.tokens
    grid.add_row(
        "tokens",
        f"{tokens['sampled']} sampled, {tokens['trained']} trained, "
        f"{tokens['prompt_new']} of {tokens['prompt']} prompt tokens were new",
    )
    grid.add_row("turns", "  ".join(f"{role} {n}" for role, n in summary.roles.most_common()) or "none")
    if summary.refused:
        whole = "nothing trains: text without ids. " if summary.text_only else ""
        grid.add_row("not to be trained", whole + "  ".join(f"{k} {v} turns" for k, v in summary.refused.most_common()))
    for name in ("booting", "running", "judging"):
        if summary.stages.get(name):
            values = sorted(summary.stages[name])
            p50, p95 = values[len(values) // 2], values[min(len(values) - 1, int(len(values) * 0.95))]
            grid.add_row(f"{name} time", f"p50 {p50:.2f} s, p95 {p95:.2f} s")
    if summary.engines:
        grid.add_row("other engines", "  ".join(f"{k} {v} turns" for k, v in summary.engines.most_common()))
    console.print(grid)
    if drift:
        show_drift(console, summary)
    show_marks(console, summary)
    for reason, count in summary.reasons.most_common(3):
        session = summary.example.get(reason, "")
        console.print(f"  {count} x {reason}  (e.g. sessions/{session}/)", markup=False, style="yellow")


def show_spent(console: Console, spent: Mapping[str, Spent]) -> None:
    """What APIs counted and cost, by engine."""
    for name, each in spent.items():
        cost = f"cost {each.cost:.4f}" + (f", {each.wasted:.4f} of it for answers of no use" if each.wasted else "")
        tokens = f"{each.prompt} prompt ({each.cached} cached), {each.completion} completion"
        text = f"{name}: {each.calls} calls, {tokens} ({each.reasoning} reasoning) tokens, {cost}"
        console.print(text, markup=False)


def show_marks(console: Console, summary: Summary) -> None:
    """What looks like cheating: proofs first, then questions for people."""
    if summary.marks:
        table = Table("mark", "sessions", "first", "", box=None, pad_edge=False)
        for name, found in sorted(summary.marks.items(), key=lambda pair: (pair[0][:1] != "!", -len(pair[1]), pair[0])):
            cost = "proof: no reward" if name.startswith("!") else "look at it"
            table.add_row(escape(name.removeprefix("!")), str(len(found)), f"sessions/{found[0]}/", cost)
        console.print(table)


def _rows_of(summary: Summary, mean: object) -> str:
    """Sessions without rows are not in the mean: say of how many it is."""
    if not isinstance(mean, float):
        return "no rows"
    return f"{mean:.2f} ({summary.rows} rows of {summary.sessions_with_rows} sessions that have some)"


def show_drift(console: Console, summary: Summary) -> None:
    """The drift table: every deviation is counted and named, and so is what requests held without effect."""
    if not summary.drift:
        console.print("drift: none")
    tables = (
        ("drift", "turns", summary.drift),
        ("without effect here", "calls", summary.ignored),
        ("new conversations", "calls", summary.roots),
        ("links", "turns", summary.links),
    )
    for title, unit, found in tables:
        if found:
            table = Table(title, unit, box=None, pad_edge=False)
            for name, n in found.most_common():
                table.add_row(escape(name), str(n))
            console.print(table)


def show_details(console: Console, report: DriftReport) -> None:
    """`tugline report --drift`: the commonest first, each with a call that `tugline explain` can show."""
    calls = "  ".join(f"{name} {n}" for name, n in sorted(report.calls.items())) or "none"
    console.print(f"calls: {calls}", markup=False)
    console.print("levels: " + ("  ".join(f"{k} {n}" for k, n in sorted(report.levels.items())) or "none"))
    if not report.drift:
        console.print("drift: none")
    tables: tuple[tuple[str, str, dict[str, Seen]], ...] = (
        ("drift", "turns", report.drift),
        ("conversations begun", "calls", report.roots),
        ("not trained", "turns", report.untrained),
        ("without effect here", "calls", report.ignored),
        ("errors", "calls", report.errors),
    )
    for title, unit, found in tables:
        if found:
            table = Table(title, unit, box=None, pad_edge=False)
            table.add_column("first call", min_width=26)  # whole on one line, to be pasted behind `tugline explain RUN`
            for name, seen in sorted(found.items(), key=lambda pair: (-pair[1].times, pair[0])):
                tokens = f" ({seen.tokens} tokens)" if seen.tokens else ""
                table.add_row(escape(name), f"{seen.times}{tokens}", seen.call_id or seen.session_id)
            console.print(table)
    table = Table("check", "proves", "status", box=None, pad_edge=False)
    for row in report.checks():
        table.add_row(*row)
    console.print(table)


def show_audit(console: Console, audit: Audit) -> None:
    """Prompts beside one whole render each."""
    state = "[bold green]agree[/]" if audit.ok else "[bold red]DIFFER[/]"
    kinds = ", ".join(f"{kind} {n}" for kind, n in audit.kinds.most_common()) or "no deviation"
    console.print(
        f"template: {audit.prompts} prompts rendered whole {state}, {audit.same} the same; {kinds}"
        + (f"; {audit.refused} could not be rendered" if audit.refused else "")
    )
    for kind, example in audit.examples.items():
        where = f"{example.turn_id} at token {example.deviation.position}"
        ours, theirs = _where_they_part(example.deviation.prompt, example.deviation.rendered)
        console.print(f"  {kind}: {where}: prompt {ours!r}, rendered {theirs!r}", markup=False)


def _where_they_part(ours: str, theirs: str) -> tuple[str, str]:
    """80 characters of each, from a little before the first one that differs."""
    same = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    begin = max(0, same - 20)
    return ours[begin : begin + 80], theirs[begin : begin + 80]


def show_proof(console: Console, proof: Proof, rescored: Rescored | None = None) -> None:
    """The last lines of a run: what was proven, or what contradicts it."""
    mark = "[bold green]proven[/]" if proof.ok else "[bold red]NOT PROVEN[/]"
    console.print(
        f"{mark}  calls {proof.calls_exact}/{proof.calls_total} exact against the engine's journal, "
        f"traces {proof.traces_exact}/{proof.traces_total} exact, {proof.traces_continuous} continuous, "
        f"{proof.trained_tokens} of {proof.sampled_tokens} sampled tokens trained once"
    )
    if rescored is not None:
        state = "[green]agrees[/]" if rescored.ok else "[bold red]DISAGREES[/]"
        console.print(f"re-scoring {rescored.calls} random calls {state}: max |difference| {rescored.worst:.2e} nats")
    for finding in proof.findings[:20]:
        where = "" if finding.position is None else f" at position {finding.position}"
        who = finding.call_id or finding.trace_id or finding.turn_id or finding.session_id
        console.print(f"  {finding.kind}: {who}{where}: {finding.message}", markup=False, style="red")
    if len(proof.findings) > 20:
        console.print(f"  and {len(proof.findings) - 20} more (--json lists 200)")
    for session in proof.rewarded_without_tokens[:5]:
        console.print(f"  session {session} has a reward and no trainable token", markup=False, style="red")
    if proof.calls_total == 0:
        console.print("  nothing to prove: no call was answered", style="red")
