"""Roles and links from hints and from the form of requests, on hand-written conversations."""

from __future__ import annotations

from dataclasses import replace

from tugline.core.items import Assistant, Head, Item, Options, Request, System, Tool, ToolCall, ToolResult, UserText
from tugline.core.roles import NO_HINT, Hint
from tugline.core.turn import Turn
from tugline.forest.roles import Place, links_at_commit, place
from unit.forest.driver import TOOLS, Session, results, say, user

NONE = Head()
OTHER = Head(tools=(Tool("read", "{}"),))
TASK = user("Make a file that greets the reader.")
SUMMARY = "The file greets nobody yet; write the greeting next."


class Talk(Session):
    """A session whose turns are placed, as in the gateway."""

    placed: Place

    def ask(self, items: list[Item], said: Assistant, hint: Hint = NO_HINT, head: Head = TOOLS) -> Turn:
        request = Request("any", head, tuple(items))
        self.placed = place(self.forest, request, self.forest.attach(request), hint)
        made = self.make(self.placed.attached, said, head=head)
        turn = replace(
            made, role=self.placed.role, thread=self.placed.thread, links=links_at_commit(self.placed, self.forest)
        )
        self.forest.commit(turn)
        return turn

    @property
    def reason(self) -> str | None:
        return self.placed.attached.root_reason


def calling(name: str, **arguments: str) -> Assistant:
    pairs = ", ".join(f'"{k}": "{v}"' for k, v in arguments.items())
    return Assistant(None, None, (ToolCall(f"c_{name}", name, "{" + pairs + "}"),))


def begun(talk: Talk) -> list[Item]:
    """A main conversation of one turn with a call, and its result."""
    said = say("I look first at what there is.", '{"command": "ls -la /srv/work"}')
    turn = talk.ask([TASK], said)
    assert (turn.role, talk.reason, turn.links) == ("main", "root_first", ())
    return [TASK, said, *results(said)]


# --------------------------------------------------------------------------------------------- without tools


def test_a_title_is_auxiliary_and_belongs_to_the_newest_main_turn() -> None:
    talk = Talk()
    begun(talk)
    turn = talk.ask([user("Write a title for this conversation."), TASK], say("Greeting"), head=NONE)
    assert (turn.role, talk.reason, turn.links) == ("auxiliary", "root_aux", (("aux_of", "turn_0"),))


def test_a_title_that_is_given_the_conversation_is_no_compaction() -> None:
    talk = Talk()
    history = begun(talk)
    assert talk.ask([*history, user("Give this a title.")], say("Greeting"), head=NONE).role == "auxiliary"


def test_a_side_job_is_auxiliary_though_it_asks_for_a_summary_of_something_else() -> None:
    talk = Talk()
    begun(talk)
    turn = talk.ask([user("Summarise this page: the sea is wide.")], say("wide"), head=NONE)
    assert turn.role == "auxiliary"


def test_the_first_main_request_behind_a_title_is_the_first() -> None:
    talk = Talk()
    title = talk.ask([TASK], say("Greeting"), Hint("auxiliary", "s"), head=NONE)
    assert (title.role, talk.reason, title.links) == ("auxiliary", "root_aux", ())
    assert talk.ask([TASK], say("on it"), Hint(None, "s")).role == "main"
    assert talk.reason == "root_first"


def test_a_side_job_that_was_asked_for_before_the_first_main_turn_belongs_to_it_if_that_is_there_first() -> None:
    talk = Talk()
    request = Request("any", NONE, (user("title?"),))
    asked = place(talk.forest, request, talk.forest.attach(request), Hint("auxiliary"))
    main = talk.ask([TASK], say("on it"))
    assert asked.links == ()
    assert links_at_commit(asked, talk.forest) == (("aux_of", main.turn_id),)


def test_requests_without_tools_in_a_session_without_tools_are_the_main_conversation() -> None:
    talk = Talk()
    talk.ask([TASK], say("one"), head=NONE)
    assert talk.ask([user("Something else.")], say("two"), head=NONE).role == "main"
    assert talk.reason == "root_unknown"


# ---------------------------------------------------------------------------------------------- compaction


def test_the_conversation_as_items_without_tools_is_a_compaction() -> None:
    talk = Talk()
    history = begun(talk)
    turn = talk.ask([*history, user("Hand over to the next one.")], say(SUMMARY), head=NONE)
    assert (turn.role, talk.reason) == ("compaction", "root_compaction")
    assert turn.links == (("compaction_of", "turn_0"),)


