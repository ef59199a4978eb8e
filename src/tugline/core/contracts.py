"""The seams. Each Protocol is the slice its callers use; siblings of one layer meet only here.

Every implementation, ours or a user's, passes the contract suite of its Protocol in `tugline.testing`.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from tugline.core.clock import Deadline
from tugline.core.columns import Floats, Ids
from tugline.core.errors import TuglineError
from tugline.core.items import Assistant, Delta, Head, Item, Options, Pending, Reply, Request, Usage
from tugline.core.roles import Hint
from tugline.core.routes import Routes
from tugline.core.task import Environment, Task
from tugline.core.task import ModelRoute as ModelRoute
from tugline.core.turn import CallOutcome, CallRecord, Finish, Sampling, Turn

# ---------------------------------------------------------------------------------------------------- engines


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine is. `model_dir` holds tokenizer.json, the chat template and tugline.json (parser, stop tokens)."""

    kind: str
    model: str
    model_dir: Path
    context: int
    """Window in tokens: prompt + sampled."""
    vocab: int
    stop_ids: tuple[int, ...]
    level: Literal["L0", "L2", "L4"] = "L4"
    logprob_kind: Literal["raw", "processed"] = "processed"
    echoes_prompt: bool = True
    """Whether samples carry the prompt ids as the engine consumed them."""
    capacity: int = 16
    """Generations it runs well at once."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One request to an engine. `request_id` is unique and aborts it; `session_id` is for KV affinity only."""

    request_id: str
    session_id: str
    prompt_ids: Ids
    sampling: Sampling
    stop: tuple[str, ...] = ()
    """Stop strings asked by the harness. The ids are kept whole; the text shown is cut by the gateway."""
    routes_from: int = 0
    """Routes of tokens in front of this position are known already: an engine may leave them out."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What the engine returned. ids int32[n], logprobs float32[n] (nats, of the distribution drawn from).

    The stop id is included in `ids` when finish is "stop" by a stop token. `version_runs` = [(start, version)].
    """

    ids: Ids
    logprobs: Floats
    finish: Finish
    version_runs: tuple[tuple[int, int], ...]
    prompt_ids: Ids | None
    """The engine's echo of the prompt, or None if it cannot."""
    engine_ref: str | None = None
    cached_tokens: int = 0
    fault: str | None = None
    """What contradicts itself in the engine's reply beyond these columns: its tokens never train, by this reason."""
    routes: Routes | None = None
    """Which experts prompt and sample went to, where the engine says so: from position 0 or `routes_from` up to the
    last token but one."""


class Engine(Protocol):
    """Token ids in, sampled ids and log-probabilities out."""

    @property
    def info(self) -> EngineInfo: ...

    async def start(self) -> None:
        """Ready to generate when this returns. Raises EngineError with the cause."""

    async def generate(self, request: Generation) -> Sample:
        """Sample once. Cancelling the await aborts the generation. Raises EngineError (retryable or not)."""
        ...

    async def abort(self, request_id: str) -> None:
        """Stop a running generation; unknown ids are ignored."""

    async def release(self, session_id: str) -> None:
        """The session has ended: its KV may go."""

    async def close(self) -> None:
        """Idempotent. No process of ours is left."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Ids (int32[n]) that were sampled since the piece before. The last piece, and no other, has the whole sample; what
    the pieces hold is the beginning of its ids, not always all of them."""

    ids: Ids
    sample: Sample | None = None


@runtime_checkable
class StreamingEngine(Engine, Protocol):
    """An engine that hands out ids while it samples."""

    def generate_stream(self, request: Generation) -> AsyncGenerator[Piece, None]:
        """As `generate`, piece by piece. Closing or cancelling the iteration aborts the generation. Raises EngineError,
        also behind pieces."""
        ...


@dataclass(frozen=True, slots=True)
class Conversation:
    """One request to an engine that takes messages: all that the harness said, in order."""

    request_id: str
    session_id: str
    head: Head
    items: tuple[Item, ...]
    options: Options
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Said:
    """What such an engine answered. Calls have the engine's own ids. `sample` holds the ids where it says them (L2:
    those that it sampled and, in `prompt_ids`, those of the prompt that it made), else none (L0)."""

    assistant: Assistant
    finish: Literal["stop", "tool_calls", "length"]
    usage: Usage
    sample: Sample
    drift: tuple[str, ...] = ()
    """What of the request could not be sent."""


