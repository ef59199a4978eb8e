"""The engine of the suite: a real tokenizer and chat template, and a model that says what it is told to.

It knows exactly which ids it read and which it sampled, so whatever stands in front of it can be judged. Sampled ids
are seeded and not canonical: no encoder gives them back for their text, which is what a real policy does now and then
and what a gateway must survive.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from tugline.core.columns import Floats, Ids, concat, count, ids, ids_array, ids_list, take
from tugline.core.errors import BadRequest, ConfigError, Unsupported, boundary
from tugline.core.items import Assistant, Tool
from tugline.core.turn import Finish
from tugline.engines.modeldir import Asked, read_model_dir
from tugline.engines.script import Step
from tugline.engines.spelling import Respeller, spell, stop_of
from tugline.tokens.families import families
from tugline.tokens.model import ChatFiles, ChatModel

CONTEXT = 1_000_000
"""Window that the engine tells of: no session of the suite fills it."""
NONCANONICAL = 0.3
"""Share of ordinary tokens that are sampled in another spelling."""
_SEEN = 64
"""Tokens at a prompt's end that decide how a turn goes on from it."""

Form = Literal["ids", "text", "messages"]
"""What a prompt came as."""


@dataclass(frozen=True, slots=True)
class Made:
    """One generation as the engine knows it. int32[n] ids; logprobs float32[n], one for each sampled id."""

    number: int
    """From 0, in the order of generations."""
    route: str
    form: Form
    prompt: Ids
    sampled: Ids
    logprobs: Floats
    finish: Finish
    said: Assistant
    """The reply as the engine's own parsers read it; call ids are empty."""
    planned: bool
    """False: nobody of the suite had asked for it."""
    name: str = ""
    """What the engine called it on the wire."""

    @property
    def full(self) -> Ids:
        """Prompt and sample."""
        return concat([self.prompt, self.sampled])


class FakeEngine:
    """Says the planned step when asked to generate, again and again until the next plan. For one event loop."""

    def __init__(self, model_dir: Path, *, seed: int = 0, noncanonical: float = NONCANONICAL) -> None:
        """Raises ConfigError for a broken model directory."""
        from tokenizers import Tokenizer

        files = read_model_dir(model_dir, Asked(context=CONTEXT))
        self.files = files
        self.name = files.name
        self.template = Template(files.template, {**files.specials, **files.template_kwargs})
        self.model = ChatModel(
            ChatFiles(files.tokenizer_json, files.template, files.parser, files.stop, CONTEXT, self.template.given)
        )
        self._respeller = Respeller(files.tokenizer_json, Tokenizer.from_buffer(files.tokenizer_json))
        self._seed, self._rate = seed, noncanonical
        self._steps: tuple[Step, ...] = ()
        self._tools: tuple[Tool, ...] = ()
        self._plan = 0
        self._take = 0
        self.made: list[Made] = []
        self.shortened = 0
        """Steps of which the model's family could write a part only."""

    def plan(self, *steps: Step, tools: Sequence[Tool] = ()) -> None:
        """What to say from now on: the n-th generation says step n, those behind the last say the last. None: "ok"."""
        self._steps, self._tools = steps, tuple(tools)
        self._plan += 1
        self._take = 0

    def _fitting(self, step: Step) -> Step:
        """As much of a step as the model's family can write. Raises BadRequest when that is nothing."""
        bare = msgspec.structs.replace(step, reasoning="")
        one = msgspec.structs.replace(step, calls=step.calls[:1])
        fewer = (bare, one, msgspec.structs.replace(bare, calls=one.calls), msgspec.structs.replace(one, text=""))
        words = msgspec.structs.replace(bare, calls=(), text=step.text or "ok")
        for tried in (step, *fewer, msgspec.structs.replace(bare, calls=one.calls, text=""), words):
            try:
                spell(self.files.parser, tried)
            except ConfigError:
                continue
            self.shortened += tried != step
            return tried
        raise BadRequest(f"models of the format {self.files.parser!r} cannot say this turn at all")

    @property
    def delay(self) -> float:
        """Seconds that the generation just begun takes."""
        return self._steps[min(self._take - 1, len(self._steps) - 1)].delay_s if self._steps else 0.0

    def generate(self, prompt: Ids, *, route: str, form: Form, max_tokens: int | None = None) -> Made:
        """Sample once. Raises BadRequest for a prompt that no engine would take."""
        column = ids_array(prompt)
        if not len(column) or int(column.min()) < 0 or int(column.max()) >= self.files.vocab:
            raise BadRequest("the prompt is empty or has ids outside the vocabulary", path="prompt")
        step = self._fitting(self._steps[min(self._take, len(self._steps) - 1)] if self._steps else Step(text="ok"))
        rng = random.Random(f"{self._seed}/{self._plan}/{self._take}")
        self._take += 1
        sampled = self._spelled(step, rng, prompt)
        finish: Finish = "length" if step.finish == "length" else "stop"
        if max_tokens is not None and count(sampled) > max_tokens:
            sampled, finish = take(sampled, 0, max_tokens), "length"
        made = Made(
            number=len(self.made),
            route=route,
            form=form,
            prompt=prompt,
            sampled=sampled,
            logprobs=_logprobs(prompt, sampled),
            finish=finish,
            said=self.model.parse(prompt, sampled, finish, self._tools).assistant,
            planned=bool(self._steps),
            name=f"fake-{blake2b(f'{self._seed}/{len(self.made)}'.encode(), digest_size=8).hexdigest()}",
        )
        self.made.append(made)
        return made

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, **kwargs: Any) -> Ids:
        """Messages as this engine's chat endpoint would read them: by the template, then encoded as one text in which
        control tokens are control tokens whoever wrote them. Raises BadRequest."""
        return self.model.encode(self.template.render(list(messages), list(tools or ()) or None, **kwargs))

    def decode(self, column: Ids) -> str:
        """Text with control tokens shown."""
        return self.model.decode(column)

    def reasoning(self) -> tuple[str, str]:
        """What opens and closes reasoning; empty where the family has none."""
        return families()[self.files.parser].reasoning

    def _spelled(self, step: Step, rng: random.Random, prompt: Ids) -> Ids:
        files = self.files
        behind = self.decode(take(prompt, max(0, count(prompt) - _SEEN)))
        column = ids_list(self.model.encode(spell(files.parser, step, behind)))
        planned = ids(self._respeller.respell(column, self._rate, rng))
        if step.finish == "stop":
            stop = stop_of(files.parser, step, files.stop)
            return concat([planned, ids([files.stop_ids[files.stop.index(stop)]])])
        keep = 0.6 if step.cut is None else step.cut
        return take(planned, 0, max(1, int(keep if keep >= 1 else keep * count(planned))))