def test_the_conversation_as_text_without_tools_is_a_compaction() -> None:
    talk = Talk()
    begun(talk)
    flat = "[User] Make a file that greets the reader. [Assistant] bash(command=ls -la /srv/work)"
    assert talk.ask([System("Hand over."), user(flat)], say(SUMMARY), head=NONE).role == "compaction"


def test_a_wish_for_a_summary_of_the_conversation_without_tools_is_a_compaction() -> None:
    talk = Talk()
    begun(talk)
    turn = talk.ask([System("You summarize conversations."), user("[User] ...")], say(SUMMARY), head=NONE)
    assert turn.role == "compaction"


def test_a_page_that_was_fetched_for_a_call_is_read_by_a_side_job() -> None:
    """It is told the call's question, not the conversation; the page may speak of summaries and of history."""
    talk = Talk()
    talk.ask([TASK], calling("fetch", url="https://herons.example/a", prompt="How many herons are there?"))
    page = "Summary. A heron waits.\nIts history is long.\n---\nHow many herons are there?\nAnswer from the page only."
    turn = talk.ask([user(page)], say("one"), head=NONE)
    assert (turn.role, talk.reason, turn.links) == ("auxiliary", "root_aux", (("aux_of", "turn_0"),))


def test_a_check_that_must_answer_in_json_is_a_side_job_whatever_it_carries() -> None:
    talk = Talk()
    history = begun(talk)
    asked = [System("You judge."), *history, user("Is the task done?")]
    request = Request("any", NONE, tuple(asked), Options(output="json_schema"))
    placed = place(talk.forest, request, talk.forest.attach(request))
    assert (placed.role, placed.attached.root_reason) == ("auxiliary", "root_aux")


def test_a_name_that_is_to_be_json_is_a_side_job_though_it_is_told_the_conversation() -> None:
    talk = Talk()
    begun(talk)
    flat = "[User] Make a file that greets the reader. [Assistant] I look first at what there is."
    asked = Request("any", NONE, (System("Summarize the conversation in a name."), user(flat)), Options(output="json"))
    placed = place(talk.forest, asked, talk.forest.attach(asked))
    assert placed.role == "auxiliary"


def test_what_goes_on_behind_a_side_job_inside_the_conversation_is_main() -> None:
    talk = Talk()
    history = begun(talk)
    aside = [*history, user("By the way: what is a heron?")]
    turn = talk.ask(aside, say("A bird."), Hint("auxiliary", ""))
    assert (turn.parent, turn.role, turn.links) == ("turn_0", "auxiliary", (("aux_of", "turn_0"),))
    assert talk.ask([*aside, say("A bird."), user("Go on.")], say("Done.")).role == "main"
    assert talk.ask([*history, user("Go on.")], say("Done.")).role == "main"


def test_the_last_answer_without_tools_is_main() -> None:
    """Nothing is asked for behind the results: the conversation goes on, whatever its task and rules speak of."""
    rules = System("You are a worker. Keep a summary of the conversation in mind.")
    task = user("Summarize this session's history file.")
    talk, said = Talk(), say("I look first at what there is.", '{"command": "ls -la /srv/work"}')
    talk.ask([rules, task], said)
    turn = talk.ask([rules, task, said, *results(said)], say("It is empty."), head=NONE)
    assert (turn.role, turn.links) == ("main", ())
    assert talk.reason == "root_head_changed"


def test_who_asks_for_a_summary_of_a_file_goes_on() -> None:
    talk = Talk()
    history = begun(talk)
    turn = talk.ask([*history, say("Done."), user("Now summarize this file for the conversation.")], say("It greets."))
    assert turn.role == "main"


def compacted(talk: Talk, hint: Hint = NO_HINT) -> Turn:
    history = begun(talk)
    return talk.ask([*history, user("Sum up this conversation.")], say(SUMMARY), hint, head=NONE)


def test_what_begins_with_the_summary_is_main_and_linked_to_it() -> None:
    talk = Talk()
    summary = compacted(talk)
    turn = talk.ask([TASK, user(f"So far:\n{SUMMARY}\nGo on.")], say("I write it"))
    assert (turn.role, talk.reason) == ("main", "root_compacted")
    assert turn.links == (("compaction_of", summary.turn_id),)
    assert talk.placed.fresh
    after = talk.ask([TASK, user(f"So far:\n{SUMMARY}\nGo on."), say("I write it"), user("and?")], say("done"))
    assert (after.role, after.links) == ("main", ()), "the link is the root's"


