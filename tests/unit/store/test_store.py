import asyncio
import dataclasses
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx

from tugline.core.clock import ManualClock
from tugline.core.contracts import Verdict
from tugline.core.errors import NotFound, RunError, StoreError
from tugline.core.session import Booting, Ended, Failure, Judging, Outcome, Queued, Ready, Running, SessionKey
from tugline.core.trace import Trajectory
from tugline.core.turn import CallOutcome
from tugline.store import RunStore
from unit.store.samples import Builder, bare_row, call_for, failed_call, row_of

KEY = SessionKey("ses", "grp", "task", 2, 3)


async def test_what_is_committed_is_read_bit_for_bit_by_writer_and_reader(tmp_path: Path) -> None:
    builder = Builder("ses")
    root = builder.add(sampled=40, bridge=200)
    child = builder.add(root.turn_id, trim=1)
    builder.add(root.turn_id, bridge=0, sampled=0)
    builder.add(child.turn_id)
    async with RunStore.create(tmp_path / "run", "[run]\n") as store:
        for turn in builder.turns:
            await store.commit(call_for(turn), turn)
        await store.commit(failed_call("ses", "refused"), None)
        assert await store.load_turns("ses") == builder.turns
        with RunStore.open(tmp_path / "run", write=False) as live:
            assert live.iter_turns("ses") == builder.turns
    with RunStore.open(tmp_path / "run", write=False) as done:
        assert done.iter_turns("ses") == builder.turns
        assert done.iter_calls("ses") == [*(call_for(t) for t in builder.turns), failed_call("ses", "refused")]
        assert done.prompt(child.turn_id) == builder.full[child.turn_id][: -len(child.sampled)]
        assert done.iter_turns("other") == []
        with pytest.raises(NotFound):
            done.prompt("none")
    assert (tmp_path / "run" / "run.toml").read_text() == "[run]\n"
    assert not list((tmp_path / "run").glob("run.db-*"))


async def test_a_commit_may_be_repeated_but_not_changed(tmp_path: Path) -> None:
    builder = Builder("ses")
    turn = builder.add()
    async with RunStore.create(tmp_path / "run", "") as store:
        await store.commit(call_for(turn), turn)
        await store.commit(call_for(turn), turn)
        for call, other in (
            (call_for(turn, status=201), turn),
            (call_for(turn), dataclasses.replace(turn, drift=("x",))),
            (call_for(turn), None),
        ):
            with pytest.raises(StoreError, match="already stored") as caught:
                await store.commit(call, other)
            assert caught.value.detail_code == "call_conflict"
        with pytest.raises(StoreError, match="by another call"):
            await store.commit(call_for(turn, call_id="second"), turn)
        assert store.iter_turns("ses") == [turn]
        assert len(store.iter_calls("ses")) == 1


async def test_marking_changes_the_outcome_and_a_late_repeat_of_the_commit_does_not_change_it_back(
    tmp_path: Path,
) -> None:
    turn = Builder("ses").add()
    async with RunStore.create(tmp_path / "run", "") as store:
        await store.commit(call_for(turn), turn)
        await store.mark(f"call-{turn.turn_id}", CallOutcome.UNDELIVERED)
        await store.commit(call_for(turn), turn)
        assert store.iter_calls("ses") == [call_for(turn, outcome=CallOutcome.UNDELIVERED, settled=True)]
        await store.mark(f"call-{turn.turn_id}", CallOutcome.ANSWERED)
        assert store.iter_calls("ses") == [call_for(turn, settled=True)]
        with pytest.raises(StoreError, match="not stored"):
            await store.mark("none", CallOutcome.ANSWERED)


async def test_a_sealed_session_takes_no_more_calls(tmp_path: Path) -> None:
    builder = Builder("ses")
    turn, late = builder.add(), builder.add()
    async with RunStore.create(tmp_path / "run", "") as store:
        await store.commit(call_for(turn), turn)
        await store.seal("ses")
        await store.seal("ses")
        for write in (
            store.commit(call_for(late), late),
            store.commit(failed_call("ses", "x"), None),
            store.mark(f"call-{turn.turn_id}", CallOutcome.UNDELIVERED),
        ):
            with pytest.raises(StoreError, match="sealed"):
                await write
        other = Builder("other").add()
        await store.commit(call_for(other), other)
        assert store.sealed("ses")
        assert not store.sealed("other")
    async with RunStore.open(tmp_path / "run", write=True) as store:
        with pytest.raises(StoreError, match="sealed"):
            await store.commit(call_for(late), late)
        assert store.iter_turns("ses") == [turn]


