"""Where sessions run. `provider` finds one by name: `bubblewrap` (default), `container` (podman or docker), `local`
(trusted agents only)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path

from tugline.core.contracts import SandboxProvider
from tugline.core.errors import ConfigError

NAMES = ("bubblewrap", "container", "apptainer", "local")
GROUP = "tugline.sandboxes"


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """What operators decide beyond the name. `cache`: where prepared snapshots and unpacked images lie for other runs
    too; None = they end with the provider. The others are for containers, see docs/reference/settings.md."""

    cache: Path | None = None
    runtime: str = "auto"
    images: Mapping[str, str] = field(default_factory=dict)
    image: str = "host"
    pull: bool = True
    pinned: bool = False


def provider(
    name: str, state_dir: Path, run_id: str, hide: Sequence[Path] = (), options: SandboxOptions | None = None
) -> SandboxProvider:
    """The provider of that name, ours or from an entry point `tugline.sandboxes` (called with the first two values).

    `state_dir` belongs to the provider and its like; `run_id` labels what it makes; `hide` are directories that no
    agent may see even where the host's directories are shown (hidden tests below /usr). Starts nothing.
    Raises ConfigError for an unknown name.
    """
    chosen = options or SandboxOptions()
    if name == "bubblewrap":
        from tugline.sandboxes.bubblewrap import BubblewrapProvider

        return BubblewrapProvider(state_dir, run_id, hide, chosen.cache)
    if name in ("container", "apptainer"):
        from tugline.sandboxes.container import ContainerOptions, ContainerProvider
        from tugline.sandboxes.images import ImageOptions

        runtime = "apptainer" if name == "apptainer" else chosen.runtime
        images = ImageOptions(chosen.images, chosen.image, chosen.pull, chosen.pinned)
        return ContainerProvider(state_dir, run_id, ContainerOptions(runtime, images), chosen.cache)
    if name == "local":
        from tugline.sandboxes.local import LocalProvider

        return LocalProvider(state_dir, run_id, hide)
    if name.startswith("harbor:"):
        from tugline.sandboxes.harbor import HarborProvider, maker

        return HarborProvider(name, state_dir, maker(name.removeprefix("harbor:")))
    for entry in entry_points(group=GROUP, name=name):
        found: SandboxProvider = entry.load()(state_dir, run_id)
        return found
    known = ", ".join((*NAMES, *(e.name for e in entry_points(group=GROUP))))
    raise ConfigError(f"unknown sandbox {name!r}; there are: {known}", where="sandbox")
