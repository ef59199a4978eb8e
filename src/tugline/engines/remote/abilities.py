"""What an engine behind HTTP was seen to be able to do, and what to change where it is too little. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["raw", "processed"]
LEVEL = Literal["L0", "L2", "L4"]


@dataclass(frozen=True, slots=True)
class Abilities:
    """Found out by asking, never by version."""

    engine: str
    """vllm | sglang | openai."""
    model: str
    context: int | None
    token_in: str | None
    """Route that takes ids and gives ids; None: there is none."""
    level: LEVEL
    echo: bool
    """Replies carry the prompt's ids as the engine consumed them."""
    logprobs: bool
    kind: Kind | None
    """None: not known."""
    versions: Literal["spans", "reported", "none"]
    """Per token; one number that can be asked for; not at all."""
    abort: Literal["by_name", "by_hanging_up"]
    updates: bool
    """Weights can be replaced and generation paused over HTTP."""
    cache_reset: bool
    metrics: bool
    tokenizer: Literal["same", "differs", "unknown"]
    routes: bool = False
    """Replies say which experts tokens went to."""
    why: str | None = None
    """Why the better route was not taken, in the engine's words."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a verdict. `ok` None: works, but for what `hint` says."""

    ok: bool | None
    what: str
    hint: str = ""


UNPROVEN = frozenset({"sglang"})
"""Drivers that have never met a real server."""
UNPROVEN_NOTE = "this driver was written from SGLang's sources and has never met a real server: unproven"
FLAGS: dict[str, dict[str, str]] = {
    "vllm": {
        "token_in": "start vLLM with --enable-scale-out",
        "kind": "start vLLM with --logprobs-mode processed_logprobs",
        "updates": "set VLLM_SERVER_DEV_MODE=1 in vLLM's environment (only where nobody else reaches it)",
        "abort": "start vLLM with --enable-scale-out",
        "versions": "start vLLM with --enable-scale-out; vLLM 0.32 says which weights sampled each token",
        "echo": "use vLLM 0.11 or newer",
    },
    "sglang": {
        "kind": "unset SGLANG_RETURN_ORIGINAL_LOGPROB",
        "updates": "use SGLang 0.5 or newer, and its admin key where one is set",
        "versions": "use SGLang 0.5.23 or newer",
        "echo": "use SGLang 0.5.23 or newer, which knows return_prompt_token_ids",
        "metrics": "start SGLang with --enable-metrics",
    },
    "openai": {},
}


def verdict(a: Abilities) -> list[Line]:
    """What works, what does not, and the flag to add, in the order of importance for training."""
    flag = FLAGS.get(a.engine, {})
    lines = [_level(a, flag)]
    if a.engine in UNPROVEN:
        lines.append(Line(None, UNPROVEN_NOTE, "tell us what this command says of yours"))
    if a.tokenizer == "differs":
        lines.append(Line(False, "another tokenizer than the model directory's", "name the directory that it serves"))
    elif a.tokenizer == "unknown" and a.level == "L4":
        lines.append(Line(None, "tokenizer not compared", "the engine has no /tokenize"))
    if a.engine == "openai":
        return lines
    lines.append(
        Line(True, "echoes the prompt's ids: every call is checked")
        if a.echo
        else Line(None, "does not echo the prompt's ids: only their number is checked", flag.get("echo", ""))
    )
    lines.append(Line(a.logprobs, "log-probabilities of sampled tokens" if a.logprobs else "no log-probabilities"))
    lines.append(_kind(a, flag))
    said = {
        "spans": "says which weights sampled each token",
        "reported": "says which weights it has, not which sampled a token: calls during an update do not train",
        "none": "never says which weights it has: they count as version 0",
    }
    lines.append(Line(True if a.versions == "spans" else None, said[a.versions], flag.get("versions", "")))
    if a.abort == "by_name":
        lines.append(Line(True, "aborts by name"))
    else:
        lines.append(Line(None, "aborts only when the connection closes", flag.get("abort", "")))
    lines.append(
        Line(True, "takes new weights, pauses and resumes")
        if a.updates
        else Line(None, "takes no new weights over HTTP", flag.get("updates", ""))
    )
    if a.updates and not a.cache_reset:
        lines.append(Line(None, "cannot reset its prefix cache", flag.get("updates", "")))
    if a.routes:
        lines.append(Line(True, "says which experts tokens went to"))
    if not a.metrics:
        lines.append(Line(None, "no metrics", flag.get("metrics", "")))
    return [line if line.ok is not True else Line(True, line.what) for line in lines]


def _level(a: Abilities, flag: dict[str, str]) -> Line:
    place = f"{a.engine}, model {a.model}"
    if a.level == "L0":
        return Line(None, f"{place}: text in, text out (L0): replies are recorded and never train")
    if a.level == "L2":
        return Line(None, f"{place}: messages in, ids out (L2): calls train one by one")
    better = f": {flag.get('token_in', '')}" if a.why else ""
    hint = f"{a.why}{better}" if a.why else ""
    return Line(None if hint else True, f"{place}: ids in, ids out (L4) by {a.token_in}", hint)


def _kind(a: Abilities, flag: dict[str, str]) -> Line:
    if a.kind == "processed":
        return Line(True, "log-probabilities of the distribution that is sampled from (processed)")
    if a.kind == "raw":
        text = "log-probabilities of the model at temperature 1 (raw): exact for training at that temperature only"
        return Line(None, text, flag.get("kind", ""))
    return Line(None, "log-probabilities of unknown kind")
