"""The store: a directory of Parquet files next to a trace, written once and opened instantly.

The store of `trace.json.gz` is `trace.json.gz.stepscope/`. It holds `manifest.json` and, for each
table, a directory of Parquet files. If the directory of the trace is not writable, or the trace is
remote, the store is kept in the user's cache directory. A store is valid for one content (size,
modification time or version, and a probe) and for the code that read it; otherwise it is replaced
when the trace is next opened. So is a store whose files are not those that were written (see
`contents.py`). It is written under a temporary name and renamed once complete.
Streams get a store that is removed when the process exits.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import polars as pl

from stepscope.trace.schema import TABLES
from stepscope.trace.store.contents import is_intact, is_own_directory
from stepscope.trace.store.directory import read_manifest
from stepscope.trace.store.origin import Origin
from stepscope.trace.store.owners import warn_not_trusted
from stepscope.trace.tables import GROWING, SMALL


def find_store(origin: Origin) -> Path | None:
    """Returns the valid store of a trace, if there is one."""
    return next((path for path in origin.paths if is_store_of(path, origin)), None)


def is_store_of(path: Path, origin: Origin) -> bool:
    """Whether a path holds a valid store of a trace."""
    if origin.key is None:
        return False
    if not is_own_directory(path):
        if path.is_dir() and not path.is_symlink():
            warn_not_trusted(path)
        return False
    manifest = read_manifest(path)
    return manifest.get("key") == asdict(origin.key) and _is_whole(path, manifest.get("files"))


def _is_whole(store: Path, contents: object) -> bool:
    """Whether each table has the files that were written, with its columns."""
    tables = (*GROWING, *SMALL)
    if not all(is_own_directory(f"{store}{os.sep}{table}") for table in tables):
        return False
    parts = {table: _names_of_parts(store, table) for table in tables}
    names = [f"{table}/{part}" for table in tables for part in parts[table]]
    if not all(parts.values()) or not is_intact(store, contents, names):
        return False
    return all(_columns_of(store / table / parts[table][0]) == TABLES[table] for table in tables)


def _columns_of(part: Path) -> dict[str, pl.DataType] | None:
    try:
        with part.open("rb") as opened:  # given a name, Polars would take brackets for a pattern
            return dict(pl.read_parquet_schema(opened))
    except (OSError, pl.exceptions.PolarsError):
        return None


def parts_of(store: Path, table: str) -> list[Path]:
    """Returns the Parquet files of a table, in row order."""
    return [store / table / name for name in _names_of_parts(store, table)]


def _names_of_parts(store: Path, table: str) -> list[str]:
    try:
        names = os.listdir(f"{store}{os.sep}{table}")  # noqa: PTH208 - pathlib is slow here
    except OSError:
        return []
    return sorted(name for name in names if name.endswith(".parquet"))
