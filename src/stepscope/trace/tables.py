"""What a reader produces: the tables of one file, as defined in `schema.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import polars as pl

from stepscope.trace.schema import TABLES


@dataclass(frozen=True)
class Chunk:
    """Rows for the tables that grow with the file, in file order."""

    events: pl.DataFrame
    args: pl.DataFrame
    instants: pl.DataFrame
    counters: pl.DataFrame
    flows: pl.DataFrame


GROWING = tuple(field.name for field in fields(Chunk))
"""The tables that grow with the file."""


@dataclass(frozen=True)
class SmallTables:
    """The tables that stay small whatever the size of the file. Complete once it has been read."""

    names: pl.DataFrame
    lanes: pl.DataFrame
    metadata: pl.DataFrame
    problems: pl.DataFrame


SMALL = tuple(field.name for field in fields(SmallTables))
"""The tables that stay small."""


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
    def shaped(cls, frames: Mapping[str, pl.DataFrame]) -> Tables:
        """Selects and casts columns to match the schema.

        Args:
            frames: Tables by name, each with at least the columns of the schema. Missing tables are
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

    def pass_on(self, take: Callable[[Chunk], None]) -> SmallTables:
        """Hands over the growing tables as one chunk, and returns the small ones."""
        take(Chunk(**{table: getattr(self, table) for table in GROWING}))
        return SmallTables(**{table: getattr(self, table) for table in SMALL})

    @classmethod
    def joined(cls, chunks: Sequence[Chunk], small: SmallTables) -> Tables:
        """Joins the chunks of a file, given in file order, and its small tables."""

        def whole(table: str) -> pl.DataFrame:
            parts = [part for chunk in chunks if len(part := getattr(chunk, table))]
            return pl.concat(parts) if parts else pl.DataFrame(schema=TABLES[table])

        return cls(
            **{table: whole(table) for table in GROWING},
            **{table: getattr(small, table) for table in SMALL},
        )
