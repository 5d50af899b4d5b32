"""Rows of a query as a table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.report.frames import print_frame

if TYPE_CHECKING:
    import polars as pl

    from stepscope.report.outputs import Layout, Sink

_WIDE = 10_000
"""In a file or pipe, a table may be as wide as it needs to be."""


def write(rows: pl.DataFrame, sink: Sink, _layout: Layout) -> None:
    """Print the rows."""
    width = None if sink.is_terminal else _WIDE
    print_frame(rows, sink.console(keeps_padding=True, width=width))
