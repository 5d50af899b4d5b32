"""Derived tables, cached in the store once computed.

`TRACE.stepscope/derived/` holds `columns.parquet` (row for row alongside `events`),
`host_steps.parquet`, `device_steps.parquet`, `overruns.parquet`, `problems.parquet` and
`manifest.json` (`directory.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.trace.schema import DERIVED as COLUMNS
from stepscope.trace.store.directory import StoreFolder
from stepscope.trace.store.part import write_table

if TYPE_CHECKING:
    from stepscope.trace.derive.columns import DerivedTables

DERIVED = "derived"
"""Name of the directory in a store."""
FREED_FROM_EVENTS = 1_000_000
"""Events from which derived columns are freed once they are in the store, and read from there."""
_SMALL = ("host_steps", "device_steps", "overruns", "problems")
_NAMES = tuple(f"{table}.parquet" for table in ("columns", *_SMALL))


@dataclass(frozen=True)
class DerivedFiles:
    """The cached derived tables of one store.

    Attributes:
        identity: Identifier of the store; a new one is generated whenever the store is rewritten.
    """

    store: Path
    identity: str

    @property
    def _folder(self) -> StoreFolder:
        return StoreFolder(self.store / DERIVED, _NAMES, {"store": self.identity})

    def read(self) -> DerivedTables | None:
        """Returns the cached tables, their columns lazily; None if there are no valid ones."""
        folder = self._folder
        if not folder.is_valid():
            return None
        from stepscope.trace.derive.columns import DerivedTables

        directory = folder.directory
        try:
            small: dict[str, Any] = {
                name: pl.read_parquet(directory / f"{name}.parquet", glob=False) for name in _SMALL
            }
            columns = pl.scan_parquet(directory / "columns.parquet", glob=False)
            return DerivedTables(columns, files=_tables_in(directory), **small)
        except (OSError, pl.exceptions.PolarsError):  # removed or replaced in the meantime
            return None

    def keep(self, derived: DerivedTables) -> DerivedTables:
        """Caches derived tables in the store, completely or not at all.

        A read-only store or a full disk is not an error: the tables are computed again next time.

        Returns:
            The same tables, with their files if they could be cached. Long columns are in these
            files only.
        """

        def write(directory: Path) -> None:
            target = directory / "columns.parquet"
            if derived.narrow is None:
                write_table(derived.columns.collect(), target, COLUMNS)
            else:
                write_table(derived.narrow, target, COLUMNS, row_number="event")
            for name in _SMALL:
                write_table(getattr(derived, name), directory / f"{name}.parquet")

        folder = self._folder
        if not folder.keep(write):
            return derived
        cached = replace(derived, files=_tables_in(folder.directory))
        if derived.narrow is None or len(derived.narrow) < FREED_FROM_EVENTS:
            return cached
        columns = pl.scan_parquet(cached.files["derived"], glob=False)
        return replace(cached, columns=columns, narrow=None)


def _tables_in(directory: Path) -> Mapping[str, Path]:
    steps = {name: directory / f"{name}.parquet" for name in _SMALL if name != "problems"}
    return {"derived": directory / "columns.parquet", **steps}