async def test_a_turn_needs_its_parent_and_its_own_call(tmp_path: Path) -> None:
    builder = Builder("ses")
    root = builder.add()
    child = builder.add(root.turn_id)
    async with RunStore.create(tmp_path / "run", "") as store:
        with pytest.raises(StoreError, match="parent"):
            await store.commit(call_for(child), child)
        with pytest.raises(StoreError, match="does not name"):
            await store.commit(call_for(child), root)
        with pytest.raises(StoreError, match="does not name"):
            await store.commit(call_for(root, session_id="other"), root)
        await store.commit(call_for(root), root)
        stranger = dataclasses.replace(child, session_id="other")
        with pytest.raises(StoreError, match="parent"):
            await store.commit(call_for(stranger), stranger)
        assert store.iter_turns("ses") == [root]
        assert store.iter_calls("other") == []


async def test_states_are_kept_with_their_history(tmp_path: Path) -> None:
    clock = ManualClock(100.0)
    states = [
        Queued(KEY),
        Booting(KEY),
        Ready(KEY),
        Running(KEY),
        Judging(KEY, Outcome.AGENT_TIMEOUT),
        Ended(KEY, Outcome.AGENT_TIMEOUT, 0.25, (("tests", 0.5), ("style", 0.0)), "too slow"),
    ]
    first = Queued(SessionKey("first", "grp", "task", 0))
    async with RunStore.create(tmp_path / "run", "", clock=clock) as store:
        await store.put_session(first)
        for state in states:
            clock.advance(1)
            await store.put_session(state)
            await store.put_session(state)
            assert store.sessions() == [(first, 100.0), (state, clock.wall())]
        clock.advance(1)
        await store.put_session(Booting(first.key))
    with RunStore.open(tmp_path / "run", write=False) as done:
        assert done.history("ses") == [
            (name, 101.0 + at) for at, name in enumerate(("queued", "booting", "ready", "running", "judging", "ended"))
        ]
        assert done.iter_sessions() == [Booting(first.key), states[-1]]


async def test_rows_trajectories_verdicts_groups_and_meta(tmp_path: Path) -> None:
    builder = Builder("ses")
    root = builder.add(bridge=300, sampled=60)
    left = builder.add(root.turn_id, trim=1, sampled=50)
    right = builder.add(root.turn_id)
    rows = (row_of(builder, left), row_of(builder, right, "trace-1"), bare_row("ses", "trace-2"))
    trajectory = Trajectory("ses", "grp", Outcome.COMPLETED, Failure.NONE, 1.0, {"tests": 1.0}, rows, {"stop_trim": 1})
    async with RunStore.create(tmp_path / "run", "") as store:
        for turn in builder.turns:
            await store.commit(call_for(turn), turn)
        await store.put_trajectory(dataclasses.replace(trajectory, traces=rows[:1], reward=None))
        await store.put_trajectory(trajectory)
        await store.put_verdict("ses", Verdict(0.5, {"a": 0.1}))
        await store.put_group("grp", "task", 4, {"deadline": None})
        await store.put_group("grp", "task", 4, {"deadline": None})
        with pytest.raises(StoreError, match="another content"):
            await store.put_group("grp", "task", 5, {"deadline": None})
        await store.put_meta("k", {"a": [1, None]})
        with pytest.raises(StoreError, match="of session ses"):
            await store.put_traces("other", rows)
    with RunStore.open(tmp_path / "run", write=False) as done:
        assert done.iter_traces("ses") == list(rows)
        assert done.trajectory("ses") == trajectory
        assert done.trajectory("none") is None
        assert done.verdict("ses") == Verdict(0.5, {"a": 0.1})
        assert done.verdict("none") is None
        (group,) = done.groups()
        assert (group.group_id, group.task_id, group.n, group.info) == ("grp", "task", 4, {"deadline": None})
        assert done.meta("k") == {"a": [1, None]}
        assert done.meta("none") is None


async def test_rows_cost_little_beside_the_turns_that_they_are_made_of(tmp_path: Path) -> None:
    builder = Builder("ses")
    turns = builder.chain(20)
    big = builder.add(turns[-1].turn_id, bridge=20_000, sampled=2_000)
    async with RunStore.create(tmp_path / "run", "") as store:
        for turn in builder.turns:
            await store.commit(call_for(turn), turn)
        await store.close()
        before = (tmp_path / "run" / "run.db").stat().st_size
    async with RunStore.open(tmp_path / "run", write=True) as store:
        await store.put_traces("ses", [row_of(builder, big)])
        assert store.iter_traces("ses") == [row_of(builder, big)]
    after = (tmp_path / "run" / "run.db").stat().st_size
    assert before > 80_000
    assert after - before < 20_000


