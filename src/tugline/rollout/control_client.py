"""The control plane's client: each route as a method, each refusal as the error that the server raised."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from tugline.core.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    NotFound,
    Overloaded,
    RunError,
    StoreError,
    TooLarge,
    TuglineError,
    Unauthorized,
    describe,
)
from tugline.core.trace import Trajectory
from tugline.rollout.api.token import read_token
from tugline.rollout.control_file import read_control
from tugline.rollout.trajectory_json import decode_trajectory

SECONDS = 60.0
"""Ending a session builds its rows: allow it time."""
_KINDS: dict[int, type[TuglineError]] = {
    kind.status: kind for kind in (Unauthorized, Forbidden, NotFound, Conflict, TooLarge, StoreError)
}


class ControlClient:
    """Blocking; one may be used by several threads."""

    def __init__(self, url: str, token: str, *, hint: str = "") -> None:
        """`hint` is said when nobody answers at `url`."""
        self.url = url.rstrip("/")
        self._hint = hint
        self._headers = {"authorization": f"Bearer {token}"}
        self._http = self._connect()

    @classmethod
    def of_run(cls, run: Path) -> ControlClient:
        """The gateway running on a run directory of this machine. Raises RunError."""
        control = read_control(run)
        token = read_token(Path(control.token_file))
        hint = f"; the gateway of {run} (process {control.pid}) is gone: start it again with --out {run}"
        return cls(control.url, token, hint=hint)

    def open(self, **options: Any) -> dict[str, Any]:
        """Open a session; `key` in the answer is told only here."""
        return self._ask("POST", "/api/v1/sessions", options)

    def end(
        self,
        session: str,
        reward: float | None = None,
        *,
        parts: Mapping[str, float] | None = None,
        outcome: str = "completed",
        reason: str | None = None,
    ) -> dict[str, Any]:
        """End a session."""
        body = {"reward": _finite(reward), "parts": dict(parts or {}), "outcome": outcome, "reason": reason}
        return self._ask("POST", f"{_at(session)}/end", body)

    def show(self, session: str) -> dict[str, Any]:
        """State, calls by outcome, turns, tokens."""
        return self._ask("GET", _at(session))

    def list(self, **query: Any) -> dict[str, Any]:
        """{"sessions": [...], "next"}; query: state, group, limit, after."""
        return self._ask("GET", "/api/v1/sessions", query={k: v for k, v in query.items() if v is not None})

    def delete(self, session: str) -> bool:
        """Whether records were removed; False: the session was open and is cancelled now."""
        return bool(self._ask("DELETE", _at(session))["removed"])

    def trajectory(self, session: str) -> Trajectory:
        """Rows and reward of an ended session."""
        return decode_trajectory(self._send("GET", f"{_at(session)}/trajectory"))

    def metrics(self) -> str:
        """Prometheus exposition."""
        return self._send("GET", "/metrics").decode()

    def close(self) -> None:
        """Let the kept connections go; what is asked later gets one of its own. Idempotent."""
        self._http.close()

    def _connect(self) -> httpx.Client:
        # no proxy of the environment stands between us and a gateway that we were given by address
        return httpx.Client(base_url=self.url, headers=self._headers, timeout=SECONDS, trust_env=False)

    def _ask(self, method: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self._send(method, path, body, query), type=dict[str, Any])
        return found

    def _send(self, method: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None) -> bytes:
        try:
            content = None if body is None else msgspec.json.encode(body)
        except (TypeError, ValueError, OverflowError, RecursionError) as err:
            raise BadRequest(f"cannot be written as JSON: {err}") from err
        try:
            if self._http.is_closed:
                with self._connect() as once:
                    response = once.request(method, path, content=content, params=query)
            else:
                response = self._http.request(method, path, content=content, params=query)
        except (httpx.HTTPError, httpx.InvalidURL) as err:
            raise RunError(f"no control plane answers at {self.url} ({describe(err)}){self._hint}") from err
        if response.status_code >= 400:
            raise _error(response.status_code, response.content)
        return response.content


def _finite(reward: float | None) -> float | None:
    """JSON has no NaN: it would arrive as no reward at all."""
    if reward is not None and reward - reward != 0:
        raise BadRequest("is not a finite number", path="reward")
    return reward


def _at(session: str) -> str:
    return f"/api/v1/sessions/{quote(session, safe='')}"


def _error(status: int, data: bytes) -> TuglineError:
    try:
        detail = msgspec.json.decode(data, type=dict[str, dict[str, Any]])["error"]
        code, message, path = str(detail["code"]), str(detail["message"]), str(detail.get("path") or "")
    except (msgspec.DecodeError, KeyError):
        return TuglineError(f"the control plane answered {status}: {data[:200]!r}")
    if status == 400:
        return BadRequest(message, path=path, code=code)
    if status == 429:
        return Overloaded(message)
    return _KINDS.get(status, TuglineError)(message, code=code)
