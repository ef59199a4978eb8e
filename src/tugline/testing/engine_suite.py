"""The contract of an engine, as checks that any implementation must pass.

    @pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda c: c.__name__)
    async def test_my_engine(check, case):   # case: an EngineCase whose engine is started
        await check(case)

`RESTART_CHECKS` start and close engines of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from tugline.core.columns import Ids, concat, count, floats_array, ids, ids_array, ids_list
from tugline.core.contracts import Engine, Generation, JournalEntry, Sample, StreamingEngine
from tugline.core.errors import EngineError
from tugline.core.turn import Sampling

PATIENCE = 30.0
"""Seconds after which a check takes an engine for stuck."""


@dataclass(frozen=True, slots=True)
class EngineCase:
    """An engine under test."""

    engine: Engine
    """Started."""
    make: Callable[[], Engine]
    """Another one over the same model and journal, not started."""
    journal: Callable[[str], JournalEntry | None] | None = None
    """The engine's own record by engine_ref, when it keeps one."""
    slow: Sampling = Sampling(temperature=0.0, max_tokens=1500)
    """With it, the second generation of a session takes at least a tenth of a second."""
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def prompt(self, length: int = 40) -> Ids:
        """A prompt that no other check uses."""
        salt, size = next(self.numbers), self.engine.info.vocab
        return ids([(salt * 31 + i * 7 + 1) % min(size, 200) for i in range(length)])

    def ask(self, prompt: Ids, session: str, sampling: Sampling | None = None) -> Generation:
        """A request with a name of its own."""
        return Generation(f"request-{next(self.numbers)}", session, prompt, sampling or Sampling(max_tokens=12, seed=7))

    def session(self) -> str:
        """A new session's name."""
        return f"session-{next(self.numbers)}"


Check: TypeAlias = Callable[[EngineCase], Awaitable[None]]


async def check_sample_is_consistent(case: EngineCase) -> None:
    """Echo equals prompt; ids, log-probabilities and versions fit each other."""
    prompt = case.prompt()
    sample = await case.engine.generate(case.ask(prompt, case.session()))
    if case.engine.info.echoes_prompt:
        assert sample.prompt_ids == prompt
    _consistent(case, sample)
    assert count(sample.ids) > 0


async def check_stop_strings_end_a_turn(case: EngineCase) -> None:
    """A sample ends with the first token that completes a stop string; its ids are whole."""
    from tokenizers import Tokenizer

    decode = Tokenizer.from_file(str(case.engine.info.model_dir / "tokenizer.json")).decode
    prompt, sampling = case.prompt(), Sampling(max_tokens=40, seed=7)
    free = await case.engine.generate(case.ask(prompt, case.session(), sampling))
    text = decode(ids_list(free.ids), skip_special_tokens=True)
    assert len(text) > 2, "the engine under test says too little for this check"
    stop = text[len(text) // 2 :][:2]
    asked = replace(case.ask(prompt, case.session(), sampling), stop=("no such thing", stop))
    sample = await case.engine.generate(asked)
    column = ids_list(sample.ids)
    assert sample.finish == "stop" and count(sample.ids) == len(sample.logprobs) // 4
    assert stop in decode(column, skip_special_tokens=False), f"{stop!r} is not in what was sampled"
    assert stop not in decode(column[:-1], skip_special_tokens=False), f"sampling went on behind {stop!r}"


async def check_stop_token_is_kept(case: EngineCase) -> None:
    """A stop ends with a stop token, and only there; no other finish does."""
    stops = set(case.engine.info.stop_ids)
    session = case.session()
    for seed in range(4):
        sample = await case.engine.generate(case.ask(case.prompt(), session, Sampling(max_tokens=64, seed=seed)))
        inner, last = ids_list(sample.ids)[:-1], ids_list(sample.ids)[-1]
        assert not stops & set(inner)
        assert (sample.finish == "stop") == (last in stops)


async def check_max_tokens(case: EngineCase) -> None:
    """Never more than asked for; a cut turn says `length`."""
    for limit in (1, 3):
        sample = await case.engine.generate(case.ask(case.prompt(), case.session(), Sampling(max_tokens=limit, seed=1)))
        assert 0 < count(sample.ids) <= limit
        assert sample.finish == ("stop" if ids_list(sample.ids)[-1] in case.engine.info.stop_ids else "length")


async def check_turns_continue(case: EngineCase) -> None:
    """Prompts that extend, shorten and branch are each answered for what they are."""
    session, prompt = case.session(), case.prompt(200)
    first = await case.engine.generate(case.ask(prompt, session))
    longer = concat([prompt, first.ids, ids([3, 4, 5])])
    for again in (longer, Ids(longer[:400]), concat([Ids(longer[:400]), ids([9])]), prompt):
        sample = await case.engine.generate(case.ask(again, session))
        assert sample.prompt_ids in (again, None)
        _consistent(case, sample)


async def check_abort(case: EngineCase) -> None:
    """An aborted generation returns what it has; unknown names are ignored."""
    await case.engine.abort("nobody")
    sample = await _aborted(case)
    assert sample.finish == "abort" and count(sample.ids) < case.slow.max_tokens
    _consistent(case, sample)


async def check_cancel(case: EngineCase) -> None:
    """Cancelling the await ends it at once; the engine serves on, even the same session and prompt."""
    slow, task = await _slow(case)
    task.cancel()
    async with asyncio.timeout(PATIENCE):
        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)
        other = await case.engine.generate(case.ask(case.prompt(), case.session()))
    _consistent(case, other)
    await case.engine.release(slow.session_id)


