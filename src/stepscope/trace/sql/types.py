"""Which of DuckDB's types reach the caller, and what the others become.

Polars and Parquet have no words for some types, and panic on some values of others. They become
text, and integers of 128 bits become decimals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duckdb.sqltypes import DuckDBPyType

_PLAIN = frozenset(
    {
        "bigint", "blob", "boolean", "decimal", "double", "enum", "float", "integer", "smallint",
        "sqlnull", "\"null\"", "tinyint", "ubigint", "uinteger", "usmallint", "utinyint", "varchar",
    }
)  # fmt: skip
_DATES = ("date", "timestamp")
_TEXT = "VARCHAR"


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