async def test_long_chains_are_read_from_the_nearest_copy(tmp_path: Path) -> None:
    builder = Builder("ses")
    turns = builder.chain(123)
    async with RunStore.create(tmp_path / "run", "") as store:
        for turn in turns:
            await store.commit(call_for(turn), turn)
        assert store.iter_turns("ses") == turns
        for at in (0, 49, 50, 51, 99, 100, 122):
            own = turns[at]
            assert store.prompt(own.turn_id) == builder.full[own.turn_id][: 4 * own.prompt_len]
        with store._connections.borrow() as conn:
            copies = [row[0] for row in conn.db.execute("SELECT turn_id FROM prompts ORDER BY rowid")]
    assert copies == ["ses.t50", "ses.t100"]


async def test_two_hundred_commits_at_once(tmp_path: Path) -> None:
    builders = [Builder(f"s{n}", seed=n) for n in range(200)]
    for builder in builders:
        builder.add(bridge=100, sampled=30)
    async with RunStore.create(tmp_path / "run", "") as store:
        await asyncio.gather(*(store.commit(call_for(b.turns[0]), b.turns[0]) for b in builders))
        for builder in builders:
            assert store.iter_turns(builder.session_id) == builder.turns


async def test_one_refused_member_of_a_group_fails_alone(tmp_path: Path) -> None:
    builders = [Builder(f"s{n}", seed=n) for n in range(40)]
    async with RunStore.create(tmp_path / "run", "") as store:
        await store.seal("s7")
        writes = []
        for builder in builders:
            turn = builder.add()
            writes.append(store.commit(call_for(turn), turn))
        conflict = failed_call("s9", "call-s9.t0")
        writes.append(store.commit(conflict, None))
        results = await asyncio.gather(*writes, return_exceptions=True)
        assert [at for at, r in enumerate(results) if r is not None] == [7, 40]
        assert all(isinstance(results[at], StoreError) for at in (7, 40))
        assert [b.session_id for b in builders if store.iter_turns(b.session_id) != b.turns] == ["s7"]


async def test_a_cancelled_commit_harms_nobody_else(tmp_path: Path) -> None:
    builders = [Builder(f"s{n}") for n in range(30)]
    async with RunStore.create(tmp_path / "run", "") as store:
        tasks = []
        for builder in builders:
            turn = builder.add()
            tasks.append(asyncio.create_task(store.commit(call_for(turn), turn)))
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert results[1::2] == [None] * 15
        for builder in builders[1::2]:
            assert store.iter_turns(builder.session_id) == builder.turns


async def test_closing_finishes_what_was_submitted_and_refuses_what_comes_after(tmp_path: Path) -> None:
    builders = [Builder(f"s{n}") for n in range(60)]
    store = RunStore.create(tmp_path / "run", "")
    tasks = []
    for builder in builders:
        turn = builder.add()
        tasks.append(asyncio.create_task(store.commit(call_for(turn), turn)))
    await asyncio.sleep(0)
    await store.close()
    await store.close()
    await asyncio.gather(*tasks)
    turn = Builder("late").add()
    with pytest.raises(StoreError, match="not open for writing"):
        await store.commit(call_for(turn), turn)
    with pytest.raises(RunError, match="closed"):
        store.sessions()
    with RunStore.open(tmp_path / "run", write=False) as done:
        assert all(done.iter_turns(b.session_id) == b.turns for b in builders)
        with pytest.raises(StoreError, match="not open for writing"):
            await done.seal("s1")


async def test_unstorable_text_is_a_store_error_and_the_store_goes_on(tmp_path: Path) -> None:
    builder = Builder("ses")
    turn = builder.add()
    async with RunStore.create(tmp_path / "run", "") as store:
        with pytest.raises(StoreError, match="UnicodeEncodeError"):
            await store.commit(call_for(turn, error="\ud800"), turn)
        await store.commit(call_for(turn), turn)
        assert store.iter_turns("ses") == [turn]


async def test_the_event_loop_never_waits_for_the_disk(tmp_path: Path) -> None:
    builder = Builder("ses")
    turns = builder.chain(55)
    store = RunStore.create(tmp_path / "run", "")
    with blockbuster_ctx():
        for turn in turns:
            await store.commit(call_for(turn), turn)
        await store.mark(f"call-{turns[0].turn_id}", CallOutcome.UNDELIVERED)
        await store.put_session(Queued(KEY))
        await store.put_traces("ses", [row_of(builder, turns[-1])])
        await store.seal("ses")
        assert list(await store.load_turns("ses")) == turns
        await store.close()
