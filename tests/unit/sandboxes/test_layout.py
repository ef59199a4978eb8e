from __future__ import annotations

import pytest

from tugline.core.errors import ConfigError, SandboxError
from tugline.sandboxes import layout, provider
from tugline.sandboxes.layout import Start, View

VIEW = View("/s/b.root", "/s/b.work", "/s/b", "/home/agent/project", ("/usr",))


def options(start: Start, view: View = VIEW) -> list[str]:
    return layout.bwrap_args(view, start)


def index(args: list[str], *words: str) -> int:
    return next(i for i in range(len(args)) if tuple(args[i : i + len(words)]) == words)


def test_an_agent_is_nobody_and_its_root_is_read_only():
    args = options(Start({}, "/app", (), root=False))
    assert "--cap-add" not in args
    assert args[args.index("--uid") + 1] == "1000"
    for word in ("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--clearenv"):
        assert word in args
    assert index(args, "--bind", "/s/b.root", "/") < index(args, "--remount-ro", "/")


def test_writable_places_come_after_the_root_is_sealed_and_parents_first():
    args = options(Start({}, "/app", (), root=False))
    sealed = index(args, "--remount-ro", "/")
    home = index(args, "--bind", "/s/b/home", "/home/agent")
    work = index(args, "--bind", "/s/b.work", "/home/agent/project")
    assert sealed < home < work


def test_root_has_file_capabilities_only_and_a_writable_root():
    args = options(Start({}, "/app", (), root=True))
    assert args[args.index("--uid") + 1] == "0"
    assert "--remount-ro" in args
    assert args.count("--remount-ro") == 1  # /dev
    added = [args[i + 1] for i, word in enumerate(args) if word == "--cap-add"]
    assert added
    assert not {"CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_NET_ADMIN", "CAP_MKNOD", "CAP_SYS_CHROOT"} & set(added)


def test_no_variable_but_the_given_ones():
    args = options(Start({"KEY": "v=1 2\n3"}, "/app", (), root=False))
    given = {args[i + 1]: args[i + 2] for i, word in enumerate(args) if word == "--setenv"}
    assert given == {"KEY": "v=1 2\n3", "PATH": layout.PATH, "HOME": "/home/agent"}


@pytest.mark.parametrize("name", ["", "A=B", "A\0B"])
def test_odd_variable_names_are_refused(name):
    with pytest.raises(SandboxError):
        options(Start({name: "x"}, "/app", (), root=False))


@pytest.mark.parametrize(
    "target",
    ["/home/agent/x", "/home/agent/project/.git", "/tmp", "/logs/x", "/usr/lib", "/proc/x", "relative", "/opt/../etc"],
)
def test_nothing_is_mounted_where_an_agent_can_write(target):
    with pytest.raises(SandboxError):
        options(Start({}, "/app", (("/host", target),), root=False))


def test_mounts_are_read_only():
    args = options(Start({}, "/app", (("/host/pi", "/opt/tugline/pi"),), root=False))
    assert index(args, "--ro-bind", "/host/pi", "/opt/tugline/pi") < index(args, "--remount-ro", "/")


@pytest.mark.parametrize("workdir", ["/", "/usr/src/app", "/etc", "/tmp", "relative", "/app/../etc", "/proc/1"])
def test_system_directories_cannot_be_work_directories(workdir):
    with pytest.raises(SandboxError):
        layout.check_workdir(workdir)


def test_a_work_directory_is_made_plain():
    assert layout.check_workdir("/app//x/./y/") == "/app/x/y"


@pytest.mark.parametrize(("name", "words"), [("dokcer", "unknown sandbox"), ("", "unknown sandbox")])
def test_unknown_providers_are_named_with_the_known_ones(name, words, tmp_path):
    with pytest.raises(ConfigError) as caught:
        provider(name, tmp_path, "run")
    assert words in caught.value.message
    assert "bubblewrap, container, apptainer, local" in caught.value.message
    assert list(tmp_path.iterdir()) == []