@runtime_checkable
class MessageEngine(Engine, Protocol):
    """An engine that renders prompts and reads replies itself, such as a commercial API. Its `generate` always raises
    EngineError."""

    async def converse(self, request: Conversation) -> Said:
        """Answer once. Cancelling the await hangs up. Raises EngineError; ContextOverflow when it says so."""
        ...


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine says of itself, in its own counts since it started. None: it does not say."""

    running: float | None = None
    """Requests that are sampled now."""
    waiting: float | None = None
    """Requests that it has taken and not begun."""
    cache_usage: float | None = None
    """Share of its KV cache in use, 0 to 1."""
    prefix_queries: float | None = None
    """Prompt tokens looked up in its prefix cache."""
    prefix_hits: float | None = None
    """Of those, found there."""
    prompt_tokens: float | None = None
    sampled_tokens: float | None = None
    preemptions: float | None = None
    """Requests put back because the cache was full: their prompts are computed again."""


@runtime_checkable
class Measured(Protocol):
    """An engine that can be asked how busy it is."""

    async def load(self) -> EngineLoad:
        """Ask it, in bounded time. Raises EngineError."""
        ...


@dataclass(frozen=True, slots=True)
class Reading:
    """One number of an engine's, for metrics. `label`: (name, value), or none."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    label: tuple[str, str] | None = None
    value: float = 0.0


@runtime_checkable
class Observed(Protocol):
    """An engine that counts what happens to it."""

    def readings(self) -> tuple[Reading, ...]:
        """Numbers as they are now. Called from any thread."""
        ...


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One generation as the engine itself wrote it down, apart from the gateway's store."""

    engine_ref: str
    session_id: str
    prompt_ids: Ids
    ids: Ids
    logprobs: Floats
    finish: Finish
    version_runs: tuple[tuple[int, int], ...]
    routes: Routes | None = None


# --------------------------------------------------------------------------------------------------- dialects


@dataclass(frozen=True, slots=True)
class Route:
    """`path` may hold one `{model}` part. `kind` says what is served there.

    generate  a sample, recorded and trained          count   the prompt's length, by the same decoding
    models    the model list                          model   one model of it
    probe     200 with an empty body, to anybody      refuse  known, not served: an error in the API's own words
    """

    method: str
    path: str
    kind: Literal["generate", "count", "models", "model", "probe", "refuse"]
    params: tuple[tuple[str, str], ...] = ()
    """Handed to decode() beside the path's own parameters, for APIs that say in the path how to reply."""


