"""Reading Harbor task directories."""

from __future__ import annotations

import os

import pytest

from tugline.core.errors import TaskError
from tugline.core.task import Copy, ModelRoute
from tugline.tasks.harbor import read_task, safe_id
from tugline.tasks.problems import BrokenTasks
from unit.tasks.kit import GOOD, make, toml

FULL = """
schema_version = "1.4"
source = "somewhere"
artifacts = ["/app", {source = "/tmp/x", destination = "x", exclude = ["*.o"]}]

[task]
name = "acme/sum"
version = "2"
description = "d"
keywords = ["k"]
authors = [{name = "A", email = "a@b", orcid = "free"}]

[metadata]
anything = {goes = [1, "two"]}

[agent]
timeout_sec = 120

[verifier]
timeout_sec = 30.5
user = "root"
environment_mode = "separate"
env = {PLAIN = "a ${B}", TOKEN = "${TOKEN}", ELSE = "${NOT_THERE:-x:y}"}

[environment]
build_timeout_sec = 60
docker_image = "acme/image:1"
os = "Linux"
cpus = 2
memory = "1.5G"
storage_mb = 512
gpus = 0
env = {GREETING = "hi"}
workdir = "/work"
network_mode = "public"

[solution]
env = {KEY = "${KEY}"}
"""


def test_reads_every_field_that_means_something(tmp_path):
    root = make(tmp_path / "sum it", {"task.toml": FULL, "solution/solve.sh": "#!/bin/sh\n"} | {"tests/data": "x"})
    # separate mode asks for the whole work directory among the artifacts
    (root / "task.toml").write_text(FULL.replace('"/app", ', '"/work", '))

    task = read_task(root, {"TOKEN": "secret"})

    assert (task.task_id, task.name, task.instruction) == ("sum-it", "acme/sum", "Add the numbers.")
    assert (task.budgets.boot, task.budgets.agent, task.budgets.judge) == (60.0, 120.0, 30.5)
    assert task.verifier_env == {"PLAIN": "a ${B}", "TOKEN": "secret", "ELSE": "x:y"}
    assert task.verifier_separate
    assert task.artifacts == ("/work", "/tmp/x")
    assert task.solution_dir == root / "solution"
    assert task.verifier_dir == root / "tests"
    assert task.metadata == {"anything": {"goes": [1, "two"]}}
    box = task.environment
    assert (box.image, box.workdir, box.env) == ("acme/image:1", "/work", {"GREETING": "hi"})
    assert (box.cpus, box.memory_mb, box.storage_mb, box.network) == (2.0, 1536, 512, "public")


def test_the_smallest_task_needs_no_tables(tmp_path):
    root = make(tmp_path / "t", {"task.toml": 'version = "1.0"\n'})
    task = read_task(root, {})
    assert (task.name, task.budgets.judge, task.environment.network) == ("t", None, "public")
    assert task.environment.steps == (Copy((root / "environment/data").resolve(), "/app"),)


@pytest.mark.parametrize(
    ("table", "field", "says"),
    [
        ('[agent]\ntimeout_sec = "60"', "agent.timeout_sec", "got `str`"),
        ("[agent]\ntimeout_sec = 0", "agent.timeout_sec", "> 0"),
        ("[agent]\ntimeout_sec = nan", "agent.timeout_sec", "> 0"),
        ("[agent]\ntimeout_sec = inf", "agent.timeout_sec", "<="),
        ("[agent]\ntimeout_sec = true", "agent.timeout_sec", "got `bool`"),
        ("[agent]\ntimeout_secs = 60", "agent.timeout_secs", "unknown field"),
        ("[verifier]\nenvironment_mode = 'own'", "verifier.environment_mode", "Invalid enum value"),
        ("[verifier]\nenv = {A = 1}", "verifier.env[...]", "Expected `str`"),
        ("[solution]\nenvs = {}", "solution.envs", "unknown field"),
        ("[surprise]\na = 1", "surprise", "unknown field"),
    ],
)
def test_a_wrong_field_is_named_with_file_and_line(tmp_path, table, field, says):
    root = make(tmp_path / "t", toml(table))
    with pytest.raises(TaskError) as caught:
        read_task(root, {})
    assert caught.value.where.startswith("t/task.toml")
    assert caught.value.field == field
    assert says in caught.value.message


