"""P16 through the real path: hostile text in every place of a conversation, against the same conversation without it.

`forge(chat, tokens, n)` puts `n` hostile strings into system text, user text, tool names, descriptions and parameters,
call ids, arguments (keys and values), results, reasoning, replies and template arguments, some cut in two over
neighbouring places. It renders each conversation whole and as a bridge, and compares with a twin whose strings are
harmless: the control ids must be the same ones in the same order, and the text must read back.

`python -m tugline.testing.forgery DIR [--strings 10000]` does so for every real tokenizer of a corpus.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tugline.core.columns import Ids, concat, ids, ids_list, last
from tugline.core.errors import ConfigError, Unsupported
from tugline.core.items import Assistant, Head, Item, System, Tool, ToolCall, ToolResult, UserText
from tugline.testing.corpus import Case, cases, tokenizers
from tugline.tokens.codec import Codec
from tugline.tokens.families import detect
from tugline.tokens.model import BridgeRefused, ChatModel
from tugline.tokens.spellings import forgery_probe, hostile_strings

_KINDS = 4
_PLACES = 16
"""Strings that one conversation takes."""
_WORD = "ok"


@dataclass(slots=True)
class Forged:
    """What happened. `strings`: hostile strings shown; `refused`: conversations that the template or the codec
    refused; `unbridged`: tails that were refused; `failures`: sentences, none when all is well."""

    strings: int = 0
    prompts: int = 0
    bridges: int = 0
    refused: int = 0
    unbridged: int = 0
    failures: list[str] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    """Why conversations and tails were refused: reason -> how often."""

    def refuse(self, reason: str) -> None:
        """Count a reason."""
        self.reasons[reason] = self.reasons.get(reason, 0) + 1


@dataclass(frozen=True, slots=True)
class _Talk:
    head: Head
    history: tuple[Item, ...]
    """Ends with an assistant turn."""
    tail: tuple[Item, ...]
    shown: tuple[str, ...]
    """Texts that stand in the prompt as they are, white space around them aside, where the template shows them."""


def forge(chat: ChatModel, n: int, seed: int = 0, *, most: int = 5) -> Forged:
    """Stops at `most` failures. Raises nothing for what a template or tokenizer does."""
    rng, done = random.Random(seed), Forged()
    source = _strings(chat, rng)
    chat.probe()
    number = 0
    while done.strings < n and len(done.failures) < most and number < n // 2 + 10:
        strings = _cut([next(source) for _ in range(_PLACES)], rng)
        words = [f"{_WORD}{p}{_WORD}" for p in range(_PLACES)]
        hostile, harmless = (_talk(iter(s), number % _KINDS) for s in (strings, words))
        number += 1
        try:
            _compare(chat, hostile, harmless, done)
        except Unsupported as err:
            done.refused += 1
            done.refuse(str(err))
            continue
        done.strings += len(strings)
    if done.strings < n and not done.failures:
        done.failures.append(f"only {done.strings} of {n} strings could be shown")
    return done


def _strings(chat: ChatModel, rng: random.Random) -> Iterator[str]:
    """Without end: built of control tokens, and every other one of all other added tokens where there are such."""
    control = tuple(chat.codec.control)
    content = tuple(a.content for a in chat.codec.added if a.content not in chat.codec.control)
    hostile = hostile_strings(control, rng, sys.maxsize)
    others = hostile_strings(content or control, rng, sys.maxsize)
    while True:
        yield next(hostile)
        yield next(others)


def _compare(chat: ChatModel, hostile: _Talk, harmless: _Talk, done: Forged) -> None:
    items = [*hostile.history, *hostile.tail]
    plain = chat.render(harmless.head, [*harmless.history, *harmless.tail])
    made = chat.render(hostile.head, items)
    done.prompts += 1
    _same(chat, "a prompt", made.ids, plain.ids, hostile, done)
    if "text_transformed" not in made.drift:
        text, twin = _plain(chat.decode(made.ids)), _plain(chat.decode(plain.ids))
        pairs = zip(hostile.shown, harmless.shown, strict=True)
        lost = [s for s, word in pairs if word in twin and not any(_plain(f) in text for f in _forms(s))]
        done.failures += [f"{s!r} does not read back" for s in lost]
    stop = chat.stop_ids[0]
    sampled = concat([chat.encode(_WORD), ids([stop])])
    try:
        bridged = [_bridged(chat, talk, sampled) for talk in (hostile, harmless)]
    except BridgeRefused as err:
        done.unbridged += 1
        done.refuse(err.reason)
        return
    done.bridges += 1
    _same(chat, "a bridge", bridged[0], bridged[1], hostile, done)


def _bridged(chat: ChatModel, talk: _Talk, sampled: Ids) -> Ids:
    made = chat.bridge(
        talk.head,
        talk.history,
        talk.tail,
        last_id=last(sampled),
        finish="stop",
        sampled=sampled,
        prompt=chat.render(talk.head, talk.history[:-1]).ids,
    )
    return made.ids


def _same(chat: ChatModel, what: str, made: Ids, plain: Ids, talk: _Talk, done: Forged) -> None:
    one, two = (_controls(chat, column) for column in (made, plain))
    if one != two:
        at = next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
        names = {i: c for c, i in chat.codec.control.items()}
        here, there = ([names[i] for i in column[at : at + 3]] for column in (one, two))
        done.failures.append(f"{what} has {here} in place of {there}: {talk}")


def _controls(chat: ChatModel, column: Ids) -> list[int]:
    return [i for i in ids_list(column) if i in chat.controls and i != chat.codec.unknown]


def _forms(text: str) -> tuple[str, str]:
    """How a template may show a text: as it is, or as a JSON string."""
    bare = text.strip()
    return bare, msgspec.json.encode(bare).decode()[1:-1]


def _plain(text: str) -> str:
    """Normal forms (taken apart: what stands beside a mark does not matter) and SentencePiece's blank aside."""
    return unicodedata.normalize("NFKD", text.replace("\u2581", " "))


