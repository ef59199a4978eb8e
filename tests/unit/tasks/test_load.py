"""From names to tasks."""

from __future__ import annotations

import pytest

from tugline.core.errors import ConfigError, TaskError
from tugline.tasks import BrokenTasks, load_tasks, shipped_names
from unit.tasks.kit import make


def ids(specs, env=None):
    return [t.task_id for t in load_tasks(specs, env=env or {})]


def test_a_directory_of_tasks_comes_in_order_of_names(tmp_path):
    for name in ("b", "a"):
        make(tmp_path / name)
    (tmp_path / "not-a-task").mkdir()
    assert ids([str(tmp_path)]) == ["a", "b"]
    assert ids([str(tmp_path / "b")]) == ["b"]


def test_the_same_name_twice_gets_a_suffix_that_is_free(tmp_path):
    for place in ("one/t", "two/t", "three/t.2"):
        make(tmp_path / place)
    assert ids([str(tmp_path / p) for p in ("one/t", "two/t", "three/t.2")]) == ["t", "t.3", "t.2"]


def test_shipped_tasks_by_name_family_and_suite():
    names = shipped_names()
    assert len(names) == len(set(names)) >= 8
    assert ids([names[0]]) == [names[0]]
    family = names[0].rpartition("-")[0]
    assert ids([family]) == [n for n in names if n.rpartition("-")[0] == family]
    assert ids(["files"]) == names
    assert len(ids(["quickstart"])) == len({n.rpartition("-")[0] for n in names})


@pytest.mark.parametrize("specs", [[], ["no-such-task"], [""]])
def test_no_tasks_is_a_configuration_error(specs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        load_tasks(specs, env={})


def test_an_empty_directory_is_a_configuration_error_and_a_broken_row_is_named(tmp_path):
    with pytest.raises(ConfigError, match="holds no task"):
        load_tasks([str(tmp_path)], env={})
    rows = tmp_path / "rows.jsonl"
    good = '{"instance_id": "a__b-1", "repo": "a/b", "problem_statement": "p", "FAIL_TO_PASS": "[\\"t.py::x\\"]"}'
    rows.write_text(f"{good}\n{{}}\n{good.replace('t.py::x', '')}\n{good.replace('[', '')}\n[\n")
    with pytest.raises(TaskError, match=r"rows.jsonl:2: Object missing required field `instance_id`"):
        load_tasks([str(rows)], env={})
    for deep in ("[" * 100_000, good.replace("[", "[" * 100_000)):
        rows.write_text(deep)
        with pytest.raises(TaskError, match=r"rows.jsonl:1"):
            load_tasks([str(rows)], env={})
    rows.write_text(f"{good}\n\n{good}\n")
    first, second = load_tasks([str(rows)], env={})
    assert (first.task_id, second.task_id, first.verifier) == ("a__b-1", "a__b-1.2", "swe")
    assert first.verifier_options["fail_to_pass"] == ["t.py::x"]


def test_problems_of_all_tasks_are_said_together(tmp_path):
    make(tmp_path / "good")
    make(tmp_path / "bad1", {"instruction.md": "", "tests/test.sh": None})
    make(tmp_path / "bad2", {"task.toml": "x ="})
    with pytest.raises(BrokenTasks) as caught:
        load_tasks([str(tmp_path)], env={})
    assert [p.where for p in caught.value.problems] == ["bad1/instruction.md", "bad1/tests/test.sh", "bad2/task.toml"]
    assert all(p.message in caught.value.message for p in caught.value.problems)


def test_one_problem_is_itself(tmp_path):
    make(tmp_path / "bad", {"instruction.md": ""})
    with pytest.raises(TaskError) as caught:
        load_tasks([str(tmp_path)], env={})
    assert caught.value.where == "bad/instruction.md"


def test_a_long_list_is_cut_and_kept(tmp_path):
    for n in range(25):
        make(tmp_path / f"t{n:02}", {"instruction.md": ""})
    with pytest.raises(BrokenTasks) as caught:
        load_tasks([str(tmp_path)], env={})
    assert len(caught.value.problems) == 25
    assert "and 5 more" in caught.value.message


def test_the_mapping_given_resolves_variables(tmp_path):
    make(tmp_path / "t", {"task.toml": "[verifier]\nenv = {A = '${TOKEN}'}\n"})
    assert load_tasks([str(tmp_path)], env={"TOKEN": "x"})[0].verifier_env == {"A": "x"}
