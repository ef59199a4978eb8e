"""One template of our own per probe, broken in that one way: the verdict names it, shows it and says what follows."""

from __future__ import annotations

import msgspec
import pytest

from tugline.tokens.probes.verdict import Verdict
from unit.tokens.chat_kit import CHATML, DROPS_CALLS, PARSED_ARGS, REMEMBERS, REORDERS, STRIPPING, model

CONTENT = "{{- m.content }}"
CALLS = "{%- for c in m.tool_calls or [] %}"
END = "{{- '<|im_end|>\\n' }}\n{%- endif %}\n{%- endfor %}"
PROMPT = "{{ '<|im_start|>assistant\\n' }}"
RESULT = "{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
LATE = "{%- if loop.index0 > ns.last %}"
REASONING = "{%- if m.reasoning_content %}"


def changed(*pairs: tuple[str, str], base: str = CHATML) -> str:
    """The template with parts replaced, each of which must be there."""
    for old, new in pairs:
        assert old in base, old
        base = base.replace(old, new)
    return base


def judged(template: str) -> Verdict:
    return model(template).probe()


def of(verdict: Verdict, status: str) -> set[str]:
    return {r.name for r in verdict.results if r.status == status}


SOUND = judged(CHATML)
BROKEN = {
    "P1": "{%- for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}",
    "P2_tokens": "{{ '<|strange|>' }}" + CHATML,
    "P3_text": changed((CONTENT, "{%- if m.role != 'assistant' %}{{ m.content }}{% endif %}")),
    "P3_reasoning": changed((REASONING, "{%- if false %}")),
    "P3_calls_1": DROPS_CALLS,
    "P3_calls_2": changed((CALLS, "{%- for c in (m.tool_calls or [])[:1] %}")),
    "P3_calls_3": changed((CALLS, "{%- for c in (m.tool_calls or [])[:2] %}")),
    "P3_noargs_1": changed((CALLS, "{%- for c in m.tool_calls or [] if c.function.arguments not in ('{}', {}) %}")),
    "P3_text_beside": changed((CONTENT, "{{- '' if m.tool_calls else m.content }}")),
    "P3_tools": changed(("{{ t | tojson + '\\n' }}", "{{ t.function.parameters.properties.cmd.description.upper() }}")),
    "P4": REORDERS,
    "P5": changed((PROMPT, "{{ '<|im_start|>assistant\\nI say: ' }}")),
    "P6": REMEMBERS,
    "P7_user": changed((CONTENT, "{{- '' if m.role == 'user' and loop.index0 > 1 else m.content }}")),
    "P7_pairs": changed(
        (CONTENT, "{{- '' if m.role == 'user' and messages[loop.index0 - 1].role == 'tool' else m.content }}")
    ),
    "P10": changed(
        (CALLS, CALLS + "{%- if '}' not in c.function.arguments %}{{ raise_exception('no JSON') }}{% endif %}")
    ),
    "P13": STRIPPING,
    "P14": changed((END, END.replace("\\n' }}", "\\n' if m.content | length != 12 else '<|im_end|>' }}"))),
}  # fmt: skip
NOTED = {
    "P3_offered": STRIPPING,
    "P4_text": changed((CONTENT, "{{- '' if m.tool_calls else m.content }}"),
                       ("{{- '}\\n</tool_call>' }}\n{%- endfor %}",
                        "{{- '}\\n</tool_call>' }}\n{%- endfor %}{{ m.content if m.tool_calls else '' }}")),
    "P1_stop": changed(("<|im_end|>", "<|end|>")),
    "P1_blank": changed(("{{- '<|im_end|>\\n' }}", "{{- '<|im_end|>\\n' if m.content.strip() }}")),
    "P5_plain": changed((PROMPT, "{{ '<|im_start|>assistant\\n<think>\\n' }}")),
    "P5_results": changed((RESULT, "{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
                                   "{{ '!' if loop.last else '' }}")),
    "P7_shape": PARSED_ARGS,
    "P8": CHATML,
    "P9": changed(("tool_response>\\n' + m.content", "tool_response>\\n' + m.name + m.tool_call_id + m.content")),
    "P11": PARSED_ARGS,
    "P12": CHATML,
    "P17": "{{ strftime_now('%d %B %Y') }}" + CHATML,
}  # fmt: skip


