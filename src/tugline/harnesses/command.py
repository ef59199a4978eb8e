"""Any program as a harness: `command:ARGV...`.

The instruction replaces `{instruction}` inside an argument; `{instruction_file}` becomes the path of a file that holds
it; with neither it comes on standard input. The gateway's address and key are in the variables that SDKs read.
An argument that names a file or directory of this machine outside the system's own is shown read-only inside.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from pathlib import Path

from tugline.core.contracts import Bundle, Command, Exit, Launch, Mount, Plan
from tugline.core.errors import ConfigError, HarnessError
from tugline.core.paths import expanded

TEXT, FILE = "{instruction}", "{instruction_file}"
ARGUMENT_LIMIT = 120 * 1024
"""Linux takes at most 128 KiB in one argument."""
INSIDE = "/opt/tugline/command"
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", "/dev", "/tmp", "/app", "/logs")
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


class CommandHarness:
    """See `Harness` in core.contracts. Its dialect is only a name: a program may speak any that the gateway serves."""

    name = "command"
    dialect = "chat"

    def __init__(self, argv: tuple[str, ...]) -> None:
        self.argv = argv

    @classmethod
    def parse(cls, text: str) -> CommandHarness:
        """Split like a shell does. Raises ConfigError when nothing is left or a quote is open."""
        try:
            argv = tuple(shlex.split(text))
        except ValueError as err:
            raise ConfigError(f"command:{text}: {err}", where="harness") from err
        if not argv:
            raise ConfigError("`command:` needs a program, e.g. command:python3 agent.py", where="harness")
        return cls(argv)

    async def install(self, cache: Path, say: Callable[[str], None]) -> Bundle:
        """Nothing to install; finds which arguments name files of this machine."""
        found = await asyncio.to_thread(_host_paths, self.argv)
        mounts = tuple(Mount(path, f"{INSIDE}/{index}/{path.name}") for index, path in found)
        return Bundle(mounts, version="")

    def plan(self, launch: Launch, bundle: Bundle) -> Plan:
        """Raises HarnessError for an instruction that cannot be an argument."""
        inside = {int(m.target.split("/")[-2]): m for m in bundle.mounts}
        file = f"{launch.home}/.tugline/instruction.md"
        argv = []
        for index, argument in enumerate(self.argv):
            if index in inside:
                argument = inside[index].target if launch.isolated else str(inside[index].source)
            argv.append(argument.replace(FILE, file).replace(TEXT, launch.instruction))
        self._check(argv)
        as_text, as_file = (any(mark in a for a in self.argv) for mark in (TEXT, FILE))
        data = launch.instruction.encode()
        command = Command(
            tuple(argv),
            env=environment(launch),
            cwd=launch.workdir,
            stdin=b"" if as_text or as_file else data,
            mounts=bundle.mounts if launch.isolated else (),
        )
        return Plan(command, ((file, data),) if as_file else ())

    def _check(self, argv: list[str]) -> None:
        for argument in argv:
            if "\0" in argument:
                raise HarnessError("the instruction holds a NUL character; pass it by standard input")
            if len(argument.encode()) > ARGUMENT_LIMIT:
                raise HarnessError(
                    f"the instruction is too long for an argument; use {FILE}, or no {TEXT} to get it on standard input"
                )

    def failure(self, exit: Exit, log: bytes) -> str | None:
        """The exit status decides; the last line of the log says why."""
        return exit_failure(self.argv[0], exit, log)


def environment(launch: Launch) -> dict[str, str]:
    """Where the model is, in the words of the usual SDKs. Complete: nothing of the host's environment."""
    url, key = launch.base_url, launch.key
    return {
        "HOME": launch.home, "PATH": PATH, "LANG": "C.UTF-8", "TERM": "dumb",
        "TUGLINE_BASE_URL": url, "TUGLINE_API_KEY": key, "TUGLINE_MODEL": "policy",
        "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": key,
        "GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": key,
    }  # fmt: skip


def exit_failure(program: str, exit: Exit, log: bytes) -> str | None:
    """One line for a command that did not end with 0."""
    if exit.code == 0:
        return None
    lines = log.decode(errors="replace").strip().splitlines()
    return f"{Path(program).name} ended with {exit.code}: {lines[-1][:250] if lines else 'no output'}"


def _host_paths(argv: tuple[str, ...]) -> list[tuple[int, Path]]:
    found = []
    for index, argument in enumerate(argv):
        if "/" not in argument or "{" in argument:
            continue
        path = expanded(argument, "harness").absolute()
        inside = argument.startswith("/") and any(path == Path(s) or path.is_relative_to(s) for s in SYSTEM)
        if path.exists() and not inside:  # a relative path that exists is this machine's, wherever the project lies
            found.append((index, path))
    return found
