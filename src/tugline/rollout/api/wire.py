"""Bodies of the control plane, strictly typed: an unknown key is an error with its path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from tugline.core.contracts import ModelRoute
from tugline.core.errors import BadRequest, TuglineError
from tugline.core.session import Outcome
from tugline.rollout.options import Ending, SessionOptions
from tugline.rollout.views import SessionReport, SessionView

T = TypeVar("T", bound=msgspec.Struct)

_PATH = re.compile(r" - at `\$?\.?(.*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"unknown field `(.*)`$", re.DOTALL)


class RouteBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Calls for a model named like `pattern` (shell wildcards) go to the engine of that name."""

    pattern: str
    engine: str


Edit: TypeAlias = Literal["retain", "honour"] | None


class EditsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of turns that an agent sends back changed, where that is not as the run's settings have it."""

    ws_trim: Edit = None
    reasoning_changed: Edit = None
    args_lossy_known: Edit = None
    args_repaired: Edit = None
    args_changed: Edit = None
    text_changed: Edit = None
    partial_echo: Edit = None
    train_partial: bool | None = None
    head_changed: Edit = None


class OpenBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A session to open. Everything may be left out."""

    name: str | None = None
    group: str | None = None
    task: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    max_turns: int | None = None
    max_tokens_per_session: int | None = None
    ttl: float | None = None
    engine: str | None = None
    routes: tuple[RouteBody, ...] = ()
    media: Literal["omit", "refuse"] | None = None
    constraints: Literal["ignore", "refuse"] | None = None
    streaming: Literal["buffered", "live"] | None = None
    history_reasoning: Literal["keep", "template"] | None = None
    edits: EditsBody = EditsBody()
    metadata: dict[str, Any] = {}

    def options(self) -> SessionOptions:
        """As the service takes it."""
        plain = {name: getattr(self, name) for name in self.__struct_fields__ if name not in ("routes", "edits")}
        edits = {name: value for name, value in msgspec.structs.asdict(self.edits).items() if value is not None}
        routes = tuple(ModelRoute(r.pattern, r.engine) for r in self.routes)
        return SessionOptions(**plain, routes=routes, edits=edits)


class EndBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a session went."""

    reward: float | None = None
    parts: dict[str, float] = {}
    outcome: Outcome = Outcome.COMPLETED
    reason: str | None = None

    def ending(self) -> Ending:
        """As the service takes it."""
        return Ending(self.reward, self.parts, self.outcome, self.reason)


class ErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    """`code` is for programs and does not change; `path` names the field of the body or the query."""

    code: str
    message: str
    path: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """Every reply with a status of 400 or more."""

    error: ErrorDetail


class Removed(msgspec.Struct, frozen=True):
    """`removed` is false when the session was open: it is cancelled now, and its records are kept."""

    session: str
    removed: bool


class Health(msgspec.Struct, frozen=True):
    """Says that the process serves."""

    status: str
    version: str


def decode(kind: type[T], body: bytes) -> T:
    """An empty body is {}. Raises BadRequest with the path of the wrong field, for any bytes whatever."""
    try:
        return msgspec.json.decode(body.strip() or b"{}", type=kind)
    except msgspec.ValidationError as err:
        raise _invalid(str(err)) from err
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        raise BadRequest(f"not valid JSON: {err}") from err
    except RecursionError as err:
        raise BadRequest("the body nests too deeply") from err


def error_body(err: TuglineError) -> bytes:
    """The one error shape."""
    path = getattr(err, "path", "") or None
    message = err.message.removeprefix(f"{path}: ") if path else err.message
    return msgspec.json.encode(ErrorBody(ErrorDetail(err.detail_code, message, path)))


def report_body(report: SessionReport) -> Mapping[str, Any]:
    """A session with its use, in one object."""
    view = {name: getattr(report.view, name) for name in SessionView.__slots__}
    return {**view, "usage": report.usage, "history": report.history, "options": report.options}


def _invalid(text: str) -> BadRequest:
    match = _PATH.search(text)
    path = match.group(1).replace("[...]", "[]") if match else ""
    message = _PATH.sub("", text)
    unknown = _UNKNOWN.search(message)
    if unknown:
        path = f"{path}.{unknown.group(1)}" if path else unknown.group(1)
        message = "unknown key"
    return BadRequest(message, path=path)
