"""What a reader produces: the tables of one file, as defined in `schema.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from stepscope.trace.schema import TABLES

GROWING = ("events", "args", "instants", "counters", "flows")
"""The tables that grow with the file."""
SMALL = ("names", "lanes", "metadata", "problems")
"""The tables that stay small whatever the size of the file, complete once it has been read."""

Frames = Mapping[str, pl.DataFrame]
"""Some of the tables by name: the small ones, or consecutive rows of the growing ones."""


@dataclass(frozen=True)
class Tables:
    """The tables of one trace file, in memory, with the columns of `stepscope.trace.schema`."""

    events: pl.DataFrame
    args: pl.DataFrame
    names: pl.DataFrame
    lanes: pl.DataFrame
    instants: pl.DataFrame
    counters: pl.DataFrame
    flows: pl.DataFrame
    metadata: pl.DataFrame
    problems: pl.DataFrame

    @property
    def size_bytes(self) -> int:
        """Memory that all tables take together."""
        return sum(int(getattr(self, table).estimated_size()) for table in TABLES)

    @classmethod
    def shaped(cls, frames: Frames) -> Tables:
        """Selects and casts columns to match the schema.

        Args:
            frames: Each with at least the columns of the schema. Missing tables are empty.
        """
        return cls(
            **{
                table: frames[table].select(pl.col(name).cast(dtype) for name, dtype in of.items())
                if table in frames
                else pl.DataFrame(schema=of)
                for table, of in TABLES.items()
            }
        )

    def pass_on(self, take: Callable[[Frames], None]) -> Frames:
        """Hands over the growing tables at once, and returns the small ones."""
        take({table: getattr(self, table) for table in GROWING})
        return {table: getattr(self, table) for table in SMALL}

    @classmethod
    def joined(cls, chunks: Sequence[Frames], small: Frames) -> Tables:
        """Joins the growing tables of a file, given in file order, and its small ones."""

        def whole(table: str) -> pl.DataFrame:
            parts = [chunk[table] for chunk in chunks if table in chunk and len(chunk[table])]
            return pl.concat(parts) if parts else pl.DataFrame(schema=TABLES[table])

        return cls(**{table: whole(table) for table in GROWING}, **small)
