"""The control plane over HTTP: sessions from open to trajectory, hostile input, who may, and what dies when."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blockbuster import BlockBuster, blockbuster_ctx

from real.support import tugline
from service.control_kit import TOKEN, control, gateway_process
from tugline.core.contracts import Dialect
from tugline.core.errors import Conflict, Forbidden, RunError
from tugline.core.ident import new_secret
from tugline.dialects import DIALECTS
from tugline.engines.journal import JournalIndex
from tugline.rollout.api.token import Token, create_token
from tugline.rollout.control_client import ControlClient
from tugline.rollout.proof import prove_run
from tugline.rollout.trajectory_json import decode_trajectory
from tugline.store import RunStore, reads

SESSIONS = "/api/v1/sessions"
SCRIPT: list[object] = [{"settings": {"repeat": True}}, {"text": "hello"}, {"text": "and again"}]


@pytest.fixture(autouse=True)
def no_blocking() -> Iterator[BlockBuster]:
    """Nothing of the control plane blocks the loop that serves the agents."""
    with blockbuster_ctx("tugline.rollout") as guard:
        yield guard


# ----------------------------------------------------------------------------------------------------- the way through


async def test_a_session_from_open_to_trajectory(tmp_path: Path) -> None:
    async with control(tmp_path, SCRIPT) as c:
        made = await c.open(name="one", group="g", task="t", temperature=0.5, metadata={"n": 1})
        status, reply = await c.chat(made["key"])
        assert status == 200
        first = reply["choices"][0]["message"]
        talk = [{"role": "user", "content": "hi"}, first, {"role": "user", "content": "more"}]
        assert (await c.chat(made["key"], *talk))[0] == 200
        one = f"{SESSIONS}/{made['session']}"
        status, shown = await c.ask("GET", one)
        assert status == 200 and made["key"] not in json.dumps(shown)
        assert (
            shown["state"] == "running" and shown["usage"]["turns"] == 2 and shown["usage"]["calls"] == {"answered": 2}
        )
        status, refused = await c.ask("GET", f"{one}/trajectory")
        assert (status, refused["error"]["code"]) == (409, "session_open")
        status, ended = await c.ask("POST", f"{one}/end", {"reward": 0.75, "parts": {"tests": 1}})
        assert status == 200 and (ended["outcome"], ended["reward"]) == ("completed", 0.75)
        status, _, data = await c.raw("GET", f"{one}/trajectory")
        plain, trajectory = json.loads(data), decode_trajectory(data)
        assert trajectory == c.kit.store.trajectory(made["session"]) != None  # noqa: E711
        row = plain["traces"][0]
        assert len(row["token_ids"]) == len(row["loss_mask"]) == len(row["logprobs"])
        assert [v is None for v in row["logprobs"]] == [
            not any(s["start"] <= i < s["end"] for s in row["spans"]) for i in range(len(row["token_ids"]))
        ]
        assert sum(row["loss_mask"]) == sum(s["end"] - s["start"] for s in row["spans"] if s["trained"]) > 0
        assert row["sampling"]["temperature"] == 0.5
        status, page = await c.ask("GET", f"{SESSIONS}?group=g&state=ended&limit=5")
        assert [s["session"] for s in page["sessions"]] == [made["session"]] and page["next"] is None
        assert page["sessions"][0]["metadata"] == {"n": 1}
        assert await c.ask("DELETE", one) == (200, {"session": made["session"], "removed": True})
        assert (await c.ask("GET", one))[0] == 404
        other = await c.open(group="g")
        assert (await c.chat(other["key"]))[0] == 200
        await c.ask("POST", f"{SESSIONS}/{other['session']}/end", {"reward": 1})
        # the engine's journal still has the removed session's generations: the run is proven all the same
        proof = await asyncio.to_thread(prove_run, c.kit.store, JournalIndex(c.kit.run / "engine", strict=False).get)
        assert proof.ok and proof.calls_total == 1
        status, headers, text = await c.raw("GET", "/metrics")
        assert status == 200 and b"tugline_calls_total" in text and headers["content-type"].startswith("text/plain")


async def test_everything_has_a_default(tmp_path: Path) -> None:
    async with control(tmp_path, SCRIPT) as c:
        status, made = await c.ask("POST", SESSIONS)
        assert status == 201 and made["task"] == "manual" and made["name"] is None
        assert (await c.chat(made["key"]))[0] == 200
        status, ended = await c.ask("POST", f"{SESSIONS}/{made['session']}/end", b" \n")
        assert (status, ended["outcome"], ended["reward"]) == (200, "completed", None)


async def test_limits_hold_and_the_time_to_live_ends_it(tmp_path: Path) -> None:
    async with control(tmp_path, SCRIPT) as c:
        await c.chat((await c.open())["key"])  # the first call of all loads what all share
        made = await c.open(max_turns=1, ttl=1.5)
        assert (await c.chat(made["key"]))[0] == 200
        status, refused = await c.chat(made["key"], text="other")
        assert status in (400, 403) and "budget" in json.dumps(refused)
        while (view := (await c.ask("GET", f"{SESSIONS}/{made['session']}"))[1])["state"] != "ended":
            await asyncio.sleep(0.02)
        assert view["outcome"] == "agent_timeout" and view["reward"] is None
        assert (await c.chat(made["key"]))[0] in (401, 403)


async def test_many_sessions_at_once(tmp_path: Path) -> None:
    async with control(tmp_path, SCRIPT) as c:

        async def life(n: int) -> tuple[dict[str, Any], int]:
            made = await c.open(group=f"g{n % 4}")
            assert (await c.chat(made["key"], text=f"hi {n}"))[0] == 200
            ends = [c.ask("POST", f"{SESSIONS}/{made['session']}/end", {"reward": r}) for r in (1.0, 1.0, 0.5)]
            codes = sorted([status for status, _ in await asyncio.gather(*ends)])
            return made, codes.count(409)

        lives = await asyncio.gather(*(life(n) for n in range(40)))
        assert len({made["session"] for made, _ in lives}) == len({made["key"] for made, _ in lives}) == 40
        for n in range(4):
            assert sorted(m["index"] for m, _ in lives if m["group"] == f"g{n}") == list(range(10))
        assert all(0 < refused < 3 for _, refused in lives)
        assert c.manual.open_count == 0
        seen, after = 0, ""
        while after is not None:
            page = (await c.ask("GET", f"{SESSIONS}?limit=7&after={after}"))[1]
            seen, after = seen + len(page["sessions"]), page["next"]
        assert seen == 40


async def test_ending_aborts_the_calls_that_run(tmp_path: Path) -> None:
    async with control(tmp_path, [{"text": "slow", "delay_s": 30}]) as c:
        made = await c.open()
        calling = asyncio.ensure_future(c.chat(made["key"]))
        while not c.kit.engine._state.running:  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
        status, view = await c.ask("POST", f"{SESSIONS}/{made['session']}/end", {"reward": 1.0})
        assert (status, view["outcome"], view["reward"]) == (200, "engine_failed", None)  # nothing was sampled
        assert not c.kit.engine._state.running  # type: ignore[attr-defined]
        answer = await asyncio.gather(calling, return_exceptions=True)
        assert isinstance(answer[0], Exception) or answer[0][0] >= 400


# -------------------------------------------------------------------------------------------------------------- who may


async def test_nothing_without_the_token(tmp_path: Path) -> None:
    tokens = (None, "", TOKEN[:-1], TOKEN + "t", TOKEN.upper(), "\xff", "x" * 5000)
    asks = (
        ("GET", SESSIONS),
        ("POST", SESSIONS),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
        ("GET", "/api/v1/nothing"),
        ("DELETE", f"{SESSIONS}/ses_x"),
    )
    async with control(tmp_path, SCRIPT) as c:
        for token in tokens:
            for method, path in asks:
                status, headers, data = await c.raw(method, path, token=token)
                assert status == 401 and json.loads(data)["error"]["code"] == "unauthorized"
                assert headers["www-authenticate"] == "Bearer"
        assert c.manual.open_count == 0


async def test_other_schemes_and_a_session_key_do_not_open_the_control_plane(tmp_path: Path) -> None:
    async with control(tmp_path, SCRIPT) as c:
        made = await c.open()
        assert (await c.ask("GET", SESSIONS, token=made["key"]))[0] == 401
        for value in (f"Basic {TOKEN}", TOKEN, f"bearer{TOKEN}"):
            async with c.kit.http.get(c.url + SESSIONS, headers={"authorization": value}) as response:
                assert response.status == 401
        assert (await c.chat(TOKEN))[0] == 401  # nor the token the agents' port
        async with c.kit.http.get(f"{c.url}{SESSIONS}?token={TOKEN}") as response:
            assert response.status == 401
        assert (await c.ask("GET", "/healthz", token=None))[1]["status"] == "ok"


async def test_a_browser_gets_no_cross_origin_permission(tmp_path: Path) -> None:
    async with control(tmp_path, SCRIPT) as c:
        headers = {"origin": "http://evil.example", "access-control-request-method": "POST"}
        async with c.kit.http.options(c.url + SESSIONS, headers=headers) as response:
            assert response.status == 401
            assert not [h for h in response.headers if h.lower().startswith("access-control")]


def test_the_token_file_is_the_owners_and_new_each_time(tmp_path: Path) -> None:
    file = tmp_path / "control.token"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("keep")
    file.symlink_to(elsewhere)
    first = create_token(file)
    assert stat.S_IMODE(file.lstat().st_mode) == 0o600 and not file.is_symlink() and elsewhere.read_text() == "keep"
    second = create_token(file)
    assert first != second and len(second) > 40 and file.read_text().strip() == second
    Token(second).check(f"Bearer {second}")
    with pytest.raises(RunError):
        create_token(tmp_path / "absent" / "control.token")


# ----------------------------------------------------------------------------------------------------------- bad input


WRONG_BODIES: list[tuple[Any, str | None]] = [
    (b"{", None),
    (b"\xff\xfe", None),
    (b"[" * 100_000, None),
    (b'{"metadata": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001, None),
    ([], None),
    ("text", None),
    ({"session": "ses_mine"}, "session"),
    ({"key": "mine"}, "key"),
    ({"nam": "x"}, "nam"),
    ({"name": 7}, "name"),
    ({"name": "a\u0000b"}, "name"),
    ({"group": ""}, "group"),
    ({"task": "x" * 201}, "task"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": 0.5}, "top_k"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_turns": 0}, "max_turns"),
    ({"ttl": -1}, "ttl"),
    ({"engine": "nobody"}, "engine"),
    ({"routes": [{"pattern": "x"}]}, "routes[0]"),
    ({"routes": [{"pattern": "x", "engine": "e", "extra": 1}]}, "routes[0].extra"),
    ({"routes": [{"pattern": "x", "engine": "nobody"}]}, "routes[0].engine"),
    ({"media": "show"}, "media"),
    ({"streaming": "never"}, "streaming"),
    ({"history_reasoning": "honour"}, "history_reasoning"),
    ({"edits": {"call_added": "retain"}}, "edits.call_added"),
    ({"edits": {"text_changed": "keep"}}, "edits.text_changed"),
    ({"edits": {"train_partial": "retain"}}, "edits.train_partial"),
    ({"metadata": []}, "metadata"),
    ({"metadata": {"x": "y" * 20_000}}, "metadata"),
]
WRONG_ENDINGS: list[tuple[Any, str | None]] = [
    (b'{"reward": NaN}', None),
    (b'{"reward": 1e999}', "reward"),
    ({"reward": "1"}, "reward"),
    ({"reward": True}, "reward"),
    ({"reward": [1]}, "reward"),
    ({"rewards": 1}, "rewards"),
    ({"parts": {"x": None}}, "parts[]"),
    ({"parts": {"": 1}}, "parts"),
    ({"outcome": "won"}, "outcome"),
    ({"outcome": "cancelled", "reward": 1}, "reward"),
    ({"reason": "x" * 501}, "reason"),
]


async def test_a_wrong_body_is_named_and_opens_nothing(tmp_path: Path) -> None:
    async with control(tmp_path, SCRIPT) as c:
        for body, path in WRONG_BODIES:
            status, refused = await c.ask("POST", SESSIONS, body)
            error = refused["error"]
            assert (status, error["code"], error.get("path")) == (400, "invalid_request", path), (str(body)[:80], error)
        assert c.manual.open_count == 0 and c.kit.store.page(9) == []


async def test_a_wrong_ending_is_named_and_ends_nothing(tmp_path: Path) -> None:
    async with control(tmp_path, SCRIPT) as c:
        made = await c.open()
        for body, path in WRONG_ENDINGS:
            status, refused = await c.ask("POST", f"{SESSIONS}/{made['session']}/end", body)
            error = refused["error"]
            assert (status, error["code"], error.get("path")) == (400, "invalid_request", path), (str(body)[:80], error)
        assert c.manual.open_count == 1


async def test_wrong_methods_paths_queries_and_sizes(tmp_path: Path) -> None:
    async with control(tmp_path, SCRIPT) as c:
        made = await c.open()
        one = f"{SESSIONS}/{made['session']}"
        for method, path, allowed in (
            ("PUT", SESSIONS, {"GET", "HEAD", "POST"}),
            ("DELETE", SESSIONS, {"GET", "HEAD", "POST"}),
            ("POST", one, {"GET", "HEAD", "DELETE"}),
            ("GET", f"{one}/end", {"POST"}),
            ("POST", f"{one}/trajectory", {"GET", "HEAD"}),
            ("POST", "/metrics", {"GET", "HEAD"}),
        ):
            status, headers, data = await c.raw(method, path)
            assert (status, json.loads(data)["error"]["code"]) == (405, "method_not_allowed"), (method, path)
            assert set(headers["allow"].split(", ")) == allowed
        for path in ("/", "/api", "/api/v1", f"{SESSIONS}/", f"{one}/ended", "/v1/messages", "/api/v1/sessions/x/y/z"):
            status, answer = await c.ask("GET", path)
            assert (status, answer["error"]["code"]) == (404, "not_found"), path
        for absent in ("ses_x", "%00", "..%2f..", "x" * 2000, "ses_%F0%9F%98%80"):
            assert (await c.ask("GET", f"{SESSIONS}/{absent}"))[0] == 404
            assert (await c.ask("POST", f"{SESSIONS}/{absent}/end"))[0] == 404
            assert (await c.ask("DELETE", f"{SESSIONS}/{absent}"))[0] == 404
        for query, name in (
            ("limit=0", "limit"),
            ("limit=-1", "limit"),
            ("limit=1001", "limit"),
            ("limit=%D9%A3", "limit"),
            ("limit=1&limit=2", "limit"),
            ("state=done", "state"),
            ("colour=red", "colour"),
        ):
            status, answer = await c.ask("GET", f"{SESSIONS}?{query}")
            assert (status, answer["error"]["path"]) == (400, name), query
        assert (await c.ask("GET", f"{one}?x=1"))[0] == 400
        big = b'{"name": "' + b"x" * (1 << 20) + b'"}'
        status, answer = await c.ask("POST", SESSIONS, io.BytesIO(big))
        assert (status, answer["error"]["code"]) == (413, "request_too_large")

        async def pieces() -> Any:
            for _ in range(40):
                yield b" " * (1 << 15)

        async with c.kit.http.post(
            c.url + SESSIONS, data=pieces(), headers={"authorization": f"Bearer {TOKEN}"}
        ) as response:
            assert response.status == 413
        assert c.manual.open_count == 1


@pytest.mark.parametrize("step", ["seal", "put_about", "put_trajectory", "put_session"])
async def test_a_store_that_fails_is_a_503_and_the_end_can_be_said_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    from tugline.core.errors import StoreError

    async with control(tmp_path, SCRIPT) as c:
        made = await c.open()
        await c.chat(made["key"])

        async def full(*_: object) -> None:
            raise StoreError("no room", code="disk_full")

        end = f"{SESSIONS}/{made['session']}/end"
        with monkeypatch.context() as patch:
            patch.setattr(c.kit.store, step, full)
            status, headers, data = await c.raw("POST", end, {"reward": 1})
        assert status == 503 and json.loads(data)["error"]["code"] == "disk_full" and headers["retry-after"] == "1"
        status, ended = await c.ask("POST", end, {"reward": 1})
        assert (status, ended["outcome"], ended["reward"]) == (200, "completed", 1.0)
        assert c.kit.store.sealed(made["session"])


async def test_openapi_names_every_route_and_only_those(tmp_path: Path) -> None:
    async with control(tmp_path, SCRIPT) as c:
        status, document = await c.ask("GET", "/openapi.json")
        assert status == 200 and document["openapi"].startswith("3.1")
        made = await c.open()
        await c.chat(made["key"])
        await c.ask("POST", f"{SESSIONS}/{made['session']}/end", {"reward": 1})
        references = set(_references(document))
        assert {r.removeprefix("#/components/schemas/") for r in references} <= set(document["components"]["schemas"])
        for path, operations in document["paths"].items():
            for method in operations.keys() - {"parameters"}:
                url = path.replace("{session}", made["session"])
                body = {"reward": 1} if path.endswith("/end") else {} if method == "post" else None
                if method != "delete":
                    status, _, data = await c.raw(method.upper(), url, body)
                    assert str(status) in operations[method]["responses"], (method, path)
                    if "application/json" in operations[method]["responses"][str(status)]["content"]:
                        _has_required(document, operations[method]["responses"][str(status)], json.loads(data))


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


def _has_required(document: Any, reply: Any, data: dict[str, Any]) -> None:
    schema = reply["content"]["application/json"]["schema"]
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        assert set(schema["required"]) <= set(data) <= set(schema["properties"]), data.keys()


# ------------------------------------------------------------------------------------------------ secrets die with it


def _call(dialect: Dialect) -> tuple[str, dict[str, str]]:
    """(path, headers without the key) of a generate call."""
    route = next(r for r in dialect.routes if r.kind == "generate")
    headers = {"anthropic-version": "2023-06-01"} if dialect.name == "anthropic" else {}
    return route.path.replace("{model}", "m"), headers


def _credentials(dialect: Dialect, key: str) -> dict[str, str]:
    ways = ({"authorization": f"Bearer {key}"}, {"x-api-key": key}, {"x-goog-api-key": key})
    return next(headers for headers in ways if dialect.credential(headers, {}) == key)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
async def test_a_key_dies_with_its_session_in_every_dialects_own_words(tmp_path: Path, dialect: Dialect) -> None:
    async with control(tmp_path, SCRIPT) as c:
        made, other = await c.open(), await c.open()
        path, more = _call(dialect)
        headers = {**more, **_credentials(dialect, made["key"])}
        status, _ = await c.kit.post({}, path=path, **headers)
        assert status == 400  # the key is good, the body is not
        await c.ask("POST", f"{SESSIONS}/{made['session']}/end", {})
        want_status, _, want = dialect.error(Forbidden("this session has ended; its key is no longer valid"))
        assert want_status == 403
        assert await c.kit.post({}, path=path, **headers) == (403, json.loads(want))
        prefixed = f"/s/{made['key']}{path}"
        assert (await c.kit.post({}, path=prefixed, **more))[0] == 403
        unknown = {**more, **_credentials(dialect, new_secret())}
        assert (await c.kit.post({}, path=path, **unknown))[0] == 401
        alive = {**more, **_credentials(dialect, other["key"])}
        assert (await c.kit.post({}, path=path, **alive))[0] == 400


# --------------------------------------------------------------------------------------------------------- processes


@pytest.mark.timeout(120)
def test_kill_9_and_a_restart_on_the_same_run(tmp_path: Path) -> None:
    script, run = tmp_path / "script.jsonl", tmp_path / "run"
    script.write_text('{"settings": {"repeat": true}}\n{"text": "hello"}\n')
    flags = ("--engine", f"scripted:{script}", "--out", str(run))
    with gateway_process(tmp_path, *flags) as (process, ready):
        assert set(ready) >= {"session", "key", "openai", "anthropic", "gemini", "control", "env", "token_file"}
        client = ControlClient.of_run(run)
        done, left = client.open(group="g"), client.open(group="g")
        for one in (done, left):
            assert _chat(one) == 200
        client.end(done["session"], 1.0)
        process.send_signal(signal.SIGKILL)
        process.wait()
        client.close()
    with pytest.raises(RunError, match="is gone"):
        ControlClient.of_run(run).show(left["session"])
    with gateway_process(tmp_path, *flags) as (process, again):
        assert (tmp_path / "gateway.log").read_text().count("2 sessions of a dead process ended as node_lost") == 1
        client = ControlClient.of_run(run)
        lost = client.show(left["session"])
        assert (lost["state"], lost["outcome"]) == ("ended", "node_lost")
        assert client.trajectory(left["session"]).traces
        assert client.show(done["session"])["reward"] == 1.0
        assert client.end(done["session"], 1.0)["outcome"] == "completed"
        with pytest.raises(Conflict, match="node_lost"):
            client.end(left["session"], 1.0)
        assert _chat({**left, "openai": again["openai"]}) == 401
        new = client.open(group="g")
        assert new["index"] == 2 and new["session"] not in (done["session"], left["session"])
        assert _chat(new) == 200
        client.end(new["session"], 0.0)
        client.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, (tmp_path / "gateway.log").read_text()
    assert not (run / "control.json").exists() and not (run / "control.token").exists()
    tugline("verify", str(run))
    with RunStore.open(run, write=False) as store:
        outcomes = {state.key.session_id: state.outcome for state, _ in store.sessions()}  # type: ignore[union-attr]
    assert sorted(outcomes.values()) == ["cancelled", "completed", "completed", "node_lost", "node_lost"]
    assert outcomes[again["session"]] == "cancelled"


def _chat(session: dict[str, Any]) -> int:
    import httpx

    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    headers = {"authorization": f"Bearer {session['key']}"}
    return httpx.post(f"{session['openai']}/chat/completions", json=body, headers=headers, timeout=60).status_code


async def test_rows_that_are_removed_while_they_are_read_are_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with control(tmp_path, SCRIPT) as c:
        made = await c.open()
        await c.chat(made["key"])
        one = f"{SESSIONS}/{made['session']}"
        await c.ask("POST", f"{one}/end", {"reward": 1.0})
        loop, plain = asyncio.get_running_loop(), reads.traces

        def removed_meanwhile(conn: Any, session_id: str) -> Any:
            asyncio.run_coroutine_threadsafe(c.kit.store.delete_session(session_id), loop).result(20)
            return plain(conn, session_id)

        monkeypatch.setattr(reads, "traces", removed_meanwhile)
        status, rows = await c.ask("GET", f"{one}/trajectory")
        assert (status, len(rows["traces"])) == (200, 1), rows
        assert (await c.ask("GET", f"{one}/trajectory"))[0] == 404
