"""What has left of a reply that is streamed while it is sampled."""

from __future__ import annotations

from tugline.core.errors import VerifyError
from tugline.core.items import Delta, Reply


class Said:
    """The deltas of one reply."""

    def __init__(self) -> None:
        self._parts: dict[str, list[str]] = {"reasoning": [], "text": []}

    def add(self, more: Delta) -> None:
        """Raises VerifyError for reasoning behind text."""
        if more.kind == "reasoning" and self.begun("text"):
            raise VerifyError("reasoning was streamed behind text")
        self._parts[more.kind].append(more.text)

    def begun(self, kind: str) -> bool:
        """Whether something of this kind was said."""
        return bool(self._parts[kind])

    @property
    def reasoning(self) -> str:
        """All of it so far."""
        return "".join(self._parts["reasoning"])

    def rest(self, reply: Reply) -> tuple[str, str]:
        """(reasoning, text) that the reply has and that was not said. Raises VerifyError when it begins otherwise."""
        reasoning, text = reply.assistant.reasoning or "", reply.assistant.text or ""
        thought, spoken = self.reasoning, "".join(self._parts["text"])
        if not (reasoning.startswith(thought) and text.startswith(spoken)) or (spoken and reasoning != thought):
            raise VerifyError("the reply is not what was streamed of it")
        return reasoning[len(thought) :], text[len(spoken) :]
