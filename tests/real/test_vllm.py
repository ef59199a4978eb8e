"""The driver against a real vLLM on the CPU: in .ci/run, by `make vllm`, or with TUGLINE_TEST_VLLM=1."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import pytest_asyncio

from property.views_wire import Talk, Tool, User
from real.support import tugline, tugline_json
from real.vllm_kit import ASKED, DTYPE, MEAN, NOISE, reference, served, untied
from service.test_hopping import answered, call, kept
from service.wire_kit import DIALECT_NAMES, assert_exact, wire
from tugline.core.columns import concat, count, floats_array, ids, ids_list, take_floats
from tugline.core.contracts import Generation
from tugline.core.turn import Sampling, Turn
from tugline.engines import make_engine
from tugline.engines.journal import JournalIndex
from tugline.engines.vllm import VllmEngine
from tugline.testing.engine_suite import ENGINE_CHECKS, RESTART_CHECKS, EngineCase

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.real,
    pytest.mark.timeout(1800),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not ASKED, reason="TUGLINE_TEST_VLLM is not set: it installs and starts vLLM"),
]
TOOLS = tuple(
    Tool(name, None, {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}})
    for name in ("read", "write")
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untied(tmp_path_factory.mktemp("model") / "pilot")


@pytest.fixture(scope="module")
def url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(model, tmp_path_factory.mktemp("log") / "vllm.log") as url:
        yield url


def driver(url: str, model: Path, journal: Path) -> VllmEngine:
    made = make_engine(f"vllm:{url}", model=model, journal_dir=journal, far={"patience": 120.0})
    assert isinstance(made, VllmEngine)
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(url: str, model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmEngine]:
    made = driver(url, model, tmp_path_factory.mktemp("journal"))
    await made.start()
    yield made
    await made.close()


async def test_what_the_driver_finds_out(engine: VllmEngine) -> None:
    found = engine.abilities
    assert found is not None
    print(found)
    assert (found.token_in, found.level, found.echo, found.versions) == ("/inference/v1/generate", "L4", True, "spans")
    assert (found.kind, found.abort, found.updates, found.tokenizer) == ("processed", "by_name", True, "same")


@pytest.mark.parametrize("check", ENGINE_CHECKS + RESTART_CHECKS, ids=lambda c: c.__name__)
async def test_contract(check: Any, engine: VllmEngine, url: str, model: Path, tmp_path: Path) -> None:
    slow = Sampling(temperature=1.0, max_tokens=1500, seed=3)
    make = lambda: driver(url, model, tmp_path / "journal")  # noqa: E731
    journal = JournalIndex(engine._journal_dir).get
    if check in RESTART_CHECKS:
        journal = JournalIndex(tmp_path / "journal").get
    await check(
        EngineCase(engine, make, journal, slow, itertools.count(random.Random(check.__name__).randrange(10_000)))
    )


@pytest.mark.parametrize("dialect", DIALECT_NAMES)
async def test_ten_turns_with_tools_are_one_exact_row(url: str, model: Path, tmp_path: Path, dialect: str) -> None:
    rng = random.Random(1)
    made = driver(url, model, tmp_path / "run" / "engine")
    async with wire(tmp_path, [{"text": "x"}], model_files=model, engine=lambda _: made) as run:
        async with aiohttp.ClientSession() as http:
            access = await run.session(max_tokens=48)
            talk = Talk(("Be brief.",), TOOLS, (User(("Copy the text of notes.txt to result.txt.",)),))
            for _ in range(10):
                turn = await call(run, http, access.secret_url, dialect, talk)
                talk = answered(talk, kept(turn), rng)
        turns = run.turns()
        calls = sum(bool(t.echo.calls) for t in turns)
        assert all(t.untrainable is None and t.level == "L4" for t in turns)
        forest = run.gateway._sessions["ses_a"].lanes[""].forest
        rows = [(forest.prompt(t.turn_id), t) for t in turns]
        own = [
            floats_array(take_floats(await made.score(concat([prompt, t.sampled]), t.sampling), count(prompt)))
            for prompt, t in rows
        ]
        last = concat([rows[-1][0], turns[-1].sampled])
        assert all(last.startswith(concat([prompt, t.sampled])) for prompt, t in rows), "one row holds them all"
        whole = await asyncio.to_thread(reference, model, last)
        others = [whole[count(prompt) - 1 :][: count(t.sampled)] for prompt, t in rows]
        print(f"{dialect}, {DTYPE}: {calls} turns with calls, {sum(count(t.sampled) for t in turns)} tokens")
        print(f"{apart('scored by vLLM', own, turns)}; {apart('by transformers in float32', others, turns)}")
        assert_exact(await run.prove(), calls=10)


def apart(what: str, found: list[Any], turns: list[Turn]) -> str:
    """How far another pass is from what was sampled; asserts that it is noise."""
    said = [floats_array(t.logprobs)[: len(f)] for t, f in zip(turns, found, strict=True)]
    gaps = np.abs(np.concatenate(found) - np.concatenate(said))
    worst, mean = float(gaps.max()), float(gaps.mean())  # NaN is below nothing
    assert worst < NOISE and mean < MEAN, (what, worst, mean)
    return f"{what}: max {worst:.2e}, mean {mean:.2e} nats"


async def test_rescoring_is_a_pass_of_its_own(engine: VllmEngine, model: Path) -> None:
    """It reads the row, the whole row, anew: no cache answers for it, and a changed token changes what follows."""
    prompt = ids([(i * 41 + 5) % 1500 for i in range(256)])
    sample = await engine.generate(Generation("score-1", "s", prompt, Sampling(max_tokens=64, seed=2)))
    row = concat([prompt, sample.ids])
    before = await engine.load()
    told = floats_array(take_floats(await engine.score(row, Sampling()), count(prompt)))
    async with asyncio.timeout(10):
        while (again := await engine.load()).prompt_tokens == before.prompt_tokens:
            await asyncio.sleep(0.05)
    read, hit = (float(getattr(again, n)) - float(getattr(before, n)) for n in ("prompt_tokens", "prefix_hits"))
    assert (read, hit) == (count(row), 0), "the prompt is in the cache, and not used"
    list_ = ids_list(row)
    other = ids([*list_[:255], (list_[255] + 700) % 1500, *list_[256:]])
    changed = floats_array(take_floats(await engine.score(other, Sampling()), count(prompt)))
    said = floats_array(sample.logprobs)
    print(f"same row: {np.abs(told - said).max():.2e}; the prompt's last changed: {np.abs(changed - said).max():.2f}")
    assert np.abs(told - said).max() < NOISE
    assert np.abs(changed - said).max() > 0.3
    truth = (await asyncio.to_thread(reference, model, other))[count(prompt) - 1 :]
    assert np.abs(changed - truth).max() < NOISE, "and changes it to what another program says"


async def test_two_sessions_share_the_prefix_cache(engine: VllmEngine) -> None:
    prompt = ids([(i * 37 + 11) % 1500 for i in range(512)])
    first = await engine.generate(Generation("share-1", "ses_1", prompt, Sampling(max_tokens=4, seed=1)))
    before = await engine.load()
    second = await engine.generate(Generation("share-2", "ses_2", prompt, Sampling(max_tokens=4, seed=1)))
    after = await engine.load()
    assert (first.cached_tokens, second.ids) == (0, first.ids)
    assert second.cached_tokens >= 384
    assert (after.prefix_hits or 0) - (before.prefix_hits or 0) >= 384


async def test_an_abort_ends_the_engines_work(engine: VllmEngine) -> None:
    long = Sampling(temperature=1.0, max_tokens=3000, seed=5)
    for n in range(10):
        prompt = ids([(i * 13 + n) % 200 for i in range(32)])
        task = asyncio.ensure_future(engine.generate(Generation(f"abort-{n}", "ses_1", prompt, long)))
        await asyncio.sleep(0.2)
        await engine.abort(f"abort-{n}")
        sample = await task
        if sample.finish == "abort":
            break
    assert sample.finish == "abort" and 0 < count(sample.ids) < 3000
    async with asyncio.timeout(10):  # what it counts comes a step after what it answers
        while (first := await engine.load()).running:
            await asyncio.sleep(0.05)
    await asyncio.sleep(1.0)
    second = await engine.load()
    assert first.running == second.running == 0
    assert first.sampled_tokens == second.sampled_tokens


async def test_a_client_that_hangs_up_ends_the_engines_work(engine: VllmEngine) -> None:
    prompt = ids([7] * 32)
    task = asyncio.ensure_future(engine.generate(Generation("gone", "s", prompt, Sampling(max_tokens=3000, seed=6))))
    await asyncio.sleep(0.2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for _ in range(50):
        if not (await engine.load()).running:
            break
        await asyncio.sleep(0.1)
    assert (await engine.load()).running == 0


async def test_versions_switch_at_the_token_at_which_weights_do(
    engine: VllmEngine, model: Path, tmp_path: Path
) -> None:
    """Tokens before the switch have the old weights' log-probabilities, those behind it the new ones'."""
    other = untied(tmp_path / "other", noise=0.05)
    await engine.load_weights(model, 1)
    for n in range(10):
        prompt = ids([(i * 29 + n) % 1500 for i in range(48)])
        asked = Generation(f"switch-{n}", "s", prompt, Sampling(temperature=1.0, max_tokens=1500, seed=n))
        task = asyncio.ensure_future(engine.generate(asked))
        await asyncio.sleep(0.3)
        await engine.load_weights(other, 2)
        sample = await task
        if len(sample.version_runs) == 2:
            break
        await engine.load_weights(model, 1)
    assert [version for _, version in sample.version_runs] == [1, 2]
    at, n = sample.version_runs[1][0], count(sample.ids)
    row = concat([prompt, sample.ids])
    said = floats_array(sample.logprobs)
    new = floats_array(take_floats(await engine.score(row, Sampling()), count(prompt)))
    await engine.load_weights(model, 3)
    old = floats_array(take_floats(await engine.score(row, Sampling()), count(prompt)))
    print(f"{n} tokens, switched at {at}: before {np.abs(said[:at] - old[:at]).max():.1e} off the old, "
          f"behind {np.abs(said[at:] - new[at:]).max():.1e} off the new; old and new differ by "
          f"{np.abs(old - new).max():.2f}")  # fmt: skip
    assert np.abs(old - new).max() > 0.3, "the weights are recognisably others"
    assert np.abs(said[:at] - old[:at]).max() < NOISE
    assert np.abs(said[at:] - new[at:]).max() < NOISE


async def test_a_session_goes_on_under_new_weights(url: str, model: Path, tmp_path: Path) -> None:
    """One row, two versions, each from its first token on; each token's value is that of the weights it says."""
    weights = {1: model, 2: untied(tmp_path / "other", noise=0.05)}
    made = driver(url, model, tmp_path / "run" / "engine")
    async with wire(tmp_path, [{"text": "x"}], model_files=model, engine=lambda _: made) as run:
        async with aiohttp.ClientSession() as http:
            access = await run.session(max_tokens=48)
            talk = Talk(("Be brief.",), TOOLS, (User(("Copy the text of notes.txt to result.txt.",)),))
            for n, version in enumerate((1, 1, 2, 2)):
                if n in (0, 2):
                    await made.load_weights(weights[version], version)
                talk = answered(talk, kept(await call(run, http, access.secret_url, "chat", talk)), random.Random(1))
        turns = run.turns()
        assert [t.version_runs for t in turns] == [((0, 1),), ((0, 1),), ((0, 2),), ((0, 2),)]
        assert_exact(await run.prove(), calls=4)
        await made.load_weights(model, 3)
        (row,) = run.store.iter_traces("ses_a")
        assert row.version_runs == ((turns[0].prompt_len, 1), (turns[2].prompt_len, 2))
        passes = {v: await asyncio.to_thread(reference, path, row.token_ids) for v, path in weights.items()}
        found = [passes[t.version_runs[0][1]][t.prompt_len - 1 :][: count(t.sampled)] for t in turns]
        print(apart("each under its own weights", found, turns))
        wrong = np.abs(np.concatenate([passes[1][t.prompt_len - 1 :][: count(t.sampled)] for t in turns[2:]])
                       - np.concatenate([floats_array(t.logprobs) for t in turns[2:]])).max()  # fmt: skip
        assert wrong > 0.3, "the old weights would not have done"


async def test_the_doctor_has_nothing_to_say(url: str, model: Path) -> None:
    done = await asyncio.to_thread(tugline, "doctor", "engine", f"vllm:{url}", "--model", str(model), "--json")
    told = json.loads(done.stdout)
    assert told["ok"] and [c for c in told["checks"] if c["ok"] is not True] == []


async def test_pi_works_over_it(url: str, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    args = ("rollout", "copy-file-0", "--harness", "pi", "-n", "6", "--out", str(out), "--engine", f"vllm:{url}")
    result = await asyncio.to_thread(tugline_json, *args, "--model", str(model), timeout=900)
    verify, report = result["verify"], result["report"]
    print(json.dumps(report), json.dumps(verify), json.dumps(result["rescored"]))
    assert report["attempts"] == report["sessions"]["completed"] == 6
    assert verify["calls"]["exact"] == verify["calls"]["total"] >= 6, "how many turns a session has, the policy draws"
    assert verify["traces"]["continuous"] == verify["traces"]["exact"] == verify["traces"]["total"]
    assert result["rescored"]["max_abs_diff"] < NOISE
