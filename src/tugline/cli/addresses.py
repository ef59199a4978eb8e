"""Where engines and this gateway listen."""

from __future__ import annotations

from urllib.parse import urlsplit

from tugline.config.types import Settings
from tugline.core.errors import ConfigError
from tugline.engines import REMOTE
from tugline.engines.remote.where import remote_url


def check_addresses(settings: Settings) -> None:
    """No engine is this gateway itself. Raises ConfigError."""
    gate = settings.gateway
    own = {gate.host, gate.advertise, "localhost", "127.0.0.1", "::1", "0.0.0.0"}
    named = {"engine": settings.engine} | {f"engines.{name}": one for name, one in settings.engines.items()}
    for where, one in named.items():
        kind, _, url = one.spec.partition(":")
        if gate.port and kind in REMOTE:
            parts = urlsplit(remote_url(url, f"{where}.spec"))
            if parts.hostname in own and parts.port == gate.port:
                raise ConfigError(f"{url} is the address of this gateway itself", where=f"{where}.spec")
