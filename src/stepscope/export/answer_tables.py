"""Tables of every answer, for spreadsheets and data frames, and as files in a folder."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import polars as pl

from stepscope.analysis.questions import QUESTIONS
from stepscope.analysis.selection.rows import tables_in, with_csv_text
from stepscope.analysis.selection.scope import Scope
from stepscope.errors import StepscopeError
from stepscope.export.request import Exported, Request, folder_writer


def tables_of(asked: Request, notes: list[str]) -> Iterator[tuple[str, pl.DataFrame]]:
    """The tables, each with its name: "kernels", "idle.causes", "rank00003/kernels", ….

    Args:
        notes: Collects questions that could not be answered, with the reason.
    """
    for source in asked.sources:
        folder = f"rank{source.rank:05d}/" if len(asked.sources) > 1 else ""
        trace = source.open()
        for question in QUESTIONS:
            if question.over_ranks:
                continue
            try:
                result = question.ask(trace, Scope(steps=asked.steps))
            except StepscopeError as error:
                notes.append(f"{question.name}: {error}")
                continue
            tables = tables_in(result, question.titles)
            for field, table in tables.items():
                if not table.width:  # does not apply to this trace
                    continue
                name = question.name if len(tables) == 1 else f"{question.name}.{field}"
                yield folder + name, table
        del trace  # before the next is opened


def to_csv(asked: Request) -> Exported:
    """Write a CSV file per table, in integer nanoseconds and bytes."""

    def content(table: pl.DataFrame) -> bytes:
        return with_csv_text(flat(table)).write_csv().encode()

    return _write_each(asked, ".csv", content)


def to_parquet(asked: Request) -> Exported:
    """Write a Parquet file per table."""

    def content(table: pl.DataFrame) -> bytes:
        buffer = io.BytesIO()
        table.write_parquet(buffer, compression="zstd")
        return buffer.getvalue()

    return _write_each(asked, ".parquet", content)


def _write_each(asked: Request, suffix: str, content: Callable[[pl.DataFrame], bytes]) -> Exported:
    notes: list[str] = []
    rows = 0
    with folder_writer(asked.destination) as folder:
        for name, table in tables_of(asked, notes):
            with folder.file(f"{name}{suffix}") as write:
                write(content(table))
            rows += len(table)
    files = tuple(folder.files)
    return Exported(files, f"{len(files)} tables with {rows:,} rows", tuple(notes))


def flat(table: pl.DataFrame) -> pl.DataFrame:
    """A table whose lists and structs are JSON text, for formats that hold single values."""
    import orjson

    nested = [name for name, dtype in table.schema.items() if dtype.is_nested()]
    return table.with_columns(
        pl.Series(
            name,
            [
                None if value is None else orjson.dumps(value).decode()
                for value in table[name].to_list()
            ],
            dtype=pl.String,
        )
        for name in nested
    )
