"""`tugline.open_session` and `open_gateway`: sessions from Python, with a gateway of their own or somebody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

import tugline
from real.support import processes
from tugline.core.columns import floats_array, ids_array
from tugline.core.errors import BadRequest, ConfigError, Conflict, NotFound, RunError, Unauthorized
from tugline.core.session import Outcome
from tugline.store import RunStore

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("script") / "script.jsonl"
    file.write_text('{"settings": {"repeat": true}}\n{"text": "hello"}\n')
    return f"scripted:{file}"


@pytest.fixture(scope="module")
def gateway(script: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tugline.Gateway]:
    with tugline.open_gateway(engine=script, out=tmp_path_factory.mktemp("run") / "run") as made:
        yield made


def chat(session: tugline.Session) -> int:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    headers = {"authorization": f"Bearer {session.key}"}
    return httpx.post(f"{session.openai_url}/chat/completions", json=body, headers=headers, timeout=60).status_code


def test_importing_tugline_imports_nothing() -> None:
    code = (
        "import sys; import tugline; print([m for m in ('asyncio', 'numpy', 'msgspec', 'httpx') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
    assert not [name for name in tugline.__all__ if not getattr(tugline, name)]
    with pytest.raises(AttributeError):
        _ = tugline.nothing  # type: ignore[attr-defined]


def test_one_session_with_a_gateway_of_its_own(script: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with tugline.open_session(engine=script, out=run, group="g", max_turns=2, metadata={"a": 1}) as session:
        assert session.env["OPENAI_API_KEY"] == session.key and session.openai_url.endswith("/v1")
        assert chat(session) == 200
        session.end(1.0, parts={"tests": 2})
        assert chat(session) == 403
        rows = session.trajectory()
    row = rows.traces[0]
    assert rows.reward == 1.0 and rows.reward_parts == {"tests": 2.0} and rows.group_id == "g"
    assert len(ids_array(row.token_ids)) == len(floats_array(row.logprobs)) == len(row.loss_mask)
    assert session.trajectory() == rows  # from the run directory: the gateway has stopped
    assert processes(str(run)) == []
    with RunStore.open(run, write=False) as store:
        assert [s.key.session_id for s, _ in store.sessions()] == [session.id]
        assert store.trajectory(session.id) == rows


def test_a_gateway_of_its_own_ends_well_each_time(script: str, tmp_path: Path) -> None:
    for n in range(4):  # its end used to race a signal with the end of its input: one time in two
        with tugline.open_session(engine=script, out=tmp_path / f"run{n}") as session:
            assert chat(session) == 200
        assert not list((tmp_path / f"run{n}").glob("run.db-wal")), "the run was not closed"


def test_a_body_that_raises_is_a_failed_agent_and_one_that_ends_nothing_completed(gateway: tugline.Gateway) -> None:
    with pytest.raises(ZeroDivisionError), gateway.open_session() as broken:
        assert chat(broken) == 200
        _ = 1 / 0
    rows = broken.trajectory()
    assert (rows.outcome, rows.reward) == (Outcome.AGENT_FAILED, None)
    assert broken.show()["reason"] == "ZeroDivisionError: division by zero"
    with gateway.open_session() as quiet:
        assert chat(quiet) == 200
    assert (quiet.trajectory().outcome, quiet.trajectory().reward) == (Outcome.COMPLETED, None)
    with pytest.raises(KeyboardInterrupt), gateway.open_session() as stopped:
        raise KeyboardInterrupt
    assert stopped.show()["outcome"] == "cancelled"
    with gateway.open_session(ttl=1.5) as late:
        assert chat(late) == 200
        while late.show()["state"] != "ended":
            time.sleep(0.01)
    assert late.trajectory().outcome is Outcome.AGENT_TIMEOUT


def test_refusals_are_the_servers_own_errors(gateway: tugline.Gateway) -> None:
    with pytest.raises(BadRequest) as wrong:
        gateway.open_session(temperature=-1)
    assert wrong.value.path == "temperature"
    with pytest.raises(BadRequest):
        gateway.open_session(colour="red")  # type: ignore[call-arg]
    session = gateway.open_session()
    for reward in (float("nan"), float("inf")):
        with pytest.raises(BadRequest, match="finite"):
            session.end(reward)
    with pytest.raises(Conflict):
        session.trajectory()
    chat(session)
    session.end(1.0)
    session.end(1.0)
    with pytest.raises(Conflict):
        session.end(0.0)
    with pytest.raises(NotFound):
        gateway.client.show("../ses_x?y")
    assert "tugline_calls_total" in gateway.client.metrics()


def test_threads_share_a_gateway(gateway: tugline.Gateway) -> None:
    def life(n: int) -> tuple[int, float | None]:
        with gateway.open_session(group="threads") as session:
            assert chat(session) == 200
            session.end(float(n))
        return session.index, session.trajectory().reward

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(life, range(24)))
    assert sorted(index for index, _ in done) == list(range(24))
    assert [reward for _, reward in done] == [float(n) for n in range(24)]


def test_sessions_of_a_gateway_that_runs_already(gateway: tugline.Gateway) -> None:
    assert gateway.run is not None
    with tugline.open_session(run=gateway.run, name="by run") as session:
        assert chat(session) == 200
    assert session.trajectory().outcome is Outcome.COMPLETED
    token = (gateway.run / "control.token").read_text().strip()
    url = gateway.client.url
    with tugline.open_session(control=url, token=token) as session:
        assert chat(session) == 200
    with tugline.open_gateway(run=gateway.run) as other:
        assert other.run is None and other.client.show(session.id)["outcome"] == "completed"
    assert gateway.client.show(session.id)["state"] == "ended"  # leaving did not stop somebody else's
    with pytest.raises(Unauthorized):
        tugline.open_session(control=url, token="wrong")


def test_what_cannot_be_opened_says_why(script: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="new gateway"):
        tugline.open_gateway(run=tmp_path, engine=script)
    with pytest.raises(ConfigError, match="token"):
        tugline.open_gateway(control="http://127.0.0.1:1")
    with pytest.raises(RunError, match="not a run directory"):
        tugline.open_gateway(run=tmp_path)
    with pytest.raises(RunError, match="no control plane answers"):
        tugline.open_session(control="http://127.0.0.1:1", token="x")
    with pytest.raises(ConfigError, match="no engine"):
        tugline.open_session(engine="nonsense", out=tmp_path / "run")
    with pytest.raises(BadRequest):
        tugline.open_session(engine=script, out=tmp_path / "other", max_turns=0)
    assert processes(str(tmp_path / "other")) == []


def test_a_gateway_that_does_not_end_well_is_an_error(script: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(RunError, match="did not end well"), tugline.open_gateway(engine=script, out=run) as gateway:
        (pid,) = processes(f"--out {run}")
        os.kill(pid, signal.SIGKILL)
        gateway.client.close()
    gateway.client.close()
    with pytest.raises(ZeroDivisionError), tugline.open_session(engine=script, out=run) as session:
        (pid,) = processes(f"--out {run}")
        os.kill(pid, signal.SIGKILL)
        _ = 1 / 0
    assert session.id and processes(f"--out {run}") == []


def test_a_gateway_ends_with_the_program_that_started_it(script: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    code = (
        "import sys, time, tugline\n"
        f"gateway = tugline.open_gateway(engine={script!r}, out={str(run)!r})\n"
        "gateway.open_session()\nprint('ready', flush=True)\ntime.sleep(100)\n"
    )
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert program.stdout is not None and program.stdout.readline() == b"ready\n"
    assert len(processes(f"--out {run}")) == 1
    os.kill(program.pid, signal.SIGKILL)
    program.wait()
    program.stdout.close()
    until = time.monotonic() + 30
    while processes(f"--out {run}"):
        assert time.monotonic() < until
        time.sleep(0.05)
    with RunStore.open(run, write=False) as store:
        ((state, _),) = store.sessions()
    assert state.outcome is Outcome.CANCELLED  # type: ignore[union-attr]


async def test_everything_in_one_process(script: str, tmp_path: Path) -> None:
    async with tugline.local_gateway(engine=script, out=tmp_path / "run", sampling="temperature=0.5") as gateway:
        made = await gateway.open(group="g", max_turns=1)
        async with httpx.AsyncClient() as http:
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            headers = {"authorization": f"Bearer {made.key}"}
            assert (await http.post(f"{made.openai}/chat/completions", json=body, headers=headers)).status_code == 200
        assert (await gateway.end(made.session, 0.5)).reward == 0.5
        rows = await gateway.trajectory(made.session)
        assert rows.traces[0].sampling.temperature == 0.5
        with pytest.raises(BadRequest, match="outcome"):
            await gateway.end(made.session, outcome="won")
        with pytest.raises(ConfigError, match="takes no new weights"):
            await gateway.load_weights(tmp_path, 1)
        left = await gateway.open()
    with RunStore.open(gateway.run, write=False) as store:
        found = store.session(left.session)
    assert found is not None and found[0].outcome is Outcome.CANCELLED  # type: ignore[union-attr]
