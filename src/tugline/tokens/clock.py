"""The time, for templates that print it: one instant per session, given by us, whenever and wherever they are run.

transformers offers templates `strftime_now`, which reads the machine's clock: a prompt rendered again after midnight,
or offline, would be another. A macro of the same name in front of the template hides it and reads a table instead.
"""

from __future__ import annotations

from datetime import UTC, datetime

from tugline.tokens.marks import JSON

VARIABLE = "tugline_clock"
"""Template variable that holds the table: what each strftime directive gives."""
_DIRECTIVES = (
    *"aAwdbBmyYHIpMSfzZjUWcxXGuVeDFTRhntCgklPs",
    *("-d", "-m", "-H", "-I", "-M", "-S", "-j", "-y", "-e", "-k", "-l", "-U", "-W"),
)
MACRO = (
    "{%- macro strftime_now(format) -%}"
    "{%- set ns = namespace(out='', open=false, flag='') -%}"
    "{%- for c in format -%}"
    "{%- if not ns.open -%}"
    "{%- if c == '%' -%}{%- set ns.open = true -%}{%- else -%}{%- set ns.out = ns.out ~ c -%}{%- endif -%}"
    "{%- elif c == '-' -%}{%- set ns.flag = '-' -%}"
    "{%- else -%}"
    "{%- if c != '%' and (ns.flag ~ c) not in tugline_clock -%}"
    "{{- raise_exception('strftime_now does not know %' ~ ns.flag ~ c) -}}{%- endif -%}"
    "{%- set ns.out = ns.out ~ ('%' if c == '%' else tugline_clock[ns.flag ~ c]) -%}"
    "{%- set ns.open = false -%}{%- set ns.flag = '' -%}"
    "{%- endif -%}{%- endfor -%}"
    "{{- ns.out -}}{%- endmacro %}\n"
)
"""The line break at its end is the block's own: the template begins as it would alone."""


def reads(template: str) -> bool:
    """Whether a template asks for the time."""
    return "strftime_now" in template


def told(instant: int) -> JSON:
    """The table for an instant in Unix seconds. In UTC: the machine that renders again may stand elsewhere."""
    at = datetime.fromtimestamp(instant, UTC)
    return {directive: at.strftime(f"%{directive}") for directive in _DIRECTIVES}
