"""Recording options, their values and origins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepscope.report.document import Block, Column, Table

if TYPE_CHECKING:
    from stepscope.adapters.options.settings import Settings
    from stepscope.report.outputs import Layout


def document(settings: Settings, _layout: Layout) -> Iterator[Block]:
    """The options; values that are not defaults stand out."""
    yield Table(
        (Column("option"), Column("value"), Column("from")),
        tuple((name, one.text, one.origin) for name, one in settings.settings.items()),
        styles=tuple(
            "dim" if one.origin == "default" else "bold" for one in settings.settings.values()
        ),
    )


def to_json(settings: Settings) -> dict[str, Any]:
    """The options."""
    return {
        "dialect": settings.dialect.name,
        "options": [
            {"name": name, "value": one.value, "origin": one.origin}
            for name, one in settings.settings.items()
        ],
    }
