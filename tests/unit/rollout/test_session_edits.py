"""The control plane's `edits` are those of the settings and of the gateway, by the same names."""

from __future__ import annotations

from dataclasses import fields

import msgspec
import pytest

from tugline.config.types import EditSettings
from tugline.core.contracts import EditPolicy
from tugline.rollout.api.wire import EditsBody, OpenBody
from tugline.rollout.options import SessionOptions


def test_every_edit_of_the_policy_can_be_asked_for() -> None:
    names = {f.name for f in fields(EditPolicy)}
    assert set(EditsBody.__struct_fields__) == names
    assert {f.name for f in fields(EditSettings)} == names | {"history_reasoning"}
    for f in fields(EditPolicy):
        assert getattr(EditSettings(), f.name) == f.default


@pytest.mark.parametrize(
    ("body", "edits"),
    [
        ({}, {}),
        ({"edits": {}}, {}),
        ({"edits": {"train_partial": False, "ws_trim": "honour"}}, {"train_partial": False, "ws_trim": "honour"}),
    ],
)
def test_only_what_was_asked_for_is_changed(body: object, edits: object) -> None:
    read = msgspec.json.decode(msgspec.json.encode(body), type=OpenBody)
    assert read.options() == SessionOptions(edits=edits)  # type: ignore[arg-type]
