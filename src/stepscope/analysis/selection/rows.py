"""A small table as plain values, which travels with a summary where a frame would not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl


@dataclass(frozen=True)
class Rows:
    """A few rows.

    Attributes:
        values: The values of each column.
    """

    columns: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, table: pl.DataFrame) -> Rows:
        """The rows of a frame."""
        return cls(tuple(table.columns), tuple(tuple(column) for column in table.iter_columns()))

    def __getitem__(self, column: str) -> tuple[Any, ...]:
        return self.values[self.columns.index(column)]

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary per row, as `polars.DataFrame.to_dicts` gives them."""
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*self.values, strict=True)]


@dataclass(frozen=True)
class Beginning:
    """The first rows of a table, for a reader who sees no more, and how many there are in all.

    Attributes:
        rows: The rows. Columns in which no row of the whole table has a value are left out, but for
            the first column.
        numeric: The columns that hold numbers.
        total: Number of rows of the whole table.
    """

    rows: Rows
    numeric: tuple[str, ...]
    total: int

    def __post_init__(self) -> None:
        """Check that the parts fit together.

        Raises:
            ValueError: They do not.
        """
        lengths = {len(column) for column in self.rows.values}
        if len(self.rows.values) != len(self.rows.columns) or len(lengths) > 1:
            raise ValueError("columns of different lengths")
        if max(lengths, default=0) > self.total:
            raise ValueError("more rows than there are in all")

    @classmethod
    def of(cls, table: pl.DataFrame, most_rows: int) -> Beginning:
        """The beginning of a frame."""
        kept = [
            name for at, name in enumerate(table.columns) if at == 0 or _says_something(table[name])
        ]
        cut = table.select(kept).head(most_rows)
        values = tuple(tuple(map(_plain, column.to_list())) for column in cut.iter_columns())
        numeric = tuple(name for name in kept if cut[name].dtype.is_numeric())
        return cls(Rows(tuple(kept), values), numeric, len(table))


def _says_something(column: pl.Series) -> bool:
    known = column.drop_nulls()
    if known.dtype.is_numeric():
        return bool((known != 0).any())
    return len(known) > 0 and any(one not in ("", []) for one in known.head(1000).to_list())


def _plain(cell: Any) -> Any:
    return tuple(map(_plain, cell)) if isinstance(cell, list) else cell
