"""Task directories for tests."""

from __future__ import annotations

from pathlib import Path

GOOD = {
    "task.toml": 'schema_version = "1.4"\n\n[task]\nname = "acme/sum"\n\n[environment]\nnetwork_mode = "no-network"\n',
    "instruction.md": "Add the numbers.\n",
    "environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\nCOPY data/ /app/\n",
    "environment/data/a.txt": "1\n",
    "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
}


def make(root: Path, changes: dict[str, str | bytes | None] | None = None) -> Path:
    """Write a good task with some files changed; None leaves a file out."""
    for name, content in {**GOOD, **(changes or {})}.items():
        if content is None:
            continue
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def toml(text: str) -> dict[str, str | bytes | None]:
    """Changes that append to task.toml."""
    return {"task.toml": f"{GOOD['task.toml']}\n{text}"}
