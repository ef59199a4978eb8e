"""One chat model's text side: tokenizer, template, bridge and reply parser behind one object."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec

from tugline.core.columns import NO_IDS, Ids
from tugline.core.errors import ConfigError
from tugline.core.items import Head, Item, Tool
from tugline.core.turn import Finish
from tugline.tokens import clock
from tugline.tokens.codec import Codec
from tugline.tokens.fallback import Parent, Trial, hand_bridge, renderers_trial
from tugline.tokens.families import check_template, families
from tugline.tokens.live import LiveParser, Opening
from tugline.tokens.marks import JSON
from tugline.tokens.parse import Parsed, Sampled, prompt_tail
from tugline.tokens.probes import Bench, ProbeReport, run_probes, with_hand
from tugline.tokens.probes.kept import Judged, VerdictCache, key_of, pack, unpack
from tugline.tokens.render import Ask, Renderer
from tugline.tokens.shape import find_shape
from tugline.tokens.splice import Bridge, BridgeRefused, Rules, bridge, kind_of

__all__ = ["Bridge", "BridgeRefused", "ChatFiles", "ChatModel", "Parsed", "ProbeReport", "Rendered"]


@dataclass(frozen=True, slots=True)
class ChatFiles:
    """What a model directory says about text."""

    tokenizer_json: bytes
    template: str
    """Jinja source of the chat template."""
    parser: str
    """Reply format, e.g. `qwen3`."""
    stop: tuple[str, ...]
    """Tokens that end a turn, by content. Each must be one token."""
    context: int
    """Window in tokens."""
    specials: Mapping[str, JSON] = field(default_factory=dict)
    """Names that the template may use: bos_token, eos_token, pad_token, ..., and arguments that settings give it."""
    response_template: bytes | None = None
    """What the model's own settings say about reading replies (JSON): for the parser `schema`."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A full prompt, generation prompt included. drift: reasons."""

    ids: Ids
    drift: tuple[str, ...]


