"""The program that `bash-agent` runs inside a sandbox. Standard library only.

Reads the instruction from standard input, asks the model at OPENAI_BASE_URL, runs the commands that it calls for, and
ends when an answer has no call. Prints one JSON line per message. Exit: 0 done, 1 the model could not be reached,
2 too many turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

MAX_TURNS = 50
OUTPUT_LIMIT = 16_000
COMMAND_SECONDS = 120
RETRIES = 4
SYSTEM = (
    "You are an agent that works in a Linux directory. Use the bash tool to look at files and to change them. "
    "When the job is done, answer with a short summary and no tool call."
)
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a bash command in the work directory and get its output and exit status.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command"}},
            "required": ["command"],
        },
    },
}

Message = dict[str, Any]


def ask(messages: list[Message]) -> Message:
    """One model call. Retries what the server calls temporary. Raises OSError."""
    body = {
        "model": os.environ.get("TUGLINE_MODEL", "policy"),
        "messages": messages,
        "tools": [TOOL],
        "max_tokens": int(os.environ.get("TUGLINE_MAX_TOKENS", "1024")),
    }
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps(body).encode(),
        headers={
            "content-type": "application/json",
            "authorization": "Bearer " + os.environ.get("OPENAI_API_KEY", ""),
        },
    )
    for attempt in range(RETRIES + 1):
        try:
            with urllib.request.urlopen(request, timeout=1800) as reply:
                message: Message = json.load(reply)["choices"][0]["message"]
                return message
        except urllib.error.HTTPError as err:
            if attempt == RETRIES or (err.code < 500 and err.code != 429):
                raise OSError(f"HTTP {err.code}: {err.read().decode(errors='replace')[:300]}") from err
            time.sleep(float(err.headers.get("retry-after") or 2**attempt))
    raise OSError("unreachable")


def execute(arguments: str) -> str:
    """The tool's result as the model sees it."""
    try:
        command = json.loads(arguments)["command"]
    except (ValueError, KeyError, TypeError):
        return 'error: the arguments must be a JSON object like {"command": "ls"}'
    try:
        done = subprocess.run(
            ["bash", "-c", str(command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"error: the command did not end within {COMMAND_SECONDS} s"
    text = done.stdout.decode(errors="replace")
    if len(text) > OUTPUT_LIMIT:
        text = text[: OUTPUT_LIMIT // 2] + "\n[...]\n" + text[-OUTPUT_LIMIT // 2 :]
    return f"{text}\n[exit status {done.returncode}]"


def show(message: Message) -> None:
    """One line of the log."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Returns the exit status."""
    messages: list[Message] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": sys.stdin.read()},
    ]
    for _ in range(MAX_TURNS):
        try:
            answer = ask(messages)
        except (OSError, ValueError, KeyError) as err:
            sys.stderr.write(f"the model could not be asked: {err}\n")
            return 1
        show(answer)
        kept = {k: answer[k] for k in ("role", "content", "tool_calls", "reasoning_content") if answer.get(k)}
        messages.append({"role": "assistant", **kept})
        calls = answer.get("tool_calls") or []
        if not calls:
            return 0
        for call in calls:
            result = {"role": "tool", "tool_call_id": call["id"], "content": execute(call["function"]["arguments"])}
            messages.append(result)
            show(result)
    sys.stderr.write(f"no end after {MAX_TURNS} turns\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
