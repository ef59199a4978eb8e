"""Serve the session server of `miles-rl` for the exactness suite. Run with a Python that has miles-rl 0.0.2
(`pip install --no-deps`), fastapi, httpx, transformers, uvicorn and setproctitle:

    python miles_server.py --port 9302 --engine http://127.0.0.1:8101 --model DIR

It imports one type of SGLang, which cannot be installed without a GPU: a stand-in of the documented shape is put in its
place. The fixed templates that its documentation names are not in the wheel: the model's own template is used.
"""

from __future__ import annotations

import argparse
import sys
import types
from typing import Any

from pydantic import BaseModel


class Function(BaseModel):
    """SGLang's, as far as it is used."""

    description: str | None = None
    name: str
    parameters: dict[str, Any] | None = None
    strict: bool = False


class Tool(BaseModel):
    """SGLang's, as far as it is used."""

    type: str = "function"
    function: Function


def stand_in() -> None:
    """`sglang.srt.entrypoints.openai.protocol.Tool`."""
    name = ""
    for part in ("sglang", "srt", "entrypoints", "openai", "protocol"):
        name = f"{name}.{part}".lstrip(".")
        sys.modules[name] = types.ModuleType(name)
    sys.modules[name].Tool = Tool  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--model", required=True)
    asked = parser.parse_args()
    stand_in()
    from miles.rollout.session.session_server import run_session_server

    settings = argparse.Namespace(
        session_server_ip="127.0.0.1",
        session_server_port=asked.port,
        hf_checkpoint=asked.model,
        tito_model="qwen3",
        tito_allowed_append_roles=["tool", "user"],
    )
    run_session_server(settings, asked.engine)


if __name__ == "__main__":
    main()
