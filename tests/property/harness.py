"""A gateway of real objects without sockets, an engine that waits when told to, and the client side of one session."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from property.views_wire import WRITERS, Call, Result, Said, Talk, User
from tugline.cli.wiring import PILOT, chat_model, make_trajectory
from tugline.core.columns import Ids
from tugline.core.contracts import Generation, Policy, Sample
from tugline.core.errors import EngineError
from tugline.core.items import Request
from tugline.core.roles import Hint
from tugline.core.session import Ended, Outcome, SessionKey
from tugline.core.trace import Trajectory
from tugline.core.turn import CallOutcome, CallRecord, Sampling, Turn
from tugline.dialects import DIALECTS
from tugline.engines.journal import JournalIndex
from tugline.engines.scripted import ScriptedEngine
from tugline.forest.forest import Forest
from tugline.gateway.gateway import GatewayOptions, LocalGateway
from tugline.gateway.running import Timing
from tugline.gateway.upstream import RetryPolicy
from tugline.rollout.proof import Proof, prove_run
from tugline.store import RunStore
from tugline.testing.replay_said import said
from tugline.tokens.model import ChatModel

DIALECT = {d.name: d for d in DIALECTS}
NAMES = tuple(DIALECT)
SESSION = "ses_a"
PATHS = {"chat": "/v1/chat/completions", "anthropic": "/v1/messages", "responses": "/v1/responses"}
GEMINI = "/v1beta/models/policy:"


@cache
def roomy() -> tuple[Path, ChatModel]:
    """The shipped tokenizer and template with a window that no session here fills. Once per process."""
    made = Path(tempfile.mkdtemp(prefix="tugline-model-")) / "model"
    shutil.copytree(PILOT, made, ignore=shutil.ignore_patterns("*.safetensors"))
    facts = json.loads((made / "tugline.json").read_text())
    (made / "tugline.json").write_text(json.dumps(facts | {"context": 1_000_000}))
    model = chat_model(made)
    model.probe()
    return made, model


class Puppet(ScriptedEngine):
    """Plays its script; a generation waits for its gate while `hold` is set, and fails while `broken` is."""

    hold = False
    broken = False

    def __init__(self, script: list[object], folder: Path, journal: Path) -> None:
        super().__init__(script, folder, journal)
        self.gates: list[asyncio.Event] = []
        self.prompts: dict[str, Ids] = {}
        """Engine's own reference -> the prompt as it arrived here."""

    async def _play(self, request: Generation, say: Any) -> Sample:
        if self.hold:
            gate = asyncio.Event()
            self.gates.append(gate)
            await gate.wait()
        if self.broken:
            raise EngineError("broken on purpose", retryable=False)
        sample = await super()._play(request, say)
        self.prompts[sample.engine_ref or ""] = request.prompt_ids
        return sample

    def open_gates(self, order: list[int] | None = None) -> None:
        """Let what waits go on."""
        gates, self.gates = self.gates, []
        for n in order or range(len(gates)):
            gates[n].set()


class Socketless(LocalGateway):
    """Serves through its ASGI application only."""

    @property
    def url(self) -> str:
        return "http://gateway"


