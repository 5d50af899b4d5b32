"""Runs one query with DuckDB, in this process; imports nothing else that is large.

A query sees the views it is given and the files behind them, and nothing else: no other files,
network, extensions or Python objects, and it cannot change settings.

Polars and Parquet have no words for some of DuckDB's types, and panic on some values of others.
They become text, and integers of 128 bits become decimals.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.errors import UsageError

if TYPE_CHECKING:
    import duckdb
    from duckdb.sqltypes import DuckDBPyType

_PLAIN = frozenset(
    {
        "bigint", "blob", "boolean", "decimal", "double", "enum", "float", "integer", "smallint",
        "sqlnull", "\"null\"", "tinyint", "ubigint", "uinteger", "usmallint", "utinyint", "varchar",
    }
)  # fmt: skip
_DATES = ("date", "timestamp")
_TEXT = "VARCHAR"

_OF_ONE_RANK = "of_one_rank"
"""The schema of the tables of single ranks, which a query over all of them need not know."""
_TABLE = re.compile(r"\btable_")
_UNKNOWN_TABLE = re.compile(r"^Catalog Error: Table with name ")
_OWN_TABLE = re.compile(r' Did you mean "(pg_|duckdb_|sqlite_|pragma_|information_schema)[^"]*"\?$')
_VIEWS = " `stepscope query --list` names the views."


Source = tuple[int | None, Mapping[str, Sequence[str]]]
"""A trace that is queried: its rank, if it is one of several, and the files of each table."""


def type_of_result(kind: DuckDBPyType) -> str:
    """Returns the type that a column of a result is cast to, as DuckDB writes it."""
    if kind.id.startswith(_DATES):
        return str(kind)
    return _inside(kind)


def _inside(kind: DuckDBPyType) -> str:
    """As `type_of_result`, also within lists and structs, where dates become text."""
    if "hugeint" in kind.id:
        return "DECIMAL(38, 0)"
    if kind.id in ("list", "array"):
        return f"{_inside(_children(kind)[0][1])}[]"
    if kind.id == "struct":
        members = (f"{_quoted(name)} {_inside(child)}" for name, child in _children(kind))
        return f"STRUCT({', '.join(members)})"
    if kind.id == "map":
        key, value = (child for _, child in _children(kind))
        return f"MAP({key}, {_inside(value)})" if key.id in _PLAIN else _TEXT
    return str(kind) if kind.id in _PLAIN and str(kind) != "JSON" else _TEXT


def _children(kind: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    """The types inside a type; an array also has its length."""
    return [child for child in kind.children if child[0] != "size"]  # type: ignore[misc]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Execution:
    """A query, and what it can see.

    Attributes:
        query: A single SELECT.
        sources: The Parquet files of each table behind the views: of a single trace, whose rank is
            None, or of several. Then each view has the rows of all of them, with `rank` as its
            first column.
        row_limit: Maximum number of rows; one more is written. None: no limit.
    """

    query: str
    views: Sequence[tuple[str, str]]
    sources: Sequence[Source]
    result: str
    row_limit: int | None = None
    memory_bytes: int | None = None


def execute(given: Execution) -> list[str]:
    """Writes the rows of a query to a Parquet file.

    Returns:
        The names of the columns, made unique. In the file they are c0, c1, …

    Raises:
        UsageError: The query is invalid, or is not a single SELECT.
        KeyboardInterrupt: The user interrupted it.
    """
    import duckdb

    with database(given.memory_bytes) as connection:
        select = _single_select(connection, given.query)
        create(connection, given.views, given.sources)
        sources = (parts for _, files in given.sources for parts in files.values())
        _lock(connection, [*itertools.chain.from_iterable(sources), given.result])
        try:
            return _copy(connection, select, given.result, given.row_limit)
        except RuntimeError as error:
            if "interrupted" in str(error):  # how DuckDB reports Ctrl-C
                raise KeyboardInterrupt from None
            raise
        except duckdb.Error as error:
            raise UsageError(_one_line(error)) from None


@contextmanager
def database(memory_bytes: int | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """Opens an empty database in memory that loads nothing by itself."""
    import duckdb

    config: dict[str, str | bool | int | float | list[str]] = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "python_enable_replacements": "false",
        "temp_directory": "",
    }
    if memory_bytes is not None:
        config["memory_limit"] = f"{max(memory_bytes // 1_000_000, 1)}MB"
    connection = duckdb.connect(":memory:", config=config)
    try:
        yield connection
    finally:
        connection.close()


def create(
    connection: duckdb.DuckDBPyConnection,
    views: Sequence[tuple[str, str]],
    sources: Sequence[Source],
) -> None:
    """Creates the views over their files, or over those of several ranks.

    Numbers of events, names and lanes mean something within one trace only, so each rank's rows are
    joined before they are put together.
    """
    connection.execute(f"CREATE SCHEMA {_OF_ONE_RANK}")
    prefixes = ["table_" if rank is None else f"{_OF_ONE_RANK}.table{rank}_" for rank, _ in sources]
    for prefix, (_, files) in zip(prefixes, sources, strict=True):
        for table, paths in files.items():
            source = f"read_parquet([{', '.join(map(_literal, paths))}])"
            connection.execute(f"CREATE VIEW {prefix}{table} AS FROM {source}")
    for name, sql in views:
        parts = [
            sql
            if rank is None
            else f"SELECT {rank}::BIGINT AS rank, * FROM ({_TABLE.sub(prefix, sql)})"  # noqa: S608
            for prefix, (rank, _) in zip(prefixes, sources, strict=True)
        ]
        connection.execute(f"CREATE VIEW {name} AS {' UNION ALL '.join(parts)}")


def _copy(
    connection: duckdb.DuckDBPyConnection, select: str, result: str, row_limit: int | None
) -> list[str]:
    """Writes the rows of a validated SELECT to a Parquet file, which preserves them exactly."""
    relation = connection.sql(select)
    aliases = [f"c{number}" for number in range(len(relation.types))]
    kinds = [(str(kind), type_of_result(kind)) for kind in relation.types]
    values = ", ".join(
        alias if kind == kept else f"{alias}::{kept} AS {alias}"
        for alias, (kind, kept) in zip(aliases, kinds, strict=True)
    )
    limit = "" if row_limit is None else f"LIMIT {row_limit + 1}"
    source = f"(\n{select}\n) AS result({', '.join(aliases)})"
    connection.execute(
        f"COPY (SELECT {values} FROM {source} {limit})"  # noqa: S608 - validated as one SELECT
        f" TO {_literal(result)} (FORMAT parquet, USE_TMP_FILE false)"
    )
    names: list[str] = []
    for name in relation.columns:
        taken = sum(other == name or other.startswith(f"{name}_") for other in names)
        names.append(f"{name}_{taken}" if name in names else name)
    return names


def _single_select(connection: duckdb.DuckDBPyConnection, query: str) -> str:
    """Returns the text of the query's single SELECT, and rejects anything else."""
    import duckdb

    try:
        statements = connection.extract_statements(query)
    except duckdb.Error as error:
        raise UsageError(_one_line(error)) from None
    if not statements:
        raise UsageError("the query is empty; for example: SELECT * FROM kernels LIMIT 10")
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError("only a single SELECT is allowed; a query cannot change or load anything")
    return statements[0].query.rstrip().rstrip(";")


def _lock(connection: duckdb.DuckDBPyConnection, files: Sequence[str]) -> None:
    """Restricts the database to these files, and locks its settings."""
    allowed = ", ".join(map(_literal, files))
    connection.execute(f"SET allowed_paths = [{allowed}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _literal(path: str) -> str:
    return "'" + path.replace("'", "''") + "'"


def _one_line(error: Exception) -> str:
    """Returns DuckDB's message without the excerpt of the query below it.

    For an unknown table it suggests the nearest of all, DuckDB's own included, which nobody means.
    """
    text = " ".join(str(error).split("\n\nLINE ")[0].split())
    is_unknown_table = _UNKNOWN_TABLE.search(text) is not None
    return f"{_OWN_TABLE.sub('', text)}{_VIEWS if is_unknown_table else ''}"
