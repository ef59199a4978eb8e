"""The families: deterministic, split by combination, and with checks that tell right from wrong."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from tugline.core.errors import NotFound
from tugline.tasks import families
from tugline.tasks.families import FAMILIES, Instance, build, files_of, generate, generate_suite
from tugline.tasks.families.words import ALL

SHIPPED = Path(families.__file__).parents[1] / "shipped"


class Bench:
    """One instance with a working directory standing for /app."""

    def __init__(self, root: Path, instance: Instance) -> None:
        self.task = families.write(instance, root / "task")
        self.app = root / "app"
        self.logs = root / "logs"
        self.app.mkdir(parents=True)
        for name, text in instance.files.items():
            (self.app / name).write_text(text)

    def sh(self, script: str) -> None:
        env = {"PATH": os.environ["PATH"], "APP_DIR": str(self.app), "LOGS_DIR": str(self.logs)}
        subprocess.run(["sh", str(self.task / script)], env=env, check=True, capture_output=True)

    def reward(self) -> str:
        self.sh("tests/test.sh")
        return (self.logs / "reward.txt").read_text().strip()


def each(seeds: int = 4) -> list[Instance]:
    return [build(f, i, s) for f in FAMILIES for s in ("train", "heldout") for i in range(seeds)]


def by_name(instance: Instance) -> str:
    return instance.name


def test_no_word_is_a_part_of_another() -> None:
    assert len(set(ALL)) == len(ALL)
    assert [(a, b) for a in ALL for b in ALL if a != b and a in b] == []


def test_shipped_tasks_are_the_generated_ones(tmp_path: Path) -> None:
    fresh = generate_suite(tmp_path, split="train", count=24)
    assert {p.name for p in fresh} == {p.name for p in SHIPPED.iterdir()}
    for task in fresh:
        new = {p.relative_to(task): p.read_bytes() for p in task.rglob("*") if p.is_file()}
        shipped = SHIPPED / task.name
        assert new == {p.relative_to(shipped): p.read_bytes() for p in shipped.rglob("*") if p.is_file()}


def test_every_family_is_shipped_three_times() -> None:
    for family in FAMILIES:
        assert sum(p.name.startswith(family) for p in SHIPPED.iterdir()) >= 3


@pytest.mark.parametrize("instance", each(), ids=by_name)
def test_oracle_solves_it(instance: Instance, tmp_path: Path) -> None:
    bench = Bench(tmp_path, instance)
    bench.sh("solution/solve.sh")
    assert bench.reward() == "1"


@pytest.mark.parametrize("instance", each(), ids=by_name)
def test_doing_nothing_fails(instance: Instance, tmp_path: Path) -> None:
    assert Bench(tmp_path, instance).reward() == "0"


@pytest.mark.parametrize("instance", each(2), ids=by_name)
def test_each_single_wrong_outcome_fails(instance: Instance, tmp_path: Path) -> None:
    """From the solved state, spoil one expectation at a time."""
    spoils = 0
    for path, text in instance.expected.items():
        wrongs = ["", None, "wrong", f"{text}\n{text}", f" {text}"] if text is not None else ["back again"]
        for wrong in wrongs:
            bench = Bench(tmp_path / str(spoils), instance)
            bench.sh("solution/solve.sh")
            (bench.app / path).unlink(missing_ok=True)
            if wrong is not None:
                (bench.app / path).write_text(wrong)
            assert bench.reward() == "0", (path, wrong)
            spoils += 1
    assert spoils >= 3


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ending", ["", "\n"])
def test_the_last_newline_does_not_count(family: str, ending: str, tmp_path: Path) -> None:
    instance = build(family, 5, "heldout")
    bench = Bench(tmp_path, instance)
    for path, text in instance.expected.items():
        if text is None:
            (bench.app / path).unlink()
        else:
            (bench.app / path).write_text(text.rstrip("\n") + ending)
    assert bench.reward() == "1"


def test_a_directory_or_link_of_the_deleted_name_is_not_deletion(tmp_path: Path) -> None:
    instance = build("delete-file", 0, "train")
    bench = Bench(tmp_path, instance)
    gone = bench.app / instance.facts["path"]
    gone.unlink()
    gone.symlink_to("nowhere")
    assert bench.reward() == "0"


@pytest.mark.parametrize("family", FAMILIES)
def test_splits_share_words_and_no_instruction(family: str) -> None:
    train = {build(family, i, "train").instruction for i in range(150)}
    held = {build(family, i, "heldout").instruction for i in range(150)}
    assert len(held) > 15
    assert train.isdisjoint(held)


@pytest.mark.parametrize("instance", each(1), ids=by_name)
def test_task_directory_is_harbor(instance: Instance) -> None:
    files = files_of(instance)
    task = tomllib.loads(files["task.toml"])
    assert task["schema_version"] == "1.4"
    assert task["task"]["name"] == f"tugline/{instance.name}"
    assert task["metadata"] == {"family": instance.family, "seed": instance.index, "split": instance.split}
    assert task["environment"] == {"network_mode": "no-network"}
    copies = "COPY files/ /app/" in files["environment/Dockerfile"]
    assert copies == any(name.startswith("environment/files/") for name in files)


def test_suites_of_different_seeds_share_nothing(tmp_path: Path) -> None:
    first = generate_suite(tmp_path, split="heldout", count=16, seed=0)
    second = generate_suite(tmp_path, split="heldout", count=16, seed=1)
    assert len({p.name for p in first + second}) == 32


def test_unknown_family_and_existing_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="create-file"):
        build("juggle", 0, "train")
    generate("copy-file", 0, "train", tmp_path)
    with pytest.raises(FileExistsError):
        generate("copy-file", 0, "train", tmp_path)
