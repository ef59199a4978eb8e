"""Dockerfiles: what is followed, what is refused and where."""

from __future__ import annotations

import pytest

from tugline.core.errors import TaskError
from tugline.core.task import Copy
from tugline.tasks.dockerfile import read_dockerfile


@pytest.fixture
def read(tmp_path):
    """Write files and a Dockerfile, read it."""

    def run(text: str, **files: str):
        for name, content in files.items():
            file = tmp_path / name.replace("__", "/").replace("_dot_", ".")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        (tmp_path / "Dockerfile").write_text(text)
        return read_dockerfile(tmp_path / "Dockerfile", "t/environment/Dockerfile")

    return run


def copies(environment, root):
    return [
        (s.source.relative_to(root.resolve()).as_posix(), s.target) for s in environment.steps if isinstance(s, Copy)
    ]


def test_the_usual_file(read):
    made = read(
        "# syntax=docker/dockerfile:1\n"
        "ARG TAG=3.12-slim\n"
        "FROM --platform=linux/amd64 python:${TAG} AS base\n"
        "LABEL a=b\n"
        "ENV A=1 B=\"two words\" C='$A'\n"
        "ENV D $A and more\n"
        "WORKDIR /srv\n"
        "WORKDIR app\n"
        "USER nobody\n"
        "EXPOSE 80\n"
        'CMD ["python"]\n'
        'ENTRYPOINT ["sh"]\n'
        "HEALTHCHECK NONE\n"
    )
    assert made.image == "python:3.12-slim"
    assert made.env == {"A": "1", "B": "two words", "C": "$A", "D": "1 and more"}
    assert made.workdir == "/srv/app"
    assert made.steps == ()


def test_continuations_join_as_docker_joins_them(read):
    made = read("FROM x\nRUN echo a\\\n  b \\\n# a comment in between\n\n  && echo c\\\\\nRUN true\n")
    assert [s.split("; ", 1)[1] for s in made.steps] == ["echo a  b   && echo c\\\\", "true"]


def test_the_escape_directive_moves_continuations_and_escapes(read):
    made = read("# escape=`\nFROM x\nENV P=C:\\dir Q=a`$b\nRUN one `\n  two\n")
    assert made.env == {"P": "C:\\dir", "Q": "a$b"}
    assert made.steps[-1].endswith("one   two")


def test_an_escape_directive_behind_a_comment_is_only_a_comment(read):
    made = read("# hello\n# escape=`\nFROM x\nRUN a \\\n b\n")
    assert made.steps[-1].endswith("a  b")


@pytest.mark.parametrize(
    ("value", "filled"),
    [
        ("$A", "1"),
        ("${A}x", "1x"),
        ("${A:-no}", "1"),
        ("${N:-def}", "def"),
        ("${N-def}", "def"),
        ("${E:-def}", "def"),
        ("${E-def}", ""),
        ("${A:+yes}", "yes"),
        ("${N:+yes}", ""),
        ("${N:-${A}2}", "12"),
        ("\\$A", "$A"),
        ("'$A'", "$A"),
        ('"$A b"', "1 b"),
        ('"\\n\\""', '\\n"'),
        ("100$", "100$"),
    ],
)
def test_variables_outside_run(read, value, filled):
    assert read(f"FROM x\nENV A=1 E=\nENV V={value}\n").env["V"] == filled


def test_env_uses_values_from_before_the_instruction(read):
    assert read("FROM x\nENV A=old\nENV A=new B=$A\n").env == {"A": "new", "B": "old"}


def test_args_end_at_from_unless_named_again(read):
    made = read("ARG A=1\nARG B=2\nFROM x\nARG A\nARG C=3\nENV V=$A-$B-$C\n")
    assert made.env == {"V": "1--3"}


