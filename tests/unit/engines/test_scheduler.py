"""The scheduler over a model that remembers what was really put in each slot, and refuses anything that is not true."""

import random
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tugline.core.columns import concat, count, ids, ids_list, take
from tugline.engines.embedded.scheduler import CHUNK, LONE_CHUNK, Row, Scheduler
from tugline.engines.embedded.slots import SlotTable
from tugline.engines.embedded.wire import Draw, Generate

STOP = 0
VOCAB = 7


def next_token(context, version, key=0.0):
    return zlib.crc32(repr((context, version, key)).encode()) % VOCAB


class FakeModel:
    """Slots hold (token, version of the weights that computed it)."""

    def __init__(self):
        self.kv = {}
        self.version = 0
        self.sizes = []
        self.tainted = False

    def forward(self, segments, wanted):
        assert len({s.slot for s in segments}) == len(segments)
        self.sizes.append(sum(count(s.tokens) for s in segments))
        for s in segments:
            held = self.kv.setdefault(s.slot, [])
            assert s.start <= len(held), "a gap in the cache"
            held[s.start :] = [(t, self.version) for t in ids_list(s.tokens)]
        out = []
        for i in wanted:
            held = self.kv[segments[i].slot]
            assert self.tainted or {v for _, v in held} == {self.version}, "built on keys of other weights"
            out.append([t for t, _ in held])
        return out

    def copy(self, source, target, tokens):
        assert source != target
        self.kv[target] = self.kv[source][:tokens]
        assert len(self.kv[target]) == tokens

    def load(self, path):
        self.version = int(path.name)


def scheduler(slots=4):
    model = FakeModel()

    def sample(contexts, draws, uniform):
        keys = [round(u, 6) for u in uniform]
        return [next_token(c, model.version, k) for c, k in zip(contexts, keys, strict=True)], [-0.5] * len(contexts)

    return model, Scheduler(model, sample, slots, frozenset([STOP]), 0)


def row(name, prompt, session="s", limit=6, temperature=1.0, seed=0):
    return Row(Generate(name, session, prompt, Draw(temperature, 1.0, 0), limit, seed), limit, random.Random(seed))


def expected(prompt, limit, seed, version=0):
    rng, context, out = random.Random(seed), ids_list(prompt), []
    while len(out) < limit and STOP not in out:
        out.append(next_token(context + out, version, round(rng.random(), 6)))
    return out


def drain(s):
    out = {}
    while s.busy:
        for end in s.step():
            out[end.row.ask.request_id] = end
    return out


prompts = st.lists(st.integers(1, 3), min_size=1, max_size=80).map(ids)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_interleaving_samples_what_each_row_alone_would(data):
    """Turns of several sessions, arriving, aborted, extended and branched at random, on few slots."""
    _, s = scheduler(data.draw(st.integers(1, 4)))
    done, asked, aborted = {}, {}, set()
    shared = data.draw(prompts)
    for n in range(data.draw(st.integers(1, 14))):
        action = data.draw(st.sampled_from(["ask", "ask", "step", "step", "abort", "release"]))
        if action == "ask":
            base = shared
            if done and data.draw(st.booleans()):
                end = done[data.draw(st.sampled_from(sorted(done)))]
                base = end.row.tokens
                base = take(base, 0, data.draw(st.integers(0, count(base))))
            prompt = concat([base, data.draw(prompts)])
            asked[f"r{n}"] = (prompt, n)
            s.add(row(f"r{n}", prompt, data.draw(st.sampled_from("abc")), seed=n))
        elif action == "abort" and asked:
            name = data.draw(st.sampled_from(sorted(asked)))
            end = s.abort(name)
            if end is not None:
                aborted.add(name)
                done[name] = end
        elif action == "release":
            s.release(data.draw(st.sampled_from("abc")))
        else:
            done.update((e.row.ask.request_id, e) for e in s.step())
    done.update(drain(s))
    assert set(done) == set(asked)
    for name, (prompt, seed) in asked.items():
        sampled, want = ids_list(done[name].row.sampled), expected(prompt, 6, seed)
        if name in aborted:
            assert sampled == want[: len(sampled)] and done[name].finish == "abort"
        else:
            assert sampled == want
            assert done[name].finish == ("stop" if want[-1] == STOP else "length")


def test_a_long_prompt_does_not_stall_the_others():
    model, s = scheduler()
    s.add(row("short", ids([1, 2]), "a", limit=50, seed=1))
    s.step()
    s.add(row("long", ids([2] * 3000), "b"))
    before = s.counters.sampled
    s.step()
    assert model.sizes[-1] == CHUNK + 1 and s.counters.sampled == before + 1


def test_nobody_waiting_means_bigger_chunks():
    model, s = scheduler()
    s.add(row("long", ids([2] * 3000)))
    s.step()
    assert model.sizes == [LONE_CHUNK]


