"""Judges one chat template in a process of its own: `python -m tugline.cli.judge`, a request on stdin, JSON on stdout.

A template is a program by somebody else. It may loop, ask for all memory or crash the interpreter; here it takes only
this process with it.
"""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tugline.cli.verdicts import FileVerdicts
from tugline.cli.wiring import chat_model
from tugline.core.errors import ConfigError, TuglineError
from tugline.engines.modeldir import Asked, read_model_dir
from tugline.tokens.families import detect, families
from tugline.tokens.model import ChatFiles, ChatModel
from tugline.tokens.probes import Verdict
from tugline.tokens.standin import SPECIALS, standin_tokenizer

MAX_TEMPLATE = 1 << 20
"""Bytes. The largest one that is known has 30 kB."""
MAX_TOKENIZER = 1 << 28
_MEMORY = 8 << 30
"""Bytes of address space that judging may take."""
_CONTEXT = 32_768
_DEEPSEEK_BEGIN, _DEEPSEEK_END = (f"<\uff5c{word}\u2581of\u2581sentence\uff5c>" for word in ("begin", "end"))
_USUAL = {
    "bos_token": (
        "<|begin_of_text|>",
        "<bos>",
        "<s>",
        "<|startoftext|>",
        "[BOS]",
        "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
    ),
    "eos_token": ("<|im_end|>", "<|eot_id|>", "<eos>", "</s>", "<|return|>", "<|endoftext|>", _DEEPSEEK_END),
    "pad_token": ("<pad>", "<|endoftext|>", "[PAD]"),
    "unk_token": ("<unk>",),
}
"""What the names that templates use usually stand for, where only a tokenizer.json is given."""


class Request(msgspec.Struct):
    """What to judge. `path`: a model directory, or a template file with `tokenizer` (a directory or a tokenizer.json;
    None = a stand-in)."""

    path: str
    tokenizer: str | None = None
    parser: str | None = None
    stop: list[str] = []
    fuzz: int = 0
    cache: str | None = None
    template: str | None = None
    """Instead of the directory's own: a file, or the name of one of its own."""


class Fuzzed(msgspec.Struct):
    """Of the conversations asked for: turns compared, by outcome."""

    conversations: int
    compared: int
    equal: int
    classes: dict[str, int]
    silent: int
    examples: list[str]


class Judgement(msgspec.Struct):
    """The answer. `notes`: what had to be assumed."""

    verdict: Verdict
    parser: str
    tokenizer: str
    structure_only: bool
    notes: list[str]
    seconds: float
    fuzz: Fuzzed | None = None
    sources: dict[str, str] = {}
    """Of a model directory: where template, reply format, window and each stop token come from."""
    format_known: bool = True
    """False: no reply format fits and none was asked for. Plain text was assumed; a start would refuse it."""


class Answer(msgspec.Struct):
    """One of both."""

    judgement: Judgement | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Built:
    chat: ChatModel
    parser: str
    tokenizer: str
    structure_only: bool
    notes: tuple[str, ...]
    sources: Mapping[str, str] = field(default_factory=dict)
    format_known: bool = True


def judge(request: Request) -> Judgement:
    """Raises ConfigError for files that are no template, tokenizer or model directory."""
    begun = time.perf_counter()
    path = Path(request.path)
    built = _directory(path, request) if path.is_dir() else _file(path, request)
    verdict = built.chat.probe()
    return Judgement(
        verdict,
        built.parser,
        built.tokenizer,
        built.structure_only,
        list(built.notes),
        time.perf_counter() - begun,
        _fuzz(built.chat, request.fuzz) if request.fuzz else None,
        dict(built.sources),
        built.format_known,
    )


def _fuzz(chat: ChatModel, conversations: int) -> Fuzzed:
    from tugline.testing.template_fuzz import fuzz_model

    found = fuzz_model(chat, conversations)
    return Fuzzed(
        conversations, found.compared, found.equal + found.spelled, dict(found.classes), found.silent, found.examples
    )


def _directory(path: Path, request: Request) -> _Built:
    """A model directory as a start would read it."""
    _small(path / "chat_template.jinja", MAX_TEMPLATE)
    return _read(path, None, request)


def _read(folder: Path, template: Path | None, request: Request) -> _Built:
    """The model in `folder`, with its own template or another."""
    for name in ("tokenizer.json", "tokenizer_config.json", "tugline.json", "config.json"):
        _small(folder / name, MAX_TOKENIZER)
    verdicts = FileVerdicts(Path(request.cache)) if request.cache else None

    def asked(parser: str | None) -> Asked:
        # The window changes nothing in a template, and a directory need not name one to be judged.
        return Asked(parser, tuple(request.stop), str(template) if template else request.template, _CONTEXT)

    def made(parser: str | None) -> ChatModel:
        return chat_model(folder, asked(parser), verdicts)

    notes: tuple[str, ...] = ()
    try:
        chat = made(request.parser)
    except ConfigError as err:
        if request.parser is not None:
            raise
        try:
            chat = made("plain")
        except ConfigError:
            raise err from None
        notes = (f"{_unknown(err)}; judged as plain text",)
    known = read_model_dir(folder, asked(chat.parser if notes else request.parser)).sources
    sources = {name: source for name, source in known.items() if name != "context"}
    if notes:
        sources["parser"] = "nothing: plain is assumed"
    return _Built(chat, chat.parser, str(folder / "tokenizer.json"), False, notes, sources, not notes)


