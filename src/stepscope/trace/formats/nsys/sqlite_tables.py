"""Reads columns from an untrusted SQLite file, whatever tables and columns it has."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

import polars as pl

from stepscope.errors import UnreadableInputError

_ROWS_AT_ONCE = 100_000
_TEXT = "CAST({0} AS TEXT)"
# SQLite would read any text as a number, such as 0.
_INTEGER = "CASE WHEN typeof({0}) IN ('integer', 'real') THEN CAST({0} AS INTEGER) END"


_SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What a damaged file raises: Python fails to decode a message of SQLite that quotes odd bytes."""


class SqliteTables:
    """The plain tables of an SQLite file, opened read-only.

    Views, virtual tables and triggers are never used, since a malicious file could abuse them.
    Names of tables and columns are case-insensitive, as in SQLite.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._name = name  # for messages
        # immutable: no lock, no journal, no files written next to it.
        address = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
        try:
            self._connection = sqlite3.connect(address, uri=True)
        except _SQLITE_ERRORS as error:
            raise self._unreadable(error) from error
        try:
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            found = self._connection.execute(
                "SELECT name FROM sqlite_master"
                " WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
            ).fetchall()
        except _SQLITE_ERRORS as error:
            self._connection.close()
            raise self._unreadable(error) from error
        self._tables = {name.lower(): name for (name,) in found}

    def close(self) -> None:
        """Ends reading."""
        self._connection.close()

    def _unreadable(self, error: Exception) -> UnreadableInputError:
        return UnreadableInputError(
            f"{self._name}: cannot be read by SQLite ({error}); export the report again"
        )

    def names(self) -> list[str]:
        """Returns the names of the tables, as in the file."""
        return list(self._tables.values())

    def has(self, table: str) -> bool:
        """Whether the file has a table."""
        return table.lower() in self._tables

    def columns(self, table: str) -> set[str]:
        """Returns the column names of a table in lower case; empty if there is no such table."""
        if not self.has(table):
            return set()
        rows = self._query(f"PRAGMA table_info({_quoted(self._tables[table.lower()])})")
        return {str(row[1]).lower() for row in rows}

    def count(self, table: str) -> int:
        """Returns the number of rows; 0 if there is no such table."""
        if not self.has(table):
            return 0
        name = _quoted(self._tables[table.lower()])
        return int(str(self._query(f"SELECT count(*) FROM {name}")[0][0]))  # noqa: S608 - quoted

    def read(
        self, table: str, integers: tuple[str, ...], texts: tuple[str, ...] = ()
    ) -> pl.DataFrame:
        """Reads columns of a table, with nulls for columns missing from the file.

        Args:
            table: Name of the table. If it is missing, the result has no rows.
            integers: Columns to read as int64; text among them is read as null.
        """
        wanted = [(name, _INTEGER) for name in integers] + [(name, _TEXT) for name in texts]
        schema: dict[str, type[pl.DataType]] = {
            **dict.fromkeys(integers, pl.Int64),
            **dict.fromkeys(texts, pl.String),
        }
        present = self.columns(table)
        if not present:
            return pl.DataFrame(schema=schema)
        parts = ", ".join(
            read_as.format(_quoted(name)) if name.lower() in present else "NULL"
            for name, read_as in wanted
        )
        source = _quoted(self._tables[table.lower()])
        blocks = [pl.DataFrame(schema=schema)]
        try:
            cursor = self._connection.execute(f"SELECT {parts} FROM {source}")  # noqa: S608 - quoted
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                blocks.append(pl.DataFrame(rows, schema=schema, orient="row"))
        except _SQLITE_ERRORS as error:
            raise self._unreadable(error) from error
        return pl.concat(blocks)

    def _query(self, sql: str) -> list[tuple[object, ...]]:
        try:
            return self._connection.execute(sql).fetchall()
        except _SQLITE_ERRORS as error:
            raise self._unreadable(error) from error


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
