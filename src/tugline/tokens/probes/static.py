"""What a template's source says without being run: names it reads, values it compares them with, clock and chance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment

_GIVEN = frozenset(
    (
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "bos_token",
        "eos_token",
        "pad_token",
        "unk_token",
        "sep_token",
        "cls_token",
        "raise_exception",
        "strftime_now",
        "namespace",
        "dict",
        "range",
        "lipsum",
        "cycler",
        "joiner",
        "loop",
        "true",
        "false",
        "none",
        "caller",
    )
)
"""Names that every template gets, or that Jinja owns."""
_CLOCK = frozenset(("strftime_now", "now", "datetime", "time", "date"))
_CHANCE = frozenset(("random", "randint", "shuffle", "lipsum", "uuid4"))


@dataclass(frozen=True, slots=True)
class Source:
    """`names`: what it reads beyond what every template gets, in alphabetical order. `values`: constants that it
    compares a name with. `clock`: expressions that read time or chance, as written by Jinja's own words."""

    names: tuple[str, ...] = ()
    values: tuple[tuple[str, tuple[str | bool | int, ...]], ...] = ()
    clock: tuple[str, ...] = ()

    def values_of(self, name: str) -> tuple[str | bool | int, ...]:
        """Constants that `name` is compared with."""
        return dict(self.values).get(name, ())


def read_source(template: str) -> Source:
    """Raises nothing: a source that is no Jinja reads nothing (running it says why)."""
    from jinja2 import TemplateSyntaxError, meta, nodes

    try:
        # Looking for variables folds constants in the tree it is given: it gets one of its own.
        free = meta.find_undeclared_variables(_environment().parse(template))
        tree = _environment().parse(template)
    except (TemplateSyntaxError, RecursionError):
        return Source()
    values: dict[str, set[str | bool | int]] = {}
    for compare in tree.find_all(nodes.Compare):
        sides = (compare.expr, *(op.expr for op in compare.ops))
        name = next((s.name for s in sides if isinstance(s, nodes.Name)), None)
        if name in free and name is not None:
            values.setdefault(name, set()).update(v for s in sides for v in _constants(s))
    return Source(
        tuple(sorted(free - _GIVEN)),
        tuple((name, tuple(sorted(found, key=repr))) for name, found in sorted(values.items())),
        tuple(sorted(set(_clock(tree)))),
    )


def _constants(node: object) -> Iterator[str | bool | int]:
    from jinja2 import nodes

    if isinstance(node, nodes.Const) and isinstance(node.value, str | bool | int):
        yield node.value
    elif isinstance(node, nodes.List | nodes.Tuple):
        for item in node.items:
            yield from _constants(item)


def _clock(tree: object) -> Iterator[str]:
    from jinja2 import nodes

    assert isinstance(tree, nodes.Template)
    for call in tree.find_all(nodes.Call):
        function = call.node
        name = function.name if isinstance(function, nodes.Name) else getattr(function, "attr", "")
        if name in _CLOCK or name in _CHANCE:
            yield f"{name}({', '.join(repr(a.value) if isinstance(a, nodes.Const) else '...' for a in call.args)})"
    for piped in tree.find_all(nodes.Filter):
        if piped.name in _CHANCE:
            yield f"|{piped.name}"


def _environment() -> Environment:
    from jinja2 import Environment
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Node
    from jinja2.parser import Parser

    class Generation(Extension):
        """The tag that marks what a model samples; its body counts as if the tag were not there."""

        tags = {"generation"}  # noqa: RUF012  # Jinja's own spelling

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Environment(autoescape=False, extensions=[loopcontrols, Generation])  # parsed, never run
