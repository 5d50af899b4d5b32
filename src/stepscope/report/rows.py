"""Rows of a query, and any frame, unchanged."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import polars as pl

from stepscope.report.document import Block, Column, Look, Table

if TYPE_CHECKING:
    from stepscope.report.outputs import Layout


def document(rows: pl.DataFrame, _layout: Layout) -> Iterator[Block]:
    """The rows as a table."""
    yield table_of_frame(rows)


def table_of_frame(frame: pl.DataFrame, amounts: Collection[str] = frozenset()) -> Table:
    """A frame as a table: numbers to the right, nulls empty.

    Args:
        amounts: Columns of text that are amounts, and go to the right as well.
    """
    columns = [
        # Part of a number is another number.
        Column(name, is_amount=is_amount, wraps=not is_amount)
        for name, kind in frame.schema.items()
        for is_amount in (kind.is_numeric() or name in amounts,)
    ]
    cells = [[_text(value) for value in frame[name].to_list()] for name in frame.columns]
    return Table(tuple(columns), tuple(zip(*cells, strict=True)), Look.SPACED, gap=3)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _nested(value) if isinstance(value, (list, dict)) else str(value)


def _nested(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=_scalar)


def _scalar(value: object) -> str:
    """A value that JSON has no form for: bytes as hexadecimal, anything else as its text."""
    return value.hex() if isinstance(value, bytes) else str(value)


def to_json(rows: pl.DataFrame) -> bytes:
    """A list of objects, one per row; integers stay integers, bytes become hexadecimal."""
    text = json.dumps(rows.to_dicts(), ensure_ascii=False, indent=2, default=_scalar)
    return text.encode() + b"\n"


def frames(rows: pl.DataFrame, _layout: Layout) -> Iterator[bytes]:
    """CSV with a header, in UTF-8; lists and structs as JSON, bytes as hexadecimal."""
    from stepscope.analysis.selection.rows import with_csv_text

    special = [n for n, kind in rows.schema.items() if kind.is_nested() or kind == pl.Binary]
    flat = rows.with_columns(
        pl.Series(name, [_flat(value) for value in rows[name].to_list()], pl.String)
        for name in special
    )
    yield with_csv_text(flat).write_csv().encode()


def _flat(value: object) -> str | None:
    if value is None:
        return None
    return value.hex() if isinstance(value, bytes) else _nested(value)