def test_the_summary_may_come_back_in_part_or_as_an_assistant_turn() -> None:
    for items in (
        [user("x\nThe greeting is still to be written.\ny")],
        [user("What was done?"), Assistant(f"<notes>no</notes>\n{REPLY}"), user("Go on.")],
    ):
        talk = Talk()
        history = begun(talk)
        talk.ask([*history, user("Sum up this conversation.")], say(REPLY), head=NONE)
        assert talk.ask(list(items), say("ok")).link("compaction_of") == "turn_1"
        assert talk.reason == "root_compacted"


REPLY = "<notes>I think aloud here</notes>\nThe greeting is still to be written."


def test_without_the_summary_a_new_conversation_is_not_linked_to_it() -> None:
    talk = Talk()
    compacted(talk)
    turn = talk.ask([user("Another day, another thing.")], say("ok"))
    assert (turn.role, talk.reason, turn.links) == ("main", "root_unknown", ())


def test_a_compacted_conversation_that_starts_again_keeps_its_link_and_says_why() -> None:
    talk = Talk()
    compacted(talk)
    talk.ask([user(SUMMARY)], say("I write it"))
    turn = talk.ask([user(f"Reminder.\n{SUMMARY}"), say("I write it"), user("and?")], say("done"))
    assert (turn.link("compaction_of"), talk.reason) == ("turn_1", "root_history_changed")
    assert not talk.placed.fresh


def test_a_compaction_inside_the_conversation_keeps_its_parent_and_what_follows_it_there_is_main() -> None:
    talk = Talk()
    history = begun(talk)
    told: list[Item] = [*history, user("Write it all down.")]
    turn = talk.ask(told, say(SUMMARY), Hint("compaction"))
    assert (turn.role, turn.parent, turn.links, talk.reason) == ("compaction", "turn_0", (), None)
    inside = talk.ask([*told, say(SUMMARY), user("Thanks, go on.")], say("ok"))
    assert (inside.role, inside.parent) == ("main", turn.turn_id)
    behind = talk.ask([user(f"Summary:\n{SUMMARY}")], say("ok"))
    assert (behind.role, behind.link("compaction_of")) == ("main", turn.turn_id)


def test_a_compaction_that_nobody_named_shows_by_what_is_said_next() -> None:
    talk = Talk()
    begun(talk)
    plain = talk.ask([TASK, user("Write it all down.")], say(SUMMARY))
    assert plain.role == "main"
    assert talk.ask([user(f"Summary:\n{SUMMARY}")], say("ok")).link("compaction_of") == plain.turn_id
    echoed = Talk()
    begun(echoed)
    echoed.ask([TASK, user("Write it all down.")], say(SUMMARY))
    turn = echoed.ask([System("new"), TASK, user("Write it all down."), say(SUMMARY), user(SUMMARY)], say("ok"))
    assert turn.links == (), "a conversation that echoes the turn was not put in its place"


def test_a_compaction_of_its_own_goes_on_as_one() -> None:
    talk = Talk()
    first = compacted(talk)
    again = [*begun(Talk()), user("Sum up this conversation."), say(SUMMARY), user("Shorter.")]
    turn = talk.ask(again, say("Write the greeting."), head=NONE)
    assert (turn.parent, turn.role) == (first.turn_id, "compaction")


# ---------------------------------------------------------------------------------------------- sub-agents


def test_a_sub_agent_by_header_is_linked_to_the_turn_that_called_for_it() -> None:
    talk = Talk()
    main, one, two = Hint(None, "m"), Hint("subagent", "a", "m"), Hint("subagent", "b", "a")
    said = calling("agent", prompt="List all the files here.")
    talk.ask([TASK], said, main)
    talk.ask([TASK, said, ToolResult("c_agent", "started")], calling("bash", command="sleep for a long time"), main)
    first = talk.ask([user("List all the files here.")], calling("agent", prompt="Count the files."), one, OTHER)
    assert (first.role, first.thread, talk.reason) == ("subagent", "a", "root_subagent")
    assert first.links == (("spawned_by", "turn_0"),), "not the newest, but the one whose call says so"
    below = talk.ask([user("Something in other words.")], say("3"), two, OTHER)
    assert below.links == (("spawned_by", first.turn_id),), "the newest of the parent thread that calls"


