"""Recording options, their values and origins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.report.document import Column, Document, Table

if TYPE_CHECKING:
    from stepscope.adapters.options.sheets import SettingSheet
    from stepscope.report.outputs import Layout


def document(sheet: SettingSheet, _layout: Layout) -> Document:
    """The options; values that are not defaults stand out."""
    table = Table(
        (Column("option"), Column("value"), Column("from")),
        tuple((line.name, line.text, line.origin) for line in sheet.lines),
        styles=tuple("dim" if line.is_default else "bold" for line in sheet.lines),
    )
    return Document((table,))


def to_json(sheet: SettingSheet) -> dict[str, Any]:
    """The options."""
    return {
        "format": "stepscope-config",
        "version": 1,
        "dialect": sheet.dialect,
        "options": [
            {"name": line.name, "value": line.value, "origin": line.origin} for line in sheet.lines
        ],
    }
