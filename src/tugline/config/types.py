"""Every setting there is. Docstrings give the unit. Durations are seconds, sizes are bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ConcurrencySettings:
    """Sessions per stage at once."""

    boot: int = 2
    run: int = 8
    judge: int = 2


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What is run and where its records go."""

    out: str | None = None
    """Run directory; None = runs/<time>-<name>."""
    name: str = "rollout"
    n: int = 8
    """Sessions per task (a group)."""
    seed: int | None = None
    concurrency: ConcurrencySettings = field(default_factory=ConcurrencySettings)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What samples."""

    spec: str = "embedded"
    """embedded | scripted:FILE | vllm:URL | sglang:URL | openai:URL."""
    model: str | None = None
    """Model directory; None = the pilot policy that ships with the package. For openai the model's name there."""
    served: str | None = None
    """The model's name at vllm or sglang; None = the first one that is served."""
    key_file: str | None = None
    """File with the engine's API key, one line."""
    key_env: str | None = None
    """Environment variable with the engine's API key."""
    connect_timeout: float = 10.0
    reply_timeout: float = 1800.0
    """Of one whole generation."""
    patience: float = 60.0
    """How long calls wait for an engine that does not answer, before they fail."""
    prices: tuple[str, ...] = ()
    """For openai, per million tokens: input, output and, if it differs, cached input. Costs are added up in these."""
    device: str = "cpu"
    threads: int = 1
    """CPU threads of the embedded engine."""
    slots: int = 32
    """KV slots of the embedded engine: conversations kept warm."""
    parser: str | None = None
    """Reply format of the model's family; None = told by its template and tokenizer."""
    template: str | None = None
    """File with the chat template, or the name of one of the model's own; None = the model's own."""
    stop: tuple[str, ...] = ()
    """Tokens that end a turn; empty = what the model's files and its family say."""
    context: int | None = None
    """Window in tokens; None = what the model's files say."""
    template_kwargs: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Arguments of the chat template, where a request brings none of that name."""


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Pinned for every call of every session; what a harness asks for is recorded, not used."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 = the whole vocabulary."""
    max_tokens: int = 1024
    """Per turn. A harness may ask for less, never for more."""


@dataclass(frozen=True, slots=True)
class HarnessSettings:
    """Which agent program."""

    name: str = "pi"
    """pi | pi:responses | pi:anthropic | pi:gemini | bash-agent | command:ARGV."""


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """Where agents run."""

    name: str = "auto"
    """auto | bubblewrap | container | apptainer | local."""
    memory: int = 4 << 30
    """Bytes per sandbox."""
    disk: int = 512 << 20
    """Bytes that a session may write."""
    pids: int = 512
    runtime: str = "auto"
    """auto | podman | docker: what runs containers; auto takes podman where it is installed."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Pattern of a task's image (shell wildcards) -> what to use instead: NAME[:TAG], NAME@sha256:..., rootfs:DIR,
    rootfs:FILE, oci-archive:FILE, docker-archive:FILE, build:DIR, or host (tools of this machine)."""
    image: str = "host"
    """The same, for tasks that name no image."""
    pull: bool = True
    """Whether images that are not here are fetched."""
    pinned: bool = False
    """Refuse images named without a digest."""
    egress: tuple[str, ...] = ()
    """Hosts that agents may reach through the gateway, where their task wants a network: host, *.domain, address or
    network, each with :PORT or for 80 and 443. Empty: none."""
    keep: float = 30 * 86400.0
    """How long unpacked images and prepared snapshots stay in the cache unused."""
    cache_size: int = 100 << 30
    """Bytes of them; beyond it the least used go."""


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Budgets per session. A task's own limits come first."""

    boot_timeout: float = 300.0
    agent_timeout: float = 600.0
    judge_timeout: float = 120.0
    max_turns: int | None = None
    max_tokens_per_session: int | None = None
    infra_retries: int = 2
    """New attempts after an infrastructure failure."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The data plane."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 = a free one."""
    advertise: str | None = None
    """Host name that agents are given; None = `host`, or this machine's name where that is every address."""
    keepalive: float = 5.0
    """Seconds of silence before a stream is opened, and between its pings."""
    grace: float = 10.0
    """Seconds that a generation goes on after its client has left."""
    max_body: int = 32 << 20
    """Bytes of one request."""
    media: str = "omit"
    """omit | refuse: images and files, which a text model cannot see."""
    constraints: str = "refuse"
    """refuse | ignore: structured output and forced tools on an engine without constrained sampling."""
    streaming: str = "buffered"
    """buffered | live: streams begin when a reply is whole, or show it while it is sampled."""
    rerender: bool = False
    """Control experiment: render every prompt anew, as gateways without token-in do. Breaks continuity on purpose."""


@dataclass(frozen=True, slots=True)
class EditSettings:
    """What becomes of a turn of ours that an agent sends back otherwise. retain: the sampled ids stay. honour: the
    conversation branches before the turn, and the agent's words stand there."""

    history_reasoning: str = "keep"
    """keep | template: sampled reasoning stays in the prompt, or only where the chat template would leave it."""
    ws_trim: str = "retain"
    reasoning_changed: str = "retain"
    args_lossy_known: str = "retain"
    args_repaired: str = "honour"
    args_changed: str = "honour"
    text_changed: str = "honour"
    partial_echo: str = "retain"
    """Only the beginning, as after a broken stream. retain: its ids stay, as context, and the turn ends there."""
    train_partial: bool = False
    """Whether the beginning that stays trains, where the whole turn was never delivered."""
    head_changed: str = "honour"
    """Other tools or template arguments. honour: a conversation of its own; retain: it goes on under the first ones."""


@dataclass(frozen=True, slots=True)
class FilterSettings:
    """Volatile text that counts for nothing when requests are matched with turns. Prompts are never filtered."""

    billing_header: bool = True
    """A line `x-anthropic-billing-header: ...` at the beginning of the first system text."""
    total_tokens: bool = False
    """`<total_tokens>...</total_tokens>` in any text."""
    own: Mapping[str, str] = field(default_factory=dict)
    """Name -> regular expression over any system, user or result text."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What the names that harnesses ask for mean."""

    routes: Mapping[str, str] = field(default_factory=dict)
    """Pattern of a model's name (shell wildcards) -> name of an engine in [engines]. Every other name is the policy."""


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """What is fetched once and kept."""

    dir: str = "~/.cache/tugline"
    """Harness bundles. TUGLINE_CACHE sets it; otherwise XDG_CACHE_HOME decides what stands for ~/.cache."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything."""

    run: RunSettings = field(default_factory=RunSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    harness: HarnessSettings = field(default_factory=HarnessSettings)
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    edits: EditSettings = field(default_factory=EditSettings)
    filters: FilterSettings = field(default_factory=FilterSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    engines: Mapping[str, EngineSettings] = field(default_factory=dict)
    """Engines beside the policy, by name: teachers, judges, utility models. Their calls are recorded, never trained."""
    models: ModelSettings = field(default_factory=ModelSettings)
