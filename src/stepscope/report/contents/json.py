"""What a trace file holds, as JSON."""

from __future__ import annotations

import json

import polars as pl

from stepscope.analysis.contents import Contents
from stepscope.report.outputs import Layout, Sink


def write(contents: Contents, sink: Sink, _layout: Layout) -> None:
    """Write what the file holds."""
    sink.write(json.dumps(contents_to_dict(contents), ensure_ascii=False, indent=2) + "\n")


def contents_to_dict(contents: Contents) -> dict[str, object]:
    """Plain values: integer nanoseconds and bytes, tables as lists of objects."""
    found: dict[str, object] = {}
    for name in Contents.__dataclass_fields__:
        value = getattr(contents, name)
        found[name] = value.to_dicts() if isinstance(value, pl.DataFrame) else value
    return found
