"""Writes one file per table into a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl

from stepscope.export.answer_tables import tables_of
from stepscope.export.request import Exported, Request, Write, file_writer


def write_tables(
    asked: Request, suffix: str, write_one: Callable[[pl.DataFrame, Write], None]
) -> Exported:
    """Write the tables of a request.

    Args:
        asked: The request; its destination is the folder.
        suffix: Ending of the files.
        write_one: Writes one table.
    """
    notes: list[str] = []
    files: list[Path] = []
    rows = 0
    for name, table in tables_of(asked, notes):
        path = asked.destination / f"{name}{suffix}"
        with file_writer(path) as write:
            write_one(table, write)
        files.append(path)
        rows += len(table)
    return Exported(tuple(files), f"{len(files)} tables with {rows:,} rows", tuple(notes))
