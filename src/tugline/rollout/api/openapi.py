"""The control plane described for programs, from the very types that decode and encode its bodies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

import tugline
from tugline.rollout.api import wire
from tugline.rollout.endpoints import OpenedSession
from tugline.rollout.manual import PAGE
from tugline.rollout.trajectory_json import TrajectoryJson
from tugline.rollout.views import STATES, Page, SessionView, Usage


@dataclass(frozen=True, slots=True)
class Report(SessionView):
    """A session with its use and its transitions."""

    usage: Usage
    history: tuple[tuple[str, float], ...]
    options: dict[str, Any]


_TYPES: tuple[Any, ...] = (
    wire.OpenBody,
    wire.EndBody,
    wire.ErrorBody,
    wire.Removed,
    wire.Health,
    OpenedSession,
    SessionView,
    Page,
    Report,
    TrajectoryJson,
)


def document() -> bytes:
    """OpenAPI 3.1 as JSON."""
    schemas, components = msgspec.json.schema_components(_TYPES, ref_template="#/components/schemas/{name}")
    of = dict(zip(_TYPES, schemas, strict=True))
    session = [{"name": "session", "in": "path", "required": True, "schema": {"type": "string"}}]
    one = "/api/v1/sessions/{session}"
    paths = {
        "/healthz": {"get": {**_operation("Whether it serves", of[wire.Health]), "security": []}},
        "/metrics": {"get": _operation("Prometheus exposition", None, media="text/plain")},
        "/openapi.json": {"get": _operation("This document", {"type": "object"})},
        "/api/v1/sessions": {
            "get": {**_operation("Sessions in order of creation", of[Page]), "parameters": _list_parameters()},
            "post": _operation("Open a session", of[OpenedSession], of[wire.OpenBody], status="201"),
        },
        one: {
            "parameters": session,
            "get": _operation("State, calls, turns and tokens", of[Report]),
            "delete": _operation("Cancel an open session, or remove an ended one", of[wire.Removed]),
        },
        f"{one}/end": {
            "parameters": session,
            "post": _operation("End a session with its reward", of[SessionView], of[wire.EndBody]),
        },
        f"{one}/trajectory": {
            "parameters": session,
            "get": _operation("Training rows and reward of an ended session", of[TrajectoryJson]),
        },
    }
    _add_errors(paths, of[wire.ErrorBody])
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Tugline control plane", "version": tugline.__version__},
            "security": [{"token": []}],
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _operation(
    summary: str, reply: Any, body: Any = None, *, status: str = "200", media: str = "application/json"
) -> dict[str, Any]:
    content = {media: {"schema": reply or {"type": "string"}}}
    made: dict[str, Any] = {"summary": summary, "responses": {status: {"description": "Done", "content": content}}}
    if body is not None:
        made["requestBody"] = {"content": {"application/json": {"schema": body}}}
    return made


def _list_parameters() -> list[dict[str, Any]]:
    kinds: dict[str, dict[str, Any]] = {
        "state": {"type": "string", "enum": ["open", *STATES]},
        "group": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1, "maximum": PAGE, "default": 100},
        "after": {"type": "string"},
    }
    return [{"name": name, "in": "query", "schema": schema} for name, schema in kinds.items()]


def _add_errors(paths: dict[str, Any], schema: Any) -> None:
    reply = {"description": "Refused", "content": {"application/json": {"schema": schema}}}
    for path in paths.values():
        for operation in path.values():
            if isinstance(operation, dict):
                operation["responses"]["default"] = reply