async def check_sixteen_at_once(case: EngineCase) -> None:
    """All are answered, each for its own prompt."""
    asked = [case.ask(case.prompt(), case.session()) for _ in range(16)]
    async with asyncio.timeout(PATIENCE):
        samples = await asyncio.gather(*map(case.engine.generate, asked))
    for request, sample in zip(asked, samples, strict=True):
        assert sample.prompt_ids in (request.prompt_ids, None)
        _consistent(case, sample)
    refs = [s.engine_ref for s in samples if s.engine_ref is not None]
    assert len(set(refs)) == len(refs)


async def check_release(case: EngineCase) -> None:
    """Ending a session, known or not, twice or not, harms nobody."""
    session, prompt = case.session(), case.prompt()
    await case.engine.generate(case.ask(prompt, session))
    for name in (session, session, "nobody"):
        await case.engine.release(name)
    _consistent(case, await case.engine.generate(case.ask(prompt, session)))


async def check_bad_requests(case: EngineCase) -> None:
    """What can never work is refused as such, and breaks nothing."""
    info = case.engine.info
    for prompt in (ids([]), ids([1] * info.context), ids([1, info.vocab]), ids([-1])):
        try:
            async with asyncio.timeout(PATIENCE):
                await case.engine.generate(case.ask(prompt, case.session()))
        except EngineError as err:
            assert not err.retryable
        else:
            raise AssertionError(f"a prompt of {count(prompt)} tokens was accepted")
    await check_sample_is_consistent(case)


