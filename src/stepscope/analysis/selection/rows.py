"""A small table as plain values, which travels with a summary where a frame would not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl


@dataclass(frozen=True)
class Rows:
    """A few rows.

    Attributes:
        columns: Names of the columns.
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
