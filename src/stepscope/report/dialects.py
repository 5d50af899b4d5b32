"""Option names of other frameworks: notes, then flags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stepscope.report.document import Block, Column, Document, Gap, Line, Span, Table

if TYPE_CHECKING:
    from stepscope.adapters.options.dialect import Dialect
    from stepscope.adapters.options.sheets import DialectSheet
    from stepscope.report.outputs import Layout

_COLUMNS = tuple(
    Column(name, wraps=name == "default") for name in ("flag", "option", "default", "form")
)


def document(sheets: Sequence[DialectSheet], _layout: Layout) -> Document:
    """The dialects one after the other."""
    return Document(_blocks(sheets))


def _blocks(sheets: Sequence[DialectSheet]) -> Iterator[Block]:
    for number, sheet in enumerate(sheets):
        if number:
            yield Gap()
        yield Line((Span(sheet.dialect.name, "bold"), Span(f": {sheet.dialect.about}")))
        for note in sheet.notes:
            yield Line(f"  {note}")
        rows = [
            (" ".join(flag.names), flag.option, flag.default, flag.form) for flag in sheet.flags
        ]
        yield Table(_COLUMNS, tuple(rows), gap=1)


def to_json(sheets: Sequence[DialectSheet]) -> dict[str, Any]:
    """The dialects."""
    return {
        "format": "stepscope-dialects",
        "version": 1,
        "dialects": [_dialect(sheet.dialect) for sheet in sheets],
    }


def _dialect(dialect: Dialect) -> dict[str, Any]:
    return {
        "name": dialect.name,
        "about": dialect.about,
        "step_unit": dialect.step_unit,
        "ranks": dialect.ranks,
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
