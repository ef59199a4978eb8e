"""What a request is for, and which earlier turns it belongs to besides its parent.

A turn that continues another keeps its role, unless its harness says otherwise. A root is judged by what its harness
says of it (a `Hint`), then by its form: without tools in a session that has them it is a side job or a summary; it
repeats a summary, or the words of a call. Everything else is the main conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from tugline.core.items import Assistant, Request
from tugline.core.roles import NO_HINT, Hint
from tugline.core.turn import Role, Turn
from tugline.forest import forms, quotes
from tugline.forest.attach import Attachment
from tugline.forest.forest import Forest

NEWEST = 64
"""Turns that are looked at for the call that asked for a sub-agent, and for what a summary sums up."""

UNNAMED_SUMMARY = 40
"""Characters of a reply, or a line of it, that a new conversation is told: it was a summary, whatever was asked."""

Links = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request belongs. `attached` carries the reason of a root, and a fingerprint of its own per thread."""

    attached: Attachment
    role: Role = "main"
    thread: str = ""
    links: Links = ()
    fresh: bool = False
    """The first request of a new agent, or behind a new summary: it asks anew, whoever got the same words before."""

    def again(self, turn_id: str | None) -> Place:
        """The place of a request that was answered before, by that turn."""
        if turn_id is None or self.fresh:
            return self
        return replace(self, links=(*self.links, ("resample_of", turn_id)))


def place(
    forest: Forest, request: Request, attached: Attachment, hint: Hint = NO_HINT, policy: Forest | None = None
) -> Place:
    """Role, thread and links of a request. Changes nothing. `policy`: the tree of the main conversation, where that is
    another. Cheap for what continues a turn; a root costs a look at the newest turns."""
    parent = attached.parent
    if parent is not None:
        thread = parent.thread if hint.thread is None else hint.thread
        return Place(_in_thread(attached, thread), hint.role or _kept(forest.turns, parent), thread)
    turns = list(forest.turns.values())  # a copy: calls in other threads commit meanwhile
    main = turns if policy is None or policy is forest else list(policy.turns.values())
    found = _root(_Scene(turns, main, request, hint), attached)
    return replace(found, attached=_in_thread(found.attached, found.thread))


def links_at_commit(placed: Place, policy: Forest) -> Links:
    """The links of a turn about to be committed: a side job that came before the first main turn belongs to that."""
    if placed.role != "auxiliary" or any(name == "aux_of" for name, _ in placed.links):
        return placed.links
    return placed.links + _link("aux_of", _newest_main(list(policy.turns.values())))


@dataclass(frozen=True, slots=True)
class _Scene:
    """A root and what was before it, in commit order. `main`: turns of the policy's tree."""

    turns: list[Turn]
    main: list[Turn]
    request: Request
    hint: Hint

    @property
    def thread(self) -> str:
        return self.hint.thread or ""

    @property
    def toolless(self) -> bool:
        return not self.request.head.tools and any(t.head.tools for t in (*self.main, *self.turns))

    def mine(self) -> list[Turn]:
        """Turns of the request's own thread."""
        return [turn for turn in self.turns if turn.thread == self.thread]

    def role(self) -> Role | None:
        """What the harness says, or the absence of tools; None = nothing."""
        hint = self.hint
        if hint.role is not None:
            return hint.role
        main = forms.Main.of(self.main, NEWEST)
        if self.toolless:
            return forms.without_tools(self.request, main)
        if hint.carrying is not None and forms.handed_over(self.request, main, self.agents()):
            return hint.carrying
        return "subagent" if hint.parent_thread not in (None, self.thread) else None

    def agents(self) -> list[Turn]:
        """Turns of sub-agents."""
        return [turn for turn in self.turns if turn.role == "subagent"]


def _root(scene: _Scene, attached: Attachment) -> Place:
    role = scene.role()
    if role == "auxiliary":
        links = _link("aux_of", _newest_main(scene.main))
        return Place(_because(attached, "root_aux"), role, scene.thread, links)
    if role == "compaction":
        links = _link("compaction_of", _newest(scene.mine(), ("main", "subagent")))
        return Place(_because(attached, "root_compaction"), role, scene.thread, links)
    summary = _summary_before(scene)
    if summary is not None:
        return _behind(summary, role, scene, attached)
    if role is None and (call := _quoted_call(scene, scene.turns)) is not None:
        return _spawned(call, scene, attached)
    if role == "subagent":
        return _spawned(_spawner(scene), scene, attached)
    reason = attached.root_reason or ""
    if _newest_main(scene.main) is None:
        reason = "root_first"
    elif role is None and reason == "root_unknown" and forms.another_agent(scene.request, forms.Main.of(scene.main, 0)):
        return _spawned(_waiting(scene), scene, attached)
    return Place(_because(attached, reason), "main", scene.thread)


# ------------------------------------------------------------------------------------------------- compaction


def _summary_before(scene: _Scene) -> Turn | None:
    """The compaction that a new conversation starts from: the newest of its thread that it repeats; else the newest
    turn at all, if the harness repeats of its reply as its own words what it does not echo."""
    mine, text = scene.mine(), quotes.spoken(scene.request.items)
    for turn in [turn for turn in mine if turn.role == "compaction"][: -NEWEST - 1 : -1]:
        if quotes.quotes(text, turn.echo.text):
            return turn
    newest = next((turn for turn in reversed(mine) if turn.role in ("main", "subagent")), None)
    if newest is None or newest.echo.calls:
        return None
    reply, told = newest.echo.text, quotes.spoken(scene.request.items, ours=False)
    if any(isinstance(item, Assistant) and item.text == reply for item in scene.request.items):
        return None
    return newest if quotes.quotes(told, reply, UNNAMED_SUMMARY, UNNAMED_SUMMARY) else None