def test_a_group_with_one_prompt_computes_it_once():
    model, s = scheduler(8)
    prompt = ids([1, 2, 3] * 200)
    for i in range(8):
        s.add(row(f"r{i}", concat([prompt, ids([i % 3 + 1])]), f"s{i}", seed=i))
    ended = drain(s)
    assert len(ended) == 8
    assert s.counters.prefilled < 700
    assert sorted(e.row.cached for e in ended.values())[1:] == [600] * 7
    assert sum(model.sizes) < 601 + 8 * 8


def test_the_next_turn_runs_only_what_is_new():
    model, s = scheduler()
    s.add(row("1", ids([1, 2, 3] * 100)))
    first = drain(s)["1"].row
    model.sizes.clear()
    follow = concat([first.tokens, ids([2, 2])])
    s.add(row("2", follow))
    s.step()
    assert model.sizes == [count(follow) - (count(first.tokens) - 1)]  # the last sampled token had not run yet


def test_new_weights_recompute_a_running_context_and_are_marked_per_token():
    _, s = scheduler()
    s.add(row("r", ids([1, 2, 3] * 20), limit=8, seed=5))
    s.step()
    before = s._running[0].sampled
    s.load_weights(Path("3"), 3, "recompute")
    assert s.load == (0, 1)
    end = drain(s)["r"]
    if count(before) == count(end.row.sampled):
        pytest.fail("the seed must not stop at once")
    assert end.row.runs == [(0, 0), (count(before), 3)]
    rng = random.Random(5)
    context = ids_list(end.row.tokens)
    for i, token in enumerate(ids_list(end.row.sampled)):
        version = 0 if i < count(before) else 3
        assert token == next_token(context[: 60 + i], version, round(rng.random(), 6))


def test_keep_goes_on_with_old_keys_but_nobody_builds_on_them():
    model, s = scheduler()
    model.tainted = True
    prompt = ids([1, 2, 3] * 20)
    s.add(row("r", prompt, limit=8, seed=5))
    s.step()
    s.load_weights(Path("3"), 3, "keep")
    model.sizes.clear()
    end = drain(s)["r"]
    assert set(model.sizes) == {1}
    assert [v for _, v in end.row.runs] == [0, 3]
    model.tainted = False
    s.add(row("next", concat([end.row.tokens, ids([1])]), limit=1))
    assert drain(s)["next"].row.cached == 0


def test_idle_contexts_of_old_weights_are_not_reused():
    _, s = scheduler()
    s.add(row("1", ids([1, 2, 3] * 20)))
    first = drain(s)["1"].row
    s.load_weights(Path("1"), 1, "recompute")
    s.add(row("2", first.tokens))
    assert drain(s)["2"].row.cached == 0


def test_broken_weights_end_the_row_with_a_reason():
    model = FakeModel()
    s = Scheduler(model, lambda c, d, u: ([1] * len(c), [float("nan")] * len(c)), 2, frozenset([STOP]), 0)
    s.add(row("r", ids([1])))
    end = drain(s)["r"]
    assert end.finish is None and "broken" in end.error


def test_slots_prefer_what_is_free_and_spare_the_living():
    table = SlotTable(3)
    a = table.place(ids([1] * 100), "a", 0)
    a.slot.ids[:] = ids([1] * 100)
    table.give_back(a.slot)
    # another session with the same start copies into an empty slot, and leaves a's context alone
    b = table.place(ids([1] * 50 + [2] * 50), "b", 0)
    assert (b.slot is not a.slot, b.keep, b.source) == (True, 50, a.slot.index)
    b.slot.ids[:] = ids([1] * 50 + [2] * 50)
    table.give_back(b.slot)
    # a extends in place
    longer = table.place(ids([1] * 120), "a", 0)
    assert (longer.slot, longer.keep, longer.source) == (a.slot, 100, None)
    # the one empty slot goes next, then the ended session's, then the least recently used
    c = table.place(ids([9] * 10), "c", 0)
    assert c.slot.index not in (a.slot.index, b.slot.index)
    c.slot.ids[:] = ids([9] * 10)
    table.give_back(c.slot)
    table.release("c")
    d = table.place(ids([8] * 10), "d", 0)
    assert d.slot is c.slot
    e = table.place(ids([7] * 10), "e", 0)
    assert e.slot is b.slot
    assert table.place(ids([6]), "f", 0) is None


def test_the_last_token_always_runs():
    table = SlotTable(1)
    first = table.place(ids([1, 2, 3]), "a", 0)
    first.slot.ids[:] = ids([1, 2, 3])
    table.give_back(first.slot)
    assert table.place(ids([1, 2, 3]), "a", 0).keep == 2