class Log:
    """The run store, and every record that went to it."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self.records: list[CallRecord] = []

    async def commit(self, call: CallRecord, turn: Turn | None) -> None:
        await self.store.commit(call, turn)
        self.records.append(call)

    async def mark(self, call_id: str, outcome: CallOutcome) -> None:
        await self.store.mark(call_id, outcome)

    async def seal(self, session_id: str) -> None:
        await self.store.seal(session_id)

    async def load_turns(self, session_id: str) -> Any:
        return await self.store.load_turns(session_id)

    async def load_calls(self, session_id: str) -> Any:
        return await self.store.load_calls(session_id)


@dataclass
class Sent:
    """One request on a connection of its own."""

    dialect: str
    stream: bool
    body: bytes
    request: Request
    talk: Talk
    seq: int = -1
    """Number of the call in its session."""
    expected: Any = None
    leave_at_headers: bool = False
    left: asyncio.Event = field(default_factory=asyncio.Event)
    parts: list[bytes] = field(default_factory=list)
    status: int = 0
    whole: bool = False
    task: asyncio.Task[None] | None = None
    _asked: bool = False

    async def receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.leave_at_headers:
                self.left.set()
                for _ in range(3):  # so that the gateway's watcher sees it
                    await asyncio.sleep(0)
        elif not self.left.is_set():
            self.parts.append(message.get("body", b""))
            self.whole = not message.get("more_body", False)

    @property
    def reply(self) -> bytes:
        return b"".join(self.parts)

    def says(self) -> Said:
        """The model turn as this client keeps it."""
        assert self.whole and self.status == 200, (self.status, self.reply)
        text = self.reply.decode()
        turn = said(self.dialect, text if self.stream else json.loads(text))
        assert turn is not None, text
        return Said(turn.text, turn.reasoning, tuple(Call(c.id, c.name, c.arguments) for c in turn.calls))


@dataclass(frozen=True)
class Setting:
    """How a session and its gateway are set up. `hints`: the harness names its agents in headers."""

    grace: float
    policy: dict[str, Any]
    live: bool
    hints: bool


def by_headers(headers: Mapping[str, str], request: Request) -> Hint | None:
    """What the harness here says of its agents."""
    thread = headers.get("x-agent")
    return Hint("subagent", thread, "") if thread else None


class Rig:
    """Gateway, engine and store of one session."""

    def __init__(self, script: list[object], setting: Setting) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="tugline-machine-")
        self.run = Path(self._scratch.name) / "run"
        folder, self.model = roomy()
        self.store = RunStore.create(self.run, "")
        self.log = Log(self.store)
        self.engine = Puppet(script, folder, self.run / "engine")
        self.setting = setting
        self.gateway: Any = None
        self.secret = ""
        self._posted = 0

    async def start(self) -> None:
        await self.engine.start()
        await self.boot()

    async def boot(self) -> None:
        """A gateway on the store as it is, as after a crash of the one before."""
        if self.gateway is not None:
            await self.gateway._delivery._marks.written()  # what was handed over is on disk
            self.gateway._pool.shutdown(wait=True)
        timing, shown = Timing(3600.0, self.setting.grace), "live" if self.setting.live else "buffered"
        options = GatewayOptions(timing=timing, retry=RetryPolicy(1, 0.0, 0.0), streaming=shown)  # type: ignore[arg-type]
        self.gateway = Socketless(self.engine, self.model, self.log, DIALECTS, options, roles=(by_headers,))
        access = await self.gateway.open(SESSION, Policy(Sampling(max_tokens=400), **self.setting.policy))
        self.secret = access.secret
        self.log.records.clear()
        self._posted = 0

    @property
    def session(self) -> Any:
        return self.gateway._sessions[SESSION]

    @property
    def forest(self) -> Forest:
        return self.session.lanes[""].forest  # type: ignore[no-any-return]

    def prepare(self, talk: Talk, name: str, stream: bool) -> Sent:
        """The request as one of the APIs has it."""
        made = WRITERS[name].body(talk, WRITERS[name].wire(talk))
        if stream and name != "gemini":
            made["stream"] = True
        body = encoded(made)
        return Sent(name, stream, body, DIALECT[name].decode(body, {"model": "policy"}), talk)

    def post(self, sent: Sent) -> None:
        """Begin; the connection lives until the task ends or `left` is set."""
        path = PATHS.get(sent.dialect) or GEMINI + ("streamGenerateContent" if sent.stream else "generateContent")
        query = b"alt=sse" if sent.dialect == "gemini" and sent.stream else b""
        headers = [(b"authorization", f"Bearer {self.secret}".encode()), (b"content-type", b"application/json")]
        if sent.dialect == "anthropic":
            headers.append((b"anthropic-version", b"2023-06-01"))
        if self.setting.hints and sent.talk.system[0] != "Be brief. ":
            headers.append((b"x-agent", sent.talk.system[0].encode()))
        scope = {"type": "http", "method": "POST", "path": path, "query_string": query, "headers": headers}
        sent.seq, self._posted = self._posted, self._posted + 1
        sent.task = asyncio.ensure_future(self.gateway._app(scope, sent.receive, sent.send))

    def turns(self) -> list[Turn]:
        """As stored."""
        return list(self.store.iter_turns(SESSION))

    async def until_waiting(self, n: int) -> None:
        """`n` generations stand at their gates."""
        async with asyncio.timeout(20):
            while len(self.engine.gates) < n:
                await asyncio.sleep(0.001)

    async def until_left(self, n: int) -> None:
        """The gateway knows that `n` running generations have lost their clients."""
        entries = self.session.lanes[""].retries._entries
        async with asyncio.timeout(20):
            while sum(left for e in entries.values() for left in e.running.values()) < n:
                await asyncio.sleep(0.001)

    async def finish(self) -> tuple[Proof, Trajectory]:
        """End the session; its proof and rows."""
        await self.gateway.close(SESSION)
        turns, calls = list(self.store.iter_turns(SESSION)), list(self.store.iter_calls(SESSION))
        ended = Ended(SessionKey(SESSION, "g", "t", 0), Outcome.COMPLETED, 1.0)
        made = make_trajectory(ended, turns, calls)
        await self.store.put_session(ended)
        await self.store.put_trajectory(made)
        return prove_run(self.store, JournalIndex(self.run / "engine").get), made

    async def stop(self) -> None:
        self.engine.hold = False
        self.engine.open_gates()
        await self.gateway.stop()
        self.gateway._pool.shutdown(wait=True)
        await self.engine.close()
        await self.store.close()
        self._scratch.cleanup()


def encoded(value: Any) -> bytes:
    """JSON with the raw parts that writers leave in."""
    import msgspec

    return msgspec.json.encode(value)


def digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


# -------------------------------------------------------------------------------- what a harness does to a talk


def answered(talk: Talk, turn: Said, words: str, reverse: bool) -> Talk:
    """The talk with the model's turn and what the harness says to it."""
    results = [Result(c, f"{words} {n}", None) for n, c in enumerate(turn.calls)]
    after: tuple[Any, ...] = (tuple(reversed(results) if reverse else results),) if results else (User((words,)),)
    return replace(talk, turns=(*talk.turns, turn, *after))


