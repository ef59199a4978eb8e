"""Sessions from Python: `open_session` for one, `open_gateway` for many. Safe to use from several threads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypedDict, Unpack

from tugline.core.errors import ConfigError, RunError, TuglineError, describe
from tugline.core.session import Outcome
from tugline.core.trace import Trajectory
from tugline.rollout.control_client import ControlClient
from tugline.rollout.gateway_process import GatewayProcess, StartOptions
from tugline.rollout.options import REASON

__all__ = ["Gateway", "Options", "Session", "open_gateway", "open_session"]


class Options(TypedDict, total=False):
    """What a session may ask for; as in the control plane's `POST /api/v1/sessions`."""

    name: str
    group: str
    task: str
    temperature: float
    top_p: float
    top_k: int
    max_tokens: int
    max_turns: int
    max_tokens_per_session: int
    ttl: float
    engine_name: str
    """The engine that all calls go to; `engine` in the API."""
    routes: list[dict[str, str]]
    media: str
    constraints: str
    streaming: str
    history_reasoning: str
    edits: Mapping[str, str | bool]
    """Some of the run's `[edits]`, by their names there."""
    metadata: Mapping[str, Any]


class OneSession(Options, StartOptions, total=False):
    """A session, and the gateway that is started for it alone."""


class Session:
    """One open session. As a context manager it ends itself: as agent_failed when the body raises (cancelled by ^C),
    else as completed without a reward, unless `end` was called."""

    def __init__(
        self,
        client: ControlClient,
        opened: Mapping[str, Any],
        owned: GatewayProcess | None = None,
        *,
        alone: bool = False,
    ) -> None:
        """`alone`: nobody else uses the client. `owned`: a gateway that ends with this session."""
        self._client = client
        self._owned = owned
        self._alone = alone
        self._ended = False
        self.id: str = opened["session"]
        self.key: str = opened["key"]
        """The API key for the agent: the session's secret."""
        self.group: str = opened["group"]
        self.task: str = opened["task"]
        self.index: int = opened["index"]
        self.openai_url: str = opened["openai"]
        self.anthropic_url: str = opened["anthropic"]
        self.gemini_url: str = opened["gemini"]
        self.env: dict[str, str] = dict(opened["env"])
        """Variables for the agent's process: base URL and key of every API."""

    def end(
        self,
        reward: float | None = None,
        *,
        parts: Mapping[str, float] | None = None,
        outcome: str = "completed",
        reason: str | None = None,
    ) -> dict[str, Any]:
        """End it, with what a verifier said. The key is dead when this returns. Saying the same again is nothing.

        Raises Conflict when it has ended otherwise, BadRequest for a reward that is no finite number.
        """
        view = self._client.end(self.id, reward, parts=parts, outcome=outcome, reason=reason)
        self._ended = True
        return view

    def show(self) -> dict[str, Any]:
        """State, calls by outcome, turns, tokens."""
        return self._client.show(self.id)

    def trajectory(self) -> Trajectory:
        """Training rows and reward; `core.columns` has numpy views of their columns. Raises Conflict while open."""
        if self._owned is not None and self._owned.stopped:
            return self._owned.stored(self.id)
        return self._client.trajectory(self.id)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if not self._ended:
                self._end_for(err)
        finally:
            if self._alone:
                self._client.close()
            if self._owned is not None:
                _stop(self._owned, quiet=err is not None)

    def _end_for(self, err: BaseException | None) -> None:
        if err is None:
            outcome, reason = Outcome.COMPLETED, None
        else:
            outcome = Outcome.AGENT_FAILED if isinstance(err, Exception) else Outcome.CANCELLED
            reason = "".join(c if c.isprintable() else " " for c in describe(err))[:REASON]
        try:
            self.end(outcome=outcome, reason=reason)
        except TuglineError:
            # it ended otherwise (its time was over), or the gateway is gone and will call it lost
            self._ended = True


class Gateway:
    """A running gateway: started by us (and stopped at the end), or somebody else's (and left alone)."""

    def __init__(self, client: ControlClient, process: GatewayProcess | None = None) -> None:
        self.client = client
        self._process = process

    @property
    def run(self) -> Path | None:
        """The run directory of a gateway that we started."""
        return self._process.run if self._process else None

    def open_session(self, **options: Unpack[Options]) -> Session:
        """Open one more session. Raises BadRequest naming the option, Conflict."""
        return Session(self.client, self.client.open(**_wire(options)))

    def close(self) -> None:
        """Stop what we started: open sessions end as cancelled, then the run proves itself. Idempotent.

        Raises RunError when a proof fails.
        """
        self.client.close()
        if self._process is not None:
            _stop(self._process, quiet=False)

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        self.client.close()
        if self._process is not None:
            _stop(self._process, quiet=err is not None)


def open_gateway(
    *,
    control: str | None = None,
    token: str | None = None,
    run: Path | str | None = None,
    **start: Unpack[StartOptions],
) -> Gateway:
    """A gateway for many sessions: somebody else's by `control` and `token`, or by its `run` directory; or a new one of
    `engine` (embedded, scripted:FILE) and `model` in a process of its own.

    Raises RunError when it cannot be reached or started, ConfigError for arguments that do not fit together.
    """
    if start and (control or run):
        raise ConfigError(f"{sorted(start)[0]} is for a new gateway; control= and run= name a running one")
    if control is not None:
        if token is None or run is not None:
            raise ConfigError("give control= together with token=, or run= alone")
        return Gateway(ControlClient(control, token))
    if run is not None:
        if token is not None:
            raise ConfigError("run= has its token in the run directory: leave token= out")
        return Gateway(ControlClient.of_run(Path(run)))
    process = GatewayProcess.start(start)
    return Gateway(ControlClient(process.control, process.token), process)


def open_session(
    *,
    control: str | None = None,
    token: str | None = None,
    run: Path | str | None = None,
    **options: Unpack[OneSession],
) -> Session:
    """One session for an agent that you run yourself; use it in a `with` statement.

    Of a running gateway: `control=URL, token=...` or `run=RUN`. Of a new one that lives as long as the session:
    `engine=`, `model=`, `out=`, `config=`, `sampling=`. The rest are the session's own options (see `Options`).
    """
    begin = {name: value for name, value in options.items() if name in StartOptions.__optional_keys__}
    own = {name: value for name, value in options.items() if name not in begin}
    gateway = open_gateway(control=control, token=token, run=run, **begin)  # type: ignore[arg-type]  # sorted out above
    try:
        opened = gateway.client.open(**_wire(own))
    except BaseException as err:
        gateway.__exit__(type(err), err, None)
        raise
    return Session(gateway.client, opened, gateway._process, alone=True)


def _stop(process: GatewayProcess, *, quiet: bool) -> None:
    """`quiet`: another error is on its way, which says more."""
    failure = process.stop()
    if failure is not None and not quiet:
        raise RunError(f"the gateway of {process.run} did not end well: {failure}")


def _wire(options: Mapping[str, Any]) -> dict[str, Any]:
    """Names as in the API."""
    return {
        ("engine" if name == "engine_name" else name): value for name, value in options.items() if value is not None
    }
