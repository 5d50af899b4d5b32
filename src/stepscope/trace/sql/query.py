"""Runs SQL over a trace, with DuckDB on the Parquet files of the store.

A query is a single SELECT. It can read the views in `views.py` and nothing else: no other files,
network, extensions or Python objects, and it cannot change settings. Tables that exist only in
memory are first written to a temporary directory, but only those that the query mentions.
"""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import polars as pl

from stepscope.errors import UsageError
from stepscope.trace.sql.views import TABLES, VIEWS, View

if TYPE_CHECKING:
    import duckdb


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
        rows: The rows, up to the limit.
        is_cut: Whether there are more rows.
    """

    rows: pl.DataFrame
    is_cut: bool


def run_sql(trace: Queryable, query: str) -> pl.DataFrame:
    """Returns all rows of a query over the views of a trace.

    Raises:
        UsageError: The query is invalid, or is not a single SELECT.
    """
    return run_query(trace, query).rows


def run_query(
    trace: Queryable, query: str, row_limit: int | None = None, time_limit_s: float | None = None
) -> QueryResult:
    """Runs a query over the views of a trace.

    Args:
        trace: The trace.
        query: A single SELECT (or DESCRIBE, SHOW TABLES, SUMMARIZE) in DuckDB's dialect.
        row_limit: Maximum number of rows.
        time_limit_s: Timeout in seconds.

    Raises:
        UsageError: The query is invalid, is not a single SELECT, or timed out.
    """
    import duckdb

    with tempfile.TemporaryDirectory(prefix="stepscope-sql-") as directory, _database() as database:
        select = _single_select(database, query)
        views = _views_of(query)
        files = _files(trace, Path(directory), {table for v in views for table in v.tables})
        result = Path(directory) / "result.parquet"
        _create(database, views, files)
        _lock(database, [*(path for parts in files.values() for path in parts), result])
        timer = threading.Timer(time_limit_s or 0, database.interrupt)
        timer.daemon = True
        if time_limit_s is not None:
            timer.start()
        try:
            names = _copy(database, select, result, row_limit)
        except duckdb.InterruptException:
            raise UsageError(f"the query timed out after {time_limit_s:g} s") from None
        except RuntimeError as error:
            if "interrupted" in str(error):  # how DuckDB reports Ctrl-C
                raise KeyboardInterrupt from None
            raise
        except duckdb.Error as error:
            raise UsageError(_one_line(error)) from None
        finally:
            timer.cancel()
        rows = _with_plain_integers(pl.read_parquet(result, memory_map=False))
    rows.columns = names
    if row_limit is None or len(rows) <= row_limit:
        return QueryResult(rows, is_cut=False)
    return QueryResult(rows.head(row_limit), is_cut=True)


def _copy(
    database: duckdb.DuckDBPyConnection, select: str, result: Path, row_limit: int | None
) -> list[str]:
    """Writes the rows of a validated SELECT to a Parquet file, which preserves them exactly.

    Returns:
        The names of the columns, made unique.
    """
    relation = database.sql(select)
    kinds = [str(kind) for kind in relation.types]
    aliases = [f"c{number}" for number in range(len(kinds))]
    # Parquet has no 128-bit integers, so DuckDB would round them to doubles.
    values = ", ".join(
        f"{alias}::{re.sub('U?HUGEINT', 'DECIMAL(38, 0)', kind)} AS {alias}"
        if "HUGEINT" in kind
        else alias
        for alias, kind in zip(aliases, kinds, strict=True)
    )
    limit = "" if row_limit is None else f"LIMIT {row_limit + 1}"
    source = f"(\n{select}\n) AS result({', '.join(aliases)})"
    database.execute(
        f"COPY (SELECT {values} FROM {source} {limit})"  # noqa: S608 - validated as one SELECT
        f" TO {_literal(result)} (FORMAT parquet, USE_TMP_FILE false)"
    )
    names: list[str] = []
    for name in relation.columns:
        taken = sum(other == name or other.startswith(f"{name}_") for other in names)
        names.append(f"{name}_{taken}" if name in names else name)
    return names


def view_columns() -> pl.DataFrame:
    """Lists all views and columns: `view`, `meaning` (of a row), `column`, `type`."""
    parts = []
    with tempfile.TemporaryDirectory(prefix="stepscope-sql-") as directory, _database() as database:
        files = {}
        for table, columns in TABLES.items():
            files[table] = [Path(directory) / f"{table}.parquet"]
            pl.DataFrame(schema=columns).write_parquet(files[table][0])
        _create(database, VIEWS, files)
        for view in VIEWS:
            relation = database.sql(f"SELECT * FROM {view.name}")  # noqa: S608 - a constant
            kinds = [str(kind) for kind in relation.types]
            parts += [
                (view.name, view.meaning, column, kind)
                for column, kind in zip(relation.columns, kinds, strict=True)
            ]
    return pl.DataFrame(parts, schema=["view", "meaning", "column", "type"], orient="row")


@contextmanager
def _database() -> Iterator[duckdb.DuckDBPyConnection]:
    import duckdb

    connection = duckdb.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
            "temp_directory": "",
        },
    )
    try:
        yield connection
    finally:
        connection.close()


def _single_select(database: duckdb.DuckDBPyConnection, query: str) -> str:
    """Returns the text of the query's single SELECT, and rejects anything else."""
    import duckdb

    try:
        statements = database.extract_statements(query)
    except duckdb.Error as error:
        raise UsageError(_one_line(error)) from None
    if not statements:
        raise UsageError("the query is empty; for example: SELECT * FROM kernels LIMIT 10")
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError("only a single SELECT is allowed; a query cannot change or load anything")
    return statements[0].query.rstrip().rstrip(";")


