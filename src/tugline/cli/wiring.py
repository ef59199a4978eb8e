"""Objects from settings. The only module that knows every implementation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal

from tugline.cli.addresses import check_addresses
from tugline.cli.boxes import check_egress, choose_sandbox, note_images, sandbox_limits
from tugline.cli.edits import edit_policy, text_filters
from tugline.cli.verdicts import FileVerdicts
from tugline.config.load import load
from tugline.config.types import EngineSettings, Settings
from tugline.core.contracts import (
    Dialect,
    Engine,
    Harness,
    ImageProvider,
    JournalEntry,
    Policy,
    SandboxProvider,
)
from tugline.core.errors import ConfigError, RunError, boundary
from tugline.core.paths import expanded
from tugline.core.session import Ended, SessionState
from tugline.core.task import ModelRoute, Task
from tugline.core.trace import Trajectory
from tugline.core.turn import CallRecord, Sampling, Turn
from tugline.dialects import DIALECTS
from tugline.engines import REMOTE, Far, make_engine, read_spec
from tugline.engines.journal import JournalIndex
from tugline.engines.modeldir import Asked, read_model_dir
from tugline.engines.remote.abilities import UNPROVEN, UNPROVEN_NOTE
from tugline.gateway.gateway import GatewayOptions, LocalGateway, Seat
from tugline.gateway.running import Timing
from tugline.harnesses import harness as find_harness
from tugline.harnesses.roles import RULES
from tugline.rollout.judging import Judging
from tugline.rollout.service import RolloutService
from tugline.rollout.spec import Concurrency, Parts, RolloutSpec, StageLimits
from tugline.sandboxes.stores import sweep
from tugline.store import RunStore
from tugline.tokens.families import families
from tugline.tokens.model import ChatFiles, ChatModel
from tugline.tokens.probes.kept import VerdictCache
from tugline.tokens.standin import standin_tokenizer
from tugline.trajectory.build import SessionFacts, build
from tugline.trajectory.merge import strategy_for
from tugline.trajectory.rows import undelivered_turns
from tugline.verifiers import verifier_for

DIALECT_GROUP = "tugline.dialects"

PILOT = Path(__file__).resolve().parent.parent / "training" / "pilot" / "model"
"""The policy that ships with the package."""


@dataclass(frozen=True, slots=True)
class Wired:
    """A rollout ready to run."""

    store: RunStore
    engine: Engine
    gateway: LocalGateway
    provider: SandboxProvider
    service: RolloutService


def served_dialects() -> tuple[Dialect, ...]:
    """Ours, and those that installed packages offer as entry points `tugline.dialects` (called with no arguments).

    Raises ConfigError for one that cannot be loaded or has the name of another.
    """
    found: list[Dialect] = list(DIALECTS)
    for entry in entry_points(group=DIALECT_GROUP):
        where = f"entry point {DIALECT_GROUP}: {entry.name}"
        try:
            with boundary(ConfigError, "cannot be loaded"):
                dialect: Dialect = entry.load()()
        except ConfigError as err:
            raise ConfigError(err.message, where=where) from err
        if any(type(dialect) is type(other) for other in found):
            continue  # one of ours, named again
        if any(dialect.name == other.name for other in found):
            raise ConfigError(f"a dialect {dialect.name!r} is there already", where=where)
        found.append(dialect)
    return tuple(found)


def _model_dir(one: EngineSettings, where: str) -> Path:
    """Where an engine's model lies, or at least its tokenizer and template. Raises ConfigError when it is no directory.
    An engine behind a URL has a model of its own: the pilot cannot stand for it."""
    kind = one.spec.partition(":")[0]
    if one.model is None and kind in REMOTE:
        hint = "name the directory with the tokenizer and template of the model that it serves"
        raise ConfigError(f"{kind} needs --model: {'the name there' if kind == 'openai' else hint}", where=where)
    if one.model is not None and kind == "openai":
        return Path(one.model)  # a name: it has no files here
    path = expanded(one.model, where) if one.model else PILOT
    if not path.is_dir():
        raise ConfigError(f"{path} is not a model directory", where=where)
    return path


def asked_of(one: EngineSettings, name: str = "") -> Asked:
    """What `[engine]` (or `[engines.NAME]`) chooses instead of the model directory's own."""
    return Asked(
        parser=one.parser,
        stop=one.stop,
        template=one.template,
        context=one.context,
        template_kwargs=one.template_kwargs,
        section=f"engines.{name}" if name else "engine",
    )


def chat_model(path: Path, asked: Asked | None = None, verdicts: VerdictCache | None = None) -> ChatModel:
    """Tokenizer, template and parser of a model directory. `verdicts` keeps what the probes find."""
    files = read_model_dir(path, asked or Asked())
    return ChatModel(
        ChatFiles(
            tokenizer_json=files.tokenizer_json,
            template=files.template,
            parser=files.parser,
            stop=tuple(files.stop),
            context=files.context,
            specials={**files.specials, **files.template_kwargs},
            response_template=files.response_template,
        ),
        verdicts,
    )