def _behind(summary: Turn, role: Role | None, scene: _Scene, attached: Attachment) -> Place:
    by_id = {turn.turn_id: turn for turn in scene.turns}
    known = any(t.role != "compaction" and t.link("compaction_of") == summary.turn_id for t in scene.turns)
    reason = attached.root_reason or ""
    if not known or reason == "root_unknown":
        reason = "root_compacted"
    links = _link("compaction_of", summary)
    return Place(_because(attached, reason), role or _summed_up(by_id, summary), scene.thread, links, not known)


def _kept(turns: Mapping[str, Turn], turn: Turn) -> Role:
    """The role that goes on behind a turn. Behind a compaction or a side job inside a conversation, that of the
    conversation."""
    at: Turn | None = turn
    while at is not None and at.role in ("compaction", "auxiliary"):
        at = turns.get(at.parent) if at.parent else None
    return turn.role if at is None else at.role


def _summed_up(turns: Mapping[str, Turn], summary: Turn) -> Role:
    """The role of the conversation that a summary takes the place of."""
    at: Turn | None = summary
    while at is not None and at.role == "compaction":
        at = turns.get(at.parent or at.link("compaction_of") or "")
    return "main" if at is None else at.role


# -------------------------------------------------------------------------------------------------- sub-agents


@dataclass(frozen=True, slots=True)
class _Call:
    """The turn that called for a sub-agent. `free`: it made more such calls than agents have come of it."""

    turn: Turn
    free: bool


def _spawned(call: _Call | None, scene: _Scene, attached: Attachment) -> Place:
    reason = attached.root_reason or ""
    again = bool(scene.thread) and bool(scene.mine())
    if not again or reason == "root_unknown":
        reason = "root_subagent"
    links = _link("spawned_by", call.turn if call else None)
    return Place(_because(attached, reason), "subagent", scene.thread, links, fresh=bool(call and call.free))


def _spawner(scene: _Scene) -> _Call | None:
    """The turn that called for an agent which its harness says is one: of the parent thread where that is known."""
    if scene.thread:
        first = next((t.link("spawned_by") for t in scene.mine() if t.link("spawned_by")), None)
        known = next((t for t in scene.turns if t.turn_id == first), None)
        if known is not None:
            return _Call(known, free=False)
    others = [t for t in scene.turns if t.thread != scene.thread or not scene.thread]
    named = [t for t in others if t.thread == scene.hint.parent_thread]
    able = [t for t in named or others if t.role in ("main", "subagent")]
    quoted = _quoted_call(scene, able)
    if quoted is not None:
        return quoted
    newest = next((t for t in reversed(able) if t.echo.calls), able[-1] if able else None)
    return None if newest is None else _Call(newest, free=False)


def _waiting(scene: _Scene) -> _Call | None:
    """The newest turn with calls, if its results are still to come."""
    extended = {turn.parent for turn in scene.turns}
    newest = next((turn for turn in reversed(scene.turns) if turn.role in ("main", "subagent")), None)
    waits = newest is not None and bool(newest.echo.calls) and newest.turn_id not in extended
    return _Call(newest, free=False) if newest is not None and waits else None


def _quoted_call(scene: _Scene, among: Sequence[Turn]) -> _Call | None:
    """The turn whose call the request was told: best one that waits for results and has agents still to come."""
    items = scene.request.items
    if any(isinstance(item, Assistant) for item in items):
        return None  # a new agent has said nothing yet
    extended = {turn.parent for turn in scene.turns}
    opened: dict[str, int] = {}
    for turn in scene.turns:
        spawner = turn.link("spawned_by")
        if spawner is not None:
            opened[spawner] = opened.get(spawner, 0) + 1
    found: list[tuple[tuple[bool, bool, int], _Call]] = []
    for turn in [t for t in among if t.echo.calls and t.role in ("main", "subagent")][-NEWEST:]:
        if turn.role == "main" and turn.parent is None and turn.items == items:
            continue  # the same request again: models repeat their task in calls
        calls = quotes.calls_for(turn, items)
        if calls:
            free = calls > opened.get(turn.turn_id, 0)
            found.append(((free, turn.turn_id not in extended, turn.seq), _Call(turn, free)))
    return max(found, key=lambda entry: entry[0])[1] if found else None


# ----------------------------------------------------------------------------------------------------- helpers


def _newest(turns: Sequence[Turn], roles: tuple[Role, ...]) -> Turn | None:
    return next((turn for turn in reversed(turns) if turn.role in roles), None)


def _newest_main(turns: Sequence[Turn]) -> Turn | None:
    return _newest(turns, ("main",))


def _link(name: str, turn: Turn | None) -> Links:
    return () if turn is None else ((name, turn.turn_id),)


def _because(attached: Attachment, reason: str) -> Attachment:
    return replace(attached, root_reason=reason)


def _in_thread(attached: Attachment, thread: str) -> Attachment:
    """Two agents that ask the same are no retries of each other."""
    if not thread:
        return attached
    mixed = blake2b(attached.fingerprint + thread.encode("utf-8", "surrogatepass"), digest_size=16)
    return replace(attached, fingerprint=mixed.digest())