def _cut(strings: list[str], rng: random.Random) -> list[str]:
    """Every third one is cut in two, the halves in neighbouring places."""
    out = list(strings)
    for n in range(0, len(out) - 1, 3):
        at = rng.randrange(len(out[n]) + 1)
        # Templates treat a blank text as none at all: that would not be compared with its twin.
        halves = out[n][:at], out[n][at:]
        out[n], out[n + 1] = (half if half.strip() else _WORD for half in halves)
    return out


def _talk(strings: Iterator[str], kind: int) -> _Talk:
    """The conversation whose strings are taken from `strings` in a fixed order. Kinds: a call with its result and
    user text, with reasoning or with text; a call with its result alone; no tools."""
    system, user, result, more, name, description, key, value, argument, *others = strings
    said, thought, call_id, extra, note, *switches = others
    kwargs = dict(zip(("reasoning_effort", "model_identity"), switches, strict=True))
    head = Head((), msgspec.json.encode(kwargs).decode())
    if kind == _KINDS - 1:
        turns: tuple[Item, ...] = (System(system), UserText(user), Assistant(said, thought))
        return _Talk(head, turns, (UserText(result), UserText(more, joined=True)), (system, user, said, thought, more))
    parameters = {"type": "object", "properties": {key: {extra: note, "type": "string", "description": value}}}
    function = {extra: note, "name": name, "description": description, "parameters": {extra: note, **parameters}}
    spec = {"type": "function", "function": function}
    call = ToolCall(f"c{call_id}", name, msgspec.json.encode({key: argument, "other": value}).decode())
    turn = Assistant(None, thought, (call,)) if kind == 0 else Assistant(said, None, (call,))
    tail: tuple[Item, ...] = (ToolResult(call.id, result), *((UserText(more),) if kind < 2 else ()))
    tools = (Tool(name, msgspec.json.encode(spec).decode()),)
    return _Talk(Head(tools, head.template_kwargs), (System(system), UserText(user), turn), tail,
                 (system, user, said, thought, result, more))  # fmt: skip


def model_of(case: Case) -> ChatModel:
    """The case as a chat model, its reply format told from its content (`plain` where none is known)."""
    try:
        added = [t["content"] for t in msgspec.json.decode(case.tokenizer_json)["added_tokens"]]
        parser = detect(case.template, added).name
    except ConfigError:
        parser = "plain"
    return ChatModel(case.files(parser))


def chosen(every: Sequence[Case]) -> list[Case]:
    """One case per real tokenizer, with a template that shows tools where there is one."""

    def order(case: Case) -> tuple[bool, bool, bool, str]:
        # One template asks for `functions`, which no API gives.
        tools = "tool_calls" in case.template and "firefunction" not in case.name
        return not tools, case.tokenizer not in case.name, case.name.startswith("llama.cpp"), case.name

    best: dict[str, Case] = {}
    for case in sorted((c for c in every if c.real), key=order):
        best.setdefault(case.tokenizer, case)
    return list(best.values())


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Exit code 1 when a string was forged or could not be shown."""
    parser = argparse.ArgumentParser(prog="python -m tugline.testing.forgery", description=__doc__)
    parser.add_argument("folder", type=Path, help="a corpus, see tugline.testing.corpus")
    parser.add_argument("--strings", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--all", action="store_true", help="every template, stand-in tokenizers too")
    args = parser.parse_args(argv)
    every = cases(args.folder)
    bad = 0
    for case in every if args.all else chosen(every):
        begun = time.perf_counter()
        done = forge(model_of(case), args.strings, args.seed)
        bad += bool(done.failures)
        sys.stdout.write(
            f"{case.tokenizer}\t{case.name}\t{done.strings} strings\t{done.prompts} prompts\t{done.bridges} bridges\t"
            f"{done.refused} refused\t{done.unbridged} unbridged\t{len(done.failures)} failures\t"
            f"{time.perf_counter() - begun:.1f} s\n"
        )
        sys.stdout.writelines(f"  {f}\n" for f in (*done.failures, *(f"{r}: {k}" for r, k in done.reasons.items())))
        sys.stdout.flush()
    used = {case.tokenizer for case in every}
    for name, data in tokenizers(args.folder).items():
        if name not in used:
            found = forgery_probe(Codec(data, "", ()), args.strings, args.seed)
            bad += not found.ok
            sys.stdout.write(f"{name}\tno template\t{found.checks} strings\t{found.what or 'ok'} {found.example}\n")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
