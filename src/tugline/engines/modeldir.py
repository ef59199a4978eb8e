"""What a model directory says about the policy, read once and checked, without loading weights or a tokenizer.

Any Hugging Face directory serves as it is: the family of models is told by what template and tokenizer hold, so that a
fine-tune at /ckpt/step_100 works like its base. Every choice can be overridden, by settings and by the directory's own
tugline.json, in this order: settings, tugline.json, what the files say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tugline.core.errors import ConfigError
from tugline.engines.modelparts import stops, template
from tugline.engines.modelparts.files import optional
from tugline.engines.modelparts.vocabulary import Vocabulary, tokenizer_json
from tugline.engines.modelparts.window import Config, window
from tugline.tokens.families import detect, families, understood
from tugline.tokens.render import RESERVED

_SPECIALS = ("bos_token", "eos_token", "pad_token", "unk_token")

Plain = str | int | float | bool
"""A value of a template argument."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What settings choose instead of the directory's own. None and empty: nothing is chosen."""

    parser: str | None = None
    stop: tuple[str, ...] = ()
    template: str | None = None
    """A file, or the name of one of the model's own templates."""
    context: int | None = None
    template_kwargs: Mapping[str, Plain] = field(default_factory=dict)
    section: str = "engine"
    """Where the settings stand: `engine` or `engines.NAME`."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model directory's contents that the gateway and the engines need."""

    path: Path
    name: str
    tokenizer_json: bytes
    template: str
    """The chat template's source."""
    parser: str
    """Name of the reply format, e.g. `qwen3`."""
    stop: tuple[str, ...]
    """Stop tokens by content; the first one ends a scripted turn where the family does not say which."""
    stop_ids: tuple[int, ...]
    context: int
    """Window in tokens: prompt + sampled."""
    vocab: int
    """Size of the output layer: every valid id is below it."""
    specials: Mapping[str, str] = field(default_factory=dict)
    """`bos_token`, `eos_token`, ...: names that templates use, where the tokenizer's settings give them."""
    template_kwargs: Mapping[str, Plain] = field(default_factory=dict)
    """Arguments that the template gets with every prompt, where a request brings none of that name."""
    response_template: bytes | None = None
    """JSON of what the model's own settings say about reading replies, for the family `schema`."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where each choice comes from: tokenizer, template, parser, context, and `stop TOKEN` for each stop token."""


class _Tugline(msgspec.Struct):
    parser: str | None = None
    stop: list[str] | None = None
    context: int | None = None
    name: str | None = None
    template: str | None = None
    template_kwargs: dict[str, Plain] = {}


NOTHING = Asked()


def read_model_dir(path: Path, asked: Asked = NOTHING) -> ModelFiles:
    """Read and check a model directory. Raises ConfigError naming the file or setting.

    Stop tokens are those of generation_config.json, tokenizer_config.json and the family together; the template is
    chosen as `modelparts.template.choose` says.
    """
    if not path.is_dir():
        raise ConfigError("no such model directory", where=str(path))
    raw, origin = tokenizer_json(path)
    own = optional(path / "tugline.json", _Tugline) or _Tugline()
    config = _config(path)
    settings = optional(path / "tokenizer_config.json", dict[str, Any]) or {}
    if asked.template is not None:
        chosen = template.choose(path, settings, asked.template, f"{asked.section}.template")
    else:
        chosen = template.choose(path, settings, own.template, f"{path / 'tugline.json'} [template]")
    vocabulary = Vocabulary(path / origin.partition(",")[0], raw)
    parser, why = _parser(path, own, asked, chosen.source, (vocabulary, _response_template(settings)))
    ends = _stops(path, own, asked, (config, settings, vocabulary, parser))
    context, measured = _context(path, own, asked, window(config, settings))
    vocab = config.text.vocab_size or config.vocab_size or vocabulary.size()
    _check_arguments(path, own, asked)
    _check(path, {word: token for word, (token, _) in ends.tokens.items()}, vocab)
    return ModelFiles(
        path=path,
        name=own.name or path.resolve().name,
        tokenizer_json=raw,
        template=chosen.source,
        parser=parser,
        stop=tuple(ends.tokens),
        stop_ids=tuple(token for token, _ in ends.tokens.values()),
        context=context,
        vocab=vocab,
        specials={n: text for n in _SPECIALS if (text := stops.content_in(settings.get(n)))},
        template_kwargs={**own.template_kwargs, **asked.template_kwargs},
        response_template=_response_template(settings),
        sources={"tokenizer": origin, "template": chosen.where, "parser": why, "context": measured}
        | {f"stop {word}": ", ".join(who) for word, (_, who) in ends.tokens.items()},
    )


