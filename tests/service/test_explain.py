"""A small run made through the scripted engine, then explained, reported and audited from its records alone."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any, Literal

import pytest
from typer.testing import CliRunner

from service.gateway_kit import CALL, Kit, body, gateway, tools, user
from tugline.cli.main import app
from tugline.core.contracts import EditPolicy, TextFilter
from tugline.core.turn import CallOutcome, Turn
from tugline.store import RunStore

SYSTEM = {"role": "system", "content": "Be brief."}
SCRIPT: list[object] = [
    {"settings": {"noncanonical": 0.5, "seed": 1}},
    {"reasoning": "Think.", "text": " hello\n", "calls": [CALL]},
    {"text": "Second."},
    {"text": "Third."},
    {"text": "Fourth."},
    {"text": "Fifth."},
]


async def say(kit: Kit, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    status, reply = await kit.post(body(SYSTEM, *messages, **more), key=kit.access["ses_a"].secret)
    assert status == 200, reply
    return dict(reply["choices"][0]["message"])


def answered(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": c["id"], "content": "a.txt"} for c in message["tool_calls"]]


async def recorded(tmp_path: Path) -> Path:
    """One session: an exact turn, one by meaning, a branch, roots of three kinds, a refused call."""
    async with gateway(tmp_path, SCRIPT) as kit:
        await kit.session()
        first = await say(kit, user("go"), seed=7, logit_bias={"1": 2})
        dropped = {k: v for k, v in first.items() if k != "reasoning_content"}
        second = await say(kit, user("go"), dropped, *answered(first))
        changed = second | {"content": "Second thoughts."}
        await say(kit, user("go"), dropped, *answered(first), changed, user("well"))
        await say(kit, user("go"), first, *answered(first), tools=tools("bash"))
        await say(kit, user("gone"))
        bad = body(SYSTEM, {"role": "user", "content": "x"}, response_format={"type": "json_object"})
        status, _ = await kit.post(bad, key=kit.access["ses_a"].secret)
        assert status == 400
        await kit.gateway.close("ses_a")
    return kit.run


def run(*words: str, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(app, [str(w) for w in words])
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result.stdout, result.stderr


def explained(path: Path, call: str) -> dict[str, Any]:
    out, _ = run("explain", str(path), call, "--json")
    value: dict[str, Any] = json.loads(out)
    return value


def turns_of(path: Path) -> list[Turn]:
    with RunStore.open(path, write=False) as store:
        return list(store.iter_turns("ses_a"))


async def test_each_kind_of_call_is_explained(tmp_path: Path) -> None:
    path = await recorded(tmp_path)
    turns = turns_of(path)
    first, second, branch, head, other, refused = (explained(path, f"ses_a:{n}") for n in range(6))

    assert first["place"]["match"] == "root" and first["place"]["nearest"] is None
    assert first["place"]["root_reason"] == "root_first"
    assert "logit_bias" in first["ignored"]
    assert first["asked"]["seed"] == 7
    assert first["sampling"]["max_tokens"] == 400
    assert first["prompt"]["kept"] == 0 and first["prompt"]["template"] is True
    assert first["sampled"]["text"].startswith("<think>") or "Think." in first["sampled"]["text"]
    assert first["sampled"]["ids"] == list(memoryview(turns[0].sampled).cast("i"))

    assert (second["place"]["match"], second["place"]["parent"]) == ("lenient", turns[0].turn_id)
    assert "reasoning_dropped" in second["place"]["drift"]
    [edit] = second["place"]["edited"]
    assert edit["origin"] == turns[0].turn_id and "reasoning_dropped" in edit["classes"]
    assert {"where": "reasoning", "ours": "Think.", "theirs": ""} in edit["differences"]
    beside = second["prompt"]["rendering"]
    ours, theirs = beside["ours"], beside["theirs"]
    assert first["prompt"]["tokens"] - 4 < beside["parts_at"] < second["prompt"]["kept"] and ours != theirs
    assert second["prompt"]["template"] is False and second["place"]["not_stored"] == []
    assert "reasoning_stripped" in [d["kind"] for d in second["prompt"]["deviations"]]
    assert second["prompt"]["kept"] == turns[0].prompt_len + len(turns[0].sampled) // 4
    assert "a.txt" in second["prompt"]["new_text"] and "<|" in second["prompt"]["new_text"]

    assert branch["place"]["parent"] == turns[0].turn_id
    assert branch["place"]["siblings"] == [turns[1].turn_id]
    kept, edit = branch["place"]["edited"]
    assert kept["origin"] == turns[0].turn_id and "reasoning_dropped" in kept["classes"]
    assert (edit["origin"], edit["classes"]) == (turns[1].turn_id, ["text_changed"])
    assert edit["differences"] == [{"where": "text", "ours": "Second.", "theirs": "Second thoughts."}]

    assert head["place"]["root_reason"] == "root_head_changed"
    assert "tool write is gone" in head["place"]["nearest"]["head"]

    assert (other["place"]["root_reason"], other["place"]["parent"]) == ("root_unknown", None)
    nearest = other["place"]["nearest"]
    assert nearest["parting"] == {"index": 1, "kind": "UserText", "ours": "go", "theirs": "gone"}
    assert 0 < nearest["tokens"] < nearest["prompt_tokens"]

    assert (refused["turn_id"], refused["place"], refused["call"]["status"]) == (None, None, 400)
    assert "structured output" in refused["call"]["error"]


async def test_three_names_of_one_call_and_unknown_ones(tmp_path: Path) -> None:
    path = await recorded(tmp_path)
    by_number = explained(path, "ses_a:1")
    assert explained(path, by_number["call"]["call_id"]) == by_number == explained(path, by_number["turn_id"])
    out, _ = run("explain", str(path), "ses_a:99", "--json", code=2)
    assert "6 are on record, numbered up to 5" in json.loads(out)["error"]["message"]
    for wrong in ("call_none", "ses_a:99", "ses_none:0", ":", "ses_a:", "turn_"):
        out, _ = run("explain", str(path), wrong, "--json", code=2)
        assert json.loads(out)["error"]["type"] == "ConfigError"
    _, err = run("explain", str(tmp_path), "ses_a:0", code=1)
    assert "not a run directory" in err


async def test_people_read_the_same(tmp_path: Path) -> None:
    path = await recorded(tmp_path)
    _, text = run("explain", str(path), "ses_a:2")
    assert "to turn" in text and "(exact)" not in text.split("drift")[1]
    assert "    - Second.\n" in text and "    + Second thoughts.\n" in text
    assert "one whole render of what the agent sent" in text
    assert "log-probabilities: sum" in text
    _, text = run("explain", str(path), "ses_a:4")
    assert "nowhere: a conversation of its own (root_unknown)" in text
    assert "    - go\n" in text and "    + gone\n" in text


async def test_without_the_model_there_are_ids(tmp_path: Path) -> None:
    path = await recorded(tmp_path)
    (path / "run.toml").write_text('[engine]\nmodel = "/nowhere"\n')
    found = explained(path, "ses_a:1")
    assert found["prompt"]["new_text"] is None and found["prompt"]["new_ids"]
    assert found["notes"]
    _, text = run("explain", str(path), "ses_a:1")
    assert "new: ids " in text


def test_audit_and_report_of_a_whole_run(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    lines = [{"settings": {"repeat": True}}, {"calls": [CALL]}, {"text": "Done."}]
    script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    path = tmp_path / "run"
    task = "copy-file-0"
    words = ["rollout", task, "--engine", f"scripted:{script}", "--harness", "bash-agent", "--sandbox", "local"]
    CliRunner().invoke(app, [*words, "-n", "2", "--out", str(path), "--max-turns", "3"])
    out, _ = run("report", str(path), "--drift", "--json")
    details = json.loads(out)["details"]
    assert details["roots"][0]["reason"] == "root_first"
    example = details["roots"][0]["example"]
    assert explained(path, example["call"])["call"]["session_id"] == example["session"]
    assert [c["status"].split()[1] for c in details["checks"][:3]] == ["passed"] * 3
    _, text = run("report", str(path), "--drift")
    assert "conversations begun" in text and example["call"] in text
    out, _ = run("verify", str(path), "--audit", "--json")
    audit = json.loads(out)["audit"]
    assert audit["ok"] and audit["prompts"] == audit["same"] == 2
    _, text = run("verify", str(path), "--audit")
    assert "2 prompts rendered whole agree" in text
    shutil.rmtree(path)


@pytest.mark.parametrize("retain", [False, True])
async def test_changed_arguments_are_obeyed_or_not_as_asked(tmp_path: Path, retain: bool) -> None:
    async with gateway(tmp_path, [{"calls": [CALL]}, {"text": "Done."}]) as kit:
        await kit.session(edits=EditPolicy(args_changed="retain" if retain else "honour"))
        first = await say(kit, user("go"))
        first["tool_calls"][0]["function"]["arguments"] = '{"command": "ls -l"}'
        await say(kit, user("go"), first, *answered(first))
        await kit.gateway.close("ses_a")
        before, after = kit.store.iter_turns("ses_a")
        assert after.parent == (before.turn_id if retain else None)
        assert set(after.drift) >= {"args_changed", "edit_retained" if retain else "edit_honoured"}


@pytest.mark.parametrize("retain", [False, True])
async def test_an_edit_behind_one_that_was_obeyed_is_known_too(tmp_path: Path, retain: bool) -> None:
    """The agent rewrote the first turn for good, and now it changes what was sampled behind its words."""
    async with gateway(tmp_path, [{"text": "One is enough."}, {"calls": [CALL]}, {"text": "Done."}]) as kit:
        await kit.session(edits=EditPolicy(args_changed="retain" if retain else "honour"))
        first = await say(kit, user("go"))
        first["content"] = "One is not enough."
        second = await say(kit, user("go"), first, user("more"))
        second["tool_calls"][0]["function"]["arguments"] = '{"command": "ls -l"}'
        await say(kit, user("go"), first, user("more"), second, *answered(second))
        await kit.gateway.close("ses_a")
        a, b, c = kit.store.iter_turns("ses_a")
        assert (b.parent, set(b.drift)) == (a.parent, {"edit_honoured", "text_changed"})
        assert c.parent == (b.turn_id if retain else a.parent)
        told = {"edit_retained"} if retain else {"edit_honoured", "text_changed"}
        assert set(c.drift) == {"args_changed", *told}
    edited = explained(kit.run, "ses_a:2")["place"]["edited"]
    assert [e["origin"] for e in edited] == ([b.turn_id] if retain else [a.turn_id, b.turn_id])


async def test_a_volatile_line_is_rendered_for_a_root_and_kept_behind_one(tmp_path: Path) -> None:
    stamp = TextFilter("stamp", r"\Ax-stamp:[^\n]*\n", "first_system")
    async with gateway(tmp_path, [{"text": "One."}, {"text": "Two."}]) as kit:
        access = await kit.session(filters=(stamp,))
        messages = [{"role": "system", "content": "x-stamp: 1\nBe brief."}, user("go")]
        for n in (1, 2):
            messages[0]["content"] = f"x-stamp: {n}\nBe brief."
            status, reply = await kit.post(body(*messages), key=access.secret)
            assert status == 200
            messages += [reply["choices"][0]["message"], user("more")]
        await kit.gateway.close("ses_a")
        before, after = kit.store.iter_turns("ses_a")
        assert (after.parent, after.drift) == (before.turn_id, ("filtered:stamp",))
        from tugline.cli.wiring import PILOT, chat_model

        prompt = chat_model(PILOT).decode(kit.store.prompt(after.turn_id))
        assert "x-stamp: 1" in prompt and "x-stamp: 2" not in prompt


@pytest.mark.parametrize("text", ["honour", "retain"])
@pytest.mark.parametrize("sticky", [False, True])
async def test_another_tool_list_is_a_root_or_the_conversation_goes_on(
    tmp_path: Path, sticky: bool, text: Literal["honour", "retain"]
) -> None:
    async with gateway(tmp_path, [{"text": "One."}, {"text": "Two."}, {"text": "Three."}]) as kit:
        await kit.session(edits=EditPolicy(head_changed="retain" if sticky else "honour", text_changed=text))
        first = await say(kit, user("go"))
        second = await say(kit, user("go"), first, user("more"), tools=tools("bash"))
        await say(kit, user("go"), first, user("more"), second, user("last"), tools=tools("bash"))
        await kit.gateway.close("ses_a")
        a, b, c = kit.store.iter_turns("ses_a")
        assert (b.parent, c.parent) == (a.turn_id if sticky else None, b.turn_id)
        assert (b.head == a.head, "head_stale" in b.drift, "head_stale" in c.drift) == (sticky,) * 3


async def test_another_sample_says_of_what_and_a_joined_call_why_its_conversation_began(tmp_path: Path) -> None:
    script: list[object] = [{"text": "One."}, {"text": "Two."}, {"text": "Three.", "delay_s": 0.5}]
    async with gateway(tmp_path, script) as kit:
        secret = (await kit.session()).secret
        await say(kit, user("go"))
        await say(kit, user("go"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await kit.post(body(SYSTEM, user("other")), key=secret)
        await say(kit, user("other"))
        await kit.gateway.close("ses_a")
        calls = {call.outcome: call.call_id for call in kit.store.iter_calls("ses_a")}
    path = kit.run
    first, again, joined = (explained(path, name) for name in ("ses_a:0", "ses_a:1", calls[CallOutcome.COALESCED]))
    assert (first["place"]["links"], again["place"]["links"]) == ([], [["resample_of", first["turn_id"]]])
    assert joined["place"]["root_reason"] == "root_unknown"
    _, text = run("explain", str(path), "ses_a:1")
    assert f"resample_of {first['turn_id']}" in text and "earlier conversations begin at" in text
