import pytest
import pytest_asyncio

from tugline.engines import make_engine
from tugline.engines.journal import JournalIndex
from tugline.testing.engine_suite import ENGINE_CHECKS, RESTART_CHECKS, EngineCase
from tugline.testing.models import make_tiny_model, make_tokenizer_dir
from tugline.testing.sglang_server import SglangServer
from tugline.testing.vllm_server import VllmServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCRIPT = """
{"settings": {"repeat": true, "noncanonical": 0.3}}
{"reasoning": "one", "text": "two three", "calls": [{"name": "read", "arguments": "{}"}]}
{"text": "a slow turn that says quite a few words", "delay_s": 0.15}
"""


async def _case(make, journal_dir):
    engine = make()
    await engine.start()
    return EngineCase(engine, make, JournalIndex(journal_dir).get)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scripted(tmp_path_factory):
    tmp = tmp_path_factory.mktemp("scripted")
    (tmp / "script.jsonl").write_text(SCRIPT)
    model = make_tokenizer_dir(tmp / "model")
    spec = f"scripted:{tmp / 'script.jsonl'}"
    case = await _case(lambda: make_engine(spec, model=model, journal_dir=tmp / "journal"), tmp / "journal")
    yield case
    await case.engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def embedded(tmp_path_factory):
    tmp = tmp_path_factory.mktemp("embedded")
    model = make_tiny_model(tmp / "model")
    case = await _case(lambda: make_engine("embedded", model=model, journal_dir=tmp / "journal"), tmp / "journal")
    yield case
    await case.engine.close()


@pytest.mark.parametrize("check", ENGINE_CHECKS + RESTART_CHECKS, ids=lambda c: c.__name__)
async def test_scripted(check, scripted):
    await check(scripted)


@pytest.mark.real
@pytest.mark.parametrize("check", ENGINE_CHECKS + RESTART_CHECKS, ids=lambda c: c.__name__)
async def test_embedded(check, embedded):
    await check(embedded)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["generate", "completions", "no abort"])
async def vllm(request, tmp_path_factory):
    """The driver over a server of vLLM's schema, by each of its routes."""
    tmp = tmp_path_factory.mktemp("vllm")
    (tmp / "script.jsonl").write_text(SCRIPT)
    model = make_tokenizer_dir(tmp / "model")
    inner = make_engine(f"scripted:{tmp / 'script.jsonl'}", model=model, journal_dir=tmp / "inner")
    await inner.start()
    how = {"generate": {}, "completions": {"scale_out": False}, "no abort": {"scale_out": False, "dev_mode": False}}
    async with VllmServer(inner, **how[request.param]) as server:
        spec = f"vllm:{server.url}"
        case = await _case(lambda: make_engine(spec, model=model, journal_dir=tmp / "journal"), tmp / "journal")
        yield case
        await case.engine.close()
    await inner.close()


@pytest.mark.parametrize("check", ENGINE_CHECKS + RESTART_CHECKS, ids=lambda c: c.__name__)
async def test_vllm(check, vllm):
    await check(vllm)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sglang(tmp_path_factory):
    """The driver over a server of SGLang's schema, which nobody has compared with SGLang itself."""
    tmp = tmp_path_factory.mktemp("sglang")
    (tmp / "script.jsonl").write_text(SCRIPT)
    model = make_tokenizer_dir(tmp / "model")
    inner = make_engine(f"scripted:{tmp / 'script.jsonl'}", model=model, journal_dir=tmp / "inner")
    await inner.start()
    async with SglangServer(inner) as server:
        spec = f"sglang:{server.url}"
        case = await _case(lambda: make_engine(spec, model=model, journal_dir=tmp / "journal"), tmp / "journal")
        yield case
        await case.engine.close()
    await inner.close()


@pytest.mark.parametrize("check", ENGINE_CHECKS + RESTART_CHECKS, ids=lambda c: c.__name__)
async def test_sglang(check, sglang):
    await check(sglang)
