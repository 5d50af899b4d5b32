"""`--to xlsx`: every table as a sheet of one workbook.

Text stays text: what begins like a formula or a link is neither. A sheet holds 1,048,576 rows; what
does not fit is left out and reported.
"""

from __future__ import annotations

import io
import re
from typing import Any

import polars as pl

from stepscope.errors import UsageError
from stepscope.export.answer_tables import flat, tables_of
from stepscope.export.request import Exported, Request, file_writer

_MOST_ROWS = 2**20 - 1
_MOST_CHARACTERS = 32_767
_EXACT = 2**53
"""Spreadsheets calculate with doubles. Greater whole numbers become text, so that none changes."""
_OPTIONS = {
    "in_memory": True,
    "strings_to_formulas": False,
    "strings_to_urls": False,
    "strings_to_numbers": False,
    "nan_inf_to_errors": True,
}


def export(asked: Request) -> Exported:
    """Write one workbook."""
    try:
        import xlsxwriter
    except ImportError as error:
        raise UsageError(
            "writing a workbook needs xlsxwriter: pip install 'stepscope[xlsx]'"
        ) from error
    notes: list[str] = []
    buffer = io.BytesIO()
    taken: set[str] = set()
    rows = 0
    with xlsxwriter.Workbook(buffer, _OPTIONS) as book:
        bold = book.add_format({"bold": True})
        for name, table in tables_of(asked, notes):
            if len(table) > _MOST_ROWS:
                notes.append(f"{name}: {len(table) - _MOST_ROWS:,} rows do not fit into a sheet")
            sheet = book.add_worksheet(_sheet_name(name, taken))
            _fill(sheet, flat(table.head(_MOST_ROWS)), bold)
            rows += min(len(table), _MOST_ROWS)
    with file_writer(asked.destination) as write:
        write(buffer.getvalue())
    return Exported((asked.destination,), f"{len(taken)} sheets with {rows:,} rows", tuple(notes))


def _fill(sheet: Any, table: pl.DataFrame, bold: Any) -> None:
    for at, column in enumerate(table.columns):
        sheet.write_string(0, at, column, bold)
        sheet.write_column(1, at, _cells(table[column]))
    sheet.freeze_panes(1, 0)
    if table.width:
        sheet.autofilter(0, 0, len(table), table.width - 1)
        sheet.autofit()


def _cells(column: pl.Series) -> list[Any]:
    if column.dtype.is_integer():
        return [
            value if value is None or abs(value) <= _EXACT else str(value)
            for value in column.to_list()
        ]
    if column.dtype.is_float() or column.dtype == pl.Boolean:
        return column.to_list()
    return column.cast(pl.String).str.slice(0, _MOST_CHARACTERS).to_list()


def _sheet_name(name: str, taken: set[str]) -> str:
    """A name that spreadsheets allow: 31 characters, none of their special ones, each once."""
    plain = re.sub(r"[\[\]:*?/\\']", " ", name)[:31]
    chosen, number = plain, 2
    while chosen.lower() in taken:
        end = f" {number}"
        chosen, number = plain[: 31 - len(end)] + end, number + 1
    taken.add(chosen.lower())
    return chosen