def test_model_names_that_mean_another_engine(tmp_path):
    table = "[metadata.tugline.models]\n'*-judge' = 'judge'\n'gpt-*' = 'teacher'\n"
    task = read_task(make(tmp_path / "t", toml(table)), {})
    assert task.routes == (ModelRoute("*-judge", "judge"), ModelRoute("gpt-*", "teacher"))
    assert read_task(make(tmp_path / "u"), {}).routes == ()


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("[metadata.tugline.models]\nx = 1", "Expected `str`"),
        ("[metadata.tugline.models]\nx = ''", "length >= 1"),
        ("[metadata.tugline.modells]\nx = 'y'", "unknown field `modells`"),
        ("[metadata]\ntugline = 3", "Expected `object`"),
    ],
)
def test_a_wrong_model_table_is_named(tmp_path, table, says):
    with pytest.raises(TaskError, match=says) as caught:
        read_task(make(tmp_path / "t", toml(table)), {})
    assert caught.value.field == "metadata.tugline"


def test_the_line_is_that_of_the_key(tmp_path):
    root = make(tmp_path / "t", {"task.toml": "# one\n[verifier]\ntimeout_sec = 5\n[agent]\n\n  timeout_sec = -1\n"})
    with pytest.raises(TaskError) as caught:
        read_task(root, {})
    assert caught.value.where == "t/task.toml:6"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[task]\nname = 'no-slash'\n", "task.name"),
        ("[task]\nname = 'a/..b'\n", "task.name"),
        ("schema_version = '2.0'\n", "schema_version"),
        ("[environment]\nos = 'windows'\n", "only linux"),
        ("[environment]\ngpus = 1\n", "GPU"),
        ("[environment]\ngpus = -1\n", "environment.gpus"),
        ("[environment]\ntpu = {type = 'v4', topology = '2x2'}\n", "TPU"),
        ("[environment]\nnetwork_mode = 'public'\nallowed_hosts = ['a.b']\n", "environment.allowed_hosts"),
        ("[environment]\nallowed_hosts = ['a.b']\n", "only valid with"),
        ("[environment]\nskills_dir = '/skills'\n", "skills"),
        ("[environment]\nworkdir = 'app'\n", "must be absolute"),
        ("[environment]\nmemory = 'lots'\n", "environment.memory"),
        ("[environment]\nmemory = '1G'\nmemory_mb = 512\n", "contradicts memory_mb"),
        ("[environment]\ncpus = 0\n", "environment.cpus"),
        ("[[environment.mcp_servers]]\nname = 'x'\n", "MCP"),
        ("[environment.healthcheck]\ncommand = ''\n", "environment.healthcheck.command"),
        ("[agent]\nuser = 'root'\n", "as root"),
        ("[agent]\nnetwork_mode = 'public'\nallowed_hosts = ['a.b']\n", "agent.allowed_hosts"),
        ("[verifier]\nnetwork_mode = 'allowlist'\n", "allow-lists are for agents"),
        ("[verifier]\nuser = 'postgres'\n", "verifier.user"),
        ("[verifier]\nnetwork_mode = 'public'\n", "no network"),
        ("[verifier]\nenvironment_mode = 'shared'\n[verifier.environment]\ngpus = 1\n", "no sandbox here has a GPU"),
        ("[[verifier.collect]]\ncommand = 'x'\nservice = 'db'\n", "one service only"),
        ("[[verifier.collect]]\ncommand = 'x'\nuser = 'root'\n", "run as the agent"),
        ("[verifier]\nenvironment_mode = 'separate'\n", "sees `artifacts` alone, and there are none"),
        ("[verifier]\nenv = {A = '${MISSING}'}\n", "${MISSING} is not set on this machine"),
        ("[environment]\nenv = {A = '${MISSING}'}\n", "environment.env.A"),
        ('[verifier]\nenv = {A = "x\\u0000"}\n', "verifier.env"),
        ("[[steps]]\nname = 'one'\n", "t/steps/one: is missing"),
        ("artifacts = [{source = '/x', service = 'db'}]\n", "one service"),
        ("a = [\n", "not valid TOML"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(tmp_path, text, says):
    root = make(tmp_path / "t", {"task.toml": text})
    with pytest.raises(TaskError) as caught:
        read_task(root, {})
    assert says in caught.value.message
    assert not isinstance(caught.value, BrokenTasks), "one cause, one problem"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"instruction.md": None}, "t/instruction.md: is missing"),
        ({"instruction.md": " \n\n"}, "t/instruction.md: is empty"),
        ({"instruction.md": "<!-- canary GUID -->\n\n"}, "t/instruction.md: is empty"),
        ({"instruction.md": b"caf\xe9"}, "t/instruction.md: is not UTF-8 text"),
        ({"instruction.md": "a\0b"}, "t/instruction.md: holds a NUL byte"),
        ({"instruction.md": "x" * (2 << 20)}, "t/instruction.md: is larger than"),
        ({"task.toml": b"\xff\xfe"}, "t/task.toml: is not UTF-8 text"),
        ({"tests/test.sh": None, "tests/test.bat": "x"}, "t/tests/test.sh: is missing"),
        ({"environment/Dockerfile": None}, "t/environment/Dockerfile: is missing"),
        ({"environment/docker-compose.yaml": "services: {}"}, "t/environment/docker-compose.yaml: compose"),
        ({"tests/Dockerfile": "FROM x"}, "t/tests/Dockerfile"),
        ({"tests/.harborignore": "x"}, "t/tests/.harborignore"),
        ({"trajectory.json": "{}"}, "t/trajectory.json"),
        ({"steps/one/instruction.md": "x"}, "t/steps"),
        ({"environment/.dockerignore": "*"}, "t/environment/.dockerignore"),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path, changes, says):
    with pytest.raises(TaskError) as caught:
        read_task(make(tmp_path / "t", changes), {})
    assert says in caught.value.message


