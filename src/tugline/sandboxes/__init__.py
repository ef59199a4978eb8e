"""Where sessions run. `provider` finds one by name; see `bubblewrap` (default) and `local` (trusted agents only)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from tugline.core.contracts import SandboxProvider
from tugline.core.errors import ConfigError

NAMES = ("bubblewrap", "local")
PLANNED = ("container", "apptainer")
GROUP = "tugline.sandboxes"


def provider(name: str, state_dir: Path, run_id: str, hide: Sequence[Path] = ()) -> SandboxProvider:
    """The provider of that name, ours or from an entry point `tugline.sandboxes` (called with the first two values).

    `state_dir` belongs to the provider and its like; `run_id` labels what it makes; `hide` are directories that no
    agent may see even where the host's directories are shown (hidden tests below /usr). Starts nothing.
    Raises ConfigError for an unknown name.
    """
    if name == "bubblewrap":
        from tugline.sandboxes.bubblewrap import BubblewrapProvider

        return BubblewrapProvider(state_dir, run_id, hide)
    if name == "local":
        from tugline.sandboxes.local import LocalProvider

        return LocalProvider(state_dir, run_id, hide)
    for entry in entry_points(group=GROUP, name=name):
        found: SandboxProvider = entry.load()(state_dir, run_id)
        return found
    known = ", ".join((*NAMES, *(e.name for e in entry_points(group=GROUP))))
    if name in PLANNED:
        raise ConfigError(f"the {name} sandbox is not in this version yet; there are: {known}", where="sandbox")
    raise ConfigError(f"unknown sandbox {name!r}; there are: {known}", where="sandbox")
