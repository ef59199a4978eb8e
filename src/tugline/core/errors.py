"""Every error Tugline raises, on one page.

TuglineError
|- BadRequest            a client sent something we cannot read (400); carries the path of the field
|  |- ContextOverflow    the prompt does not fit the engine's window (400, in the dialect's own words)
|  |- Unsupported        a well-formed request for something this policy cannot do, e.g. images (400)
|- Unauthorized          unknown session credential (401)
|- Forbidden             the session has ended (403)
|- NotFound              no such route, model or object (404)
|- Conflict              what is asked contradicts what has happened, e.g. a second, other reward (409)
|- TooLarge              body above the limit (413)
|- Overloaded            no capacity now; retryable (429 with Retry-After)
|- EngineError           the engine failed or answered nonsense (502)
|- StoreError            a call could not be made durable; retryable (503)
|- SandboxError          a sandbox could not be started, used or removed (infra)
|- HarnessError          a harness could not be installed or started
|- VerifierError         a verifier crashed or wrote no usable reward (infra, never a reward of 0)
|- TaskError             a task directory is broken; names file and field
|- ConfigError           a setting is unknown, mistyped or without effect; names where it came from
|- RunError              a run directory is locked, foreign or damaged
|- VerifyError           recorded data contradicts itself or the engine's journal

Rules: a foreign exception is converted once, by `boundary`; errors that cross a stage become data (`describe`); nobody
compares messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar


class TuglineError(Exception):
    """Root. `message` is for people and says what to do; `code` is for programs and never changes."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail_code = code or self.code


class BadRequest(TuglineError, ValueError):
    """The client's bytes are not a valid request. `path` names the field, e.g. `messages[3].content`."""

    status = 400
    code = "invalid_request"

    def __init__(self, message: str, *, path: str = "", code: str | None = None) -> None:
        super().__init__(f"{path}: {message}" if path else message, code=code)
        self.path = path


class ContextOverflow(BadRequest):
    """The prompt alone exceeds the window. Counts are tokens."""

    code = "context_length_exceeded"

    def __init__(self, prompt_tokens: int, limit: int) -> None:
        super().__init__(f"the prompt has {prompt_tokens} tokens, the model's context is {limit}")
        self.prompt_tokens = prompt_tokens
        self.limit = limit


class Unsupported(BadRequest):
    """Well-formed, but this policy cannot do it."""

    code = "unsupported"


class Unauthorized(TuglineError):
    """No session has this credential."""

    status = 401
    code = "unauthorized"


class Forbidden(TuglineError):
    """The session of this credential has ended."""

    status = 403
    code = "session_ended"


class NotFound(TuglineError, LookupError):
    """No such thing."""

    status = 404
    code = "not_found"


class Conflict(TuglineError):
    """What is asked contradicts what has already happened."""

    status = 409
    code = "conflict"


class TooLarge(TuglineError):
    """The body exceeds the limit."""

    status = 413
    code = "request_too_large"


class Overloaded(TuglineError):
    """Try again after `retry_after` seconds."""

    status = 429
    code = "overloaded"

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineError(TuglineError):
    """The engine failed. `retryable` says whether the same request may be sent again; `fault` is what it is counted
    by: `timeout`, `truncated`, `http_500`, ..."""

    status = 502
    code = "engine_error"

    def __init__(self, message: str, *, retryable: bool = True, fault: str = "engine_error") -> None:
        super().__init__(message)
        self.retryable = retryable
        self.fault = fault


class StoreError(TuglineError):
    """A record could not be made durable."""

    status = 503
    code = "store_error"


class SandboxError(TuglineError):
    """A sandbox could not be started, used or removed."""

    code = "sandbox_error"


class HarnessError(TuglineError):
    """A harness could not be installed or started."""

    code = "harness_error"


class VerifierError(TuglineError):
    """The verifier gave no usable verdict."""

    code = "verifier_error"


class TaskError(TuglineError, ValueError):
    """A task is broken. `where` is the file, `field` the key in it."""

    code = "task_error"

    def __init__(self, message: str, *, where: str, field: str = "") -> None:
        super().__init__(f"{where}{f' [{field}]' if field else ''}: {message}")
        self.where = where
        self.field = field


class ConfigError(TuglineError, ValueError):
    """A setting is wrong. `where` names its source: file and key, environment variable or flag."""

    code = "config_error"

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class RunError(TuglineError):
    """A run directory cannot be used."""

    code = "run_error"


class VerifyError(TuglineError):
    """Recorded data fails its proof."""

    code = "verify_error"


def describe(err: BaseException) -> str:
    """One line for a log or a stored record: type and message, no traceback."""
    text = str(err).strip().splitlines()
    return f"{type(err).__name__}: {text[0] if text else ''}"[:500]


@contextmanager
def boundary(kind: type[TuglineError], what: str) -> Iterator[None]:
    """Turn any foreign exception into `kind`, once. Our own errors and cancellation pass through unchanged."""
    try:
        yield
    except TuglineError:
        raise
    except Exception as err:
        raise kind(f"{what}: {describe(err)}") from err
