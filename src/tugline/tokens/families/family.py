"""What is known of one family of models: how it writes a reply, and how that is read back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tugline.core.items import Assistant
from tugline.tokens.live import LiveFamily
from tugline.tokens.parse import Parser


@dataclass(frozen=True, slots=True)
class Form:
    """What a template writes itself around a reply."""

    header: str = ""
    """How the assistant's turn begins."""
    lead: str = ""
    """Behind the opener of reasoning."""
    trail: str = ""
    """Before its closer."""
    behind: str = ""
    """Behind its closer."""


@dataclass(frozen=True, slots=True)
class Family:
    """How one family of models spells its replies. Markers that are single tokens also serve the bridge."""

    name: str
    parse: Parser
    spell: Callable[[Assistant], str]
    """How a model of the family writes a turn when the prompt has opened nothing, without the stop token: see `write`.
    Arguments are verbatim where the format allows it. Raises ConfigError when the format cannot hold the turn."""
    end: Callable[[Assistant], str]
    """The stop token that it then samples. Empty: whatever the model's settings say."""
    reasoning: tuple[str, str] = ("", "")
    calls: tuple[tuple[str, str], ...] = ()
    """Nested regions that a call stands in, outermost first: markers that open and close each."""
    others: tuple[str, ...] = ()
    """More strings that are structure."""
    stop: tuple[str, ...] = ()
    """Tokens that the model samples to end a turn."""
    renderer: str | None = None
    """Name in the `renderers` library whose bridge may serve."""
    live: LiveFamily | None = None
    """Shows replies while they are sampled. None: they are shown when they are whole."""

    form: Form = Form()

    def write(self, turn: Assistant, prompt: str) -> str:
        """`spell`, fitted to what stands in the prompt's text: reasoning that it has opened or closed is not opened
        or closed again."""
        spelled = self.spell(turn)
        opener, closer = self.reasoning
        begun = prompt[prompt.rfind(self.form.header) + len(self.form.header) :] if self.form.header in prompt else ""
        if not opener or not begun:
            return spelled
        if spelled.startswith(begun):
            return spelled[len(begun) :]
        if begun.rfind(opener) > begun.rfind(closer):
            return f"{self.form.trail}{closer}{self.form.behind}{spelled}"
        return spelled

    @property
    def call(self) -> tuple[str, str]:
        """The outermost region of a call."""
        return self.calls[0] if self.calls else ("", "")

    @property
    def markers(self) -> tuple[str, ...]:
        """Every string that the family reads as structure."""
        nested = tuple(m for pair in self.calls for m in pair)
        return tuple(m for m in (*self.reasoning, *nested, *self.others) if m)
