"""Runs SQL over a trace, with DuckDB on the Parquet files of the store.

A query is a single SELECT, and sees the views in `views.py` only (`execution.py`). Tables that
exist only in memory are first written to a temporary directory, if the query mentions them.
"""

from __future__ import annotations

import datetime
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import polars as pl

from stepscope.errors import UnreadableInputError, UsageError
from stepscope.terminal.working import working
from stepscope.trace.sql.execution import Execution, Source, create, database, execute
from stepscope.trace.sql.separate_process import execute_apart
from stepscope.trace.sql.views import TABLES, VIEWS, View

_EPOCH = datetime.date(1970, 1, 1).toordinal()
LEAST_MEMORY_BYTES = 1 << 30
"""Memory that a query gets by default, however little is free."""


class Queryable(Protocol):
    """A source of tables for queries, such as a `Trace`."""

    def table(self, name: str) -> pl.LazyFrame:
        """Returns a table of `views.TABLES` by name."""

    def parquet_files(self, name: str) -> list[Path]:
        """Returns the Parquet files that hold exactly what `table` returns, if there are any."""


@dataclass(frozen=True)
class QueryResult:
    """The result of a query.

    Attributes:
        left_out: Of several ranks, why some could not be read.
    """

    rows: pl.DataFrame
    is_cut: bool
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankSource:
    """A rank, and how to open its trace.

    Attributes:
        open: Returns the trace. It may be opened while others are open, and is not kept.
    """

    rank: int
    open: Callable[[], Queryable]


def run_sql(trace: Queryable, query: str) -> pl.DataFrame:
    """Returns all rows of a query over the views of a trace, run in this process."""
    return _run(trace, query, lambda given, _: execute(given)).rows


