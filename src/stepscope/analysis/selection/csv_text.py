"""Text of untrusted files in CSV, which terminals show and spreadsheets run.

A spreadsheet takes a cell that begins with `=`, `+`, `-`, `@` or a tab for a formula, unless it is
a number. Such text gets an apostrophe before it, which a spreadsheet hides. Control characters are
written as escapes.
"""

from __future__ import annotations

import re

import polars as pl

from stepscope.terminal.plain_text import escaped

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