def test_a_sound_template_fails_in_nothing() -> None:
    assert of(SOUND, "fail") == set()
    names = {int(r.name[1:].partition("_")[0]) for r in SOUND.results}
    assert names == set(range(1, 18)), "every probe says something"
    assert {p.code: p.kept for p in SOUND.promises} == dict.fromkeys("ECFS", "always")
    assert SOUND.faithful == ("{}",)
    assert (SOUND.close, SOUND.stops) == ("<|im_end|>", ("<|endoftext|>", "<|im_end|>"))
    assert SOUND.tools.representable and SOUND.tools.parallel == 3
    assert not SOUND.clock.varies


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_named_and_shown(name: str) -> None:
    verdict = judged(BROKEN[name])
    (found,) = [r for r in verdict.results if r.name == name]
    assert found.status == "fail" and found.what
    assert found.example or name == "P10"
    assert name not in of(SOUND, "fail")


@pytest.mark.parametrize("name", NOTED)
def test_what_is_worth_knowing_is_a_note(name: str) -> None:
    verdict = judged(NOTED[name])
    (found,) = [r for r in verdict.results if r.name == name]
    assert found.status == "note" and found.what


def test_calls_that_must_be_given_one_by_one() -> None:
    verdict = judged(BROKEN["P3_calls_2"])
    assert verdict.tools.representable and verdict.tools.parallel == 1
    assert "only the first" in verdict.tools.why and "one by one" in verdict.tools.why


@pytest.mark.parametrize(
    ("template", "why", "parallel"),
    [
        (DROPS_CALLS, "drops calls", 0),
        (BROKEN["P3_noargs_1"], "no arguments", 3),
        (REORDERS, "moves text", 3),
        (changed((RESULT, "{{- '\\n<tool_response></tool_response>' }}")), "drops results", 3),
        (changed((CALLS, CALLS + "{{ raise_exception('no tools') }}")), "refuses tool calls", 0),
        ("{{ raise_exception('never') }}", "refuses every conversation", 0),
    ],
)
def test_why_tools_cannot_be_shown(template: str, why: str, parallel: int) -> None:
    verdict = judged(template)
    assert not verdict.tools.representable
    assert why in verdict.tools.why
    assert verdict.tools.parallel == parallel
    assert next(p for p in verdict.promises if p.code == "S").kept == "no"


@pytest.mark.parametrize("template", [CHATML, STRIPPING, PARSED_ARGS, REMEMBERS, NOTED["P4_text"], NOTED["P9"]])
def test_no_false_alarm_about_tools(template: str) -> None:
    assert judged(template).tools.representable


def test_one_call_at_a_time_refused_aloud_is_no_lie() -> None:
    verdict = judged(changed((CALLS, "{%- if (m.tool_calls or []) | length > 1 %}"
                              "{{ raise_exception('one at a time') }}{% endif %}" + CALLS)))  # fmt: skip
    assert verdict.tools.representable and verdict.tools.parallel == 1
    assert "one at a time" in next(r.what for r in verdict.results if r.name == "P3_calls_2")


def test_an_argument_that_keeps_reasoning_is_found_by_reading_the_source() -> None:
    keeps = changed(
        ("{%- if loop.index0 > ns.last %}", "{%- if loop.index0 > ns.last or my_keep_thinking %}"), base=STRIPPING
    )
    verdict = judged(keeps)
    assert verdict.faithful == ('{"my_keep_thinking":true}',)
    assert '{"my_keep_thinking":true} keeps them' in next(r.what for r in verdict.results if r.name == "P13")
    assert next(p for p in verdict.promises if p.code == "F").kept == "counted"
    assert '{"my_keep_thinking":true}' in verdict.independent
    assert {s.kwargs for s in verdict.switches} == {'{"my_keep_thinking":true}', '{"enable_thinking":false}'}