def run_query(
    trace: Queryable | Sequence[RankSource],
    query: str,
    row_limit: int | None = None,
    time_limit_s: float | None = None,
    memory_bytes: int | None = None,
) -> QueryResult:
    """Runs a query over the views of a trace, in a process of its own.

    Args:
        trace: The trace; or several, of different ranks: then each view has the rows of all of
            them, with `rank` as its first column.
        query: A single SELECT (or DESCRIBE, SHOW TABLES, SUMMARIZE) in DuckDB's dialect.
        memory_bytes: Maximum memory of the query. By default half of what is free, and at least
            `LEAST_MEMORY_BYTES`.

    Raises:
        UsageError: The query is invalid, is not a single SELECT, timed out, or took too much
            memory.
    """
    if memory_bytes is None:
        import psutil

        memory_bytes = max(psutil.virtual_memory().available // 2, LEAST_MEMORY_BYTES)
    return _run(
        trace,
        query,
        lambda given, directory: execute_apart(given, directory, time_limit_s),
        row_limit,
        memory_bytes,
    )


def _run(
    trace: Queryable | Sequence[RankSource],
    query: str,
    run: Callable[[Execution, Path], list[str]],
    row_limit: int | None = None,
    memory_bytes: int | None = None,
) -> QueryResult:
    left_out: list[str] = []
    with tempfile.TemporaryDirectory(prefix="stepscope-sql-") as name:
        directory, views = Path(name), _views_of(query)
        tables = {table for view in views for table in view.tables}
        result = directory / "result.parquet"
        if isinstance(trace, Sequence):
            sources = _ranks(trace, directory, tables, left_out)
        else:
            sources = [(None, _files(trace, directory, tables))]
        named = [(view.name, view.sql) for view in views]
        given = Execution(query, named, sources, str(result), row_limit, memory_bytes)
        names = run(given, directory)
        rows = _with_plain_integers(pl.read_parquet(result, memory_map=False))
    rows.columns = names
    _check_dates(rows)
    if row_limit is None or len(rows) <= row_limit:
        return QueryResult(rows, False, tuple(left_out))
    return QueryResult(rows.head(row_limit), True, tuple(left_out))


def view_columns(*, has_repeats: bool = True) -> pl.DataFrame:
    """Lists all views and columns: `view`, `meaning` (of a row), `column`, `type`.

    Args:
        has_repeats: Whether each row has the view and its meaning; else only its first row.
    """
    parts = []
    with tempfile.TemporaryDirectory(prefix="stepscope-sql-") as directory, database() as opened:
        files = {}
        for table, columns in TABLES.items():
            files[table] = [f"{directory}/{table}.parquet"]
            pl.DataFrame(schema=columns).write_parquet(files[table][0])
        create(opened, [(view.name, view.sql) for view in VIEWS], [(None, files)])
        for view in VIEWS:
            relation = opened.sql(f"SELECT * FROM {view.name}")  # noqa: S608 - a constant
            kinds = [str(kind) for kind in relation.types]
            parts += [
                (view.name, view.meaning, column, kind)
                if has_repeats or not number
                else ("", "", column, kind)
                for number, (column, kind) in enumerate(zip(relation.columns, kinds, strict=True))
            ]
    return pl.DataFrame(parts, schema=["view", "meaning", "column", "type"], orient="row")


def _views_of(query: str) -> tuple[View, ...]:
    words = {word.lower() for word in re.findall(r"\w+", query)}
    return tuple(view for view in VIEWS if view.name in words) or VIEWS


def _ranks(
    sources: Sequence[RankSource], directory: Path, tables: set[str], left_out: list[str]
) -> list[Source]:
    """As `_files`, of several ranks, one of which is open at a time; says which it left out."""
    found: list[Source] = []
    for number, source in enumerate(sources):
        own = directory / f"rank{source.rank}"
        own.mkdir()
        with working(f"Reading rank {source.rank}, {number + 1} of {len(sources)}"):
            try:
                found.append((source.rank, _files(source.open(), own, tables)))
            except UnreadableInputError as error:
                left_out.append(f"rank {source.rank} is left out: {error}")
    if not found:
        raise UnreadableInputError("; ".join(left_out[:3]))
    return found


def _files(source: Queryable, directory: Path, tables: set[str]) -> dict[str, list[str]]:
    """Returns Parquet files for each table, writing those that do not exist yet."""
    files = {}
    for table in sorted(tables):
        found = source.parquet_files(table)
        if not found:
            found = [directory / f"{table}.parquet"]
            frame = source.table(table).collect()
            frame.write_parquet(found[0], compression="lz4", statistics=False)
        files[table] = list(map(str, found))
    return files


def _check_dates(rows: pl.DataFrame) -> None:
    """Rejects dates that Python cannot express, such as infinity."""
    for name, kind in rows.schema.items():
        if isinstance(kind, pl.Date):
            low, high = (day.toordinal() - _EPOCH for day in (datetime.date.min, datetime.date.max))
        elif isinstance(kind, pl.Datetime) and kind.time_unit != "ns":  # whose years all fit
            per_day = 86_400_000_000 if kind.time_unit == "us" else 86_400_000
            low = (datetime.date.min.toordinal() - _EPOCH) * per_day
            high = (datetime.date.max.toordinal() - _EPOCH + 1) * per_day - 1
        else:
            continue
        if not rows[name].to_physical().drop_nulls().is_between(low, high).all():
            raise UsageError(
                f"column '{name}' has dates outside the years 1 to 9999, such as infinity: cast it"
                " to VARCHAR"
            )


def _with_plain_integers(rows: pl.DataFrame) -> pl.DataFrame:
    """Converts 128-bit decimals, the type of sums, to int64 if all values fit."""
    for name, kind in rows.schema.items():
        if isinstance(kind, pl.Decimal) and kind.scale == 0:
            whole = rows[name].cast(pl.Int64, strict=False)
            if whole.null_count() == rows[name].null_count():
                rows = rows.with_columns(whole.alias(name))
    return rows