def test_run_is_a_shell_command_with_what_docker_gives_it(read):
    shell, listed, spelt = read(
        "FROM x\nENV A='x y'\nARG B=2\nWORKDIR /app\n"
        'RUN echo $HOME\nRUN ["python", "-c", "print(1 + 1)"]\n'
        'SHELL ["/bin/bash", "-o", "pipefail", "-c"]\nRUN a | b\n'
    ).steps
    assert shell == "cd /app || exit 1; export B=2; export A='x y'; echo $HOME"
    assert listed.endswith("; exec python -c 'print(1 + 1)'")
    assert spelt.endswith("; exec /bin/bash -o pipefail -c 'a | b'")


def test_run_with_a_test_in_brackets_is_a_command(read):
    assert read("FROM x\nRUN [ -f x ] && echo y\n").steps[-1].endswith("; [ -f x ] && echo y")


def test_a_folder_that_only_workdir_makes_is_made(read):
    assert read("FROM x\nWORKDIR /data/in\nWORKDIR /app\n").steps == ("mkdir -p /data/in",)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("COPY a.txt /app/", [("a.txt", "/app/a.txt")]),
        ("COPY a.txt /app", [("a.txt", "/app/a.txt")]),  # /app is there: WORKDIR made it
        ("COPY a.txt /app/b.txt", [("a.txt", "/app/b.txt")]),
        ("COPY a.txt new", [("a.txt", "/app/new")]),
        ("COPY a.txt new/", [("a.txt", "/app/new/a.txt")]),
        ("COPY a.txt .", [("a.txt", "/app/a.txt")]),
        ("COPY a.txt /tmp", [("a.txt", "/tmp/a.txt")]),
        ("COPY /a.txt ./", [("a.txt", "/app/a.txt")]),
        ("COPY d d2", [("d", "/app/d2")]),
        ("COPY d/ /app/", [("d", "/app")]),
        ("COPY a.txt .hid d /app/", [("a.txt", "/app/a.txt"), (".hid", "/app/.hid"), ("d", "/app")]),
        ("COPY *.txt ./", [("a.txt", "/app/a.txt"), ("b.txt", "/app/b.txt")]),
        ("COPY d/[xy].py ./", [("d/x.py", "/app/x.py")]),
        ('COPY ["with space", "/app/"]', [("with space", "/app/with space")]),
        ("COPY --chown=1000:1000 --link a.txt /app/", [("a.txt", "/app/a.txt")]),
        ("ADD a.txt ./", [("a.txt", "/app/a.txt")]),
        ("COPY link ./", [("link", "/app/link")]),
    ],
)
def test_copy_goes_where_docker_copies(read, tmp_path, line, expected):
    (tmp_path / "link").symlink_to("a.txt")
    (tmp_path / "with space").write_text("s")
    files = {"a_dot_txt": "a", "b_dot_txt": "b", "_dot_hid": "h", "d__x_dot_py": "x"}
    made = read(f"FROM x\nWORKDIR /app\n{line}\n", **files)
    assert copies(made, tmp_path) == expected


def test_a_file_goes_into_a_folder_that_an_earlier_copy_made(read, tmp_path):
    made = read("FROM x\nCOPY a.txt /data/x/\nCOPY b.txt /data\n", a_dot_txt="a", b_dot_txt="b")
    assert copies(made, tmp_path) == [("a.txt", "/data/x/a.txt"), ("b.txt", "/data/b.txt")]


