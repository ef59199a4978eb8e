"""The bench that all probes work at: what is on trial, sample conversations, renders that never raise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from tugline.core.columns import Ids
from tugline.core.errors import Unsupported, boundary
from tugline.core.items import Assistant, Head, Item, System, Tool, ToolCall, UserText
from tugline.tokens.codec import Codec
from tugline.tokens.marks import JSON
from tugline.tokens.messages import Message
from tugline.tokens.probes.verdict import Result, Status
from tugline.tokens.render import Ask, Renderer

WORD = "zQprobEQz"
"""Occurs nowhere else."""
SYSTEM, USER = System("Be brief."), UserText("What is here?")
TOOLS = tuple(
    Tool(
        name,
        msgspec.json.encode(
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": f"{name} something",
                    "parameters": {
                        "type": "object",
                        "properties": {"cmd": {"type": "string", "description": "a command"}},
                        "required": ["cmd"],
                    },
                },
            }
        ).decode(),
    )
    for name in ("run", "read")
)
HEAD = Head(TOOLS)
_SHOWN = 200
"""Characters of an example."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What is on trial. Ids of the reasoning and call markers where they are single tokens."""

    renderer: Renderer
    stop: frozenset[int]
    reasoning: tuple[int | None, int | None] = (None, None)
    calls: tuple[tuple[int | None, int | None], ...] = ()
    carries_media: bool = False
    """Image items reach the engine."""


@dataclass(slots=True)
class Trial:
    """One run of the probes over one bench."""

    bench: Bench
    results: list[Result] = field(default_factory=list)
    _as_is: Renderer = field(init=False)
    start: tuple[Item, ...] = (SYSTEM, USER)
    """How each conversation begins: without a system message where the template refuses one."""

    def __post_init__(self) -> None:
        renderer = self.bench.renderer
        self._as_is = Renderer(
            renderer.codec, renderer.template, dict(renderer.specials), replace(renderer.shape, split_calls=False)
        )
        if not self.text([SYSTEM, USER]) and self.text([USER]):
            self.start = (USER,)

    @property
    def renderer(self) -> Renderer:
        return self.bench.renderer

    @property
    def codec(self) -> Codec:
        return self.bench.renderer.codec

    def say(self, name: str, what: str = "", example: str = "", *, status: Status = "fail") -> None:
        """Record a result; "" is a pass."""
        self.results.append(Result(name, status if what else "pass", what, shown(example) if what else ""))

    def text(self, items: Sequence[Item], *, generation: bool = True, head: Head = HEAD) -> str:
        """Template output, or "" when the template refuses."""
        return self.tried(items, generation=generation, head=head)[0]

    def tried(
        self, items: Sequence[Item], *, generation: bool = True, head: Head = HEAD, as_is: bool = False
    ) -> tuple[str, str]:
        """(template output, "") or ("", why the template refuses). `as_is`: calls of a turn are not taken apart."""
        renderer = self._as_is if as_is else self.renderer
        try:
            return renderer.compose(Ask(head, tuple(items), generation=generation)).text, ""
        except Unsupported as err:
            return "", err.message.rpartition("conversation: ")[2]

    def ids(self, items: Sequence[Item], head: Head = HEAD) -> Ids | None:
        """Encoded prompt, or None when the template refuses."""
        try:
            return self.renderer.encode(self.renderer.compose(Ask(head, tuple(items))))[0]
        except Unsupported:
            return None

    def raw(self, messages: list[Message], kwargs: Mapping[str, JSON] | None = None, *, before: str = "") -> str:
        """Output for messages as they are, no rule of ours in between; "" when the template refuses. `before` is put
        in front of the template's source."""
        renderer = self.renderer
        try:
            return run_template(before + renderer.template, messages, {**renderer.specials, **(kwargs or {})})
        except Unsupported:
            return ""


def run_template(template: str, messages: list[Message], kwargs: Mapping[str, JSON], *, generation: bool = True) -> str:
    """Template output for plain messages and two tools. Raises Unsupported when the template refuses."""
    from transformers.utils.chat_template_utils import render_jinja_template

    with boundary(Unsupported, "the chat template refuses this conversation"):
        rendered, _ = render_jinja_template(
            conversations=[messages],
            tools=[msgspec.json.decode(t.spec) for t in TOOLS],
            chat_template=template,
            add_generation_prompt=generation,
            **kwargs,
        )
    return str(rendered[0])


def called(argument: str, n: int = 1, text: str | None = None) -> Assistant:
    """A turn with `n` calls c0, c1, ...; the last one has `argument`."""
    made = [ToolCall(f"c{i}", "run", '{"cmd": "ls"}') for i in range(n - 1)]
    arguments = msgspec.json.encode({"cmd": argument}).decode()
    return Assistant(text, None, (*made, ToolCall(f"c{n - 1}", "run", arguments)))


def shown(text: str) -> str:
    """An example cut to a size that people read."""
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]} ... {text[-_SHOWN // 2 :]}"


def behind(text: str, mark: str) -> str:
    """What stands behind the last `mark`; all of the text where there is none."""
    at = text.rfind(mark)
    return text if at < 0 else text[at + len(mark) :]


def differ(one: str, other: str, around: int = 30) -> str:
    """Two texts around the first place where they differ."""
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    low = max(0, at - around)
    return f"{one[low : at + around]!r} against {other[low : at + around]!r}"
