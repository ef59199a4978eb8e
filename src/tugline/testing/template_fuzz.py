"""Bridges beside one-pass renders, turn by turn, for one model: what is equal, what differs by name, what is silent.

A difference has a class only where the bridge, or the verdict of the probes, announced it beforehand; one that nobody
announced is *silent*, and there must be none. Compared is the whole prompt where the template's history shows what its
generation prompt said; else what comes behind the token that ends the turn.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tugline.core.columns import NO_IDS, Ids, concat, count, ids, last, take
from tugline.core.errors import Unsupported
from tugline.core.items import Assistant, Head, Item, System, Tool, ToolCall, UserText
from tugline.core.turn import Finish
from tugline.testing.template_talk import Limits, Step, Talk, hostile
from tugline.tokens.codec import positions
from tugline.tokens.model import Bridge, BridgeRefused, ChatModel
from tugline.tokens.probes import Verdict

TOOLS = tuple(
    Tool(
        name,
        f'{{"type":"function","function":{{"name":"{name}","description":"{name} it","parameters":'
        '{"type":"object","properties":{"cmd":{"type":"string","description":"what"},'
        '"n":{"type":"integer","description":"how often"}},"required":["cmd"]}}}',
    )
    for name in ("run", "read")
)
_STEPS = 5
_ENDS = 8
"""A token that ends a turn may also end its parts: so many are tried as the end of a canonical sample."""
_EXAMPLES = 3
_ANNOUNCED = ("text_transformed", "format_differs", "calls_split")
"""Drift of a bridge that says: this may not be what the template writes."""


@dataclass(slots=True)
class Tally:
    """Of one model. `classes`: named differences; `notes`: drift that made no difference."""

    turns: int = 0
    """Sampled turns behind which a prompt was asked for."""
    equal: int = 0
    """The whole prompt is the one-pass render, id by id."""
    spelled: int = 0
    """So as text, and id by id behind the turn; the sample's first characters merge with the prompt's last."""
    behind: int = 0
    """What comes behind the turn is how the one-pass render ends; why no more is in `classes`."""
    classes: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    silent: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def compared(self) -> int:
        """Turns whose bridge was laid beside a render."""
        return self.equal + self.spelled + self.behind + self.silent

    def breaks(self, what: str) -> None:
        """A difference that nobody announced."""
        self.silent += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(what)


def fuzz_model(chat: ChatModel, conversations: int, seed: int = 0) -> Tally:
    """Seeded: the same model and numbers give the same tally."""
    verdict, tally = chat.probe(), Tally()
    limits = Limits(
        frozenset(verdict.appendable),
        verdict.tools.parallel if "tool" in verdict.appendable else 0,
        hostile(verdict.control),
    )
    for number in range(seed, seed + conversations):
        _Conversation(chat, verdict, tally, (number, limits)).play()
    return tally


@dataclass(frozen=True, slots=True)
class _Sample:
    """`ids`: canonical ids behind the prompt, on to the end of the conversation, empty where there are none. `text`:
    the same as text, where only that fits behind the prompt. `cut`: it ends inside the turn; `echo`: what of it a
    harness saw."""

    ids: Ids = NO_IDS
    text: str = ""
    echo: Assistant | None = None
    cut: bool = False


class _Conversation:
    """One conversation: a history that grows, and the next prompt tried at each turn."""

    def __init__(self, chat: ChatModel, verdict: Verdict, tally: Tally, made: tuple[int, Limits]) -> None:
        self._chat, self._verdict, self._tally = chat, verdict, tally
        self._talk, self._rng = Talk(*made), random.Random(made[0])
        switches = verdict.switches if self._rng.random() < 0.35 else ()
        self._switch = self._rng.choice(switches) if switches else None
        tools = TOOLS if made[1].parallel and self._rng.random() < 0.9 else ()
        self._head = Head(tools, self._switch.kwargs if self._switch else "{}")
        close = chat.codec.token(verdict.close) if verdict.close else None
        own = [close] if close is not None else []
        # What a model ends with comes first: a token that only the template writes is no sample's last.
        self._closes = sorted(dict.fromkeys((*own, *chat.stop_ids)), key=lambda token: token not in chat.stop_ids)
        self._where = f"seed {made[0]}"
        self._moves = any(r.name == "P4" and r.status == "fail" for r in verdict.results)
        self._blank = any(r.name == "P1_blank" and r.status == "note" for r in verdict.results)

    def play(self) -> None:
        """Up to five turns; fewer where the template refuses what was said."""
        history: list[Item] = [*self._talk.start()]
        prompt = self._render(history)
        for number in range(_STEPS):
            step = self._talk.step()
            canonical = None if prompt is None else self._render([*history, step.turn, *step.whole_tail])
            if prompt is None or canonical is None:
                self._tally.notes["template_refuses"] += 1
                return
            step, sample = self._sample(step, prompt, canonical)
            history.append(sample.echo or step.turn)
            whole = self._render([*history, *step.tail]) if sample.cut else canonical
            if whole is None:
                self._tally.notes["template_refuses"] += 1
                return
            self._tally.turns += 1
            place = f"{self._where}, turn {number}, {self._head.template_kwargs}"
            self._compare(history, step, (prompt, whole, sample), place)
            history += step.tail
            prompt = whole

    def _render(self, items: Sequence[Item]) -> Ids | None:
        try:
            return self._chat.render(self._head, items).ids
        except Unsupported:
            return None

    # ------------------------------------------------------------------------------------------------ what was sampled

    def _sample(self, step: Step, prompt: Ids, whole: Ids) -> tuple[Step, _Sample]:
        """What a model that writes as the template does would have sampled; the step without its cut where the
        template shows no place to cut at."""
        if whole.startswith(prompt):
            rest = take(whole, count(prompt))
            cut = self._cut(rest, step) if step.cut else None
            if cut is None:
                return replace(step, cut="", tail=step.whole_tail), _Sample(rest)
            parsed = self._chat.parse(prompt, cut, "length", self._head.tools).assistant
            calls = tuple(ToolCall(f"cut_{n}", c.name, c.arguments) for n, c in enumerate(parsed.calls))
            return step, _Sample(cut, "", replace(parsed, calls=calls), True)
        step = replace(step, cut="", tail=step.whole_tail)
        shown, begun = self._chat.decode(whole), self._chat.decode(prompt)
        return step, _Sample(text=shown[len(begun) :]) if shown.startswith(begun) else _Sample()

    def _cut(self, rest: Ids, step: Step) -> Ids | None:
        """The sample up to somewhere inside the part that the step names."""
        texts = {"text": step.turn.text or "", "reasoning": step.turn.reasoning or "", "call": "cmd", "": ""}
        part = texts[step.cut]
        at = self._chat.decode(rest).find(part)
        ends = positions(rest, self._closes)
        if at < 0 or not len(ends):
            return None
        wanted, low, high = at + max(1, len(part) // 2), 0, int(ends[0])
        while low < high:  # the first token at which the text reaches into the part
            middle = (low + high) // 2
            if len(self._chat.decode(take(rest, 0, middle + 1))) < wanted:
                low = middle + 1
            else:
                high = middle
        return take(rest, 0, low) if 0 < low < int(ends[0]) else None

    def _ends(self, rest: Ids) -> Iterator[Ids]:
        for end in positions(rest, self._closes)[:_ENDS]:
            yield take(rest, 0, int(end) + 1)

    # ----------------------------------------------------------------------------------------------------- comparisons

    def _compare(self, history: Sequence[Item], step: Step, made: tuple[Ids, Ids, _Sample], place: str) -> None:
        prompt, whole, sample = made
        if sample.cut:
            self._compare_cut(history, step, made, place)
            return
        refused: list[str] = []
        for sampled in self._ends(sample.ids or self._spelled(sample.text)):
            found = self._bridge(history, step.tail, (prompt, sampled, "stop"))
            if isinstance(found, str):
                refused.append(found)
            elif self._same(whole, (prompt, sampled, found), spelled=not sample.ids):
                self._tally.notes.update(found.drift)
                self._tally.equal += bool(sample.ids)
                self._tally.spelled += not sample.ids
                if sample.ids:
                    self._other_stop(history, step, (prompt, whole, sampled), place)
                return
        self._compare_behind(history, step, made, (place, refused))

    def _spelled(self, text: str) -> Ids:
        """A sample of this text. Where text of the turn spells a control token it is not the template's: then only
        what comes behind is compared."""
        return self._chat.encode(text) if text else NO_IDS

    def _same(self, whole: Ids, made: tuple[Ids, Ids, Bridge], *, spelled: bool) -> bool:
        prompt, sampled, found = made
        full = concat([prompt, sampled])
        joined = concat([take(full, 0, count(full) - found.drop), found.ids])
        if spelled:
            return whole.endswith(found.ids) and self._chat.decode(joined) == self._chat.decode(whole)
        return joined == whole

    def _other_stop(self, history: Sequence[Item], step: Step, made: tuple[Ids, Ids, Ids], place: str) -> None:
        """The same turn ended by another token of the stop set: replaced (`stop_trim`) or kept (`close_alias`)."""
        prompt, whole, sampled = made
        others = [s for s in self._chat.stop_ids if s != last(sampled)]
        if not others or self._rng.random() < 0.7:
            return
        other = self._rng.choice(others)
        ended = concat([take(sampled, 0, count(sampled) - 1), ids((other,))])
        found = self._bridge(history, step.tail, (prompt, ended, "stop"))
        if isinstance(found, str):
            return
        self._tally.turns += 1
        if found.drop and "stop_trim" in found.drift and self._same(whole, (prompt, ended, found), spelled=False):
            self._tally.equal += 1
            self._tally.notes["stop_trim"] += 1
            return
        written = concat([prompt, sampled, found.ids])
        if not found.drop and "close_alias" in found.drift and written == whole:
            self._tally.behind += 1
            self._tally.classes["close_alias"] += 1
        elif not found.drop and not found.drift and found.ids and whole.endswith(found.ids):
            # The other token opens what follows, and this tail begins with it.
            self._tally.behind += 1
            self._tally.classes["stop_opens_next"] += 1
        else:
            self._tally.breaks(f"{place}: ended by {other}: {self._around(whole, found.ids)}")

    def _compare_behind(
        self, history: Sequence[Item], step: Step, made: tuple[Ids, Ids, _Sample], told: tuple[str, list[str]]
    ) -> None:
        """Not comparable as a whole: what comes behind the token that ends the turn, and who announced that."""
        prompt, whole, sample = made
        place, refused = told
        seen: list[Bridge] = []
        for close in self._closes:
            found = self._bridge(history, step.tail, (prompt, ids((close,)), "stop"))
            if isinstance(found, str):
                refused.append(found)
                continue
            seen.append(found)
            if whole.endswith(found.ids):
                why = self._announced(found, step, sample, history)
                if why:
                    self._tally.behind += 1
                    self._tally.classes[why] += 1
                else:
                    self._tally.breaks(f"{place}: the past differs, and nobody said so")
                return
        if not seen:
            self._tally.classes[f"refused: {refused[0] if refused else 'no stop token'}"] += 1
            return
        named = [reason for reason in _ANNOUNCED if any(reason in found.drift for found in seen)]
        if named:
            self._tally.behind += 1
            self._tally.classes[named[0]] += 1
        else:
            self._tally.breaks(f"{place}: {self._around(whole, seen[0].ids)}")

    def _announced(self, found: Bridge, step: Step, sample: _Sample, history: Sequence[Item]) -> str:
        """Why no more than the end can be equal, as bridge and verdict said beforehand. "" = nobody did."""
        named = [reason for reason in _ANNOUNCED if reason in found.drift]
        if named:
            return named[0]
        if self._moves and any(isinstance(i, Assistant) and i.text and i.calls for i in history):
            return "parts_moved"
        turn = step.turn
        if not turn.calls and not (turn.text or "").strip() and self._blank:
            return "blank_turn"
        if sample.ids or sample.text:  # the past is as it was
            return "special_in_text" if "special_in_text" in found.drift and sample.text else ""
        verdict, switch = self._verdict, self._switch
        keeps = switch.append_only if switch else verdict.append_only
        if not keeps and any(isinstance(item, UserText | System) for item in step.tail):
            return "reasoning_stripped"
        if not (switch.shows_prompt if switch else verdict.shows_prompt):
            return "prompt_not_shown"
        return ""

    def _compare_cut(self, history: Sequence[Item], step: Step, made: tuple[Ids, Ids, _Sample], place: str) -> None:
        """A turn that the model did not end: closed by tokens that nobody sampled, then the template's own tail."""
        prompt, whole, sample = made
        found = self._bridge(history, step.tail, (prompt, sample.ids, "length"))
        if isinstance(found, str):
            self._tally.classes[f"refused: {found}"] += 1
            return
        tails = [take(found.ids, max(0, found.synthesised - 1)), take(found.ids, found.synthesised)]
        if "truncated_extended" not in found.drift:
            self._tally.breaks(f"{place}: a cut turn that is not called so")
        elif any(tail and whole.endswith(tail) for tail in tails) or set(_ANNOUNCED) & set(found.drift):
            self._tally.behind += 1
            self._tally.classes["truncated_extended"] += 1
        else:
            self._tally.breaks(f"{place}: cut: {self._around(whole, tails[0])}")

    def _bridge(self, history: Sequence[Item], tail: Sequence[Item], state: tuple[Ids, Ids, Finish]) -> Bridge | str:
        """A bridge, or why there is none."""
        prompt, sampled, finish = state
        try:
            return self._chat.bridge(
                self._head, history, tail, last_id=last(sampled), finish=finish, sampled=sampled, prompt=prompt
            )
        except BridgeRefused as err:
            return err.reason

    def _around(self, whole: Ids, end: Ids) -> str:
        """Two endings, in words."""
        expected = self._chat.decode(take(whole, max(0, count(whole) - count(end))))
        return f"{self._chat.decode(end)[:160]!r} where the template ends {expected[:160]!r}"
