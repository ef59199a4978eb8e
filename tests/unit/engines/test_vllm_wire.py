import json

import pytest

from tugline.core.columns import ids, ids_list
from tugline.core.contracts import Generation
from tugline.core.errors import EngineError
from tugline.core.turn import Sampling
from tugline.engines import sglang_wire, vllm_wire
from tugline.engines.vllm_launch import VllmLaunch, command, exposed

ASKED = Generation("call_1", "ses_1", ids([5, 6, 7]), Sampling(0.7, 0.9, 40, 64, 3))


@pytest.mark.parametrize("write", [vllm_wire.generate_body, vllm_wire.completion_body])
def test_everything_that_a_sample_depends_on_is_written_out(write) -> None:
    """Fields left away would take the server's defaults, from the model's generation_config.json."""
    body = json.loads(write(ASKED, "m", (9,)))
    params = body.get("sampling_params", body)
    wanted = {
        "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.0, "max_tokens": 64, "seed": 3, "n": 1,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
        "ignore_eos": True, "stop_token_ids": [9], "logprobs": 0,
    }  # fmt: skip
    assert {name: params[name] for name in wanted} == wanted
    assert body["return_token_ids"] is True and body["request_id"] == "call_1"
    assert body.get("token_ids", body.get("prompt")) == [5, 6, 7]
    assert "stop" not in params


def test_stop_strings_need_text() -> None:
    asked = Generation("c", "s", ids([1]), Sampling(), ("END",))
    params = json.loads(vllm_wire.generate_body(asked, "m", ()))["sampling_params"]
    assert params["stop"] == ["END"] and params["detokenize"] is True
    assert json.loads(vllm_wire.generate_body(ASKED, "m", ()))["sampling_params"]["detokenize"] is False


def test_names_of_requests_as_vllm_has_them() -> None:
    assert json.loads(vllm_wire.abort_body("c.1", vllm_wire.GENERATE)) == {"request_ids": ["generate-tokens-c.1"]}
    assert json.loads(vllm_wire.abort_body("c.1", vllm_wire.COMPLETIONS)) == {"request_ids": ["cmpl-c.1-0"]}


def reply(**choice) -> bytes:
    made = {
        "finish_reason": "stop",
        "token_ids": [1, 2],
        "logprobs": {"content": [{"token_id": 1, "logprob": -0.5}, {"token_id": 2, "logprob": -1.5}]},
        "weight_versions": [{"version": "step-7", "start": 0, "end": 2}],
    } | choice
    return json.dumps(
        {"choices": [made], "prompt_token_ids": [5], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    ).encode()


def test_a_reply() -> None:
    taken = vllm_wire.decode_generated(reply())
    assert ids_list(taken.ids) == [1, 2] and taken.labels == (("step-7", 0),) and taken.fault is None


def test_log_probabilities_of_other_tokens_are_a_fault() -> None:
    content = [{"token_id": 1, "logprob": -0.5}, {"token_id": 3, "logprob": -1.5}]
    assert vllm_wire.decode_generated(reply(logprobs={"content": content})).fault == "logprob_ids_mismatch"


def test_experts_are_carried() -> None:
    assert vllm_wire.decode_generated(reply(routed_experts="AAEC")).experts == b"\0\1\2"
    with pytest.raises(EngineError):
        vllm_wire.decode_generated(reply(routed_experts="no base64!"))


def test_ids_beyond_int32_are_unreadable() -> None:
    with pytest.raises(EngineError) as caught:
        vllm_wire.decode_generated(reply(token_ids=[1, 1 << 40]))
    assert caught.value.fault == "unreadable"


def test_an_error_inside_a_stream_is_raised() -> None:
    with pytest.raises(EngineError) as caught:
        vllm_wire.decode_event(vllm_wire.GENERATE, b'{"error": {"message": "boom"}}')
    assert caught.value.fault == "stream_error"


def test_sglang_names_cannot_begin_one_another() -> None:
    """SGLang aborts by the beginning of a name."""
    names = [json.loads(sglang_wire.abort_body(n))["rid"] for n in ("call_1", "call_1.1", "call_12")]
    assert not [(a, b) for a in names for b in names if a != b and b.startswith(a)]


def test_sglang_everything_written_out() -> None:
    body = json.loads(sglang_wire.generate_body(ASKED, (9,)))
    params = body["sampling_params"]
    assert params["no_stop_trim"] and params["ignore_eos"] and params["stop_token_ids"] == [9]
    assert (params["max_new_tokens"], params["top_k"], params["sampling_seed"]) == (64, 40, 3)
    plain = Generation("c", "s", ids([1]), Sampling())
    assert json.loads(sglang_wire.generate_body(plain, ()))["sampling_params"]["top_k"] == -1
    assert body["return_logprob"] and body["return_prompt_token_ids"]


def test_sglang_without_an_echo_the_count_is_compared() -> None:
    meta = {"finish_reason": {"type": "length", "length": 1}, "prompt_tokens": 4, "completion_tokens": 1}
    meta["output_token_logprobs"] = [[-0.5, 1, None]]
    body = json.dumps({"output_ids": [1], "meta_info": meta}).encode()
    assert sglang_wire.decode_generated(body, 4).fault is None
    assert sglang_wire.decode_generated(body, 3).fault == "prompt_count_mismatch"


def test_sglang_refusals_inside_a_reply_are_errors() -> None:
    finish = {"type": "abort", "message": "too long", "status_code": 400}
    body = json.dumps({"output_ids": [], "meta_info": {"finish_reason": finish}}).encode()
    with pytest.raises(EngineError) as caught:
        sglang_wire.decode_generated(body, 1)
    assert not caught.value.retryable and caught.value.fault == "http_400"


def test_the_launch_command_has_what_the_driver_needs() -> None:
    argv, env = command(VllmLaunch("m", more=("--dtype", "bfloat16")))
    assert argv[:3] == ["vllm", "serve", "m"] and argv[-2:] == ["--dtype", "bfloat16"]
    assert {"--enable-scale-out", "--logprobs-mode", "--enable-prompt-tokens-details"} <= set(argv)
    assert env["VLLM_SERVER_DEV_MODE"] == "1"
    assert "VLLM_SERVER_DEV_MODE" not in command(VllmLaunch("m", updates=False))[1]
    argv, env = command(VllmLaunch("m", experts=True))
    assert "--enable-return-routed-experts" in argv and env["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert exposed(VllmLaunch("m", host="0.0.0.0")) and not exposed(VllmLaunch("m"))
    assert not exposed(VllmLaunch("m", host="0.0.0.0", updates=False))
