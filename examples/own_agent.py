"""An agent of our own, a tool loop over plain HTTP, in four sessions of one group; then their training rows.

python examples/own_agent.py [ENGINE]      ENGINE: embedded (default) or scripted:FILE
"""

import json
import sys
import tempfile
from pathlib import Path

import httpx

import tugline
from tugline.core.columns import ids_array

TASK = 'Create a file named `greeting.txt` that contains the text "hello".'
TEXT = {"type": "string"}
PARAMETERS = {"type": "object", "properties": {"name": TEXT, "content": TEXT}, "required": ["name", "content"]}
WRITE = {"name": "write_file", "description": "Write a file.", "parameters": PARAMETERS}


def write_file(arguments: str, cwd: Path) -> str:
    """A tool's result is text for the model, also when its arguments are not what they should be.

    It writes inside `cwd` only. A policy in training tries everything: a tool that runs its commands on your machine
    needs a sandbox (`tugline rollout` starts agents in one).
    """
    try:
        asked = json.loads(arguments)
        Path(cwd, Path(str(asked["name"])).name).write_text(str(asked["content"]))
        return "ok"
    except (ValueError, KeyError, TypeError, OSError) as err:
        return f"error: {err}"


def agent(base_url: str, key: str, cwd: Path) -> None:
    """Talk to the model until it calls no more tools. Knows nothing of Tugline."""
    messages: list[dict] = [{"role": "user", "content": TASK}]
    with httpx.Client(base_url=base_url, headers={"authorization": f"Bearer {key}"}, timeout=120) as http:
        for _ in range(8):
            body = {"model": "any", "messages": messages, "tools": [{"type": "function", "function": WRITE}]}
            message = http.post("/chat/completions", json=body).raise_for_status().json()["choices"][0]["message"]
            messages.append(message)
            for call in message.get("tool_calls") or []:
                result = write_file(call["function"]["arguments"], cwd)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            if not message.get("tool_calls"):
                return


def main() -> None:
    engine = sys.argv[1] if len(sys.argv) > 1 else "embedded"
    with tugline.open_gateway(engine=engine, sampling="max_tokens=128") as gateway:
        for _ in range(4):
            with gateway.open_session(group="greeting", task=TASK) as session, tempfile.TemporaryDirectory() as cwd:
                agent(session.openai_url, session.key, Path(cwd))
                file = Path(cwd, "greeting.txt")
                session.end(1.0 if file.is_file() and file.read_text(errors="replace").strip() == "hello" else 0.0)
            rows = session.trajectory()
            print(f"session {session.id}  reward {rows.reward}")
            for row in rows.traces:
                print(f"  row of {len(ids_array(row.token_ids))} tokens, {sum(row.loss_mask)} trained, {row.level}")
        print(f"tugline verify {gateway.run}")


if __name__ == "__main__":
    main()
