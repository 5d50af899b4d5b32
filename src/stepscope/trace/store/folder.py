"""A folder of files in a store that were worked out from its tables, and are kept with them.

The files are valid only for the store they were made from, and so for the code that made it, and
only while they are unchanged. Otherwise everything is worked out and kept again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stepscope.trace.store.contents import contents_of, is_intact, is_own_directory
from stepscope.trace.store.directory import MANIFEST, read_manifest, write_whole


@dataclass(frozen=True)
class StoreFolder:
    """One folder in a store."""

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
        """Writes the files, completely or not at all; see `write_whole`.

        Returns:
            Whether the folder is valid now.
        """

        def write_all(directory: Path) -> None:
            write(directory)
            manifest = {"store": self.identity, "files": contents_of(directory, self.names)}
            (directory / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")

        return write_whole(self.directory, write_all, self.is_valid)