def test_two_arguments_together_where_none_alone_keeps_reasoning() -> None:
    both = changed(
        (LATE, "{%- if loop.index0 > ns.last or (keep_thinking and thinking_mode == 'all') %}"), base=STRIPPING
    )
    assert judged(both).faithful == ('{"keep_thinking":true,"thinking_mode":"all"}',)


def test_values_that_a_template_compares_with_are_tried() -> None:
    efforts = changed((PROMPT, "{{ '<|im_start|>assistant\\n' }}{% if reasoning_effort in ['tiny', 'huge'] %}"
                               "{{ reasoning_effort }}{% endif %}"))  # fmt: skip
    assert {s.kwargs for s in judged(efforts).switches} == {
        '{"reasoning_effort":"huge"}',
        '{"reasoning_effort":"tiny"}',
    }


def test_what_may_follow_what() -> None:
    verdict = judged(BROKEN["P7_pairs"])
    outcomes = {f.roles: f.outcome for f in verdict.follows}
    assert outcomes[("user",)] == outcomes[("tool",)] == outcomes[("user", "tool")] == "kept"
    assert outcomes[("tool", "user")] == "dropped"
    strict = changed((CONTENT, "{%- if m.role == 'user' and messages[loop.index0 - 1].role == 'tool' %}"
                               "{{ raise_exception('answer first') }}{% endif %}" + CONTENT))  # fmt: skip
    follow = next(f for f in judged(strict).follows if f.roles == ("tool", "user"))
    assert (follow.outcome, "answer first" in follow.why) == ("raises", True)


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("{{ strftime_now('%Y') }}", "strftime_now('%Y')"),
        ("{% if tools %}{{ strftime_now('%H:%M') }}{% endif %}", "strftime_now('%H:%M')"),
        ("{{ ['a', 'b'] | random }}", "|random"),
    ],
)
def test_clock_and_chance(printed: str, told: str) -> None:
    verdict = judged(printed + CHATML)
    assert verdict.clock.prints == (told,)
    assert verdict.clock.varies
    assert next(p for p in verdict.promises if p.code == "S").kept == "counted"


def test_images() -> None:
    shows = changed((CONTENT, "{%- if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
                              "{{ '<|user|>' if p.type == 'image' else p.text }}{% endfor %}{% endif %}"))  # fmt: skip
    assert judged(shows).media.placeholder == "<|user|>"
    assert SOUND.media.placeholder == ""


def test_how_calls_are_spelled() -> None:
    assert "kept verbatim" in SOUND.spelling and "key order kept" in SOUND.spelling
    parsed = judged(PARSED_ARGS).spelling
    assert "arguments only as an object" in parsed
    assert "broken JSON is given as one text argument" in parsed
    ascii_only = changed(
        ("{{ c.function.arguments | tojson }}", "{{ c.function.arguments | tojson(ensure_ascii=true) }}"),
        ("c.function.arguments is string", "false"),
    )
    assert "non-ASCII is escaped or lost" in judged(ascii_only).spelling


def test_a_verdict_says_its_version() -> None:
    spelled = msgspec.json.decode(msgspec.json.encode(SOUND))
    assert spelled["schema"] == 1
    assert {"results", "bridge", "why", "promises", "appendable", "follows", "switches", "control", "tools"} <= set(
        spelled
    )


def test_a_token_that_ends_parts_does_not_end_the_turn() -> None:
    """Every part has an end of its own; the bridge begins behind the turn's."""
    parts = changed(
        (CONTENT, "{{- '<think>' + m.content + '</think>' }}"),
        ("{{- '}\\n</tool_call>' }}\n{%- endfor %}", "{{- '}\\n</tool_call>' }}\n{%- endfor %}{{ '</think>' }}"),
    )
    verdict = judged(parts)
    assert (verdict.close, verdict.splice) == ("<|im_end|>", True)
    assert verdict.compared == SOUND.compared