def test_chmod_of_a_file_becomes_a_command(read):
    assert read("FROM x\nCOPY --chmod=755 a.sh /app/\n", a_dot_sh="x").steps[1] == "chmod 755 /app/a.sh"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("FROM a\nFROM b\n", 2, "one build stage"),
        ("FROM a\nCOPY --from=a x y\n", 2, "--from"),
        ("FROM a\nADD https://x.y/z /app/\n", 2, "only local files"),
        ("FROM a\nADD git@github.com:a/b.git /app/\n", 2, "only local files"),
        ("FROM a\nCOPY <<EOF /app/x\nhello\nEOF\n", 2, "here-document"),
        ("FROM a\nRUN cat <<'EOF' > x\nhello\nEOF\n", 2, "here-document"),
        ("FROM a\nRUN --mount=type=cache,target=/x ls\n", 2, "--mount"),
        ("FROM a\nRUN \\\n\n", 2, "names no command"),
        ("FROM a\nVOLUME /x\n", 2, "VOLUME"),
        ("FROM a\nONBUILD RUN x\n", 2, "ONBUILD"),
        ("FROM a\nHEALTHCHECK CMD true\n", 2, "HEALTHCHECK"),
        ("FROM a\nFRMO b\n", 2, "FRMO"),
        ("RUN x\nFROM a\n", 1, "before FROM"),
        ("FROM a b\n", 1, "one image"),
        ("FROM $NOTHING\n", 1, "names no image"),
        ("FROM a\nCOPY gone /app/\n", 2, "does not exist"),
        ("FROM a\nCOPY *.zip /app/\n", 2, "does not exist"),
        ("FROM a\nCOPY ../x /app/\n", 2, "leaves the environment"),
        ("FROM a\nCOPY a.txt\n", 2, "source and a target"),
        ("FROM a\nCOPY a.txt d /app\n", 2, "ends with /"),
        ("FROM a\nCOPY --parents a.txt /app/\n", 2, "--parents"),
        ("FROM a\nCOPY --chmod=u+x a.txt /app/\n", 2, "octal"),
        ('FROM a\nCOPY ["a.txt", 3]\n', 2, "strings"),
        ("FROM a\nADD b.tar /app/\n", 2, "unpack"),
        ("FROM a\nENV A='x\n", 2, "quote"),
        ("FROM a\nENV A\n", 2, "value"),
        ("FROM a\nENV A=${B:?must}\n", 2, "must"),
        ("FROM a\nENV A=${B!}\n", 2, "cannot be filled in"),
    ],
)
def test_what_is_not_followed_is_refused_with_its_line(read, tmp_path, text, line, says):
    import tarfile

    with tarfile.open(tmp_path / "b.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("x"))
    with pytest.raises(TaskError) as caught:
        read(text, a_dot_txt="a", d__x="x")
    problem = getattr(caught.value, "problems", (caught.value,))[0]
    assert problem.field == f"line {line}"
    assert says in problem.message


@pytest.mark.parametrize("text", ["", "# only a comment\n", "ARG A=1\n"])
def test_a_file_without_from_is_refused(read, text):
    with pytest.raises(TaskError, match="has no FROM"):
        read(text)


def test_a_source_may_not_lead_out_through_a_link(read, tmp_path, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "hidden"
    outside.write_text("answer")
    (tmp_path / "link").symlink_to(outside)
    with pytest.raises(TaskError, match="leaves the environment"):
        read("FROM a\nCOPY link /app/\n")


def test_a_here_string_and_a_shift_are_no_here_documents(read):
    assert len(read('FROM a\nRUN cat <<<"x" && echo $((1<<3))\n').steps) == 1


class TestDigest:
    def test_changes_with_content_mode_and_commands(self, read, tmp_path):
        text = "FROM a\nCOPY d /app/\nRUN one\n"
        first = read(text, d__x="1").digest
        assert read(text, d__x="1").digest == first
        seen = {first, read(text, d__x="2").digest, read(text.replace("one", "two"), d__x="1").digest}
        (tmp_path / "d/x").chmod(0o755)
        seen.add(read(text, d__x="1").digest)
        (tmp_path / "d/link").symlink_to("x")
        seen.add(read(text, d__x="1").digest)
        (tmp_path / "d/empty").mkdir()
        seen.add(read(text, d__x="1").digest)
        assert len(seen) == 6

    def test_does_not_change_with_comments_or_the_image_owner(self, read):
        plain = read("FROM a\nRUN one\n").digest
        assert read("# hi\nFROM a\nLABEL x=y\nRUN one\n").digest == plain
        assert read("FROM b\nRUN one\n").digest != plain