def text_model(one: EngineSettings, path: Path, name: str = "", verdicts: VerdictCache | None = None) -> ChatModel:
    """The text side of an engine. One that takes messages has none here: something that is never asked stands for it.

    Raises ConfigError.
    """
    return wordless() if one.spec.startswith("openai:") else chat_model(path, asked_of(one, name), verdicts)


def level_note(engine: Engine) -> str | None:
    """What people are told at the start of an engine whose replies do not train as those of others."""
    level = engine.info.level
    if engine.info.kind in UNPROVEN:
        return f"{engine.info.model}: {UNPROVEN_NOTE}"
    if level == "L0":
        return f"{engine.info.model}: text in, text out (L0). Replies are recorded; nothing of them trains."
    if level == "L2":
        return f"{engine.info.model}: messages in, ids out (L2). Calls train one by one, joined where their ids go on."
    return None


def wordless() -> ChatModel:
    """A chat model of bytes, for engines that render and read for themselves."""
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    stop = "<|im_end|>"
    made = standin_tokenizer(template, (stop, *families()["qwen3"].markers))
    return ChatModel(ChatFiles(tokenizer_json=made, template=template, parser="qwen3", stop=(stop,), context=1 << 30))


def verdicts_of(settings: Settings) -> FileVerdicts:
    """Where verdicts on templates are kept."""
    return FileVerdicts(expanded(settings.cache.dir, "cache.dir"))


def chat_models(run_dir: Path) -> Callable[[str], ChatModel]:
    """Chat models of a stored run's engines by name, "" = the policy, each loaded once. The function raises ConfigError
    for an engine or model directory that is not there."""
    settings = load(run_dir / "run.toml", {}, {}).settings
    loaded: dict[str, ChatModel] = {}

    def find(engine: str) -> ChatModel:
        if engine not in loaded:
            known = settings.engines.get(engine, settings.engine if not engine else None)
            if known is None:
                raise ConfigError(f"the run's settings name no engine {engine!r}", where=str(run_dir / "run.toml"))
            place = f"engines.{engine}.model" if engine else "engine.model"
            loaded[engine] = text_model(known, _model_dir(known, place), engine)
        return loaded[engine]

    return find


def engine_for(settings: Settings, run_dir: Path) -> Engine:
    """The engine of a run; its journal lies in RUN/engine/. Raises ConfigError."""
    check_addresses(settings)
    return _engine(settings.engine, "", run_dir / "engine", settings.run.seed)


def _engine(one: EngineSettings, name: str, journal_dir: Path, seed: int | None) -> Engine:
    read_spec(one.spec, f"engines.{name}.spec" if name else "engine.spec")
    return make_engine(
        one.spec,
        model=_model_dir(one, f"engines.{name}.model" if name else "engine.model"),
        journal_dir=journal_dir,
        device=one.device,
        threads=one.threads,
        slots=one.slots,
        seed=seed,
        asked=asked_of(one, name),
        far=far_of(one),
    )


def far_of(one: EngineSettings) -> Far:
    """What `[engine]` says of an engine behind a URL."""
    return Far(
        served=one.served,
        key_file=one.key_file,
        key_env=one.key_env,
        connect_timeout=one.connect_timeout,
        reply_timeout=one.reply_timeout,
        patience=one.patience,
        prices=one.prices,
    )


def gateway_options(settings: Settings) -> GatewayOptions:
    """How the gateway listens and waits."""
    gate = settings.gateway
    return GatewayOptions(
        host=gate.host,
        port=gate.port,
        advertise=gate.advertise,
        max_body=gate.max_body,
        timing=Timing(gate.keepalive, gate.grace),
        rerender=gate.rerender,
        streaming="live" if gate.streaming == "live" else "buffered",
    )


def policy_of(settings: Settings) -> Policy:
    """What every session's calls are held to."""
    s, limits = settings.sampling, settings.limits
    return Policy(
        sampling=Sampling(s.temperature, s.top_p, s.top_k, s.max_tokens),
        max_turns=limits.max_turns,
        max_session_tokens=limits.max_tokens_per_session,
        media="refuse" if settings.gateway.media == "refuse" else "omit",
        constraints="ignore" if settings.gateway.constraints == "ignore" else "refuse",
        routes=tuple(ModelRoute(pattern, engine) for pattern, engine in settings.models.routes.items()),
        history_reasoning="template" if settings.edits.history_reasoning == "template" else "keep",
        edits=edit_policy(settings),
        filters=text_filters(settings),
    )


def check_routes(settings: Settings, tasks: tuple[Task, ...]) -> None:
    """Every engine that a route names is there. Raises ConfigError naming setting or task."""
    known = ", ".join(settings.engines) or "none"
    for pattern, engine in settings.models.routes.items():
        if engine not in settings.engines:
            raise ConfigError(
                f"no engine {engine!r} in [engines]; there are: {known}", where=f"models.routes.{pattern}"
            )
    for task in tasks:
        for route in task.routes:
            if route.engine not in settings.engines:
                where = f"task {task.name}, metadata.tugline.models"
                raise ConfigError(f"no engine {route.engine!r} in [engines]; there are: {known}", where=where)


