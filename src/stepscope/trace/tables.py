"""What a reader hands over: the tables of one file, as `schema.py` defines them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from stepscope.trace.schema import TABLES


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

    @classmethod
    def shaped(cls, frames: Mapping[str, pl.DataFrame]) -> Tables:
        """Tables with the columns and types of the schema.

        Args:
            frames: Each table by its name, with at least its columns; one that is not given is
                empty.
        """
        return cls(
            **{
                table: frames[table].select(pl.col(name).cast(dtype) for name, dtype in of.items())
                if table in frames
                else pl.DataFrame(schema=of)
                for table, of in TABLES.items()
            }
        )
