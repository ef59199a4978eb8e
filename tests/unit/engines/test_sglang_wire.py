import itertools
from typing import Any

import msgspec
import pytest

from tugline.core.columns import floats_array, ids, ids_list
from tugline.core.contracts import Generation
from tugline.core.errors import EngineError
from tugline.core.turn import Sampling
from tugline.engines import sglang_wire as wire
from tugline.testing.engine_server import Refused, checked
from tugline.testing.sglang_server import GENERATE, SAMPLING, valid_sampling

SAID = [5, 5, 5, 7, 2]


def events(*, incremental: bool, steps: list[int], total: int | None = 0) -> list[bytes]:
    """A stream that tells SAID in so many ids at a time. `total`: how much the count is off; None: it is not said."""
    out, known = [], 0
    for n in steps:
        begin = known if incremental else 0
        known += n
        meta: dict[str, Any] = {
            "id": "r;",
            "finish_reason": {"type": "stop"} if known == len(SAID) else None,
            "output_token_logprobs": [[-float(at + 1), SAID[at], None] for at in range(begin, known)],
        }
        if total is not None:
            meta["completion_tokens"] = known + total
        out.append(msgspec.json.encode({"output_ids": SAID[begin:known], "meta_info": meta}))
    return out


def told(stream: list[bytes]) -> tuple[list[list[int]], Any]:
    found = wire.Streamed()
    pieces = [ids_list(found.take(wire.decode_event(data))) for data in stream]
    return pieces, found.taken(3)


@pytest.mark.parametrize("incremental", [True, False])
@pytest.mark.parametrize(
    ("steps", "off"),
    [
        *(([5], off) for off in (0, 1)),
        *(([1, 1, 1, 1, 1], off) for off in (0, 1)),
        *(([1, 2, 2], off) for off in (0, 1)),
        *((steps, 0) for steps in ([2, 3], [4, 1], [5, 0])),
    ],
)
def test_both_ways_to_tell_a_stream_give_the_same(incremental: bool, steps: list[int], off: int) -> None:
    """Ids that repeat do not confuse it, nor does a count that is wrong at the end."""
    stream = events(incremental=incremental, steps=steps)
    if off:
        stream[-1] = events(incremental=incremental, steps=steps, total=1)[-1]
    pieces, taken = told(stream)
    assert list(itertools.chain(*pieces)) == SAID == ids_list(taken.ids)
    assert floats_array(taken.logprobs).tolist() == [-1.0, -2.0, -3.0, -4.0, -5.0]
    assert taken.fault == ("usage_mismatch" if off else None) and taken.name == "r;"


@pytest.mark.parametrize("incremental", [True, False])
@pytest.mark.parametrize("off", [0, 1, 2, -1])
@pytest.mark.parametrize("steps", [[1, 4], [2, 3], [4, 1], [5, 0], [1, 1, 3]])
def test_what_can_be_read_in_two_ways_never_trains_wrongly(incremental: bool, steps: list[int], off: int) -> None:
    """Two events and a wrong count: whatever is made of them, it is told right or does not train."""
    if incremental and (steps, off) == ([1, 4], -1):
        return  # this is, to the letter, a stream of four ids that tells everything so far
    stream = events(incremental=incremental, steps=steps)
    stream[-1] = events(incremental=incremental, steps=steps, total=off)[-1]
    try:
        _, taken = told(stream)
    except EngineError:
        return
    assert taken.fault is not None or ids_list(taken.ids) == SAID


def test_an_abort_repeats_its_last_id() -> None:
    """In a stream of what is new, with all log-probabilities."""
    stream = events(incremental=True, steps=[2, 1])
    meta = {"id": "r;", "finish_reason": {"type": "abort", "message": "Aborted"}, "completion_tokens": 3}
    entries = [[-float(at + 1), SAID[at], None] for at in range(3)]
    last = {"output_ids": [SAID[2]], "meta_info": meta | {"output_token_logprobs": entries}}
    _, taken = told([*stream, msgspec.json.encode(last)])
    assert ids_list(taken.ids) == SAID[:3] and (taken.finish, taken.fault) == ("abort", None)
    assert floats_array(taken.logprobs).tolist() == [-1.0, -2.0, -3.0]


def test_what_was_told_is_not_taken_back() -> None:
    stream = events(incremental=False, steps=[2, 3])
    stream[1] = stream[1].replace(b"[5,5,5,7,2]", b"[6,5,5,7,2]")
    with pytest.raises(EngineError) as caught:
        told(stream)
    assert caught.value.fault == "stream_error"


@pytest.mark.parametrize(
    ("error", "fault", "again"),
    [
        ({"message": "too long", "code": 400, "retryable": False}, "http_400", False),
        ({"message": "crashed", "code": 500}, "stream_error", True),
        ({"message": "?"}, "stream_error", True),
        ("plain", "stream_error", True),
    ],
)
def test_errors_inside_a_stream(error: object, fault: str, again: bool) -> None:
    with pytest.raises(EngineError) as caught:
        wire.decode_event(msgspec.json.encode({"error": error}))
    assert (caught.value.fault, caught.value.retryable) == (fault, again)


@pytest.mark.parametrize("stop", [(), ("a",), tuple("abcdefghijklmnopqrstuvwxyz0123456789")])
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.0), Sampling(top_p=0.5, top_k=7, seed=3), Sampling(max_tokens=1)]
)
def test_what_is_asked_passes_the_schema(sampling: Sampling, stop: tuple[str, ...]) -> None:
    request = Generation("call_1", "ses_1", ids([1, 2]), sampling, stop)
    asked = checked(msgspec.json.decode(wire.generate_body(request, (2,))), GENERATE, "body")
    valid_sampling(checked(asked["sampling_params"], SAMPLING, "sampling_params"))
    assert asked["rid"] == "call_1;" and asked["return_logprob"] and asked["sampling_params"]["no_stop_trim"]


@pytest.mark.parametrize(
    "wrong",
    [{"top_k": 0}, {"top_p": 0.0}, {"temperature": -1}, {"max_new_tokens": True}, {"n": "1"}, {"min_new_tokens": 999}],
)
def test_the_pretended_server_refuses_what_the_schema_refuses(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        valid_sampling({"max_new_tokens": 5} | wrong)
