"""What the repository promises about itself: the README's commands, links, sizes, packaged data, reference pages."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import click
import pytest
import typer.main

from tugline.cli.main import app
from tugline.config.load import load
from tugline.core import errors
from tugline.tasks import shipped_names

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
REFERENCE = ROOT / "docs" / "reference"
LONG_FILES = {
    "core/contracts.py",  # every Protocol on one page
}
"""Files under src that may pass 400 lines. At most three."""


def tracked() -> list[Path]:
    """Files that git knows; without git, everything that is not a build product or an environment."""
    try:
        listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        found = [ROOT / name for name in listing.decode().split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        found = [p for p in ROOT.rglob("*") if not any(part.startswith(".") for part in p.relative_to(ROOT).parts)]
    return [path for path in found if path.is_file()]


def fenced(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def commands() -> Iterator[tuple[str, str]]:
    """(page, command line) of every `tugline ...` line in a sh block."""
    for page in PAGES:
        for block in fenced(page, "sh"):
            for line in block.splitlines():
                for part in line.split("#")[0].split("&&"):
                    words = part.strip().removeprefix(".venv/bin/")
                    if words.startswith("tugline "):
                        yield page.name, words


def command_tree() -> click.Command:
    return typer.main.get_command(app)


def leaves(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    inner = getattr(command, "commands", None)
    if inner is None or getattr(command, "invoke_without_command", False):
        yield path, command
    if inner is None:
        return
    for name, child in inner.items():
        yield from leaves(child, (*path, name))


# ------------------------------------------------------------------------------------------------------ README


def test_readme_has_two_one_line_commands() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    section = text.split("\n## Two commands\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    run, test = blocks[0].strip(), blocks[1].strip()
    assert "\n" not in run and "\n" not in test
    for line in (run, test):
        assert line.startswith("python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt -e '.[")
    assert run.endswith(".venv/bin/tugline quickstart")
    assert ".venv/bin/python -m pytest -q" in test


def test_ci_ends_with_the_readmes_test_command() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    last = (ROOT / ".ci" / "run").read_text("utf-8").rstrip().splitlines()[-1]
    assert last.startswith("$BIN/python -m pytest")
    assert f".venv/bin/{last.removeprefix('$BIN/')}\n" in readme
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert not broken


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_command_in_the_docs_exists() -> None:
    known = dict(leaves(command_tree()))
    seen = set()
    for page, line in commands():
        words = line.split()[1:]
        path = max((p for p in known if tuple(words[: len(p)]) == p), key=len, default=None)
        assert path is not None, f"{page}: {line}"
        options = {o for param in known[path].params for o in param.opts} | {"--help"}  # type: ignore[attr-defined]
        used = {w for w in re.sub(r"'[^']*'|\"[^\"]*\"", "", line).split() if w.startswith("-")}
        assert used <= options, f"{page}: {line}"
        seen.add(path)
    assert {("quickstart",), ("rollout",), ("verify",), ("report",), ("gc",)} <= seen


# ----------------------------------------------------------------------------------------------------- reference


def test_every_command_and_flag_is_in_the_reference() -> None:
    text = (REFERENCE / "cli.md").read_text("utf-8")
    for path, command in leaves(command_tree()):
        assert f"tugline {path[0]}" in text
        if len(path) > 1:
            assert re.search(rf"\b{path[1]}\b", text), path
        for param in command.params:  # type: ignore[attr-defined]
            flags = [o for o in param.opts if o.startswith("--")]
            assert not flags or any(f in text for f in flags), (path, param.opts)


def test_every_setting_is_in_the_reference_with_its_default() -> None:
    text = (REFERENCE / "settings.md").read_text("utf-8")
    listed = dict(re.findall(r"^\| `([a-z_.]+)` \| `?([^|`]*?)`? \|", text, re.MULTILINE))
    plain = {k: "" if v in (None, ()) else str(v).lower() if isinstance(v, bool) else str(v) for k, v in
             load(None, {}, {}).flat().items()}  # fmt: skip
    assert listed == plain


def test_every_error_is_in_the_reference_with_status_and_code() -> None:
    text = (REFERENCE / "errors.md").read_text("utf-8")
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.TuglineError)]
    for kind in kinds:
        if kind is errors.TuglineError:
            continue
        row = next((line for line in text.splitlines() if line.startswith(f"| `{kind.__name__}` |")), "")
        assert f"`{kind.code}`" in row, kind
        assert kind.status == 500 or f"| {kind.status} |" in row, kind


def test_every_drift_reason_is_in_the_reference() -> None:
    text = (REFERENCE / "drift-reasons.md").read_text("utf-8")
    adds = {"tokens": r"(?:drift|notes)(?:\.add\(| \|=? \{)", "forest": r"found\.(?:add|update)\(|return "}
    named: set[str] = set()
    for part, adding in adds.items():
        for path in (ROOT / "src" / "tugline" / part).rglob("*.py"):
            lines = [line for line in path.read_text("utf-8").splitlines() if re.search(adding, line)]
            named |= {word for line in lines for word in re.findall(r'"([a-z]+_[a-z_0-9]+)"', line)}
    assert {"stop_trim", "tool_call_cut", "ws_trim", "root_repeated", "foreign_assistant"} <= named
    assert not {word for word in named if f"`{word}`" not in text}


# --------------------------------------------------------------------------------------------------------- sizes


def test_no_file_is_over_8_mb() -> None:
    assert not [str(p.relative_to(ROOT)) for p in tracked() if p.stat().st_size > 8_000_000]


def test_source_files_are_short() -> None:
    src = ROOT / "src" / "tugline"
    long = {
        str(path.relative_to(src))
        for path in src.rglob("*.py")
        if len(path.read_text("utf-8").splitlines()) > 400
    }  # fmt: skip
    assert len(LONG_FILES) <= 3
    assert long <= LONG_FILES


def test_nothing_names_this_projects_workshop() -> None:
    """Committed text stands alone: no paths of a machine, no hosts of a registry mirror."""
    bad = re.compile(rb"/work/(?:main|shared)|/tmp/tl/|/opt/(?:pypi|wheels)|https?://[\w.-]*(?:pypi|npmjs)\.")
    own = Path(__file__).resolve()
    texts = [p for p in tracked() if p != own and p.suffix in {"", ".py", ".md", ".toml", ".txt", ".sh", ".jsonl"}]
    assert not [str(p.relative_to(ROOT)) for p in texts if bad.search(p.read_bytes())]


# --------------------------------------------------------------------------------------------------- packaged data


def test_shipped_tasks_and_pilot_are_package_data() -> None:
    package = resources.files("tugline")
    assert len(shipped_names()) >= 24
    for name in shipped_names():
        task = package / "tasks" / "shipped" / name
        for part in ("task.toml", "instruction.md", "environment/Dockerfile", "tests/test.sh"):
            assert task.joinpath(part).is_file(), f"{name}/{part}"
    pilot = package / "training" / "pilot" / "model"
    for part in ("tokenizer.json", "tugline.json", "config.json", "model.safetensors", "chat_template.jinja"):
        assert pilot.joinpath(part).is_file(), part
    assert (package / "py.typed").is_file()


def test_pyproject_packs_the_whole_package_and_names_files_that_exist() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/tugline"]
    for name in project["project"]["license-files"]:
        assert (ROOT / name).is_file()
    pins = (ROOT / "constraints.txt").read_text("utf-8")
    assert "\ntorch==2.13.0\n" in pins
    names = {re.split(r"[<>=!~;\[ ]", d)[0].lower().replace("_", "-") for d in project["project"]["dependencies"]}
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in pins.splitlines() if "==" in line}
    assert names <= pinned
    reasons = (ROOT / "docs" / "decisions" / "0006-libraries.md").read_text("utf-8").lower()
    assert not [n for n in names if n not in reasons]
