"""Bodies of the control plane: any bytes whatever give a value or a named refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tugline.core.errors import BadRequest, Conflict, RunError, StoreError
from tugline.rollout.api import wire
from tugline.rollout.control_file import Control, newest_control, read_control, remove_control, write_control
from tugline.rollout.options import check_ending, check_options

NAMES = st.sampled_from((*wire.OpenBody.__struct_fields__, *wire.EndBody.__struct_fields__, "other"))
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary(max_size=200) | st.dictionaries(NAMES, VALUES, max_size=4).map(lambda v: json.dumps(v).encode()))
def test_any_bytes_give_a_value_or_a_named_refusal(body: bytes) -> None:
    for kind in (wire.OpenBody, wire.EndBody):
        try:
            made = wire.decode(kind, body)
            if isinstance(made, wire.OpenBody):
                check_options(made.options(), ())
            else:
                check_ending(made.ending())
        except BadRequest as err:
            told = json.loads(wire.error_body(err))["error"]
            assert told["code"] == "invalid_request" and told["message"]


def test_errors_say_code_message_and_path() -> None:
    assert json.loads(wire.error_body(BadRequest("is wrong", path="a[0].b"))) == {
        "error": {"code": "invalid_request", "message": "is wrong", "path": "a[0].b"}
    }
    assert json.loads(wire.error_body(Conflict("no", code="session_open"))) == {
        "error": {"code": "session_open", "message": "no"}
    }
    assert json.loads(wire.error_body(StoreError("full")))["error"]["code"] == "store_error"


def test_where_a_running_gateway_is(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run directory"):
        read_control(tmp_path)
    for name, pid in (("a", 1), ("dead", 2**22 + 1)):
        run = tmp_path / name
        run.mkdir()
        (run / "run.db").touch()
        with pytest.raises(RunError, match=f"tugline gateway --out {run}"):
            read_control(run)
        write_control(run, Control("http://x", "http://y", str(run / "control.token"), pid))
    assert newest_control(tmp_path) == tmp_path / "a"  # the newer one is dead
    assert read_control(tmp_path / "a").url == "http://x"
    remove_control(tmp_path / "a")
    with pytest.raises(RunError, match="no gateway is running"):
        newest_control(tmp_path)
    (tmp_path / "dead" / "control.json").write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        read_control(tmp_path / "dead")
