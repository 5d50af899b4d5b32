"""Tables as they go to the page."""

from __future__ import annotations

from typing import Any

import polars as pl

from stepscope.advice.rank.ladder import SHORT_NAMES
from stepscope.analysis.selection.partition import cause_labels
from stepscope.report.answer import from_origin
from stepscope.report.cells import CAUSES, headings

MOST_ROWS = 5000
"""Rows of a table that go to the page."""


def for_page(frame: pl.DataFrame, origin: int, most: int = MOST_ROWS) -> dict[str, Any]:
    """A table with its values as the page sorts them; moments count from the origin.

    Args:
        origin: The moment from which others count.
        most: Rows that are sent; the page says how many there are in all.
    """
    labels = headings(frame.columns)
    head = from_origin(frame.head(most), origin)
    if "rung" in head.columns:
        head = head.with_columns(pl.col("rung").replace(SHORT_NAMES))
    for name in (name for name in CAUSES if name in head.columns):
        head = head.with_columns(pl.Series(name, cause_labels(head[name]), pl.String))
    return {
        "columns": [
            {"name": name, "label": labels[name], "number": frame[name].dtype.is_numeric()}
            for name in frame.columns
        ],
        "rows": [list(row) for row in head.iter_rows()],
        "total": len(frame),
    }