class Template:
    """A chat template, run as engines run it: nothing in the messages is made harmless."""

    def __init__(self, source: str, given: Mapping[str, Any]) -> None:
        self._source = source
        self.given = dict(given)

    def render(self, messages: list[Any], tools: list[Any] | None, *, generation: bool = True, **kwargs: Any) -> str:
        """The prompt's text. Raises BadRequest when the template refuses."""
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            with boundary(Unsupported, "the chat template refuses these messages"):
                rendered, _ = render_jinja_template(
                    conversations=[messages],
                    tools=tools,
                    chat_template=self._source,
                    add_generation_prompt=generation,
                    **{**self.given, **kwargs},
                )
        except Unsupported as err:
            raise BadRequest(err.message, path="messages") from err
        return str(rendered[0])


def parsed_arguments(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages with call arguments as objects: templates are made for that, and vLLM and SGLang parse them so. Raises
    BadRequest for arguments that are no JSON."""
    out: list[dict[str, Any]] = []
    for message in messages:
        calls = message.get("tool_calls")
        if not calls:
            out.append(dict(message))
            continue
        made = [{**call, "function": {**call["function"], "arguments": _object(call["function"])}} for call in calls]
        out.append({**message, "tool_calls": made})
    return out


def _object(function: Mapping[str, Any]) -> Any:
    given = function.get("arguments")
    if not isinstance(given, str):
        return given or {}
    try:
        return msgspec.json.decode(given) if given.strip() else {}
    except msgspec.DecodeError as err:
        raise BadRequest(f"call arguments are no JSON: {err}", path="messages[].tool_calls[]") from err


def _logprobs(prompt: Ids, sampled: Ids) -> Floats:
    """Made up: float32[n] in [-4.01, -0.01], other ones for another prompt, place or id."""
    salt = int.from_bytes(blake2b(prompt, digest_size=4).digest(), "little")
    column = ids_array(sampled).astype(np.uint64)
    mixed = (column * 2654435761 + np.arange(len(column), dtype=np.uint64) * 40503 + salt) % 4001
    return Floats((-0.01 - mixed / 1000.0).astype("<f4").tobytes())
