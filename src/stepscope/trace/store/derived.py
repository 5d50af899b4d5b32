"""Derived tables, cached in the store once computed.

`TRACE.stepscope/derived/` holds `columns.parquet` (row for row alongside `events`),
`host_steps.parquet`, `device_steps.parquet`, `problems.parquet` and `manifest.json`. These files
are valid only for the store they were computed from, and so for the code that made it, and only
while they are unchanged. Otherwise everything is computed and cached again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from stepscope.trace.store.contents import contents_of, is_intact, is_own_directory
from stepscope.trace.store.directory import (
    MANIFEST,
    Claim,
    put_in_place,
    read_manifest,
    remove_abandoned,
    temporary_name,
)

if TYPE_CHECKING:
    from stepscope.trace.derive.columns import DerivedTables

DERIVED = "derived"
"""Name of the directory in a store."""
_NAMES = tuple(
    f"{table}.parquet" for table in ("columns", "host_steps", "device_steps", "problems")
)


@dataclass(frozen=True)
class DerivedFiles:
    """The cached derived tables of one store.

    Attributes:
        store: The directory of the store.
        identity: Identifier of the store; a new one is generated whenever the store is rewritten.
    """

    store: Path
    identity: str

    def read(self) -> DerivedTables | None:
        """Returns the cached tables, their columns lazily; None if there are no valid ones."""
        directory = self.store / DERIVED
        if not self._is_valid(directory):
            return None
        from stepscope.trace.derive.columns import DerivedTables

        try:
            return DerivedTables(
                columns=pl.scan_parquet(directory / "columns.parquet", glob=False),
                host_steps=pl.read_parquet(directory / "host_steps.parquet", glob=False),
                device_steps=pl.read_parquet(directory / "device_steps.parquet", glob=False),
                problems=pl.read_parquet(directory / "problems.parquet", glob=False),
                files=_tables_in(directory),
            )
        except (OSError, pl.exceptions.PolarsError):  # removed or replaced in the meantime
            return None

    def keep(self, derived: DerivedTables) -> DerivedTables:
        """Caches derived tables in the store, completely or not at all.

        A read-only store or a full disk is not an error: the tables are computed again next time.

        Returns:
            The same tables, with their files if they could be cached.
        """
        directory = self.store / DERIVED
        try:
            remove_abandoned(directory)
            claim = Claim(temporary_name(directory))
        except OSError:
            return derived
        frames = {
            "columns": derived.columns.collect(),
            "host_steps": derived.host_steps,
            "device_steps": derived.device_steps,
            "problems": derived.problems,
        }
        try:
            for name, frame in frames.items():
                file = claim.directory / f"{name}.parquet"
                frame.write_parquet(file, compression="zstd", compression_level=1)
            manifest = {"store": self.identity, "files": contents_of(claim.directory, _NAMES)}
            (claim.directory / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
            claim.release()
            if not put_in_place(claim.directory, directory, lambda: self._is_valid(directory)):
                return derived
        except (OSError, pl.exceptions.PolarsError):
            return derived
        finally:
            claim.remove()
        return replace(derived, files=_tables_in(directory))

    def _is_valid(self, directory: Path) -> bool:
        """Whether the files in a directory belong to this store and are intact."""
        manifest = read_manifest(directory)
        return (
            manifest.get("store") == self.identity
            and is_own_directory(directory)
            and is_intact(directory, manifest.get("files"), _NAMES)
        )


def _tables_in(directory: Path) -> Mapping[str, Path]:
    return {
        "derived": directory / "columns.parquet",
        "host_steps": directory / "host_steps.parquet",
        "device_steps": directory / "device_steps.parquet",
    }
