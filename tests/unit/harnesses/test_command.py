from __future__ import annotations

from pathlib import Path

import pytest

from tugline.core.contracts import Exit, Launch
from tugline.core.errors import ConfigError, HarnessError
from tugline.harnesses import harness


def launch(instruction: str = "do 'it' \"now\" $x", isolated: bool = True) -> Launch:
    return Launch(instruction, "http://127.0.0.1:8000", "tug-key", "/app", "/home/agent", 4096, 512, isolated)


async def plan(text: str, launched: Launch):
    found = harness(f"command:{text}")
    return found.plan(launched, await found.install(Path("/nowhere"), print))


async def test_instruction_as_an_argument_is_one_argument():
    made = await plan("agent --task={instruction} 'two words'", launch())
    assert made.command.argv == ("agent", "--task=do 'it' \"now\" $x", "two words")
    assert made.command.stdin == b""


async def test_instruction_on_standard_input():
    made = await plan("agent -x", launch())
    assert made.command.argv == ("agent", "-x")
    assert made.command.stdin == launch().instruction.encode()


async def test_instruction_in_a_file():
    made = await plan("agent {instruction_file}", launch())
    assert made.files == ((made.command.argv[1], launch().instruction.encode()),)
    assert made.command.stdin == b""


@pytest.mark.parametrize("text", ["x" * 130_000, "a\0b"])
async def test_what_cannot_be_an_argument_is_refused_with_a_way_out(text):
    with pytest.raises(HarnessError) as caught:
        await plan("agent {instruction}", launch(text))
    assert "standard input" in caught.value.message
    assert (await plan("agent", launch(text))).command.stdin == text.encode()


async def test_a_program_of_this_machine_is_shown_inside(tmp_path):
    own = Path(__file__)
    if own.is_relative_to("/tmp"):
        pytest.skip("a sandbox has a /tmp of its own, so nothing of the machine's /tmp is shown")
    text = f"python3 {own} /usr/bin/env {own.parent}/none"
    found = harness(f"command:{text}")
    bundle = await found.install(tmp_path, print)
    inside = found.plan(launch(), bundle).command
    assert inside.argv == ("python3", f"/opt/tugline/command/1/{own.name}", "/usr/bin/env", f"{own.parent}/none")
    assert [(m.source, m.target) for m in inside.mounts] == [(own, inside.argv[1])]
    outside = found.plan(launch(isolated=False), bundle).command
    assert outside.argv[1] == str(own)
    assert outside.mounts == ()


async def test_a_relative_path_is_shown_wherever_the_project_lies(tmp_path, monkeypatch):
    (tmp_path / "agent.py").write_text("pass")
    monkeypatch.chdir(tmp_path)
    found = harness("command:python3 ./agent.py")
    inside = found.plan(launch(), await found.install(tmp_path, print)).command
    assert inside.argv == ("python3", "/opt/tugline/command/1/agent.py")


async def test_every_sdk_finds_the_gateway(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "host")
    env = (await plan("agent", launch())).command.env
    assert env["OPENAI_BASE_URL"] == "http://127.0.0.1:8000/v1"
    assert env["ANTHROPIC_BASE_URL"] == env["GOOGLE_GEMINI_BASE_URL"] == "http://127.0.0.1:8000"
    assert {env["OPENAI_API_KEY"], env["ANTHROPIC_API_KEY"], env["GEMINI_API_KEY"]} == {"tug-key"}
    assert "AWS_SECRET_ACCESS_KEY" not in env


@pytest.mark.parametrize("name", ["command:", "command: ", "command:'open", "nonsense"])
def test_wrong_names(name):
    with pytest.raises(ConfigError):
        harness(name)


def test_the_exit_status_decides():
    found = harness("command:/x/agent")
    assert found.failure(Exit(0, 1.0), b"error!") is None
    assert found.failure(Exit(2, 1.0), b"a\nlast words\n") == "agent ended with 2: last words"
    assert found.failure(Exit(2, 1.0), b"") == "agent ended with 2: no output"