def _views_of(query: str) -> tuple[View, ...]:
    """Returns the views whose names occur in the query; all views if none does."""
    words = {word.lower() for word in re.findall(r"\w+", query)}
    return tuple(view for view in VIEWS if view.name in words) or VIEWS


def _files(source: Queryable, directory: Path, tables: set[str]) -> dict[str, list[Path]]:
    """Returns Parquet files for each table, writing those that do not exist yet."""
    files = {}
    for table in sorted(tables):
        files[table] = source.parquet_files(table)
        if not files[table]:
            files[table] = [directory / f"{table}.parquet"]
            frame = source.table(table).collect()
            frame.write_parquet(files[table][0], compression="lz4", statistics=False)
    return files


def _create(
    database: duckdb.DuckDBPyConnection, views: tuple[View, ...], files: dict[str, list[Path]]
) -> None:
    for table, paths in files.items():
        sources = ", ".join(_literal(path) for path in paths)
        database.execute(f"CREATE VIEW table_{table} AS FROM read_parquet([{sources}])")
    for view in views:
        database.execute(f"CREATE VIEW {view.name} AS {view.sql}")


def _lock(database: duckdb.DuckDBPyConnection, files: list[Path]) -> None:
    """Restricts the database to these files, and locks its settings."""
    allowed = ", ".join(_literal(path) for path in files)
    database.execute(f"SET allowed_paths = [{allowed}]")
    database.execute("SET enable_external_access = false")
    database.execute("SET lock_configuration = true")


def _literal(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _with_plain_integers(rows: pl.DataFrame) -> pl.DataFrame:
    """Converts 128-bit decimals, the type of sums, to int64 if all values fit."""
    for name, kind in rows.schema.items():
        if isinstance(kind, pl.Decimal) and kind.scale == 0:
            whole = rows[name].cast(pl.Int64, strict=False)
            if whole.null_count() == rows[name].null_count():
                rows = rows.with_columns(whole.alias(name))
    return rows


def _one_line(error: Exception) -> str:
    """Returns DuckDB's message without the excerpt of the query below it."""
    text = str(error).split("\n\nLINE ")[0]
    return " ".join(text.split())
