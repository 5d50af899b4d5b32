"""Results as JSON: integer nanoseconds and bytes, all rows.

Each result says what it is and in which version: `report/schemas` has a JSON schema for each, which
`scripts/json_schemas.py` writes. Fields may be added to a version; one that goes or changes its
meaning makes a new one.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import orjson

from stepscope.run.side_json import utf8_json

SCHEMA_VERSION = 1
NAMES = {
    "answer": "show",
    "checks": "doctor",
    "comparison": "compare",
    "contents": "info",
    "diagnosis": "report",
    "settings": "config",
    "snapshots": "memory-report",
    "trial": "trials",
}
"""Kinds of results that are called otherwise outside."""

if TYPE_CHECKING:
    from stepscope.report.outputs import Layout, Sink


def write(module: ModuleType, result: Any, sink: Sink, _layout: Layout) -> None:
    """Write a result: what its module makes of it, or the bytes that it made itself."""
    values = module.to_json(result)
    if isinstance(values, bytes):
        sink.write(values)
    else:
        several = isinstance(values, list)
        named = [_named(module, one) for one in (values if several else [values])]
        sink.write(json_text(named if several else named[0]))


def _named(module: ModuleType, values: dict[str, Any]) -> dict[str, Any]:
    kind = module.__name__.rpartition(".")[2]
    name = f"stepscope-{NAMES.get(kind, kind)}"
    return {"format": name, "schema_version": SCHEMA_VERSION, **values}


def json_text(document: Any) -> str:
    """Values as indented JSON with a final newline; what JSON has no form for becomes text."""
    return utf8_json(document, orjson.OPT_INDENT_2, str).decode() + "\n"
