"""A stream breaks, and the agent goes on from what it had seen: the ids of that part stay, and train if asked for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from service.raw_client import PATHS, TOOL, RawClient
from service.test_live import relax
from service.wire_kit import Wire, wire
from tugline.cli.wiring import PILOT, chat_model
from tugline.core.columns import concat, count, take
from tugline.core.contracts import EditPolicy
from tugline.core.turn import CallOutcome, Turn
from tugline.gateway.running import Timing
from tugline.rollout.audit import audit_run
from tugline.rollout.explain import explain

THINK = "I should look at it first."
WORDS = "Here is the answer in a good many words. " * 4
SCRIPT: list[object] = [
    {"settings": {"noncanonical": 0.3, "seed": 6}},
    {"reasoning": THINK, "text": WORDS, "delay_s": 0.6},
    {"text": "The rest."},
    {"text": "Done."},
]


def body(api: str, words: list[tuple[str, str, str]], stream: bool) -> dict[str, Any]:
    """A conversation of (who, reasoning, text)."""
    if api == "anthropic":
        messages = []
        for who, reasoning, text in words:
            blocks = [{"type": "thinking", "thinking": reasoning, "signature": "s"}] if reasoning else []
            messages.append({"role": who, "content": [*blocks, *([{"type": "text", "text": text}] if text else [])]})
        tools = [{"name": n, "input_schema": TOOL} for n in ("bash", "write")]
        return {"model": "m", "max_tokens": 900, "messages": messages, "tools": tools, "stream": stream}
    if api == "responses":
        items: list[Any] = []
        for who, reasoning, text in words:
            if reasoning:
                shown = [{"type": "reasoning_text", "text": reasoning}]
                items.append({"type": "reasoning", "id": "rs_1", "summary": [], "content": shown})
            if text:
                kind = "output_text" if who == "assistant" else "input_text"
                items.append({"type": "message", "role": who, "content": [{"type": kind, "text": text}]})
        tools = [{"type": "function", "name": n, "parameters": TOOL} for n in ("bash", "write")]
        return {"model": "m", "input": items, "tools": tools, "stream": stream}
    messages = [
        {"role": who, "content": text or None, **({"reasoning_content": reasoning} if reasoning else {})}
        for who, reasoning, text in words
    ]
    tools = [{"type": "function", "function": {"name": n, "parameters": TOOL}} for n in ("bash", "write")]
    return {"model": "m", "messages": messages, "tools": tools, "stream": stream}


async def ask(kit: Wire, secret: str, api: str, words: list[tuple[str, str, str]]) -> None:
    def exchange() -> None:
        client = RawClient(kit.gateway.url, secret)
        client.ask(PATHS[api], json.dumps(body(api, words, False)).encode())
        answer = client.read()
        client.leave()
        assert answer.whole and b" 200 " in answer.head[:20], answer.raw

    await asyncio.to_thread(exchange)


async def cut(kit: Wire, secret: str, api: str) -> Turn:
    """A stream that its client loses in the middle of the text."""
    client = await asyncio.to_thread(RawClient, kit.gateway.url, secret)
    client.ask(PATHS[api], json.dumps(body(api, [("user", "", "go")], True)).encode())
    await asyncio.to_thread(client.until, b"answer")
    client.leave(reset=True)
    async with asyncio.timeout(20):
        while not [c for c in kit.store.iter_calls("ses_a") if c.outcome is CallOutcome.UNDELIVERED]:
            await asyncio.sleep(0.01)
    (turn,) = kit.turns()
    return turn


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(
    ("api", "seen"),
    [("chat", "Here is the"), ("chat", "Here is the "), ("anthropic", "Here is the"), ("responses", "")],
)
async def test_the_seen_part_of_a_broken_stream(
    tmp_path: Path, api: str, seen: str, train: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`seen`: what the agent sends back of the text. Codex keeps whole items only: the reasoning."""
    relax(monkeypatch)
    async with wire(tmp_path, SCRIPT, streaming="live", timing=Timing(0.05, 10.0)) as kit:
        secret = (await kit.session(edits=EditPolicy(train_partial=train))).secret
        lost = await cut(kit, secret, api)
        words = [("user", "", "go"), ("assistant", THINK, seen), *([("user", "", "on")] if seen else [])]
        await ask(kit, secret, api, words)
        await ask(kit, secret, api, [*words, ("assistant", "", "The rest."), ("user", "", "more")])
        _, second, third = kit.turns()
        part = second.partial
        assert part is not None and part.turn_id == lost.turn_id and third.partial is None
        assert {"partial_echo", "edit_retained"} <= set(second.drift)
        assert "edit_honoured" not in second.drift
        assert second.bridge.startswith(concat([lost.bridge, take(lost.sampled, 0, part.n)]))
        assert third.parent == second.turn_id
        proof = await kit.prove()
        assert (proof.findings, proof.calls_exact) == ([], 3)
        assert proof.traces_exact == proof.traces_total == proof.traces_continuous == 1
        (row,) = kit.store.iter_traces("ses_a")
        kept = row.loss_mask[part.at : part.at + part.n]
        assert kept == (b"\1" if train else b"\0") * part.n
        others = count(second.sampled) + count(third.sampled)
        assert sum(row.loss_mask) == others + (part.n if train else 0)
        assert proof.drift["partial_echo"] == 1
        audit = audit_run(kit.store, lambda _engine: chat_model(PILOT))
        assert audit.ok, audit.as_json()  # the ids that stayed were sampled, whatever blanks the agent sent behind them
        shown = explain(kit.store, second.turn_id, None).prompt
        assert shown is not None and (shown.part_of, shown.part) == (lost.turn_id, part.n)


async def test_honoured_it_is_rendered_from_the_words(tmp_path: Path) -> None:
    async with wire(tmp_path, SCRIPT, streaming="live", timing=Timing(0.05, 10.0)) as kit:
        secret = (await kit.session(edits=EditPolicy(partial_echo="honour", train_partial=True))).secret
        lost = await cut(kit, secret, "chat")
        await ask(
            kit, secret, "chat", [("user", "", "go"), ("assistant", THINK, "Here is the answer"), ("user", "", "on")]
        )
        _, second = kit.turns()
        assert second.partial is None
        assert set(second.drift) >= {"edit_honoured", "partial_echo"}
        assert not second.bridge.startswith(concat([lost.bridge, take(lost.sampled, 0, 12)]))
        proof = await kit.prove()
        assert proof.findings == []
        assert proof.trained_tokens == count(second.sampled)