async def check_pieces_are_the_sample(case: EngineCase) -> None:
    """An engine that streams hands out the beginning of what it answers, and stops when nobody listens."""
    engine = case.engine
    if not isinstance(engine, StreamingEngine):
        return
    session, prompt = case.session(), case.prompt()
    for sampling in (Sampling(max_tokens=12, seed=7), case.slow):
        pieces = [piece async for piece in engine.generate_stream(case.ask(prompt, session, sampling))]
        assert [piece.sample is not None for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        sample = pieces[-1].sample
        assert sample is not None and sample.ids.startswith(concat([piece.ids for piece in pieces]))
        _consistent(case, sample)
    # a greedy policy may happen to stop early on some prompt
    assert any([await _left_at_once(case, engine) for _ in range(20)]), "no slow generation was slow"
    _consistent(case, await engine.generate(case.ask(case.prompt(), case.session())))


async def _left_at_once(case: EngineCase, engine: StreamingEngine) -> bool:
    """Whether a listener could leave before the sample was there. The engine serves on, even the same session."""
    session = case.session()
    await engine.generate(case.ask(case.prompt(), session))
    slow = case.ask(case.prompt(), session, case.slow)
    async with contextlib.aclosing(engine.generate_stream(slow)) as pieces:
        first = await anext(pieces)
    async with asyncio.timeout(PATIENCE):
        _consistent(case, await engine.generate(case.ask(slow.prompt_ids, session)))
    return first.sample is None


async def check_journal(case: EngineCase) -> None:
    """When the reply arrives, the engine's journal holds the same."""
    if case.journal is None:
        return
    session, prompt = case.session(), case.prompt()
    for _ in range(3):
        sample = await case.engine.generate(case.ask(prompt, session))
        assert sample.engine_ref is not None
        assert case.journal(sample.engine_ref) == JournalEntry(
            engine_ref=sample.engine_ref,
            session_id=session,
            prompt_ids=prompt,
            ids=sample.ids,
            logprobs=sample.logprobs,
            finish=sample.finish,
            version_runs=sample.version_runs,
        )
        prompt = concat([prompt, sample.ids, ids([1, 2])])
    aborted = await _aborted(case)
    entry = case.journal(aborted.engine_ref or "")
    assert entry is not None and (entry.ids, entry.finish) == (aborted.ids, "abort")


async def check_restart(case: EngineCase) -> None:
    """Closing twice is fine; a closed engine refuses; a new one serves, and the old one's journal is still there."""
    engine = case.make()
    await engine.start()
    first = await engine.generate(case.ask(case.prompt(), case.session()))
    await engine.close()
    await engine.close()
    try:
        await engine.generate(case.ask(case.prompt(), case.session()))
    except EngineError:
        pass
    else:
        raise AssertionError("a closed engine answered")
    engine = case.make()
    await engine.start()
    try:
        second = await engine.generate(case.ask(case.prompt(), case.session()))
    finally:
        await engine.close()
    if case.journal is not None:
        assert first.engine_ref and second.engine_ref and first.engine_ref != second.engine_ref
        for sample in (first, second):
            entry = case.journal(sample.engine_ref or "")
            assert entry is not None and entry.ids == sample.ids


ENGINE_CHECKS: tuple[Check, ...] = (
    check_sample_is_consistent,
    check_stop_token_is_kept,
    check_stop_strings_end_a_turn,
    check_max_tokens,
    check_turns_continue,
    check_abort,
    check_cancel,
    check_sixteen_at_once,
    check_release,
    check_bad_requests,
    check_pieces_are_the_sample,
    check_journal,
)
RESTART_CHECKS: tuple[Check, ...] = (check_restart,)


async def _aborted(case: EngineCase) -> Sample:
    """What an abort left. On a busy machine some generations end before their abort arrives."""
    for _ in range(20):
        slow, task = await _slow(case)
        await case.engine.abort(slow.request_id)
        async with asyncio.timeout(PATIENCE):
            sample = await task
        if sample.finish == "abort":
            break
    return sample


async def _slow(case: EngineCase) -> tuple[Generation, asyncio.Task[Sample]]:
    """A generation that has been handed to the engine and runs for a while."""
    for _ in range(20):  # a greedy policy may happen to stop at once on some prompt
        session = case.session()
        await case.engine.generate(case.ask(case.prompt(), session))
        slow = case.ask(case.prompt(), session, case.slow)
        task = asyncio.create_task(case.engine.generate(slow))
        await asyncio.sleep(0.02)
        if not task.done():
            break
    assert not task.done(), "the slow generation was too fast for this check"
    return slow, task


def _consistent(case: EngineCase, sample: Sample) -> None:
    n = count(sample.ids)
    logprobs = floats_array(sample.logprobs)
    assert len(logprobs) == n
    assert bool(np.isfinite(logprobs).all()) and bool((logprobs <= 0).all())
    assert not n or 0 <= int(ids_array(sample.ids).min()) <= int(ids_array(sample.ids).max()) < case.engine.info.vocab
    starts = [start for start, _ in sample.version_runs]
    assert starts == sorted(set(starts)) and all(s < n for s in starts)
    assert (starts[:1] == [0]) == (n > 0)
