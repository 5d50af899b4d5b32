"""Option names of other frameworks: notes, then flags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stepscope.report.document import Block, Column, Gap, Line, Span, Table

if TYPE_CHECKING:
    from stepscope.adapters.options.dialect import Dialect
    from stepscope.report.outputs import Layout

_COLUMNS = tuple(
    Column(name, wraps=name == "default") for name in ("flag", "option", "default", "form")
)


def document(dialects: Sequence[Dialect], _layout: Layout) -> Iterator[Block]:
    """The dialects one after the other."""
    for number, dialect in enumerate(dialects):
        if number:
            yield Gap()
        yield Line((Span(dialect.name, "bold"), Span(f": {dialect.about}")))
        for note in _notes(dialect):
            yield Line(f"  {note}")
        rows = [
            (" ".join(flag.names), flag.option, dialect.default_text(flag.option), flag.style)
            for flag in dialect.flags
        ]
        yield Table(_COLUMNS, tuple(rows), gap=1)


def _notes(dialect: Dialect) -> Iterator[str]:
    unit, ranks = map(dialect.default_text, ("step_unit", "ranks"))
    yield f"step: {unit}; ranks that record: {ranks}"
    spoken = {flag.option for flag in dialect.flags} | {"step_unit", "ranks"}
    silent = [name for name in dialect.defaults if name not in spoken]
    if silent:
        yield f"also sets: {', '.join(f'{name}={dialect.default_text(name)}' for name in silent)}"
    for rule in dialect.rules:
        sets = ", ".join(f"{name}={dialect.text_of(name, value)}" for name, value in rule.sets)
        unless = dialect.text_of(rule.option, rule.unless)
        yield f"unless {rule.option}={unless}: {sets} ({rule.reason})"
    if dialect.needs:
        needed = ", ".join(f"--{name.replace('_', '-')}" for name in dialect.needs)
        yield f"requires, if the script has it: {needed}"
    if dialect.raises_max_steps:
        yield "max_steps is raised if it is too small for one window"
    for name in dialect.files:
        yield f"file: {name}"


def to_json(dialects: Sequence[Dialect]) -> dict[str, Any]:
    """The dialects."""
    return {
        "dialects": [_dialect(dialect) for dialect in dialects],
    }


def _dialect(dialect: Dialect) -> dict[str, Any]:
    return {
        "name": dialect.name,
        "about": dialect.about,
        "step_unit": dialect.default_text("step_unit"),
        "ranks": dialect.default_text("ranks"),
        "flags": [
            {
                "names": list(flag.names),
                "option": flag.option,
                "default": dialect.default(flag.option),
                "form": flag.style,
            }
            for flag in dialect.flags
        ],
        "defaults": dict(dialect.defaults),
        "rules": [
            {
                "option": rule.option,
                "unless": rule.unless,
                "sets": dict(rule.sets),
                "reason": rule.reason,
            }
            for rule in dialect.rules
        ],
        "needs": list(dialect.needs),
        "files": list(dialect.files),
    }
