"""What scores a session. Runs in a clone of the sandbox, after the agent's last process is dead."""

from tugline.core.contracts import Verifier
from tugline.core.task import Task
from tugline.verifiers.command import CommandVerifier
from tugline.verifiers.harbor import HarborVerifier

__all__ = ["CommandVerifier", "HarborVerifier", "verifier_for"]


def verifier_for(task: Task) -> Verifier:
    """The verifier of a task."""
    return HarborVerifier()