def require_weights(path: Path) -> None:
    """Raises ConfigError unless the directory holds what a real engine loads."""
    for name in ("config.json", "model.safetensors"):
        if not (path / name).is_file() and not (name.startswith("model") and any(path.glob("model-*.safetensors"))):
            raise ConfigError("missing; the embedded engine loads it", where=str(path / name))


def _config(path: Path) -> Config:
    file = path / "config.json"
    config = optional(file, Config) or Config()
    try:
        _ = config.text
    except msgspec.ValidationError as err:
        raise ConfigError(f"not valid: {err} in the text model's part", where=str(file)) from err
    return config


def _parser(
    path: Path, own: _Tugline, asked: Asked, source: str, known: tuple[Vocabulary, bytes | None]
) -> tuple[str, str]:
    """(family, how it is known). `known`: the vocabulary, and what the model says itself about reading replies."""
    vocabulary, response_template = known
    for word, where in ((asked.parser, f"{asked.section}.parser"), (own.parser, f"{path / 'tugline.json'} [parser]")):
        if word is not None:
            if word not in families():
                raise ConfigError(
                    f"unknown reply format {word!r}; there are: {', '.join(sorted(families()))}", where=where
                )
            return word, where
    try:
        found = detect(source, vocabulary.added)
    except ConfigError as err:
        if response_template is not None and understood(response_template):
            return "schema", "tokenizer_config.json [response_template]"
        text = err.message.removeprefix(f"{err.where}: ")
        raise ConfigError(text, where=str(path / "tugline.json")) from err
    return found.name, found.why


def _stops(
    path: Path, own: _Tugline, asked: Asked, known: tuple[Config, Mapping[str, Any], Vocabulary, str]
) -> stops.Stops:
    config, settings, vocabulary, parser = known
    if asked.stop:
        return stops.named(asked.stop, vocabulary, f"{asked.section}.stop")
    if own.stop is not None:
        return stops.named(own.stop, vocabulary, f"{path / 'tugline.json'} [stop]")
    eos = config.eos_token_id if config.eos_token_id is not None else config.text.eos_token_id
    return stops.gathered(path, eos, settings, vocabulary, families()[parser])


def _context(path: Path, own: _Tugline, asked: Asked, found: tuple[int, str] | None) -> tuple[int, str]:
    """(tokens, how they are known)."""
    if asked.context is not None:
        found = asked.context, f"{asked.section}.context"
    elif own.context is not None:
        found = own.context, f"{path / 'tugline.json'} [context]"
    if found is None or found[0] < 1:
        hint = " (this is an adapter: merge it into its base model first)" * (path / "adapter_config.json").exists()
        raise ConfigError(
            f'the context is unknown: set {{"context": TOKENS}}, or [engine] context{hint}',
            where=str(path / "tugline.json"),
        )
    return found


def _check(path: Path, ends: Mapping[str, int], vocab: int) -> None:
    outside = [word for word, token in ends.items() if not 0 <= token < vocab]
    if outside:
        raise ConfigError(
            f"vocab_size {vocab} leaves no room for the stop tokens {outside}: the tokenizer is of another model",
            where=str(path / "config.json"),
        )


def _check_arguments(path: Path, own: _Tugline, asked: Asked) -> None:
    for given, where in (
        (asked.template_kwargs, f"{asked.section}.template_kwargs"),
        (own.template_kwargs, f"{path / 'tugline.json'} [template_kwargs]"),
    ):
        if taken := sorted(RESERVED & given.keys()):
            raise ConfigError(f"{', '.join(taken)} cannot be set: every prompt has its own", where=where)


def _response_template(settings: Mapping[str, Any]) -> bytes | None:
    found = settings.get("response_template", settings.get("response_schema"))
    return msgspec.json.encode(found) if isinstance(found, dict) else None
