"""What drivers do beyond a generation: versions, weights, pauses, what they find out, what they refuse."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from service.engine_kit import DRIVERS, Served, engine
from tugline.cli import doctor_engine
from tugline.cli.main import app
from tugline.cli.wiring import PILOT
from tugline.core.columns import concat, count, floats_array, ids
from tugline.core.contracts import Generation
from tugline.core.errors import EngineError
from tugline.core.turn import Sampling
from tugline.engines import LiveWeights, Scorer, make_engine
from tugline.engines.remote.abilities import verdict
from tugline.engines.scripted import ScriptedEngine
from tugline.engines.vllm import VllmEngine
from tugline.testing.models import make_tokenizer_dir

SCRIPT: list[object] = [{"settings": {"repeat": True}}, {"text": "all is well, and more words than one token"}]
drivers = pytest.mark.parametrize("kind", DRIVERS)


@drivers
async def test_new_weights_are_named_from_the_next_call_on(tmp_path: Path, kind: str) -> None:
    async with engine(tmp_path, kind, SCRIPT) as at:
        driver = at.served.driver
        assert isinstance(driver, LiveWeights)
        await at.say("chat")
        await driver.load_weights(Path("/weights/step-7"), 7)
        await at.say("chat", "again")
        assert [t.version_runs for t in at.run.turns()] == [((0, 0),), ((0, 7),)]
        assert not at.served.server.paused
        with pytest.raises(EngineError):
            await driver.load_weights(Path("/weights/missing"), 8)
        assert not at.served.server.paused, "what failed is resumed too"
        await at.say("chat", "and again")
        assert at.run.turns()[-1].version_runs == ((0, 7),)


async def test_calls_wait_while_the_engine_is_paused(tmp_path: Path) -> None:
    async with engine(tmp_path, "vllm", SCRIPT) as at:
        driver = at.served.driver
        assert isinstance(driver, VllmEngine)
        await driver.pause()
        asking = asyncio.ensure_future(at.say("chat"))
        while not at.served.server.seen.generations:
            await asyncio.sleep(0.01)
        assert not asking.done()
        await driver.resume()
        assert (await asking)[0] == 200


async def test_without_spans_a_call_during_an_update_does_not_train(tmp_path: Path) -> None:
    """By /v1/completions nobody says which weights sampled: asked before and after, the engine must say the same."""
    async with engine(tmp_path, "vllm", SCRIPT, scale_out=False) as at:
        driver, server = at.served.driver, at.served.server
        assert driver.abilities is not None and driver.abilities.versions == "reported"
        assert driver.faults["fallback_completions"] == 1
        await at.say("chat")
        honest = server.sampled

        async def slowly(*asked: Any) -> Any:
            server.now.version = "9"
            return await honest(*asked)

        server.sampled = slowly  # type: ignore[method-assign]
        await at.say("chat", "again")
        await at.say("chat", "and again")
        found = [(t.version_runs, t.untrainable) for t in at.run.turns()]
        assert found == [(((0, 0),), None), ((), "bad_version_runs"), (((0, 9),), None)]


@drivers
async def test_rows_are_scored(tmp_path: Path, kind: str) -> None:
    async with engine(tmp_path, kind, SCRIPT) as at:
        driver = at.served.driver
        assert isinstance(driver, Scorer)
        row = ids(range(9))
        values = floats_array(await driver.score(row, Sampling()))
        assert len(values) == 9 and values[0] != values[0] and values[1:].tolist() == [-1.5] * 8
        with pytest.raises(EngineError) as caught:
            await driver.score(row, Sampling(temperature=0.5))
        assert caught.value.fault == "score", "processed values of another temperature cannot be had again"


@drivers
@pytest.mark.parametrize("reported", ["raw", "processed"])
@pytest.mark.parametrize("scale_out", [True, False])
async def test_which_log_probabilities_is_found_out_not_believed(
    tmp_path: Path, kind: str, reported: str, scale_out: bool
) -> None:
    async with engine(tmp_path, kind, SCRIPT, kind=reported, scale_out=scale_out) as at:
        assert at.served.driver.info.logprob_kind == reported


@drivers
async def test_another_tokenizer_is_refused(tmp_path: Path, kind: str) -> None:
    inner = ScriptedEngine(SCRIPT, make_tokenizer_dir(tmp_path / "model"), tmp_path / "inner")
    served = Served(kind, inner, tmp_path / "records", {})
    await inner.start()
    await served.server.up()
    spec = f"{kind}:{served.server.url}"
    driver = make_engine(spec, model=PILOT, journal_dir=tmp_path / "j", far={"patience": 1.0})
    with pytest.raises(EngineError, match="another tokenizer"):
        await driver.start()
    await served.server.down()
    await inner.close()


async def test_a_key_is_sent_and_a_wrong_one_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = ScriptedEngine(SCRIPT, PILOT, tmp_path / "inner")
    served = Served("vllm", inner, tmp_path / "records", {}, key="right")
    await inner.start()
    await served.server.up()
    for key, fine in (("wrong", False), ("right", True)):
        monkeypatch.setenv("A_KEY", key)
        far = {"patience": 1.0, "key_env": "A_KEY"}
        driver = make_engine(f"vllm:{served.server.url}", model=PILOT, journal_dir=tmp_path / key, far=far)  # type: ignore[arg-type]
        if fine:
            await driver.start()
        else:
            with pytest.raises(EngineError, match="key is missing or wrong"):
                await driver.start()
        await driver.close()
    await served.server.down()
    await inner.close()


@pytest.mark.parametrize(
    ("behaviour", "hints"),
    [
        ({}, []),
        ({"scale_out": False}, ["--enable-scale-out"]),
        ({"dev_mode": False}, ["VLLM_SERVER_DEV_MODE=1"]),
        ({"kind": "raw"}, ["processed_logprobs"]),
    ],
)
async def test_the_verdict_names_the_flag_to_add(tmp_path: Path, behaviour: dict[str, Any], hints: list[str]) -> None:
    async with engine(tmp_path, "vllm", SCRIPT, **behaviour) as at:
        found = at.served.driver.abilities
        assert found is not None
        lines = verdict(found)
        said = " ".join(line.hint for line in lines)
        assert all(line.ok is not False for line in lines)
        assert all(hint in said for hint in hints)
        if not hints:
            assert all(line.ok for line in lines), [line for line in lines if not line.ok]


async def test_the_doctor_asks_the_engine(tmp_path: Path) -> None:
    slow = [{"settings": {"repeat": True}}, {"text": "fast"}, {"text": "many slow words here", "delay_s": 5}]
    async with engine(tmp_path, "vllm", slow) as at:
        driver = make_engine(f"vllm:{at.served.server.url}", model=PILOT, journal_dir=tmp_path / "j")
        found, lines = await doctor_engine._judge(driver)
        assert found is not None and found.level == "L4"
        assert all(line.ok for line in lines), lines
        assert "abort ended a generation" in lines[-1].what


def test_the_doctor_says_that_nobody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUGLINE_ENGINE__PATIENCE", "0")
    done = CliRunner().invoke(app, ["doctor", "engine", "vllm:http://127.0.0.1:9", "--model", str(PILOT), "--json"])
    assert done.exit_code == 1 and "nobody answers" in done.stdout


def test_an_engine_behind_a_url_needs_its_model_named() -> None:
    done = CliRunner().invoke(app, ["doctor", "engine", "vllm:http://127.0.0.1:9", "--json"])
    assert done.exit_code == 1 and "needs --model" in done.stdout


def test_the_launch_command_is_shown() -> None:
    done = CliRunner().invoke(app, ["engine", "vllm", "some/model", "--dry-run", "--", "--dtype", "bfloat16"])
    assert (
        done.exit_code == 0 and done.stdout.strip().endswith("--dtype bfloat16") and "--enable-scale-out" in done.stdout
    )


@drivers
async def test_a_session_of_many_turns_is_one_row(tmp_path: Path, kind: str) -> None:
    async with engine(tmp_path, kind, SCRIPT) as at:
        talk: list[dict[str, Any]] = []
        for n in range(10):
            talk.append({"role": "user", "content": f"turn {n}"})
            status, body = await at.say("chat", messages=talk)
            assert status == 200
            talk.append(body["choices"][0]["message"])
        proof = await at.run.prove()
        assert proof.ok and (proof.calls_exact, proof.traces_total, proof.traces_continuous) == (10, 1, 1)
        inner = {e.ids for e in _journal(at.served.server.inner)}
        assert all(t.sampled in inner for t in at.run.turns()), "the server's own engine sampled what was recorded"


def _journal(inner: Any) -> Any:
    from tugline.engines.journal import read_journal

    return read_journal(inner._journal_dir)


async def test_experts_lie_beside_the_record(tmp_path: Path) -> None:
    async with engine(tmp_path, "vllm", SCRIPT) as at:
        driver = at.served.driver
        assert isinstance(driver, VllmEngine)
        honest = driver.ask

        async def with_experts(request: Generation) -> Any:
            from dataclasses import replace

            return replace(await honest(request), experts=b"\x93NUMPY")

        driver.ask = with_experts  # type: ignore[method-assign]
        await at.say("chat")
        (call,) = at.run.store.iter_calls("ses_a")
        assert (at.run.run / "engine" / "experts" / f"{call.engine_ref}.npy").read_bytes() == b"\x93NUMPY"
        assert count(concat([t.sampled for t in at.run.turns()])) > 0