def test_the_turns_of_a_sub_agent_keep_its_role_and_thread_and_its_new_roots_its_link() -> None:
    talk = Talk()
    talk.ask([TASK], calling("agent", prompt="List all the files here."), Hint(None, "m"))
    hint = Hint("subagent", "a", "m")
    said = say(None, '{"command": "ls"}')
    talk.ask([user("List all the files here.")], said, hint)
    then = [user("List all the files here."), said, *results(said)]
    more = talk.ask(then, say("two"))
    assert (more.role, more.thread, more.links) == ("subagent", "a", ())
    changed = talk.ask(then, say("two"), hint, OTHER)
    assert (changed.role, talk.reason, changed.links) == ("subagent", "root_head_changed", (("spawned_by", "turn_0"),))


def test_a_sub_agent_whose_conversation_was_compacted_stays_one() -> None:
    talk = Talk()
    talk.ask([TASK], calling("agent", prompt="List all the files here."))
    first = [user("List all the files here.")]
    talk.ask(list(first), say("I list them for you."), head=OTHER)
    talk.ask([*first, say("I list them for you."), user("Write it down")], say(SUMMARY), Hint("compaction"), OTHER)
    turn = talk.ask([user(SUMMARY)], say("ok"), head=OTHER)
    assert (turn.role, talk.reason, turn.link("compaction_of")) == ("subagent", "root_compacted", "turn_2")


def test_a_sub_agent_whose_conversation_was_summed_up_apart_stays_one() -> None:
    talk = Talk()
    talk.ask([TASK], calling("agent", prompt="List all the files here."))
    first = [user("List all the files here."), say("I list them for you.")]
    talk.ask(first[:1], say("I list them for you."), head=OTHER)
    summary = talk.ask([*first, user("Sum up this conversation.")], say(SUMMARY), head=NONE)
    assert (summary.role, summary.links) == ("compaction", (("compaction_of", "turn_1"),))
    assert talk.ask([user(SUMMARY)], say("ok"), head=OTHER).role == "subagent"


def test_a_sub_agent_told_in_other_words_comes_of_the_newest_call_of_its_parent_thread() -> None:
    talk = Talk()
    main, other = Hint(None, "m"), Hint("subagent", "x", "m")
    talk.ask([TASK], calling("agent", kind="a very general one"), main)
    talk.ask([user("in x")], calling("agent", kind="not the right one"), other)
    talk.ask([TASK, user("and?")], say("I wait for it."), main)
    turn = talk.ask([user("told otherwise")], say("ok"), Hint("subagent", "a", "m"))
    assert turn.links == (("spawned_by", "turn_0"),)
    talk.ask([TASK, user("so?")], calling("agent", kind="the next one of them"), main)
    changed = talk.ask([user("told otherwise"), user("more")], say("ok"), Hint("subagent", "a", "m"), OTHER)
    assert changed.links == (("spawned_by", "turn_0"),), "it was called for once"


def test_a_conversation_that_echoes_turns_is_not_a_new_agent_whatever_it_quotes() -> None:
    talk = Talk()
    said = calling("note", text="Greet the reader in verse.")
    talk.ask([TASK], said)
    edited = [TASK, Assistant("Noted."), user("Greet the reader in verse.")]
    turn = talk.ask(edited, say("ok"))
    assert (turn.role, talk.reason) == ("main", "root_history_changed")


def test_without_headers_a_sub_agent_is_known_by_the_call_that_it_was_told() -> None:
    talk = Talk()
    talk.ask([TASK], calling("task", prompt="List all the files here.", kind="general"))
    turn = talk.ask([System("helper"), user("<p>List all the files here.</p>")], say("none"), head=OTHER)
    assert (turn.role, turn.links, talk.reason) == ("subagent", (("spawned_by", "turn_0"),), "root_subagent")


READER = System("You are a reader. Count what you are told to.")
WORKER = System("You are a worker. You make what you are told to.")


def test_a_new_agent_with_a_system_text_and_tools_of_its_own_is_a_sub_agent_whoever_called_it() -> None:
    talk = Talk()
    said = say("I look first at what there is.", '{"command": "ls -la /srv/work"}')
    talk.ask([WORKER, TASK], said)
    turn = talk.ask([READER, user("Count the herons.")], say("one"), head=OTHER)
    assert (turn.role, talk.reason, turn.links) == ("subagent", "root_subagent", (("spawned_by", "turn_0"),))
    talk.ask([WORKER, TASK, said, *results(said)], say("Done."))
    turn = talk.ask([READER, user("Count the storks.")], say("none"), head=OTHER)
    assert (turn.role, talk.reason, turn.links) == ("subagent", "root_subagent", ()), "nobody waits for it"


