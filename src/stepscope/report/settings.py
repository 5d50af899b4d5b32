"""Recording options, their values and origins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.report.document import Column, Document, Table

if TYPE_CHECKING:
    from stepscope.adapters.options.settings import Settings
    from stepscope.report.outputs import Layout


def document(settings: Settings, _layout: Layout) -> Document:
    """The options; values that are not defaults stand out."""
    table = Table(
        (Column("option"), Column("value"), Column("from")),
        tuple((name, one.text, one.origin) for name, one in settings.settings.items()),
        styles=tuple(
            "dim" if one.origin == "default" else "bold" for one in settings.settings.values()
        ),
    )
    return Document((table,))


def to_json(settings: Settings) -> dict[str, Any]:
    """The options."""
    return {
        "dialect": settings.dialect.name,
        "options": [
            {"name": name, "value": one.value, "origin": one.origin}
            for name, one in settings.settings.items()
        ],
    }
