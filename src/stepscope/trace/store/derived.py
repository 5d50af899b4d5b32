"""What is derived from a store's tables, kept in the store once it has been computed.

`TRACE.stepscope/derived/` has `columns.parquet` (row for row beside `events`),
`host_steps.parquet`, `device_steps.parquet`, `problems.parquet` and `manifest.json`. It counts only
for the very store that it was computed from, and so for the code that made it, and only as long as
its files are as they were written; otherwise everything is computed again, and kept again where
that is possible.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.run.files import digest_of
from stepscope.trace.derive.columns import DerivedTables
from stepscope.trace.store.directory import (
    MANIFEST,
    Claim,
    put_in_place,
    read_manifest,
    remove_abandoned,
    temporary_name,
)

DERIVED = "derived"
"""The directory in a store."""
_FILES = ("columns", "host_steps", "device_steps", "problems")


@dataclass(frozen=True)
class DerivedFiles:
    """What was derived from one store, on disk.

    Attributes:
        store: The store's directory.
        identity: The store's own mark: a store that was made anew has another.
    """

    store: Path
    identity: str

    def read(self) -> DerivedTables | None:
        """What is kept, its columns lazily; None where nothing is, or nothing that counts."""
        directory = self.store / DERIVED
        if not self._is_valid(directory):
            return None
        try:
            return DerivedTables(
                columns=pl.scan_parquet(directory / "columns.parquet", glob=False),
                host_steps=pl.read_parquet(directory / "host_steps.parquet", glob=False),
                device_steps=pl.read_parquet(directory / "device_steps.parquet", glob=False),
                problems=pl.read_parquet(directory / "problems.parquet", glob=False),
                files=_tables_in(directory),
            )
        except (OSError, pl.exceptions.PolarsError):  # removed or replaced meanwhile
            return None

    def keep(self, derived: DerivedTables) -> DerivedTables:
        """Writes what was derived into the store, whole or not at all.

        A store that cannot be written to, and a full disk, are no errors: everything will be
        computed again.

        Returns:
            The same, with the files that it is in if it could be kept.
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
            said: dict[str, Any] = {}
            for name, frame in frames.items():
                file = claim.directory / f"{name}.parquet"
                frame.write_parquet(file, compression="zstd", compression_level=1)
                said[name] = {"bytes": file.stat().st_size, "digest": digest_of(file)}
            manifest = {"store": self.identity, "files": said}
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
        """Whether the files in a directory are this store's, and unharmed."""
        manifest = read_manifest(directory)
        files = manifest.get("files")
        if (
            manifest.get("store") != self.identity
            or not isinstance(files, dict)
            or set(files) != set(_FILES)
        ):
            return False
        with contextlib.suppress(OSError, TypeError, KeyError):
            # Sizes first: they are for nothing, and tell nearly all damage.
            paths = {name: directory / f"{name}.parquet" for name in _FILES}
            return all(
                path.stat().st_size == files[name]["bytes"] for name, path in paths.items()
            ) and all(digest_of(path) == files[name]["digest"] for name, path in paths.items())
        return False


def _tables_in(directory: Path) -> Mapping[str, Path]:
    return {
        "derived": directory / "columns.parquet",
        "host_steps": directory / "host_steps.parquet",
        "device_steps": directory / "device_steps.parquet",
    }
