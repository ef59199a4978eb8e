"""RUN/control.json: where the control plane of a running gateway is, for commands and programs on the same machine."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tugline.core.errors import RunError

CONTROL, TOKEN = "control.json", "control.token"


class Control(msgspec.Struct, frozen=True):
    """`token_file` holds the token; this file does not."""

    url: str
    gateway: str
    token_file: str
    pid: int


def write_control(run: Path, control: Control) -> None:
    """Replace RUN/control.json in one step. Raises RunError."""
    file = run / CONTROL
    try:
        part = file.with_name(file.name + ".part")
        part.write_bytes(msgspec.json.encode(control) + b"\n")
        part.replace(file)
    except OSError as err:
        raise RunError(f"{file} cannot be written: {err.strerror}") from err


def remove_control(run: Path) -> None:
    """The gateway has stopped: nobody shall look for it."""
    for name in (CONTROL, TOKEN):
        (run / name).unlink(missing_ok=True)


def read_control(run: Path) -> Control:
    """Raises RunError saying what is missing."""
    file = run / CONTROL
    if not (run / "run.db").is_file():
        raise RunError(f"{run} is not a run directory (no run.db in it)")
    try:
        control = msgspec.json.decode(file.read_bytes(), type=Control)
    except FileNotFoundError as err:
        raise RunError(f"no gateway is running on {run}: start one with `tugline gateway --out {run}`") from err
    except (OSError, msgspec.DecodeError) as err:
        raise RunError(f"{file} cannot be read: {err}") from err
    return control


def newest_control(runs: Path) -> Path:
    """The run directory under `runs` whose gateway was started last and still runs. Raises RunError when there is
    none."""
    found: list[tuple[float, Path]] = []
    for file in runs.glob(f"*/{CONTROL}"):
        try:
            if _alive(read_control(file.parent).pid):
                found.append((file.stat().st_mtime, file.parent))
        except (RunError, OSError):
            continue  # stopped while we looked
    if not found:
        raise RunError(
            f"no gateway is running on a run under {runs}: name the run with --run, or start `tugline gateway`"
        )
    return max(found)[1]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return True