def other_engine(settings: Settings, name: str, run_dir: Path) -> Engine:
    """The engine `engines.NAME`, not started."""
    return _engine(settings.engines[name], name, run_dir / "engines" / name, settings.run.seed)


@asynccontextmanager
async def other_engines(settings: Settings, run_dir: Path) -> AsyncIterator[dict[str, Seat]]:
    """The engines beside the policy, started; their journals lie in RUN/engines/NAME."""
    seats: dict[str, Seat] = {}
    try:
        for name in settings.engines:
            engine = other_engine(settings, name, run_dir)
            one, path = settings.engines[name], engine.info.model_dir
            model = await asyncio.to_thread(text_model, one, path, name, verdicts_of(settings))
            seats[name] = Seat(engine, model)
            await engine.start()
        yield seats
    finally:
        for seat in seats.values():
            await seat.engine.close()


def journal_of(run_dir: Path) -> Callable[[str], JournalEntry | None]:
    """Looks generations up in the journals of a run's engines, whichever wrote them."""
    others = run_dir / "engines"
    places = [run_dir / "engine", *(sorted(p for p in others.iterdir() if p.is_dir()) if others.is_dir() else ())]
    indexes = [JournalIndex(place, strict=False) for place in places]

    def find(engine_ref: str) -> JournalEntry | None:
        return next((e for e in (index.get(engine_ref) for index in indexes) if e is not None), None)

    return find


def spec_of(settings: Settings, tasks: tuple[Task, ...], context: int) -> RolloutSpec:
    """The rollout that settings describe."""
    c, limits = settings.run.concurrency, settings.limits
    return RolloutSpec(
        tasks=tasks,
        n=settings.run.n,
        policy=policy_of(settings),
        concurrency=Concurrency(c.boot, c.run, c.judge),
        limits=StageLimits(limits.boot_timeout, limits.agent_timeout, limits.judge_timeout),
        sandbox_limits=sandbox_limits(settings),
        egress=settings.sandbox.egress,
        max_attempts=1 + limits.infra_retries,
        context=context,
        max_tokens=settings.sampling.max_tokens,
    )


def make_trajectory(
    ended: Ended, turns: list[Turn], calls: list[CallRecord], logprob_kind: Literal["raw", "processed"] = "processed"
) -> Trajectory:
    """Rows of an ended session."""
    facts = SessionFacts(
        session_id=ended.key.session_id,
        group_id=ended.key.group_id,
        outcome=ended.outcome,
        reward=ended.reward,
        reward_parts=dict(ended.reward_parts),
        logprob_kind=logprob_kind,
    )
    return build(facts, turns, undelivered_turns(turns, calls), strategy_for(turns))


@asynccontextmanager
async def wired(
    settings: Settings,
    tasks: tuple[Task, ...],
    store: RunStore,
    say: Callable[[str], None],
    on_state: Callable[[SessionState], None],
) -> AsyncIterator[Wired]:
    """Everything started, in order; everything stopped again, whatever happens."""
    run_dir = store.path
    engine = engine_for(settings, run_dir)
    path, verdicts = engine.info.model_dir, verdicts_of(settings)
    model = await asyncio.to_thread(text_model, settings.engine, path, "", verdicts)
    options = gateway_options(settings)
    check_routes(settings, tasks)
    check_egress(settings, tasks)
    harness: Harness = find_harness(settings.harness.name)
    cache = await asyncio.to_thread(expanded, settings.cache.dir, "cache.dir")
    provider = await choose_sandbox(settings, run_dir, tasks)
    stack = AsyncExitStack()
    keep = settings.sandbox
    tidying = asyncio.create_task(asyncio.to_thread(sweep, cache / "sandboxes", keep.keep, keep.cache_size))
    try:
        await provider.reap()
        await engine.start()
        if note := level_note(engine):
            say(note)
        others = await stack.enter_async_context(other_engines(settings, run_dir))
        gateway = LocalGateway(engine, model, store, served_dialects(), options, others=others, roles=RULES)
        stack.push_async_callback(gateway.stop)
        await gateway.start()
        parts = Parts(
            store=store,
            gate=gateway,
            sandboxes=provider,
            harness=harness,
            judge=Judging(provider, verifier_for, sandbox_limits(settings), say).judge,
            build=lambda state, turns, calls: make_trajectory(
                state, list(turns), list(calls), engine.info.logprob_kind
            ),
            sessions_dir=run_dir / "sessions",
            cache=cache,
            say=say,
            on_state=on_state,
        )
        service = RolloutService(spec_of(settings, tasks, engine.info.context), parts)
        yield Wired(store, engine, gateway, provider, service)
    finally:
        await stack.aclose()
        if isinstance(provider, ImageProvider) and (used := await provider.images()):
            await asyncio.to_thread(note_images, run_dir, used)
        await provider.close()
        await engine.close()
        with boundary(RunError, "clean the cache of sandboxes"):
            await tidying
