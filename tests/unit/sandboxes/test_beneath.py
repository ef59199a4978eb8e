from __future__ import annotations

import os

import pytest

from tugline.core.errors import SandboxError
from tugline.sandboxes import beneath


@pytest.fixture
def top(tmp_path):
    (tmp_path / "top").mkdir()
    (tmp_path / "secret").write_text("host")
    return tmp_path / "top"


@pytest.mark.parametrize("link", ["../secret", "/../secret", "sub/../../secret"])
def test_links_cannot_leave(top, link):
    (top / "a").symlink_to(link)
    assert beneath.read(top, "/a", 100) is None


def test_an_absolute_link_means_the_same_place_inside(top):
    (top / "app").mkdir()
    (top / "app/x").write_text("in")
    (top / "a").symlink_to("/app/x")
    assert beneath.read(top, "/a", 100) == b"in"


def test_writing_replaces_a_link_and_goes_through_no_planted_directory(top, tmp_path):
    (top / "a").symlink_to(tmp_path / "secret")
    (top / "d").symlink_to(tmp_path)
    beneath.write(top, "/a", b"mine", 0o600)
    assert (tmp_path / "secret").read_text() == "host"
    assert (top / "a").read_text() == "mine"
    with pytest.raises(OSError):
        beneath.write(top, "/d/secret", b"mine", 0o600)
    assert (tmp_path / "secret").read_text() == "host"


def test_upload_keeps_modes_and_links(top, tmp_path):
    source = tmp_path / "src"
    (source / "d").mkdir(parents=True)
    (source / "d/run").write_text("x")
    (source / "d/run").chmod(0o755)
    (source / "l").symlink_to("d/run")
    os.mkfifo(source / "pipe")
    beneath.upload(top, source, "/tests/here")
    assert os.access(top / "tests/here/d/run", os.X_OK)
    assert os.readlink(top / "tests/here/l") == "d/run"
    assert sorted(p.name for p in (top / "tests/here").iterdir()) == ["d", "l"]


def test_limits_and_odd_files(top):
    (top / "big").write_bytes(b"x" * 11)
    os.mkfifo(top / "pipe")
    assert beneath.read(top, "/big", 11) == b"x" * 11
    for path in ("/big", "/pipe", "/"):
        with pytest.raises((SandboxError, OSError)):
            beneath.read(top, path, 10)
