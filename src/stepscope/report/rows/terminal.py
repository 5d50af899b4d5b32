"""Rows of a query as a table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.report.console import width_for
from stepscope.report.frames import print_frame

if TYPE_CHECKING:
    import polars as pl

    from stepscope.report.outputs import Layout, Sink


def write(rows: pl.DataFrame, sink: Sink, _layout: Layout) -> None:
    """Print the rows."""
    print_frame(rows, sink.console(width=width_for(sink)))
