"""Agent programs, unmodified, and how to start them. `harness` finds one by name."""

from __future__ import annotations

from importlib.metadata import entry_points

from tugline.core.contracts import Harness
from tugline.core.errors import ConfigError

NAMES = ("pi", "pi:responses", "pi:anthropic", "pi:gemini", "bash-agent", "command:ARGV...")
GROUP = "tugline.harnesses"


def harness(name: str) -> Harness:
    """The harness of that name: ours, `command:` with an argv, or an entry point `tugline.harnesses` (called with no
    arguments). Raises ConfigError for an unknown name or an empty command."""
    if name == "pi" or name.startswith("pi:"):
        from tugline.harnesses.pi import PiHarness

        return PiHarness(name.partition(":")[2] or "chat")
    if name == "bash-agent":
        from tugline.harnesses.bash_agent import BashAgentHarness

        return BashAgentHarness()
    if name.startswith("command:"):
        from tugline.harnesses.command import CommandHarness

        return CommandHarness.parse(name.removeprefix("command:"))
    for entry in entry_points(group=GROUP, name=name):
        found: Harness = entry.load()()
        return found
    known = ", ".join((*NAMES, *(e.name for e in entry_points(group=GROUP))))
    raise ConfigError(f"unknown harness {name!r}; there are: {known}", where="harness")
