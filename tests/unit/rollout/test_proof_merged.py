"""A session whose calls were captured one by one is proven against the tree that its ids give."""

from __future__ import annotations

from dataclasses import replace

from tugline.core.columns import count, take
from tugline.core.contracts import JournalEntry
from tugline.core.session import Outcome
from tugline.rollout.proof import prove_run
from tugline.trajectory.build import SessionFacts, build
from unit.rollout.test_proof import Run, honest


def captured() -> Run:
    """`honest`, as an engine that only returns ids would have given it."""
    run = honest()
    prompts = {ref: entry.prompt_ids for ref, entry in run.journal.items()}
    run.turns = [replace(t, parent=None, keep=0, bridge=prompts[t.turn_id], level="L2") for t in run.turns]
    made = build(SessionFacts("ses", "grp", Outcome.COMPLETED, 1.0), run.turns, frozenset(), "merged")
    run.traces = list(made.traces)
    return run


def test_merged_rows_are_proven() -> None:
    run = captured()
    proof = prove_run(run, run.journal.get)
    assert proof.ok, proof.findings
    assert (proof.traces_total, proof.traces_exact, proof.traces_continuous) == (2, 2, 2)
    assert proof.trained_tokens == proof.sampled_tokens - 1  # the trimmed stop


def test_rows_that_join_what_the_ids_do_not_are_found() -> None:
    run = captured()
    first = run.turns[0]
    changed = replace(first, sampled=take(first.sampled, 0, count(first.sampled) - 2), logprobs=first.logprobs[:-8])
    run.turns[0] = changed
    entry: JournalEntry = run.journal[first.turn_id]
    run.journal[first.turn_id] = replace(entry, ids=changed.sampled, logprobs=changed.logprobs)
    assert "row_spans" in run.kinds()
