"""Rows of a query as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from stepscope.report.plain import json_scalar

if TYPE_CHECKING:
    import polars as pl

    from stepscope.report.outputs import Layout, Sink


def write(rows: pl.DataFrame, sink: Sink, _layout: Layout) -> None:
    """Write the rows, always in UTF-8."""
    sink.write(rows_to_json(rows).encode() + b"\n")


def rows_to_json(rows: pl.DataFrame) -> str:
    """A list of objects, one per row; integers stay integers, bytes become hexadecimal."""
    return json.dumps(rows.to_dicts(), ensure_ascii=False, indent=2, default=json_scalar)