class Dialect(Protocol):
    """One provider API. Pure: bytes and values in, bytes and values out."""

    name: str
    routes: tuple[Route, ...]
    content_type_stream: str

    def claims(self, headers: Mapping[str, str]) -> bool:
        """Whether a request to a path that several APIs have is meant for this one. Header names are lower case."""
        ...

    def credential(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
        """The session secret where this API carries its key. Header names are lower case."""
        ...

    def decode(self, body: bytes, params: Mapping[str, str]) -> Request:
        """Parse a generate or count call. `params`: of the route and its path; a query parameter `x` is `?x`.

        Raises BadRequest / Unsupported with the field's path, for any bytes whatever.
        """
        ...

    def encode(self, reply: Reply) -> bytes:
        """The whole reply as one JSON body."""
        ...

    def keepalive(self, pending: Pending, n: int) -> bytes:
        """Beat `n`, from 0, of a streamed reply whose engine still works. Clients take none for an answer."""
        ...

    def stream(self, reply: Reply, beats: int = 0) -> tuple[list[bytes], bytes]:
        """The reply as an event stream, behind so many beats: (everything up to the terminal part, the terminal
        part). Without the terminal part clients know that the stream was cut."""
        ...

    def echo(self, reply: Reply) -> Assistant:
        """`reply` encoded and decoded again, as if a harness had echoed it verbatim."""
        ...

    def error(self, err: TuglineError) -> tuple[int, dict[str, str], bytes]:
        """(status, headers, body) in this API's own error shape."""
        ...

    def stream_error(self, err: TuglineError, pending: Pending, beats: int = 0) -> bytes:
        """The error as the last event of a stream of which only beats have left."""
        ...

    def counted(self, tokens: int) -> bytes:
        """Reply to a count call."""
        ...

    def models(self, model: str, context: int) -> bytes:
        """Body of the model list. `context`: window in tokens."""
        ...

    def model(self, asked: str, context: int) -> bytes:
        """Body that describes the model asked for, whatever its name: it means the policy."""
        ...

    def refusal(self, path: str) -> TuglineError:
        """Why a `refuse` route is not served, with what to do instead."""
        ...


class LiveStream(Protocol):
    """One reply spelled as an event stream while it is sampled: open, deltas and beats, close. Pure, used by one call.

    The events are those of `Dialect.stream`, up to how texts are cut into deltas.
    """

    def open(self, prompt: int) -> bytes:
        """What stands before the first delta. `prompt`: tokens of the prompt."""
        ...

    def delta(self, more: Delta) -> bytes:
        """Events that say more. Never empty text."""
        ...

    def beat(self) -> bytes:
        """A keep-alive behind a delta."""
        ...

    def close(self, reply: Reply) -> tuple[bytes, bytes]:
        """(the rest up to the terminal part, the terminal part). Raises VerifyError when what was said is not how the
        reply begins."""
        ...


@runtime_checkable
class LiveDialect(Dialect, Protocol):
    """A dialect that can spell a reply before it is whole."""

    def live(self, pending: Pending, beats: int = 0) -> LiveStream:
        """A stream behind so many beats."""
        ...


# -------------------------------------------------------------------------------------------------- sandboxes


@dataclass(frozen=True, slots=True)
class Limits:
    """Per sandbox. Bytes, processes."""

    memory: int = 4 << 30
    disk: int = 1 << 30
    pids: int = 512


@dataclass(frozen=True, slots=True)
class Mount:
    """A host directory or file shown read-only inside."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True)
class Command:
    """What to run inside. `env` is complete: nothing of the host's environment leaks in.

    `stdout` / `stderr` are host files that receive the output (size-capped by the sandbox); None = discard.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    stdin: bytes = b""
    stdout: Path | None = None
    stderr: Path | None = None
    mounts: tuple[Mount, ...] = ()
    root: bool = False
    """Run as the sandbox's uid 0 (still without privileges outside). Prepare steps and verifiers only."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command ended. `code` is the exit status, or -signal. `seconds` is wall time."""

    code: int
    seconds: float
    timed_out: bool = False
    oom: bool = False


@dataclass(frozen=True, slots=True)
class Gateway:
    """What a sandbox needs to let a command reach the gateway and nothing else.

    An isolating sandbox binds 127.0.0.1:`port` inside the command's own network namespace and hands the listening
    socket to `serve` BEFORE the command starts; whoever connects through it is that session, whatever it says.
    `serve` returns a closer, called when the command has ended.
    """

    port: int
    serve: Callable[[socket.socket], Awaitable[Callable[[], Awaitable[None]]]]


class Sandbox(Protocol):
    """One session's box: a file system that outlives its commands, and commands that never outlive `run`."""

    @property
    def workdir(self) -> str: ...

    @property
    def isolated(self) -> bool: ...

    async def run(self, command: Command, deadline: Deadline, gateway: Gateway | None = None) -> Exit:
        """Run to completion. At the deadline, or when cancelled, every process the command started (also setsid
        children) is dead before this returns. Raises SandboxError when it could not be started."""
        ...

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Create a file (and parents) inside."""

    async def read(self, path: str, limit: int = 1 << 20) -> bytes | None:
        """Content of a regular file inside, at most `limit` bytes (more: SandboxError); None if absent.
        Symbolic links are resolved inside the sandbox, never on the host."""
        ...

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host directory's content to a path inside."""

    async def clone(self) -> Sandbox:
        """A fresh box with the work directory as it stands and everything else pristine. For judging."""
        ...

    async def close(self) -> None:
        """Remove everything. Idempotent, bounded in time."""


class SandboxProvider(Protocol):
    """Makes sandboxes. `isolating` = agents inside reach the gateway only."""

    name: str
    isolating: bool

    async def check(self) -> list[str]:
        """What is missing on this machine, in words that say what to do; empty = works."""
        ...

    async def start(self, environment: Environment, session_id: str, limits: Limits) -> Sandbox:
        """A sandbox from the environment's snapshot (prepared once per digest, then cloned copy-on-write)."""
        ...

    async def reap(self) -> int:
        """Remove what dead runs left behind in this run directory; number of things removed."""
        ...

    async def close(self) -> None:
        """Remove every sandbox and snapshot of this provider."""


@runtime_checkable
class ImageProvider(Protocol):
    """A sandbox provider that makes sandboxes from images."""

    async def images(self) -> Mapping[str, str]:
        """Image as tasks name it -> digest of what was used so far."""
        ...


# -------------------------------------------------------------------------------------------------- harnesses


@dataclass(frozen=True, slots=True)
class Bundle:
    """An installed harness: host directories to show inside the sandbox, read-only."""

    mounts: tuple[Mount, ...]
    version: str


@dataclass(frozen=True, slots=True)
class Launch:
    """What a harness gets to know. `base_url` has no trailing slash and no /v1; `key` is the session's secret."""

    instruction: str
    base_url: str
    key: str
    workdir: str
    home: str
    context: int
    max_tokens: int
    isolated: bool
    """False: mounts are not mapped, use the host paths of the bundle."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How to start a harness: files to write first, then one command."""

    command: Command
    files: tuple[tuple[str, bytes], ...] = ()


class Harness(Protocol):
    """An agent program and how to start it. `dialect` is the name of the API that it speaks."""

    name: str
    dialect: str

    async def install(self, cache: Path, say: Callable[[str], None]) -> Bundle:
        """Fetch into `cache` once (idempotent, safe against concurrent calls); `say` gets progress lines."""
        ...

    def plan(self, launch: Launch, bundle: Bundle) -> Plan:
        """Pure."""
        ...

    def failure(self, exit: Exit, log: bytes) -> str | None:
        """One line when the agent itself failed, from its exit status and the tail of its log; None if it finished."""
        ...


class RoleRule(Protocol):
    """What one harness's requests say of themselves. Pure, total and quick: it sees every request of every agent."""

    def __call__(self, headers: Mapping[str, str], request: Request) -> Hint | None:
        """None for a request of another harness. Header names are lower case."""
        ...


# -------------------------------------------------------------------------------------------------- verifiers


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier said. Finite numbers only."""

    reward: float
    parts: Mapping[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    """Names of proofs that the work cheated; such a verdict has the reward 0."""
    marks: tuple[str, ...] = ()
    """Names of what people may want to look at; they cost nothing."""


class Verifier(Protocol):
    """Scores what an agent left. The agent is dead before this is called."""

    name: str

    async def judge(self, task: Task, box: Sandbox, deadline: Deadline, out: Path) -> Verdict:
        """`box` is a clone made for judging; `out` is a host directory for the verifier's log and files.
        Raises VerifierError when there is no valid verdict (crash, no reward file, non-finite number, time)."""
        ...


# ------------------------------------------------------------------------------------------------------ store


class CallLog(Protocol):
    """Where the gateway makes calls durable."""

    async def commit(self, call: CallRecord, turn: Turn | None) -> None:
        """Durable (survives kill -9) when this returns. Idempotent by call_id; the same id with another payload, or
        any write after the session was sealed, raises StoreError, as does a full disk."""
        ...

    async def mark(self, call_id: str, outcome: CallOutcome) -> None:
        """Set the outcome of a committed call once its delivery is known; it is settled then. Same errors as commit."""
        ...

    async def load_turns(self, session_id: str) -> Sequence[Turn]:
        """Turns of a session in commit order."""
        ...

    async def load_calls(self, session_id: str) -> Sequence[CallRecord]:
        """Calls of a session in commit order."""
        ...

    async def seal(self, session_id: str) -> None:
        """No more writes for this session. Idempotent."""
        ...


# ------------------------------------------------------------------------------------- gateway <-> rollout


Edit: TypeAlias = Literal["retain", "honour"]


@dataclass(frozen=True, slots=True)
class EditPolicy:
    """What becomes of a turn of ours that a harness echoes otherwise than it was said. Each is counted as drift.

    retain: the sampled ids stay, what the harness changed is not obeyed. honour: the conversation branches before the
    turn and the harness's words stand there. Edits that are not listed have no choice: other spellings are retained,
    calls added, removed or renamed are honoured.
    """

    ws_trim: Edit = "retain"
    """White space trimmed off text or reasoning."""
    reasoning_changed: Edit = "retain"
    """Other reasoning, or reasoning where there was none. Dropped reasoning: `Policy.history_reasoning`."""
    args_lossy_known: Edit = "retain"
    """Arguments that are no JSON object, replaced in a way that harnesses are known for."""
    args_repaired: Edit = "honour"
    """Arguments that were no JSON object, replaced by others."""
    args_changed: Edit = "honour"
    """Another value of arguments that were one."""
    text_changed: Edit = "honour"
    partial_echo: Edit = "retain"
    """Only the beginning, as after a broken stream. retain: the ids of that beginning stay, as context; the
    conversation branches behind them. Never with `Policy.history_reasoning` "template"."""
    train_partial: bool = False
    """Whether what a partial echo keeps trains, where the whole turn was never delivered."""
    head_changed: Edit = "honour"
    """Other tools or template arguments: a root of its own, or the conversation goes on under those it began with."""


@dataclass(frozen=True, slots=True)
class TextFilter:
    """Text that counts for nothing when a request is matched with earlier turns. `pattern` is a regular expression over
    the text of one item."""

    name: str
    pattern: str
    where: Literal["first_system", "any"] = "any"
    """first_system: the conversation's first system text only. any: every system, user and result text."""


@dataclass(frozen=True, slots=True)
class Egress:
    """Hosts that a session's agent may reach through the gateway: `host`, `*.domain`, an address or a network, `:port`
    behind it where it is neither 80 nor 443. `log` gets a JSON line for each attempt."""

    hosts: tuple[str, ...]
    log: Path | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator fixes for a session's calls. None = as the harness asks."""

    sampling: Sampling
    max_turns: int | None = None
    max_session_tokens: int | None = None
    history_reasoning: Literal["keep", "template"] = "keep"
    """keep: sampled reasoning stays in the prompt. template: only where the chat template itself would leave it, at the
    price of a new row wherever it would not; a harness that drops reasoning is obeyed."""
    media: Literal["omit", "refuse"] = "omit"
    """Images and files, which a text model cannot see: named in their place (drift `media_omitted`), or an error."""
    constraints: Literal["ignore", "refuse"] = "refuse"
    """Structured output and forced tools on an engine without constrained sampling: sampled freely, or an error."""
    routes: tuple[ModelRoute, ...] = ()
    """Model names that do not mean the policy. The first that fits counts."""
    edits: EditPolicy = EditPolicy()
    filters: tuple[TextFilter, ...] = ()
    egress: Egress | None = None
    """None: the gateway is all that an isolated agent can reach."""
    streaming: Literal["buffered", "live"] | None = None
    """Whether streams begin when a reply is whole, or show it while it is sampled. None: as the gateway's others."""


@dataclass(frozen=True, slots=True)
class Access:
    """How an agent reaches the gateway. `url` carries no secret; `secret_url` has the /s/<secret> prefix."""

    session_id: str
    secret: str
    url: str
    secret_url: str


@dataclass(frozen=True, slots=True)
class SessionCalls:
    """What the gateway saw of a session: calls by outcome, sampled tokens; since the last answered call, how often the
    engine failed a call and the last error of any kind."""

    calls: Mapping[str, int]
    turns: int
    sampled_tokens: int
    engine_failures: int
    last_error: str | None
    other_turns: int = 0
    """Turns of engines that are not the policy; `turns` has the policy's alone."""


class SessionGate(Protocol):
    """The rollout service's view of a gateway."""

    async def open(self, session_id: str, policy: Policy) -> Access:
        """Start accepting calls of a session under a fresh secret."""
        ...

    async def serve(self, session_id: str, listener: socket.socket) -> Callable[[], Awaitable[None]]:
        """Accept calls through `listener`; whoever comes this way is `session_id`. Returns the closer."""
        ...

    async def close(self, session_id: str) -> SessionCalls:
        """Stop accepting, abort what runs, seal the session's record. Idempotent."""
        ...
