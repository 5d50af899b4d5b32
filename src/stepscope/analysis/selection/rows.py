"""Tables of results: which a result has, as plain values that travel with a summary, as safe CSV.

Terminals show the text of untrusted files in CSV, and spreadsheets run it: a cell that begins with
`=`, `+`, `-`, `@` or a tab is a formula to them, unless it is a number. Such text gets an
apostrophe before it, which a spreadsheet hides. Control characters are written as escapes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import polars as pl

from stepscope.terminal.plain_text import escaped


@dataclass(frozen=True)
class Rows:
    """A few rows."""

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
    """

    rows: Rows
    numeric: tuple[str, ...]
    total: int

    def __post_init__(self) -> None:
        """Check that the parts fit together."""
        lengths = {len(column) for column in self.rows.values}
        if len(self.rows.values) != len(self.rows.columns) or len(lengths) > 1:
            raise ValueError("columns of different lengths")
        if max(lengths, default=0) > self.total:
            raise ValueError("more rows than there are in all")

    @classmethod
    def of(cls, table: pl.DataFrame, most_rows: int) -> Beginning:
        """The beginning of a frame."""
        kept = [
            name for at, name in enumerate(table.columns) if at == 0 or _has_content(table[name])
        ]
        cut = table.select(kept).head(most_rows)
        values = tuple(tuple(map(_plain, column.to_list())) for column in cut.iter_columns())
        numeric = tuple(name for name in kept if cut[name].dtype.is_numeric())
        return cls(Rows(tuple(kept), values), numeric, len(table))


def _has_content(column: pl.Series) -> bool:
    known = column.drop_nulls()
    if known.dtype.is_numeric():
        return bool((known != 0).any())
    return len(known) > 0 and any(one not in ("", []) for one in known.head(1000).to_list())


def _plain(cell: Any) -> Any:
    return tuple(map(_plain, cell)) if isinstance(cell, list) else cell


def tables_in(result: Any, order: Iterable[str] = ()) -> dict[str, pl.DataFrame]:
    """The tables of a result, a dataclass, by field.

    Args:
        result: The result. Fields with `show` false in their metadata are for other code only.
    """
    found = {
        field.name: getattr(result, field.name)
        for field in dataclasses.fields(result)
        if isinstance(getattr(result, field.name), pl.DataFrame)
        and field.metadata.get("show", True)
    }
    first = [name for name in order if name in found]
    return {name: found[name] for name in (*first, *(n for n in found if n not in first))}


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
_MAY_BE_UNSAFE = r"^[=+\-@]|[\p{C}\p{Zl}\p{Zp}]"  # the second: what Python cannot print


def csv_text(text: str) -> str:
    """Returns text that is safe in a cell."""
    if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text):
        text = f"'{text}"
    return escaped(text)


def with_csv_text(frame: pl.DataFrame) -> pl.DataFrame:
    """Returns a table with safe text and safe names of columns."""
    columns = []
    for name, kind in frame.schema.items():
        column = frame[name]
        if kind == pl.String and column.str.contains(_MAY_BE_UNSAFE).any():
            texts = [None if text is None else csv_text(text) for text in column]
            column = pl.Series(name, texts, pl.String)
        columns.append(column.alias(csv_text(name)))
    return pl.DataFrame(columns) if columns else frame
