"""What a reader hands over: the tables of one file, as `schema.py` defines them."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True)
class Tables:
    """The tables of one trace file, in memory. Columns and units: `stepscope.trace.schema`."""

    events: pl.DataFrame
    args: pl.DataFrame
    names: pl.DataFrame
    lanes: pl.DataFrame
    instants: pl.DataFrame
    counters: pl.DataFrame
    flows: pl.DataFrame
    metadata: pl.DataFrame
    problems: pl.DataFrame
