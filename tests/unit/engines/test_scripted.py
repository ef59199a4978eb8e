import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from tokenizers import Tokenizer

from tugline.core.columns import concat, floats_array, ids, ids_list
from tugline.core.contracts import Generation
from tugline.core.errors import ConfigError, EngineError
from tugline.core.turn import Sampling
from tugline.engines import make_engine
from tugline.engines.journal import read_journal
from tugline.engines.modeldir import Asked
from tugline.engines.scripted import ScriptedEngine
from tugline.testing.models import make_tokenizer_dir

PROMPT = ids(range(5, 60))
CALLS = {
    "reasoning": "think first",
    "text": "Reading it.",
    "calls": [{"name": "read", "arguments": '{"path":  "a.txt"}'}, {"name": 'wr"ite', "arguments": "{bad"}],
}
SPELLED = (
    "<think>\nthink first\n</think>\n\nReading it.\n"
    '<tool_call>\n{"name": "read", "arguments": {"path":  "a.txt"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "wr\\"ite", "arguments": {bad}\n</tool_call>'
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tokenizer_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(model):
    return Tokenizer.from_file(str(model / "tokenizer.json"))


def ask(session="s", request="r", **sampling):
    return Generation(request, session, PROMPT, Sampling(**sampling))


@asynccontextmanager
async def running(script, model, journal_dir):
    engine = ScriptedEngine(script, model, journal_dir)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


async def test_a_turn_is_spelled_in_the_models_format(model, tokenizer, tmp_path):
    async with running([CALLS, {"text": "cut", "finish": "length"}], model, tmp_path) as engine:
        first, second = await engine.generate(ask()), await engine.generate(ask())
    assert tokenizer.decode(ids_list(first.ids), skip_special_tokens=False) == SPELLED + "<|im_end|>"
    assert first.finish == "stop" and ids_list(first.ids)[-1] == engine.info.stop_ids[0]
    think = tokenizer.token_to_id("<think>")
    assert ids_list(first.ids)[0] == think  # special tokens are atomic
    assert second.finish == "length" and tokenizer.decode(ids_list(second.ids)) == "cut"
    assert first.logprobs != second.logprobs


async def test_noncanonical_ids_read_the_same_and_repeat(model, tokenizer, tmp_path):
    script = [{"settings": {"noncanonical": 0.6, "seed": 3}}, CALLS]
    async with running(script, model, tmp_path / "1") as engine:
        a, b = await engine.generate(ask("a")), await engine.generate(ask("b"))
    async with running(script, model, tmp_path / "2") as engine:
        again = await engine.generate(ask("a"))
    text = SPELLED + "<|im_end|>"
    canonical = tokenizer.encode(text, add_special_tokens=False).ids
    for sample in (a, b):
        assert tokenizer.decode(ids_list(sample.ids), skip_special_tokens=False) == text
        assert len(ids_list(sample.ids)) > len(canonical)
    assert a.ids == again.ids != b.ids
    assert a.logprobs == again.logprobs


async def test_sessions_walk_the_script_apart_and_it_ends(model, tokenizer, tmp_path):
    async with running([{"text": "one"}, {"text": "two"}], model, tmp_path) as engine:
        texts = [tokenizer.decode(ids_list((await engine.generate(ask(s))).ids)) for s in "aabb"]
        assert texts == ["one", "two", "one", "two"]
        with pytest.raises(EngineError, match="has 2 generations, session 'a'") as caught:
            await engine.generate(ask("a"))
        assert not caught.value.retryable
        await engine.release("a")
        await engine.generate(ask("a"))


async def test_repeat(model, tokenizer, tmp_path):
    async with running([{"settings": {"repeat": True}}, {"text": "x"}], model, tmp_path) as engine:
        for _ in range(3):
            assert tokenizer.decode(ids_list((await engine.generate(ask())).ids)) == "x"


async def test_fails_once_then_plays_the_step(model, tokenizer, tmp_path):
    async with running([{"text": "x", "fail_after_tokens": 1}, {"text": "y"}], model, tmp_path) as engine:
        with pytest.raises(EngineError, match="scripted failure") as caught:
            await engine.generate(ask())
        assert caught.value.retryable
        texts = [tokenizer.decode(ids_list((await engine.generate(ask())).ids)) for _ in range(2)]
    assert texts == ["x", "y"]
    assert len(list(read_journal(tmp_path))) == 2


async def test_a_cancelled_step_is_played_again(model, tokenizer, tmp_path):
    async with running([{"text": "x", "delay_s": 30}, {"text": "y"}], model, tmp_path) as engine:
        task = asyncio.create_task(engine.generate(ask()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        again = asyncio.create_task(engine.generate(ask()))
        await asyncio.sleep(0)
        await engine.abort("r")
        assert (await again).finish == "abort"
        assert tokenizer.decode(ids_list((await engine.generate(ask())).ids)) == "y"


async def test_explicit_ids_and_limits(model, tmp_path):
    stop = json.loads((model / "tokenizer.json").read_text())["added_tokens"][2]["id"]
    script = [{"ids": [1, 2, 3, 4, stop]}, {"ids": [1, 2, 3, 4, stop]}, {"ids": [9], "finish": "length"}]
    async with running(script, model, tmp_path) as engine:
        assert ids_list((await engine.generate(ask())).ids) == [1, 2, 3, 4, stop]
        cut = await engine.generate(ask(max_tokens=2))
        assert (ids_list(cut.ids), cut.finish) == ([1, 2], "length")
        sample = await engine.generate(ask())
        assert (ids_list(sample.ids), sample.finish) == ([9], "length")
        for bad in (Generation("r", "s", ids([]), Sampling()), Generation("r", "s", ids([99999]), Sampling())):
            with pytest.raises(EngineError) as caught:
                await engine.generate(bad)
            assert not caught.value.retryable
    logprobs = floats_array(sample.logprobs)
    assert (logprobs < 0).all() and (logprobs > -10).all()


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (['{"text": "x"}', "{"], r"script\.jsonl line 2: not JSON"),
        (['{"text": 5}'], r"line 1: .*\$\.text"),
        (['{"txt": "x"}'], r"line 1: .*txt"),
        (['{"calls": [{"name": "a", "arguments": {}}]}'], r"line 1: .*arguments"),
        (['{"finish": "abort"}'], r"line 1: .*finish"),
        (['{"settings": {"noncanonical": 2}}', "{}"], r"line 1 \[settings\.noncanonical\]"),
        (['{"settings": {"speed": 2}}', "{}"], r"line 1: .*speed"),
        (["{}", '{"settings": {}}'], r"line 2: .*settings"),
        (['{"ids": [1, 999999], "finish": "length"}'], r"line 1 \[ids\]: 999999 is outside"),
        (['{"ids": [1]}'], r'line 1 \[ids\]: finish "stop" needs'),
        (['{"ids": [1], "text": "x"}'], r"line 1 \[ids\]: give either"),
        (['{"delay_s": -1}'], r"line 1 \[delay_s\]"),
        (['{"text": "x", "cut": 3}'], r'line 1 \[cut\]: needs finish "length"'),
        (['{"text": "x", "finish": "length", "cut": -1}'], r"line 1 \[cut\]"),
        (['{"fail_after_tokens": -1}'], r"line 1 \[fail_after_tokens\]"),
        ([], r"script\.jsonl: the script has no generation"),
    ],
)
def test_an_invalid_script_is_refused_before_anything_runs(model, tmp_path, lines, says):
    path = tmp_path / "script.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=says):
        make_engine(f"scripted:{path}", model=model, journal_dir=tmp_path)


def test_make_engine_says_what_there_is(model, tmp_path):
    for spec, says in [
        ("llama", "no engine; there are: embedded, scripted:FILE, vllm:URL, sglang:URL, openai:URL"),
        ("vllm", "say where it listens: vllm:http://HOST:PORT"),
        ("vllm:localhost:8000", "is no URL"),
        ("scripted", "name the script"),
        (f"scripted:{tmp_path}/none", "cannot be read"),
        ("embedded:x", "takes no argument"),
        ("embedded", r"config\.json: missing"),
    ]:
        with pytest.raises(ConfigError, match=says):
            make_engine(spec, model=model, journal_dir=tmp_path)
    with pytest.raises(ConfigError, match="needs a model directory"):
        make_engine("embedded", model=None, journal_dir=tmp_path)


async def test_the_prompt_is_journalled_as_sent(model, tmp_path):
    async with running([{"text": "a"}, {"text": "b"}], model, tmp_path) as engine:
        first = await engine.generate(ask())
        longer = concat([PROMPT, first.ids, ids([11, 12])])
        second = await engine.generate(Generation("r2", "s", longer, Sampling()))
    entries = {e.engine_ref: e for e in read_journal(tmp_path)}
    for sample, prompt in ((first, PROMPT), (second, longer)):
        entry = entries[sample.engine_ref]
        assert (entry.prompt_ids, entry.ids, entry.logprobs) == (prompt, sample.ids, sample.logprobs)


async def test_a_turn_may_be_cut_anywhere(model, tokenizer, tmp_path):
    cuts = [{**CALLS, "finish": "length", "cut": c} for c in (1, 5, 0.5, 0, 10_000)]
    async with running(cuts, model, tmp_path) as engine:
        samples = [await engine.generate(ask()) for _ in cuts]
    whole = tokenizer.encode(SPELLED, add_special_tokens=False).ids
    assert [ids_list(s.ids) for s in samples] == [whole[:1], whole[:5], whole[: len(whole) // 2], [], whole]
    assert {s.finish for s in samples} == {"length"}


def test_a_line_that_the_format_cannot_hold_is_refused_at_the_start(tmp_path):
    plain = make_tokenizer_dir(tmp_path / "plain")
    (plain / "tugline.json").write_text('{"parser": "plain", "stop": ["<|im_end|>"], "context": 99}')
    with pytest.raises(ConfigError, match="script generation 2: plain replies have no calls"):
        ScriptedEngine([{"text": "x"}, CALLS], plain, tmp_path)


async def test_settings_choose_for_the_engine_too(model, tokenizer, tmp_path):
    asked = Asked(stop=("<|endoftext|>",), context=77)
    path = tmp_path / "script.jsonl"
    path.write_text('{"text": "x"}')
    engine = make_engine(f"scripted:{path}", model=model, journal_dir=tmp_path, asked=asked)
    assert (engine.info.context, engine.info.stop_ids) == (77, (tokenizer.token_to_id("<|endoftext|>"),))
    await engine.start()
    sample = await engine.generate(ask())
    await engine.close()
    assert ids_list(sample.ids)[-1] == tokenizer.token_to_id("<|endoftext|>")
