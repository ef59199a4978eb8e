"""A generate call whose engine takes messages: admit, ask, check, commit. From admission on it is as any other.

Nothing is rendered and no bridge is built. With ids returned (L2) a call is a root whose bridge is the whole prompt as
the engine made it; rows are found by the ids alone (`trajectory.merge`). Without (L0) all columns are empty, the turn
stands behind the one that it continues, and its tokens never train (`level_l0`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tugline.core.columns import NO_FLOATS, NO_IDS, Ids, count
from tugline.core.contracts import Conversation, EngineInfo, MessageEngine, Policy, Said
from tugline.core.errors import EngineError
from tugline.core.items import Request
from tugline.core.turn import Sampling
from tugline.forest.attach import Attachment
from tugline.forest.forest import Forest
from tugline.gateway.admission import Spent, admit, admit_elsewhere, check_budget, check_media
from tugline.gateway.prompt import NO_BRIDGE, Prompt
from tugline.tokens.model import Parsed

ROOT = f"{NO_BRIDGE}message_in"
"""Why a call with returned ids is a root."""
CHARS = 4
"""Characters of a request that count as a token where nobody can count."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """What an engine answered, as the gateway goes on with it."""

    said: Said
    prompt: Prompt
    parsed: Parsed


def sampling_for(policy: Policy, request: Request, info: EngineInfo, spent: Spent, *, elsewhere: bool) -> Sampling:
    """As for other engines; constraints are the engine's own affair, and only it can count its prompt. Raises
    Forbidden, Unsupported."""
    check_media(policy, request)
    if elsewhere:
        return admit_elsewhere(policy, request, info, 0)
    check_budget(policy, spent)
    return admit(policy, request, info, 0, spent)


async def converse(engine: MessageEngine, asked: Conversation) -> Said:
    """One answer. Raises EngineError for one that says nothing at all, whatever engine lets it pass."""
    said = await engine.converse(asked)
    blank = said.assistant.text is None and not said.assistant.calls and said.assistant.reasoning is None
    if blank and not said.sample.ids and said.usage.completion == 0:
        raise EngineError("the engine answered nothing", fault="empty_reply")
    return said


def placed(said: Said, request: Request, attached: Attachment, forest: Forest) -> Prompt:
    """Where the answer's turn stands, and its prompt: that of the engine, or none."""
    ids = said.sample.prompt_ids or NO_IDS
    drift = attached.drift + said.drift
    if said.sample.ids and ids:
        rooted = attached.as_root(request, ROOT)
        return Prompt(ids, 0, ids, rooted, (*drift, ROOT), rooted.root_reason)
    parent = attached.parent
    if parent is not None and count(forest.full(parent.turn_id)):  # it has ids, which this answer does not go on from
        rooted = attached.as_root(request, ROOT)
        return Prompt(Ids(b""), 0, Ids(b""), rooted, (*drift, ROOT), rooted.root_reason)
    return Prompt(Ids(b""), 0, Ids(b""), attached, drift, attached.root_reason)


def taken_in(said: Said, request: Request, attached: Attachment, forest: Forest) -> Spoken:
    """Everything that the rest of the exchange needs."""
    sample = said.sample
    prompt = placed(said, request, attached, forest)
    if not prompt.bridge:  # sampled ids without their prompt's are no training data
        sample = replace(sample, ids=NO_IDS, logprobs=NO_FLOATS, version_runs=(), prompt_ids=NO_IDS)
    parsed = Parsed(said.assistant, said.finish, (), said.usage.reasoning)
    return Spoken(replace(said, sample=sample), prompt, parsed)


def estimated(request: Request) -> int:
    """Tokens of a request by its length, for count calls: only the engine could count them."""
    size = sum(len(tool.spec) for tool in request.head.tools)
    for item in request.items:
        size += sum(len(getattr(item, name, None) or "") for name in ("text", "reasoning"))
        size += sum(len(call.name) + len(call.arguments) for call in getattr(item, "calls", ()))
    return max(1, size // CHARS)