class ChatModel:
    """Items to ids and ids to replies. Immutable once built; any number of threads may use one at the same time.

    What the probes find is computed at first need and kept; two threads that race for it compute the same.
    """

    def __init__(self, files: ChatFiles, verdicts: VerdictCache | None = None) -> None:
        """`verdicts` keeps what the probes find from one start to the next.

        Raises ConfigError when a file is unreadable, the parser unknown or a stop token not one token.
        """
        family = families().get(files.parser)
        if family is None:
            raise ConfigError(
                f"unknown parser {files.parser!r}; known: {', '.join(sorted(families()))}", where="parser"
            )
        if files.parser == "schema":
            check_template(files.response_template or b"")
        self._family = family
        self._files = files
        self._verdicts = verdicts
        self.context = files.context
        self.codec = Codec(files.tokenizer_json, files.template, (*family.markers, *files.stop))
        self.vocab: int = self.codec.vocab
        """Largest token id plus one."""
        self.stop_ids: tuple[int, ...] = tuple(_stop_id(self.codec, s) for s in files.stop)
        self.controls: frozenset[int] = frozenset(self.codec.control.values())
        """Ids of the tokens that structure a conversation."""
        self.reasoning: tuple[int | None, int | None] = (
            self.codec.token(family.reasoning[0]),
            self.codec.token(family.reasoning[1]),
        )
        """Ids that open and close reasoning, where each is one token."""
        self.digest: bytes = _digest(files)
        """sha256 over tokenizer, template, its standing arguments and parser: part of every match key."""

    def probe(self) -> ProbeReport:
        """Try the template out (about a second, once). Never raises: failures are named in the report."""
        return self._probed[0]

    def render(self, head: Head, items: Sequence[Item]) -> Rendered:
        """The whole prompt by the model's template. Raises Unsupported when the template refuses the conversation."""
        composed = self._renderer.compose(Ask(head, tuple(items)))
        column, drift = self._renderer.encode(composed)
        return Rendered(column, tuple(sorted(drift)))

    def bridge(  # noqa: PLR0913 - all by name; the last is looked at only where no tail can be spliced
        self,
        head: Head,
        history: Sequence[Item],
        tail: Sequence[Item],
        *,
        last_id: int | None,
        finish: Finish,
        sampled: Ids,
        prompt: Ids = NO_IDS,
    ) -> Bridge:
        """Ids between the turn that ends `history` and the next generation, so that
        prompt = full(parent) without its last `drop` tokens, then `ids`.

        `last_id` is the last id of full(parent), `prompt` the ids that the turn was sampled on, or their end. By tail
        splice where the template passed its probes, else by the family's bridge in `renderers` where that was seen to
        write what the template writes (drift `renderers_bridge`, and `format_differs` where it was also seen to write
        something else). Raises BridgeRefused when neither serves this shape: render fully instead.
        """
        report, rules = self._probed
        asked = head, history, tail
        try:
            if not report.splice:
                raise BridgeRefused("probe_" + report.failures[0].partition(":")[0])
            return bridge(self._renderer, rules, asked, (last_id, finish, sampled))
        except BridgeRefused as refused:
            trial = self.hand
            if trial is None or not {kind_of(item) for item in tail} <= trial.kinds:
                raise
            try:
                made = hand_bridge(self._renderer, rules, trial.name, asked, Parent(prompt, sampled, finish))
            except BridgeRefused as other:
                raise BridgeRefused(f"{refused.reason}+{other.reason}") from other
            # What the template moves out of the turn stands in the sample: no bridge can write the rest its way.
            more = ("format_differs",) if trial.differs or refused.reason == "parts_moved" else ()
            return replace(made, drift=tuple(sorted({*made.drift, *more})))

    def parse(self, prompt_ids: Ids, sampled: Ids, finish: Finish, tools: Sequence[Tool]) -> Parsed:
        """Reasoning, text and calls of a reply, verbatim. Never raises for anything a model can sample."""
        stop = frozenset(self.stop_ids)
        prompt = prompt_tail(prompt_ids, stop)
        return self._family.parse(
            Sampled(self.codec, stop, prompt, sampled, finish, tools, self._files.response_template)
        )

    def live(self, prompt_ids: Ids, strings: Sequence[str]) -> LiveParser | None:
        """Shows a reply while it is sampled; None where the family cannot. `strings`: what ends the text shown."""
        if self._family.live is None:
            return None
        stop = frozenset(self.stop_ids)
        return self._family.live(Opening(self.codec, stop, prompt_tail(prompt_ids, stop), tuple(strings)))

    def encode(self, text: str) -> Ids:
        """Stock encoding of text: no BOS, control tokens spelled in it become control ids."""
        return self.codec.encode(text)

    def decode(self, ids: Ids, *, specials: bool = True) -> str:
        """Ids to text; invalid UTF-8 becomes U+FFFD."""
        return self.codec.decode(ids, specials=specials)

    @cached_property
    def hand(self) -> Trial | None:
        """The family's bridge in `renderers` beside this template. None: the family names none. Takes half a second,
        once, and is only asked for where a tail splice is refused."""
        if self._judged.hand is not None:
            return self._judged.hand
        name = self._family.renderer
        return renderers_trial(self._renderer, self._judged.rules, name) if name is not None else None

    @property
    def parser(self) -> str:
        """The family's name."""
        return self._family.name

    @property
    def clocked(self) -> bool:
        """The template prints the time: it is told what `Head.clock` says."""
        return clock.reads(self._files.template)

    @cached_property
    def _renderer(self) -> Renderer:
        files = self._files
        return Renderer(
            self.codec,
            files.template,
            dict(files.specials),
            self._kept.shape if self._kept else find_shape(self.codec, files.template, dict(files.specials)),
        )

    @cached_property
    def _key(self) -> str:
        files = self._files
        specials = msgspec.json.encode(dict(files.specials), order="sorted")
        return key_of((files.tokenizer_json, msgspec.json.encode((files.template, files.parser, files.stop)), specials))

    @cached_property
    def _kept(self) -> Judged | None:
        """What the probes of an earlier start found."""
        return None if self._verdicts is None else unpack(self._key, self._verdicts.get(self._key))

    @property
    def _probed(self) -> tuple[ProbeReport, Rules]:
        return self._judged.verdict, self._judged.rules

    @cached_property
    def _judged(self) -> Judged:
        if self._kept is not None:
            return self._kept
        judged = self._try_out()
        if self._verdicts is not None:
            self._verdicts.put(self._key, pack(self._key, judged))
        return judged

    def _try_out(self) -> Judged:
        token, family = self.codec.token, self._family
        bench = Bench(
            renderer=self._renderer,
            stop=frozenset(self.stop_ids),
            reasoning=self.reasoning,
            calls=tuple((token(begin), token(end)) for begin, end in family.calls),
        )
        verdict, rules = run_probes(bench)
        hand = None
        if not verdict.splice and family.renderer is not None:
            hand = renderers_trial(self._renderer, rules, family.renderer)
            verdict = with_hand(verdict, hand)
        return Judged(verdict, rules, self._renderer.shape, hand)


def _stop_id(codec: Codec, content: str) -> int:
    found = codec.token(content)
    if found is None:
        raise ConfigError(f"the stop token {content!r} is not one token of this tokenizer", where="stop")
    return found


def _digest(files: ChatFiles) -> bytes:
    digest = hashlib.sha256()
    parts = [files.tokenizer_json, files.template.encode(), files.parser.encode()]
    if files.response_template is not None:
        parts.append(files.response_template)
    arguments = {name: value for name, value in files.specials.items() if not name.endswith("_token")}
    if arguments:
        parts.append(msgspec.json.encode(arguments, order="sorted"))
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()