def test_links_that_leave_the_task_are_refused_and_inner_ones_are_not(tmp_path):
    (tmp_path / "secret").write_text("x")
    root = make(tmp_path / "t")
    (root / "environment/data/inner").symlink_to("a.txt")
    read_task(root, {})
    (root / "tests/outer").symlink_to("../../secret")
    (root / "solution").symlink_to(tmp_path)
    with pytest.raises(BrokenTasks) as caught:
        read_task(root, {})
    assert [p.where for p in caught.value.problems] == ["t/solution", "t/tests/outer"]


def test_a_link_in_a_circle_is_said(tmp_path):
    root = make(tmp_path / "t")
    (root / "environment/data/loop").symlink_to("loop")
    with pytest.raises(TaskError, match="circle"):
        read_task(root, {})


def test_an_instruction_that_is_a_pipe_does_not_block(tmp_path):
    root = make(tmp_path / "t", {"instruction.md": None})
    os.mkfifo(root / "instruction.md")
    with pytest.raises(TaskError, match="not a regular file"):
        read_task(root, {})


def test_all_problems_are_said_at_once(tmp_path):
    root = make(
        tmp_path / "t",
        {
            "instruction.md": "",
            "tests/test.sh": None,
            "environment/Dockerfile": "FROM a\nVOLUME /x\nCOPY gone /app/\n",
            **toml("[agent]\ntimeout_sec = -1\n[verifier]\nuser = 1.5"),
        },
    )
    with pytest.raises(BrokenTasks) as caught:
        read_task(root, {})
    assert [(p.where, p.field) for p in caught.value.problems] == [
        ("t/task.toml:10", "agent.timeout_sec"),
        ("t/task.toml:12", "verifier.user"),
        ("t/instruction.md", ""),
        ("t/tests/test.sh", ""),
        ("t/environment/Dockerfile", "line 2"),
        ("t/environment/Dockerfile", "line 3"),
    ]


def test_a_canary_is_not_shown_to_agents(tmp_path):
    text = "<!-- some-bench-canary GUID 1 -->\n# canary too\n\nDo it.\n# canary stays here\n"
    root = make(tmp_path / "t", {"instruction.md": text})
    assert read_task(root, {}).instruction == "Do it.\n# canary stays here"


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("", "public"),
        ("[environment]\nallow_internet = false\n", "no-network"),
        ("[environment]\nallow_internet = true\nnetwork_mode = 'no-network'\n", "no-network"),
        ("[agent]\nnetwork_mode = 'no-network'\n", "no-network"),
        ("[agent]\nnetwork_mode = 'public'\n[environment]\nnetwork_mode = 'no-network'\n", "public"),
    ],
)
def test_the_agents_phase_decides_its_network(tmp_path, text, network):
    assert read_task(make(tmp_path / "t", {"task.toml": text}), {}).environment.network == network


