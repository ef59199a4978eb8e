"""The embedded engine against plain transformers, through crashes and weight changes."""

import asyncio
import os
import signal
import time
from contextlib import asynccontextmanager

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from tugline.core.columns import concat, count, floats_array, ids, ids_list, take_floats
from tugline.core.contracts import Generation
from tugline.core.errors import EngineError
from tugline.core.turn import Sampling
from tugline.engines import LiveWeights, Scorer
from tugline.engines.embedded.engine import EmbeddedEngine
from tugline.engines.journal import JournalIndex, read_journal
from tugline.testing.models import make_tiny_model

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]
SYSTEM = ids([(i * 37) % 250 + 1 for i in range(700)])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def other_weights(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("other"), seed=1) / "model.safetensors"


@asynccontextmanager
async def running(model, journal, **options):
    engine = EmbeddedEngine(model, journal, **options)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def teacher(model, weights=None):
    """Reference log-probabilities: one full forward of stock transformers per row, in this process."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    if weights is not None:
        network.load_state_dict(load_file(weights), strict=False)
        network.tie_weights()

    def logprobs(prompt, sampled):
        row = torch.tensor([ids_list(concat([prompt, sampled]))])
        with torch.no_grad():
            table = network(input_ids=row).logits[0].log_softmax(-1)
        at = count(prompt) - 1
        return table[at:-1].gather(1, row[0, at + 1 :, None])[:, 0].numpy()

    return logprobs


def difference(sample, want):
    return float(np.abs(floats_array(sample.logprobs) - want).max())


async def conversation(engine, name, turns, max_tokens=40, seed=0):
    """Several turns on one growing context; every third turn branches off an earlier point."""
    out, prompt = [], concat([SYSTEM, ids([seed % 200 + 1] * (seed % 23 + 1))])
    for turn in range(turns):
        sampling = Sampling(max_tokens=max_tokens, seed=seed * 100 + turn)
        sample = await engine.generate(Generation(f"{name}/{turn}", name, prompt, sampling))
        out.append((prompt, sample))
        full = concat([prompt, sample.ids])
        prompt = concat([full if turn % 3 != 2 else full[: -4 * 30], ids([turn + 1] * (5 + 13 * turn))])
    return out


async def test_logprobs_are_those_of_one_teacher_forced_pass(model, tmp_path):
    async with running(model, tmp_path, slots=8) as engine:  # fewer slots than sessions: evictions happen
        sessions = await asyncio.gather(*[conversation(engine, f"s{i}", 6, seed=i) for i in range(12)])
        scored = await engine.score(concat([sessions[0][3][0], sessions[0][3][1].ids]), Sampling())
        health = await engine.health()
        assert isinstance(engine, Scorer) and isinstance(engine, LiveWeights)
    want = teacher(model)
    turns = [turn for session in sessions for turn in session]
    worst = max(difference(sample, want(prompt, sample.ids)) for prompt, sample in turns)
    prompt, sample = sessions[0][3]
    rescored = float(np.abs(floats_array(take_floats(scored, count(prompt))) - floats_array(sample.logprobs)).max())
    tokens, reused = sum(count(s.ids) for _, s in turns), sum(s.cached_tokens for _, s in turns)
    print(f"\n{tokens} tokens of {len(turns)} turns: max |difference| {worst:.2e}, rescored {rescored:.2e}")
    print(f"prompt tokens {sum(count(p) for p, _ in turns)}, reused {reused}; {health}")
    assert worst <= 1e-3 and rescored <= 1e-3
    assert np.isnan(floats_array(scored)[0]) and count(scored) == count(prompt) + count(sample.ids)
    assert reused > 0.8 * sum(count(p) for p, _ in turns)


async def test_processed_logprobs_are_of_the_distribution_drawn_from(model, tmp_path):
    sampling = Sampling(temperature=0.7, top_p=0.8, top_k=20, max_tokens=60, seed=4)
    async with running(model, tmp_path) as engine:
        sample = await engine.generate(Generation("r", "s", SYSTEM, sampling))
        scored = await engine.score(concat([SYSTEM, sample.ids]), sampling)
        raw = await engine.score(concat([SYSTEM, sample.ids]), Sampling())
        greedy = await engine.generate(Generation("g", "g", SYSTEM, Sampling(temperature=0.0, max_tokens=30)))
        again = await engine.generate(Generation("h", "h", SYSTEM, Sampling(temperature=0.0, max_tokens=30, seed=9)))
    own = floats_array(sample.logprobs)
    assert np.abs(floats_array(take_floats(scored, count(SYSTEM))) - own).max() <= 1e-3
    assert np.abs(floats_array(take_floats(raw, count(SYSTEM))) - own).max() > 0.1
    assert greedy.ids == again.ids


async def test_a_seed_decides_alone_whatever_runs_beside_it(model, tmp_path):
    asked = [concat([SYSTEM, ids([i + 1] * (i + 1))]) for i in range(8)]

    def ask(i):
        return Generation(f"r{i}", f"s{i}", asked[i], Sampling(max_tokens=50, seed=i))

    async with running(model, tmp_path / "1") as engine:
        together = await asyncio.gather(*[engine.generate(ask(i)) for i in range(8)])
    async with running(model, tmp_path / "2", slots=2, seed=5) as engine:
        apart = [await engine.generate(ask(i)) for i in reversed(range(8))][::-1]
        unseeded = await engine.generate(Generation("u", "u", SYSTEM, Sampling(max_tokens=50)))
    async with running(model, tmp_path / "3", seed=5) as engine:
        noise = asyncio.gather(*[engine.generate(ask(i)) for i in range(4)])
        again = await engine.generate(Generation("x", "u", SYSTEM, Sampling(max_tokens=50)))
        await noise
    assert [s.ids for s in together] == [s.ids for s in apart]
    assert unseeded.ids == again.ids  # the engine's own seed, per session


async def test_kill_9_loses_nothing_that_was_answered(model, tmp_path):
    answered = []

    async def client(engine, i):
        failures = []
        prompt = concat([SYSTEM, ids([i + 1])])
        for turn in range(40):
            try:
                sample = await engine.generate(
                    Generation(f"{i}/{turn}", f"s{i}", prompt, Sampling(max_tokens=30, seed=turn))
                )
            except EngineError as err:
                failures.append(err)
                continue
            answered.append((prompt, sample))
            if count(prompt) < 1500:
                prompt = concat([prompt, sample.ids, ids([5])])
        return failures

    async with running(model, tmp_path) as engine:
        clients = [asyncio.create_task(client(engine, i)) for i in range(4)]
        first = engine.pid
        while len(answered) < 30:
            await asyncio.sleep(0.01)
        os.kill(first, signal.SIGKILL)
        failures = [f for fs in await asyncio.gather(*clients) for f in fs]
        assert engine.pid not in (None, first)
        late = await engine.generate(Generation("late", "late", SYSTEM, Sampling(max_tokens=5)))
    assert late.engine_ref.startswith("0002-")
    assert 1 <= len(failures) <= 4 and all(f.retryable and "killed by signal 9" in f.message for f in failures)
    index = JournalIndex(tmp_path)
    for prompt, sample in answered:
        entry = index.get(sample.engine_ref)
        assert (entry.prompt_ids, entry.ids, entry.logprobs) == (prompt, sample.ids, sample.logprobs)
    assert len(answered) == 160 - len(failures)
    assert len({p.name for p in tmp_path.glob("engine-*.log")}) == 2


async def test_the_process_goes_with_its_parent(model, tmp_path):
    """A parent that is killed leaves no engine behind, without a word to it."""
    import sys

    code = (
        "import asyncio,sys\nfrom pathlib import Path\n"
        "from tugline.engines.embedded.engine import EmbeddedEngine\n"
        "async def main():\n"
        "    e = EmbeddedEngine(Path(sys.argv[1]), Path(sys.argv[2])); await e.start()\n"
        "    print(e.pid, flush=True); await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(model), str(tmp_path), stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    child = int(await parent.stdout.readline())
    os.kill(child, 0)
    parent.kill()
    await parent.wait()
    deadline = time.monotonic() + 20
    while _alive(child) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    assert not _alive(child)


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


async def test_weights_swap_in_place_between_two_tokens(model, other_weights, tmp_path):
    old, new = teacher(model), teacher(model, other_weights)
    async with running(model, tmp_path) as engine:
        before = await engine.generate(Generation("a", "s", SYSTEM, Sampling(max_tokens=30, seed=1)))
        long = asyncio.create_task(
            engine.generate(Generation("b", "t", SYSTEM, Sampling(temperature=0.0, max_tokens=1200)))
        )
        while (await engine.health()).sampled < count(before.ids) + 50:
            await asyncio.sleep(0.005)
        await engine.load_weights(other_weights, 7)
        across = await long
        follow = concat([SYSTEM, before.ids, ids([3])])
        after = await engine.generate(Generation("c", "s", follow, Sampling(max_tokens=30, seed=2)))
        cached = (await engine.generate(Generation("d", "s", follow, Sampling(max_tokens=5, seed=3)))).cached_tokens
    assert before.version_runs == ((0, 0),) and after.version_runs == ((0, 7),)
    assert difference(before, old(SYSTEM, before.ids)) <= 1e-3
    assert difference(after, new(follow, after.ids)) <= 1e-3
    assert difference(after, old(follow, after.ids)) > 0.1  # the check can fail
    assert after.cached_tokens <= count(SYSTEM)  # at most what `across` computed anew; nothing of the old weights
    assert cached > count(SYSTEM)
    (zero, first), (at, second) = across.version_runs
    assert (zero, first, second) == (0, 0, 7) and 50 <= at < count(across.ids)
    got = floats_array(across.logprobs)
    assert np.abs(got[:at] - old(SYSTEM, across.ids)[:at]).max() <= 1e-3
    assert np.abs(got[at:] - new(SYSTEM, across.ids)[at:]).max() <= 1e-3


async def test_new_weights_survive_a_crash_and_bad_ones_change_nothing(model, other_weights, tmp_path):
    new = teacher(model, other_weights)
    wrong = tmp_path / "wrong.safetensors"
    tensors = load_file(other_weights)
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()
    save_file(tensors, wrong)
    async with running(model, tmp_path / "journal") as engine:
        await engine.load_weights(other_weights, 3)
        for bad in (wrong, tmp_path / "none.safetensors"):
            with pytest.raises(EngineError) as caught:
                await engine.load_weights(bad, 4)
            assert not caught.value.retryable
        os.kill(engine.pid, signal.SIGKILL)
        sample = None
        while sample is None:
            try:
                sample = await engine.generate(Generation("r", "s", SYSTEM, Sampling(max_tokens=20, seed=1)))
            except EngineError as err:
                assert err.retryable
    assert sample.version_runs == ((0, 3),)
    assert difference(sample, new(SYSTEM, sample.ids)) <= 1e-3


async def test_a_model_that_cannot_load_says_why(model, tmp_path):
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    (broken / "model.safetensors").write_bytes(b"not weights")
    engine = EmbeddedEngine(broken, tmp_path / "journal")
    with pytest.raises(EngineError, match=r"(?s)exit code 1.*engine-0001.*safetensors"):
        await engine.start()
    with pytest.raises(EngineError):
        await engine.generate(Generation("r", "s", SYSTEM, Sampling()))
    await engine.close()
    assert not list(read_journal(tmp_path / "journal"))


async def test_an_idle_engine_sleeps(model, tmp_path):
    async with running(model, tmp_path) as engine:
        await engine.generate(Generation("r", "s", SYSTEM, Sampling(max_tokens=5)))
        before = (await engine.health()).cpu_seconds
        await asyncio.sleep(0.5)
        assert (await engine.health()).cpu_seconds - before < 0.05
