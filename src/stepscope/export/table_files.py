"""Writes one file per table into a folder."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from stepscope.export.answer_tables import tables_of
from stepscope.export.request import Exported, Request, Write, folder_writer


def write_tables(
    asked: Request, suffix: str, write_one: Callable[[pl.DataFrame, Write], None]
) -> Exported:
    """Write the tables of a request.

    Args:
        asked: The request; its destination is the folder.
    """
    notes: list[str] = []
    rows = 0
    with folder_writer(asked.destination) as folder:
        for name, table in tables_of(asked, notes):
            with folder.file(f"{name}{suffix}") as write:
                write_one(table, write)
            rows += len(table)
    files = tuple(folder.files)
    return Exported(files, f"{len(files)} tables with {rows:,} rows", tuple(notes))
