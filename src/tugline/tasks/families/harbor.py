"""An instance written as a Harbor task directory. Same instance, same bytes."""

from __future__ import annotations

from pathlib import Path

from tugline.tasks.families.instance import Instance

AGENT_TIMEOUT_S = 120.0
JUDGE_TIMEOUT_S = 30.0

_CHECK_HEAD = """\
#!/bin/sh
# Writes 1 or 0 to the reward file. APP_DIR and LOGS_DIR move the two directories when no container is in use.
cd "${APP_DIR:-/app}" || exit 1
logs=${LOGS_DIR:-/logs/verifier}
mkdir -p "$logs"
reward=1

# holds FILE TEXT: FILE is a regular file with exactly TEXT; newlines at its end do not count.
holds() {
    if [ ! -f "$1" ] || [ "$(cat "$1")" != "$2" ]; then
        echo "wrong: $1"
        reward=0
    fi
}

# gone FILE: nothing of that name is left.
gone() {
    if [ -e "$1" ] || [ -L "$1" ]; then
        echo "still there: $1"
        reward=0
    fi
}

"""
_CHECK_TAIL = """
echo "$reward" > "$logs/reward.txt"
"""


def files_of(instance: Instance) -> dict[str, str]:
    """Relative path -> text of every file of the task directory."""
    files = {
        "task.toml": _task_toml(instance),
        "instruction.md": f"{instance.instruction}\n",
        "environment/Dockerfile": _dockerfile(instance),
        "solution/solve.sh": f'#!/bin/sh\nset -e\ncd "${{APP_DIR:-/app}}"\n{instance.solution}\n',
        "tests/test.sh": _check(instance),
    }
    return files | {f"environment/files/{name}": text for name, text in instance.files.items()}


def write(instance: Instance, out_dir: Path) -> Path:
    """Write the task under `out_dir/<instance.name>` and return that directory.

    Raises FileExistsError when the directory is already there: a task is never mixed with an older one.
    """
    root = out_dir / instance.name
    root.mkdir(parents=True)
    for name, text in files_of(instance).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
        path.chmod(0o755 if name.endswith(".sh") else 0o644)
    return root


def _task_toml(instance: Instance) -> str:
    return f"""\
schema_version = "1.4"

[task]
name = "tugline/{instance.name}"
description = "{instance.family}: a small file task"

[metadata]
family = "{instance.family}"
seed = {instance.index}
split = "{instance.split}"

[agent]
timeout_sec = {AGENT_TIMEOUT_S}

[verifier]
timeout_sec = {JUDGE_TIMEOUT_S}

[environment]
network_mode = "no-network"
"""


def _dockerfile(instance: Instance) -> str:
    head = "FROM debian:bookworm-slim\nWORKDIR /app\n"
    return f"{head}COPY files/ /app/\n" if instance.files else head


def _check(instance: Instance) -> str:
    lines: list[str] = []
    for name, text in instance.expected.items():
        lines.append(f"gone {name}" if text is None else f"holds {name} {_quoted(text)}")
    return _CHECK_HEAD + "\n".join(lines) + "\n" + _CHECK_TAIL


def _quoted(text: str) -> str:
    """One shell word, spread over lines where the text is."""
    return "'" + text.rstrip("\n").replace("'", "'\\''") + "'"
