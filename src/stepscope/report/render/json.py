"""Results as JSON: integer nanoseconds and bytes, all rows."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import orjson

from stepscope.run.utf8_json import utf8_json

if TYPE_CHECKING:
    from stepscope.report.outputs import Layout, Sink


def write(module: ModuleType, result: Any, sink: Sink, _layout: Layout) -> None:
    """Write a result: what its module makes of it, or the bytes that it made itself."""
    values = module.to_json(result)
    sink.write(values if isinstance(values, bytes) else json_text(values))


def json_text(document: Any) -> str:
    """Values as indented JSON with a final newline; what JSON has no form for becomes text."""
    return utf8_json(document, orjson.OPT_INDENT_2, str).decode() + "\n"
