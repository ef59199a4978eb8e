"""What the probes say of one template with one tokenizer: a frozen value that can be stored and read back.

The JSON form carries `schema`; a reader that finds another number starts anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SCHEMA = 1
"""Of the JSON form. It changes with every change of a field's meaning."""

Status = Literal["pass", "fail", "note", "na"]


@dataclass(frozen=True, slots=True)
class Result:
    """One probe. `note`: a property worth knowing that breaks no promise. `na`: it could not be asked here."""

    name: str
    status: Status
    what: str = ""
    """What breaks, in words. "" for a pass."""
    example: str = ""
    """Template output around the place, shortened."""


@dataclass(frozen=True, slots=True)
class Promise:
    """E exact, C continuous, F faithful format, S faithful meaning. `counted`: kept but for deviations that each trace
    counts by name."""

    code: Literal["E", "C", "F", "S"]
    kept: Literal["always", "counted", "no"]
    why: str


@dataclass(frozen=True, slots=True)
class Switch:
    """Template arguments that change something."""

    kwargs: str
    """Canonical JSON object."""
    append_only: bool
    """Under them a user message leaves earlier turns as they are, so that a bridged prompt is the template's own."""
    shows_prompt: bool = True
    """Under them every assistant turn of a history begins as the generation prompt ends."""
    changes: tuple[str, ...] = ()
    """`history` and/or `generation prompt`."""


@dataclass(frozen=True, slots=True)
class Follow:
    """What may stand behind a sampled turn: one role, or two in order."""

    roles: tuple[str, ...]
    """Of user, tool, system, assistant."""
    outcome: Literal["kept", "raises", "dropped", "moved"]
    """`moved`: its text stands before the turn. `dropped`: its text is not shown to the model."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Tools:
    """Whether a conversation with tools can be shown to the model as it was."""

    representable: bool
    parallel: int
    """Calls of one turn that are shown; 3 stands for 3 and more."""
    why: str


@dataclass(frozen=True, slots=True)
class Media:
    """How the template shows an image. `carried`: image items reach the engine; else they are named in the text and
    counted (`media_omitted`) or refused, as the settings say."""

    placeholder: str
    carried: bool
    why: str


@dataclass(frozen=True, slots=True)
class Clock:
    """What the template prints that is not in the conversation."""

    prints: tuple[str, ...]
    """Sources as written in the template, e.g. `strftime_now('%d %b %Y')`."""
    varies: bool
    """A prompt differs from one time to another."""
    example: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """All of it. `results` are in probe order."""

    results: tuple[Result, ...]
    bridge: Literal["splice", "renderers", "none"]
    """How a prompt continues: the template's own tail, the `renderers` package, or a full render per call (L2)."""
    why: str
    promises: tuple[Promise, ...] = ()
    appendable: tuple[str, ...] = ()
    """Roles that a bridge accepts: of user, tool, system, assistant."""
    follows: tuple[Follow, ...] = ()
    arguments: str = "string"
    """How call arguments are given: `string` or `dict`."""
    spelling: tuple[str, ...] = ()
    """How much of a call's spelling reaches the model: sentences."""
    independent: tuple[str, ...] = ()
    """Template arguments (JSON) under which the history need not be rendered for a bridge."""
    shows_prompt: bool = True
    """Every assistant turn of a history begins as the generation prompt ends, with reasoning and without."""
    append_only: bool = False
    """A user message leaves earlier turns untouched, so that a bridged prompt is also the template's own."""
    switches: tuple[Switch, ...] = ()
    control: tuple[str, ...] = ()
    """Control tokens by content, in id order."""
    stops: tuple[str, ...] = ()
    close: str = ""
    """What the template itself writes behind an assistant turn."""
    tools: Tools = Tools(False, 0, "not tried")
    media: Media = Media("", False, "not tried")
    clock: Clock = Clock((), False)
    compared: int = 0
    """Turns compared by P14."""
    schema: int = SCHEMA

    @property
    def splice(self) -> bool:
        """Bridges are made; roles outside `appendable` still refuse one by one."""
        return self.bridge == "splice"

    @property
    def passed(self) -> tuple[str, ...]:
        """Names of probes that passed."""
        return tuple(r.name for r in self.results if r.status == "pass")

    @property
    def failures(self) -> tuple[str, ...]:
        """ "name: what" of each probe that failed, those that rule out a tail splice first."""
        return tuple(f"{r.name}: {r.what}" for r in sorted(self.failed, key=lambda r: not is_fatal(r.name)))

    @property
    def failed(self) -> tuple[Result, ...]:
        """In probe order."""
        return tuple(r for r in self.results if r.status == "fail")

    @property
    def faithful(self) -> tuple[str, ...]:
        """Template arguments (JSON) under which C = F: what is continuous is also what the template would write."""
        return (("{}",) if self.append_only else ()) + tuple(s.kwargs for s in self.switches if s.append_only)


FATAL = ("P1", "P2", "P3_text", "P14")
"""A failure of one of these rules out a tail splice."""


def is_fatal(name: str) -> bool:
    """Whether a failure of this probe rules out a tail splice."""
    return name in FATAL