def test_a_task_of_its_own_under_the_main_system_text_or_with_its_tools_is_main() -> None:
    for system, head in ((WORKER, OTHER), (READER, TOOLS)):
        talk = Talk()
        talk.ask([WORKER, TASK], say("Done."))
        turn = talk.ask([system, user("Count the herons.")], say("one"), head=head)
        assert (turn.role, talk.reason) == ("main", "root_unknown")


def test_an_agent_that_is_handed_the_conversation_is_what_its_harness_says_others_like_it_are_not() -> None:
    handed, notes = Hint(carrying="auxiliary"), System("You are the notes subagent.")
    talk = Talk()
    history = begun(talk)
    turn = talk.ask([notes, *history, user("Note what lasts.")], say("Nothing."), handed, head=OTHER)
    assert (turn.role, talk.reason, turn.links) == ("auxiliary", "root_aux", (("aux_of", "turn_0"),))
    turn = talk.ask(
        [notes, *history, user("Note what lasts."), say("Nothing."), user("Sure?")], say("Yes."), handed, head=OTHER
    )
    assert (turn.parent, turn.role) == ("turn_1", "auxiliary")

    helper = System("You are a helping subagent.")
    agent, call = Talk(), calling("agent", prompt="Count the herons in the reeds.")
    agent.ask([TASK], call)
    first = say("I look at the reeds.", '{"command": "cat reeds"}')
    agent.ask([helper, user("Count the herons in the reeds.")], first, handed, head=OTHER)
    assert (agent.placed.role, agent.reason) == ("subagent", "root_subagent")
    told = [helper, user("Count the herons in the reeds."), first, *results(first)]
    assert agent.ask(told, say("One."), handed, head=OTHER).role == "subagent"
    anew = [helper, user("So far: nothing."), say("Got it."), first, *results(first)]
    assert agent.ask(anew, say("One."), handed, head=OTHER).role != "auxiliary"


def test_an_agent_started_on_a_command_line_is_a_sub_agent() -> None:
    talk = Talk()
    talk.ask([TASK], calling("bash", command="agent -p 'List all the files here.' | tee log"))
    assert talk.ask([System("x"), user("List all the files here.")], say("none")).link("spawned_by") == "turn_0"


def test_nested_sub_agents_with_the_same_words_are_no_repetition() -> None:
    talk = Talk()
    again = calling("task", prompt="List all the files here.")
    told = [user("List all the files here.")]
    talk.ask([TASK], again)
    links = []
    for said in (again, again, say("none")):
        turn = talk.ask(list(told), said, head=OTHER)
        assert talk.placed.fresh and talk.placed.again("turn_9").links == talk.placed.links
        links.append(turn.links)
    assert links == [(("spawned_by", f"turn_{n}"),) for n in range(3)]
    talk.ask(list(told), say("again"), head=OTHER)
    assert not talk.placed.fresh, "every call has its agent: this one asks again"
    assert talk.placed.again("turn_3").links[-1] == ("resample_of", "turn_3")


def test_the_task_asked_again_is_main_though_a_call_repeats_it() -> None:
    talk = Talk()
    talk.ask([TASK], calling("todo", item="Make a file that greets the reader."))
    turn = talk.ask([TASK], say("ok"))
    assert (turn.role, talk.reason) == ("main", "root_repeated")


def test_threads_keep_identical_requests_apart() -> None:
    talk = Talk()
    request = Request("any", TOOLS, (TASK,))
    at = talk.forest.attach(request)
    prints = {place(talk.forest, request, at, Hint("subagent", name)).attached.fingerprint for name in ("a", "b", "")}
    assert len(prints) == 3
    assert place(talk.forest, request, at).attached.fingerprint == at.fingerprint


def test_a_tree_of_another_engine_finds_the_main_turn_in_the_policys() -> None:
    talk, other = Talk(), Talk()
    begun(talk)
    request = Request("small", NONE, (user("Which is simpler?"),))
    placed = place(other.forest, request, other.forest.attach(request), NO_HINT, talk.forest)
    assert (placed.role, placed.links) == ("auxiliary", (("aux_of", "turn_0"),))


def test_user_media_and_odd_arguments_do_not_disturb() -> None:
    talk = Talk()
    talk.ask([TASK], Assistant(None, None, (ToolCall("c", "bash", "{" * 300), ToolCall("d", "bash", "[1, null]"))))
    assert talk.ask([UserText("")], say("x")).role == "main"
