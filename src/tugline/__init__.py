"""Tugline: any agent harness becomes an RL training environment, token for token."""

from importlib import import_module

__version__ = "0.1.0"

__all__ = ["__version__", "local_gateway", "open_gateway", "open_session"]

_LAZY = {
    "Gateway": "tugline.rollout.client",
    "LocalGateway": "tugline.cli.inprocess",
    "Session": "tugline.rollout.client",
    "open_session": "tugline.rollout.client",
    "open_gateway": "tugline.rollout.client",
    "local_gateway": "tugline.cli.inprocess",
}
"""Names that are imported when they are first used, so that `import tugline` costs nothing."""


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
