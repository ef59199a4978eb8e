"""An agent of our own, a tool loop over plain HTTP, in four sessions of one group; then their training rows.

python examples/own_agent.py [ENGINE]      ENGINE: embedded (default) or scripted:FILE
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

import tugline
from tugline.core.columns import ids_array

TASK = 'Create a file named `greeting.txt` that contains the text "hello".'
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
BASH = {"name": "bash", "description": "Run a shell command.", "parameters": PARAMETERS}


def run_bash(arguments: str, cwd: Path) -> str:
    """A tool's result is text for the model, also when its arguments are not what they should be."""
    try:
        command = json.loads(arguments)["command"]
        done = subprocess.run(["bash", "-c", command], cwd=cwd, capture_output=True, text=True, timeout=20)
        return (done.stdout + done.stderr)[-2000:] or f"exit status {done.returncode}"
    except (ValueError, KeyError, TypeError, subprocess.TimeoutExpired) as err:
        return f"error: {err}"


def agent(base_url: str, key: str, cwd: Path) -> None:
    """Talk to the model until it calls no more tools. Knows nothing of Tugline."""
    messages: list[dict] = [{"role": "user", "content": TASK}]
    with httpx.Client(base_url=base_url, headers={"authorization": f"Bearer {key}"}, timeout=120) as http:
        for _ in range(8):
            body = {"model": "any", "messages": messages, "tools": [{"type": "function", "function": BASH}]}
            message = http.post("/chat/completions", json=body).raise_for_status().json()["choices"][0]["message"]
            messages.append(message)
            for call in message.get("tool_calls") or []:
                result = run_bash(call["function"]["arguments"], cwd)
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
                session.end(1.0 if file.is_file() and file.read_text().strip() == "hello" else 0.0)
            rows = session.trajectory()
            print(f"session {session.id}  reward {rows.reward}")
            for row in rows.traces:
                print(f"  row of {len(ids_array(row.token_ids))} tokens, {sum(row.loss_mask)} trained, {row.level}")
        print(f"tugline verify {gateway.run}")


if __name__ == "__main__":
    main()