def test_a_digest_follows_content_and_ignores_editors_leftovers(tmp_path):
    first = read_task(make(tmp_path / "a"), {}).digest
    again = make(tmp_path / "b", {"tests/test.sh~": "x", "tests/__pycache__/x.pyc": "y", "notes.txt": "z"})
    assert read_task(again, {}).digest == first
    assert read_task(make(tmp_path / "c", {"tests/more": "x"}), {}).digest != first


@pytest.mark.parametrize(("name", "safe"), [("a b/c", "a-b-c"), ("..", "task"), ("é", "task"), ("x" * 300, "x" * 120)])
def test_ids_are_safe_as_file_names(name, safe):
    assert safe_id(name) == safe


def test_the_good_task_is_good(tmp_path):
    assert read_task(make(tmp_path / "t", dict(GOOD)), {}).name == "acme/sum"


STEPS = """
multi_step_reward_strategy = "final"
[[steps]]
name = "one"
min_reward = 0.5
[steps.agent]
timeout_sec = 7
[[steps]]
name = "two"
min_reward = {style = 1}
[steps.verifier]
timeout_sec = 8
env = {A = "${B:-c}"}
"""


def test_steps(tmp_path):
    files = {
        "task.toml": f"{STEPS}\n{GOOD['task.toml'].partition(chr(10))[2]}", "instruction.md": None,
        "steps/one/instruction.md": "First.", "steps/one/tests/test.sh": "x", "steps/one/workdir/setup.sh": "y",
        "steps/two/instruction.md": "Second.", "steps/two/solution/solve.sh": "z",
    }  # fmt: skip
    task = read_task(make(tmp_path / "t", files), {})
    one, two = task.steps
    assert (task.instruction, task.step_reward, task.verifier_dir) == ("First.", "final", one.verifier_dir)
    assert (one.agent_seconds, one.judge_seconds, one.min_reward) == (7.0, None, {"reward": 0.5})
    assert (one.setup, one.solution_dir) == (tmp_path / "t/steps/one/workdir", None)
    assert (two.judge_seconds, two.verifier_env, two.min_reward) == (8.0, {"A": "c"}, {"style": 1.0})
    assert two.verifier_dir == tmp_path / "t/tests", "a step without tests has the task's"


def test_a_verifier_of_its_own(tmp_path):
    table = (
        "[verifier]\nenvironment_mode = 'separate'\n[verifier.environment]\nmemory_mb = 64\nenv = {X = 'y'}\n"
        "[[verifier.collect]]\ncommand = 'make out'\ntimeout_sec = 3\n"
        "[environment.healthcheck]\ncommand = 'true'\nretries = 2\n"
    )
    text = "artifacts = ['out', '/logs/artifacts']\n" + GOOD["task.toml"] + table
    files = {"task.toml": text, "tests/Dockerfile": "FROM judge:1\nWORKDIR /judge\nCOPY test.sh /judge/\n"}
    task = read_task(make(tmp_path / "t", files), {})
    assert task.verifier_separate
    own = task.verifier_environment
    assert (own.image, own.workdir, own.memory_mb, own.env) == ("judge:1", "/judge", 64, {"X": "y"})
    assert own.digest != task.environment.digest
    assert task.carry.accept == ("./out", "./out/*")
    assert [(c.command, c.seconds) for c in task.collect] == [("make out", 3.0)]
    assert (task.environment.health.command, task.environment.health.retries) == ("true", 2)


@pytest.mark.parametrize(
    ("table", "network", "hosts"),
    [
        ("network_mode = 'allowlist'\nallowed_hosts = ['a.b', '*.c.d']", "allowlist", ("a.b", "*.c.d")),
        ("network_mode = 'allowlist'\nallowed_hosts = ['a.b']\n[agent]\nallowed_hosts = ['x']", "allowlist", ("x",)),
        ("allow_internet = false\n[agent]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['x']", "allowlist", ("x",)),
        ("network_mode = 'allowlist'\nallowed_hosts = ['a.b']\n[agent]\nnetwork_mode = 'no-network'", "no-network", ()),
        ("allow_internet = true", "public", ()),
    ],
)  # fmt: skip
def test_the_agents_network(tmp_path, table, network, hosts):
    text = GOOD["task.toml"].replace('network_mode = "no-network"\n', f"{table}\n")
    box = read_task(make(tmp_path / "t", {"task.toml": text}), {}).environment
    assert (box.network, box.hosts) == (network, hosts)