def _file(path: Path, request: Request) -> _Built:
    template = _template(path)
    if request.tokenizer is not None and Path(request.tokenizer).is_dir():
        return _read(Path(request.tokenizer), path, request)
    if request.tokenizer is None:
        raw, specials, structure_only = standin_tokenizer(template, tuple(request.stop)), dict(SPECIALS), True
    else:
        file = Path(request.tokenizer)
        _small(file, MAX_TOKENIZER)
        with _reading(file):
            raw = file.read_bytes()
        specials, structure_only = _specials(_added(raw, file)), False
    return _bare(template, raw, specials, (request, structure_only))


def _bare(template: str, raw: bytes, specials: dict[str, str], asked: tuple[Request, bool]) -> _Built:
    """A template and a tokenizer without a model around them: format and stop tokens are told by what they hold."""
    request, structure_only = asked
    added, notes = _added(raw, Path("tokenizer.json")), list[str]()
    parser, known = request.parser, True
    if parser is None:
        try:
            parser = detect(template, added).name
        except ConfigError as err:
            parser, known = "plain", False
            notes.append(f"{_unknown(err)}; judged as plain text")
    family = families().get(parser)
    stop = tuple(request.stop) or tuple(s for s in (family.stop if family else ()) if s in added)

    def made(stop: tuple[str, ...]) -> ChatModel:
        return ChatModel(ChatFiles(raw, template, parser, stop, _CONTEXT, specials))

    chat = made(stop or tuple(s for s in (specials.get("eos_token"),) if s in added))
    if not stop and chat.probe().close:
        stop = (chat.probe().close,)
        notes.append(f"stop token: {stop[0]}, which the template itself writes; --stop names another")
        chat = made(stop)
    if structure_only:
        notes.append("no tokenizer was given: a stand-in shows the template's structure, not its ids")
    whose = "stand-in" if structure_only else str(request.tokenizer)
    return _Built(chat, parser, whose, structure_only, tuple(notes), format_known=known)


def _unknown(err: ConfigError) -> str:
    """What was seen, without the file that could say more and the list of families."""
    return err.message.removeprefix(f"{err.where}: ").partition(". ")[0]


class _Config(msgspec.Struct):
    chat_template: str | None = None


def _template(path: Path) -> str:
    """A .jinja file, or the chat template inside a tokenizer_config.json."""
    _small(path, MAX_TEMPLATE if path.suffix != ".json" else MAX_TOKENIZER)
    with _reading(path):
        raw = path.read_bytes()
    if path.suffix == ".json":
        try:
            found = msgspec.json.decode(raw, type=_Config).chat_template
        except msgspec.DecodeError as err:
            raise ConfigError(f"not valid: {err}", where=str(path)) from err
        if not found:
            raise ConfigError("holds no chat_template", where=str(path))
        return found
    try:
        text = raw.decode()
    except UnicodeDecodeError as err:
        raise ConfigError(f"is no text (not UTF-8 at byte {err.start})", where=str(path)) from err
    if "\0" in text:
        raise ConfigError("is no text (it holds zero bytes)", where=str(path))
    if "{" not in text:
        raise ConfigError("is no Jinja template: nothing in it reads the conversation", where=str(path))
    return text


class _Added(msgspec.Struct):
    content: str


class _Tokens(msgspec.Struct):
    added_tokens: list[_Added] = []
    model: msgspec.Raw = msgspec.Raw()


def _added(raw: bytes, file: Path) -> frozenset[str]:
    try:
        found = msgspec.json.decode(raw, type=_Tokens)
    except msgspec.DecodeError as err:
        raise ConfigError(f"not valid: {err}", where=str(file)) from err
    if not bytes(found.model).startswith(b"{"):
        raise ConfigError("is no tokenizer.json: it holds no model", where=str(file))
    return frozenset(t.content for t in found.added_tokens)


def _specials(added: frozenset[str]) -> dict[str, str]:
    return {name: found for name, usual in _USUAL.items() if (found := next((u for u in usual if u in added), ""))}


def _small(path: Path, most: int) -> None:
    with _reading(path):
        size = path.stat().st_size if path.exists() else 0
        if path.exists() and not path.is_file():  # a pipe never ends
            raise ConfigError("is no regular file", where=str(path))
    if size > most:
        raise ConfigError(f"has {size:,} bytes; more than {most:,} are not read", where=str(path))


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as err:
        raise ConfigError(f"cannot be read: {err.strerror}", where=str(path)) from err


def main() -> None:
    """Read, judge, answer. A template that does harm ends the process; whoever started it says so."""
    for limit, most in ((resource.RLIMIT_AS, _MEMORY), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, (most, resource.getrlimit(limit)[1]))
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    try:
        answer = Answer(judgement=judge(request))
    except TuglineError as err:
        answer = Answer(error=err.message)
    except MemoryError:
        answer = Answer(error="the template takes more memory than is lent to it")
    sys.stdout.buffer.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()
