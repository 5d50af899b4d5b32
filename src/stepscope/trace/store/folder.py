"""A folder of files in a store that were worked out from its tables, and are kept with them.

The files are valid only for the store they were made from, and so for the code that made it, and
only while they are unchanged. Otherwise everything is worked out and kept again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class StoreFolder:
    """One folder in a store.

    Attributes:
        directory: The folder.
        identity: Identifier of the store; a new one is generated whenever the store is rewritten.
        names: Names of its files.
    """

    directory: Path
    identity: str
    names: tuple[str, ...]

    def is_valid(self) -> bool:
        """Whether all files are there, belong to this store and are intact."""
        manifest = read_manifest(self.directory)
        return (
            manifest.get("store") == self.identity
            and is_own_directory(self.directory)
            and is_intact(self.directory, manifest.get("files"), self.names)
        )

    def keep(self, write: Callable[[Path], None]) -> bool:
        """Writes the files, completely or not at all.

        A read-only store or a full disk is not an error: everything is worked out again next time.

        Args:
            write: Writes all files into the directory that it is given.

        Returns:
            Whether the folder is valid now.
        """
        try:
            remove_abandoned(self.directory)
            claim = Claim(temporary_name(self.directory))
        except OSError:
            return False
        try:
            write(claim.directory)
            manifest = {"store": self.identity, "files": contents_of(claim.directory, self.names)}
            (claim.directory / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
            claim.release()
            return put_in_place(claim.directory, self.directory, self.is_valid)
        except (OSError, pl.exceptions.PolarsError):
            return False
        finally:
            claim.remove()