def spoken(talk: Talk) -> list[int]:
    """Positions of the model's turns."""
    return [i for i, turn in enumerate(talk.turns) if isinstance(turn, Said)]


def shortened(turn: Any) -> Any:
    """Results, or a user's words, cut as harnesses cut what is old."""
    if isinstance(turn, tuple):
        return tuple(replace(r, text=f"[cut] {r.text[:3]}") for r in turn)
    return User(("[cut]",)) if isinstance(turn, User) else turn


def changed(talk: Talk, at: int, new: Said | None) -> Talk:
    """The talk with turn `at` replaced; results follow their calls by position, those of calls that are gone go too.
    None takes the turn out with its results."""
    old, rest = talk.turns[at], list(talk.turns[at + 1 :])
    assert isinstance(old, Said)
    if rest and isinstance(rest[0], tuple):
        places = {c.id: n for n, c in enumerate(old.calls)}
        calls = new.calls if new is not None else ()
        kept = [replace(r, call=calls[places[r.call.id]]) for r in rest[0] if places.get(r.call.id, 99) < len(calls)]
        alone = len(rest) > 1 and isinstance(rest[1], User)
        rest[0:1] = [tuple(kept)] if kept else [] if alone else [User(("go on",))]
    middle = [] if new is None else [new]
    if new is None and not rest:
        rest = [User(("go on",))]
    return replace(talk, turns=(*talk.turns[:at], *middle, *rest))
