"""Our reader against Harbor's own models: same names, limits, instructions and digests, and the same broken tasks
refused. Needs Python 3.12 or newer beside ours; the environment is made once and kept in TUGLINE_TEST_CACHE."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tugline.core.errors import TaskError
from tugline.tasks import load_tasks, shipped_names
from tugline.tasks.harbor import read_task
from tugline.tasks.load import SHIPPED
from unit.tasks.kit import make, toml

HARBOR = "harbor==0.26.0"
PROBE = """
import json, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from harbor.models.task.task import Task
from harbor.publisher.packager import Packager

def facts(path):
    task = Task(path)
    if not task.config.environment.docker_image and not task.paths.environment_dir.is_dir():
        raise FileNotFoundError("environment")
    config = task.config
    return {
        "name": task.name, "instruction": task.instruction, "agent": config.agent.timeout_sec,
        "judge": config.verifier.timeout_sec, "network": config.environment.network_mode.value,
        "memory_mb": config.environment.memory_mb, "env": config.verifier.env,
        "digest": Packager.compute_content_hash(Path(path))[0],
    }

out = {}
for path in sys.stdin.read().split("\\n"):
    try:
        out[path] = facts(path)
    except Exception as err:
        out[path] = {"refused": type(err).__name__}
print(json.dumps(out))
"""
pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def harbor():
    """A function: directories -> what Harbor says of each."""
    python = _harbor_python()

    def ask(paths: list[Path]) -> dict[Path, dict]:
        told = "\n".join(map(str, paths))
        env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        ran = subprocess.run(
            [python, "-c", PROBE], input=told, capture_output=True, text=True, timeout=300, env=env, check=False
        )
        assert ran.returncode == 0, ran.stderr[-2000:]
        return {Path(p): facts for p, facts in json.loads(ran.stdout).items()}

    return ask


def _harbor_python() -> str:
    base = _newer_python()
    if base is None:
        pytest.skip("Harbor needs Python 3.12 or newer; none was found on PATH or in ~/.pyenv/versions")
    cache = Path(os.environ.get("TUGLINE_TEST_CACHE") or Path(tempfile.gettempdir()) / "tugline-test-cache")
    home = cache / HARBOR.replace("==", "-")
    python = home / "bin" / "python"
    ready = home / "ready"
    if ready.exists():
        return str(python)
    cache.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([base, "-m", "venv", str(home)], check=True, capture_output=True, timeout=120)
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", HARBOR]
    made = subprocess.run(pip, capture_output=True, text=True, timeout=700, check=False)
    if made.returncode != 0:
        pytest.skip(f"{HARBOR} could not be installed: {made.stderr.strip()[-300:]}")
    ready.touch()
    return str(python)


def _newer_python() -> str | None:
    found = [sys.executable] if sys.version_info >= (3, 12) else []
    found += [p for name in ("python3.12", "python3.13", "python3.14") if (p := shutil.which(name))]
    versions = Path.home() / ".pyenv" / "versions"
    found += sorted(str(p) for pattern in ("3.12.*", "3.13.*") for p in versions.glob(f"{pattern}/bin/python"))
    for python in found:
        asked = subprocess.run(
            [python, "-c", "import sys, venv; print(sys.version_info[1])"], capture_output=True, check=False
        )
        if asked.returncode == 0 and int(asked.stdout) >= 12:
            return python
    return None


def _same(task, said) -> None:
    assert said == {
        "name": task.name,
        "instruction": said["instruction"],
        "agent": task.budgets.agent,
        "judge": task.budgets.judge or 600.0,
        "network": task.environment.network,
        "memory_mb": task.environment.memory_mb,
        "env": dict(task.verifier_env),
        "digest": task.digest,
    }
    assert said["instruction"].rstrip("\n") == task.instruction


def test_shipped_tasks_mean_the_same_to_harbor(harbor):
    said = harbor([SHIPPED / name for name in shipped_names()])
    for task in load_tasks(["files"], env={}):
        _same(task, said[task.path])


ODD = {
    "plain": {},
    "old-spelling": {"task.toml": 'version = "1.0"\n[environment]\nmemory = "2G"\nallow_internet = false\n'},
    "canary": {"instruction.md": "<!-- canary 1 -->\n# a canary\n\nDo it.\n\nTwice.\n"},
    "ignored-files": {
        "tests/__pycache__/a.pyc": "x",
        "environment/x.swp": "x",
        "notes.txt": "not part of it",
        "README.md": "part of it",
        "solution/solve.sh": "#!/bin/sh\n",
    },
    "own-ignore-file": {
        ".gitignore": "*.log\n!keep.log\n/tests/skip/\nbuild/\ndata/**/deep.txt\n# comment\n\\#odd\n*.[oa]\n",
        "tests/a.log": "x",
        "tests/keep.log": "x",
        "tests/skip/x": "x",
        "solution/skip/x": "x",
        "solution/build/x": "x",
        "environment/data/p/q/deep.txt": "x",
        "environment/data/b.o": "x",
        "environment/#odd": "x",
        "tests/x.pyc": "kept, since the defaults are replaced",
    },
    "limits": toml("[agent]\ntimeout_sec = 12.5\n[verifier]\ntimeout_sec = 7\nenv = {A = 'b'}\n"),
    "names-that-sort-oddly": {"tests/a-b": "1", "tests/a/b": "2", "tests/a.b": "3", "tests/A": "4", "tests/é": "5"},
}


def test_odd_but_valid_tasks_mean_the_same_to_harbor(harbor, tmp_path):
    roots = [make(tmp_path / name, changes) for name, changes in ODD.items()]
    said = harbor(roots)
    for root in roots:
        _same(read_task(root, {}), said[root])


BROKEN = {
    "no-instruction": {"instruction.md": None},
    "no-tests": {"tests/test.sh": None},
    "no-environment": {"environment/Dockerfile": None, "environment/data/a.txt": None},
    "bad-toml": {"task.toml": "[task\n"},
    "no-toml": {"task.toml": None},
    "bad-name": {"task.toml": '[task]\nname = "no slash"\n'},
    "bad-type": toml("[agent]\ntimeout_sec = 'soon'\n"),
    "bad-os": {"task.toml": "[environment]\nos = 'plan9'\n"},
    "bad-network": {"task.toml": "[environment]\nnetwork_mode = 'sometimes'\n"},
    "bad-size": {"task.toml": "[environment]\nmemory = 'lots'\n"},
    "bad-sizes": {"task.toml": "[environment]\nmemory = '1G'\nmemory_mb = 5\n"},
    "hosts-without-list": {"task.toml": "[environment]\nallowed_hosts = ['a.b']\n"},
    "bad-encoding": {"instruction.md": b"caf\xe9"},
    "bad-env": {"task.toml": "[verifier]\nenv = {A = 1}\n"},
    "bad-mode": {"task.toml": "[verifier]\nenvironment_mode = 'mine'\n"},
}


def test_what_harbor_refuses_we_refuse(harbor, tmp_path):
    roots = [make(tmp_path / name, changes) for name, changes in BROKEN.items()]
    leaving = make(tmp_path / "leaving")
    (leaving / "tests/out").symlink_to(tmp_path)
    roots.append(leaving)
    said = harbor(roots)
    assert [r.name for r in roots if "refused" not in said[r]] == []
    for root in roots:
        with pytest.raises(TaskError):
            read_task(root, {})
