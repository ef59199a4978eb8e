"""How a harness words its tools: the record that a recipe needs to teach a policy to drive it.

A format knows how the harness' real prompt is obtained, how each action is called, and how each outcome is told
back. To teach another harness, write another format; strategies, tokenizer, model and training stay as they are.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tugline.core.errors import HarnessError
from tugline.training.pilot import capture
from tugline.training.pilot.actions import Action, Edit, Outcome, Read, Run, Write


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as the model writes it: `arguments` is JSON text, used as it stands."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Head:
    """What a harness sends before the instruction: its system text and its tools as OpenAI function objects."""

    system: str
    tools: tuple[dict[str, Any], ...]


class HarnessFormat(Protocol):
    """The slice of a harness that a policy sees."""

    @property
    def name(self) -> str:
        """The harness' name in tugline.json."""
        ...

    def capture(self) -> Head:
        """The real prompt, from one run of the real harness. Raises HarnessError."""
        ...

    def variant(self, head: Head, cwd: str, install: str) -> Head:
        """The same prompt as another working directory and another installation would give."""
        ...

    def call(self, action: Action) -> Call:
        """How the model calls this action."""
        ...

    def action(self, name: str, arguments: dict[str, Any]) -> Action | str:
        """The action behind a call, or the harness' words about a call that it refuses."""
        ...

    def result(self, action: Action, outcome: Outcome, cwd: str = "/app") -> str:
        """The tool result that the harness sends."""
        ...


@dataclass(frozen=True, slots=True)
class PiFormat:
    """Pi 1.6: tools read, bash, edit, write over OpenAI Chat."""

    root: Path
    """Directory that holds `node_modules` with Pi; used by `capture` only."""
    name: str = "pi"

    def capture(self) -> Head:
        pi = capture.find_pi(self.root)
        with tempfile.TemporaryDirectory() as work, capture.capture_server(()) as server:
            capture.run_pi(pi, "Say hello.", server.url, Path(work))
        if not server.bodies:
            raise HarnessError("Pi ended without asking the model")
        body = server.bodies[0]
        system = body["messages"][0]
        if system["role"] != "system" or not isinstance(system["content"], str):
            raise HarnessError("Pi's first message is not a plain system text")
        return Head(system=system["content"], tools=tuple(body["tools"]))

    def variant(self, head: Head, cwd: str, install: str) -> Head:
        system = head.system.replace(capture.INSTALL_DIR, install).replace("\n/app\n", f"\n{cwd}\n")
        return Head(system=system, tools=head.tools)

    def call(self, action: Action) -> Call:
        match action:
            case Read(path):
                return _call("read", {"path": path})
            case Run(command):
                return _call("bash", {"command": command})
            case Edit(path, old, new):
                return _call("edit", {"path": path, "edits": [{"oldText": old, "newText": new}]})
            case Write(path, text):
                return _call("write", {"path": path, "content": text})

    def action(self, name: str, arguments: dict[str, Any]) -> Action | str:
        required = {"read": ("path",), "bash": ("command",), "edit": ("path", "edits"), "write": ("path", "content")}
        if name not in required:
            return f"Tool {name} not found"
        missing = [key for key in required[name] if key not in arguments]
        if missing:
            received = json.dumps(arguments, indent=2, ensure_ascii=False)
            listed = "\n".join(f"  - {key}: missing" for key in missing)
            return f'Validation failed for tool "{name}":\n{listed}\n\nReceived arguments:\n{received}'
        match name:
            case "read":
                return Read(str(arguments["path"]))
            case "bash":
                return Run(str(arguments["command"]))
            case "edit":
                edit = arguments["edits"][0]
                return Edit(str(arguments["path"]), edit["oldText"], edit["newText"])
            case _:
                return Write(str(arguments["path"]), str(arguments["content"]))

    def result(self, action: Action, outcome: Outcome, cwd: str = "/app") -> str:
        match action:
            case Run():
                return _pi_run(outcome)
            case Read(path):
                return _pi_read(path, outcome, cwd)
            case Edit(path):
                return _pi_edit(path, outcome)
            case Write(path):
                return f"Successfully wrote to {path}"


def _call(name: str, arguments: dict[str, Any]) -> Call:
    return Call(name, json.dumps(arguments, ensure_ascii=False))


def _pi_run(outcome: Outcome) -> str:
    text = outcome.text or "(no output)"
    return text if outcome.count == 0 else f"{text}\n\nCommand exited with code {outcome.count}"


def _pi_read(path: str, outcome: Outcome, cwd: str) -> str:
    if outcome.kind == "missing":
        full = path if path.startswith("/") else f"{cwd}/{path}"
        return f"ENOENT: no such file or directory, access '{full}'"
    if outcome.kind == "directory":
        return "EISDIR: illegal operation on a directory, read"
    return outcome.text or "(no tool output)"


def _pi_edit(path: str, outcome: Outcome) -> str:
    match outcome.kind:
        case "edited":
            return f"Successfully replaced 1 block(s) in {path}."
        case "missing":
            return f"Could not edit file: {path}. Error code: ENOENT."
        case "ambiguous":
            return (
                f"Found {outcome.count} occurrences of the text in {path}. The text must be unique. "
                "Please provide more context to make it unique."
            )
        case "unchanged":
            return (
                f"No changes made to {path}. The replacement produced identical content. This might indicate an issue "
                "with special characters or the text not existing as expected."
            )
        case _:
            return (
                f"Could not find the exact text in {path}. The old text must match exactly including all whitespace "
                "and newlines."
            )
