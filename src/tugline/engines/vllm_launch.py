"""How a vLLM server is started so that it can do all that the driver asks. Pure."""

from __future__ import annotations

from dataclasses import dataclass

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class VllmLaunch:
    """What to serve. `python`: the interpreter of vLLM's own environment; None: the `vllm` on the PATH."""

    model: str
    host: str = "127.0.0.1"
    port: int = 8000
    served: str | None = None
    python: str | None = None
    updates: bool = True
    """Weights, pauses and cache resets over HTTP. Anybody who reaches the port can use them."""
    experts: bool = False
    """Which experts each token was routed to, in every reply."""
    more: tuple[str, ...] = ()
    """Further arguments, as they are."""


def command(launch: VllmLaunch) -> tuple[list[str], dict[str, str]]:
    """(argv, environment besides the own one). Arguments of `more` come last and win."""
    if launch.python is not None:
        argv = [launch.python, "-m", "vllm.entrypoints.openai.api_server", "--model", launch.model]
    else:
        argv = ["vllm", "serve", launch.model]
    argv += ["--host", launch.host, "--port", str(launch.port)]
    argv += ["--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--enable-prompt-tokens-details"]
    argv += ["--served-model-name", launch.served] if launch.served is not None else []
    argv += ["--enable-return-routed-experts"] if launch.experts else []
    argv += launch.more
    env = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if launch.updates:
        env["VLLM_SERVER_DEV_MODE"] = "1"
    if launch.experts:
        env["VLLM_USE_V2_MODEL_RUNNER"] = "1"  # vLLM 0.32 says routes with this runner only
    return argv, env


def exposed(launch: VllmLaunch) -> bool:
    """Whether others than this machine's own users could replace its weights."""
    return launch.updates and launch.host not in LOOPBACK
