"""What scores a session. Runs in a sandbox that the agent never saw, after the agent's last process is dead."""

from __future__ import annotations

from importlib.metadata import entry_points

from tugline.core.contracts import Verifier
from tugline.core.errors import ConfigError
from tugline.core.task import Task
from tugline.verifiers.command import CommandVerifier
from tugline.verifiers.function import FunctionVerifier
from tugline.verifiers.harbor import HarborVerifier
from tugline.verifiers.pytest_tests import PytestVerifier
from tugline.verifiers.swe import SweVerifier

__all__ = [
    "CommandVerifier",
    "FunctionVerifier",
    "HarborVerifier",
    "PytestVerifier",
    "SweVerifier",
    "verifier",
    "verifier_for",
]

NAMES = ("harbor", "pytest", "swe", "command:SCRIPT", "function:MODULE:NAME")
GROUP = "tugline.verifiers"


def verifier_for(task: Task) -> Verifier:
    """The verifier that a task names. Raises ConfigError for an unknown one."""
    return verifier(task.verifier)


def verifier(name: str) -> Verifier:
    """The verifier of that name, ours or from an entry point `tugline.verifiers` (called with no arguments).

    Raises ConfigError for an unknown name.
    """
    kind, _, argument = name.partition(":")
    if name == "harbor":
        return HarborVerifier()
    if name == "pytest":
        return PytestVerifier()
    if name == "swe":
        return SweVerifier()
    if kind == "command" and argument:
        return CommandVerifier(("/bin/sh", "-c", argument))
    if kind == "function" and ":" in argument:
        return FunctionVerifier(argument)
    for entry in entry_points(group=GROUP, name=name):
        found: Verifier = entry.load()()
        return found
    known = ", ".join((*NAMES, *(e.name for e in entry_points(group=GROUP))))
    raise ConfigError(f"unknown verifier {name!r}; there are: {known}", where="verifier")
