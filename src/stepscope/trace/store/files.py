"""The store: a directory of Parquet files beside a trace, written once and opened at once.

`trace.json.gz` gets `trace.json.gz.stepscope/`: a directory of Parquet parts for each table, and
`manifest.json`. Where the trace's own directory cannot be written to, and for a remote trace, the
store goes to the user's cache directory. A store is valid for one content (size, time or version,
and a probe) and for the code that read it; any other is replaced when its trace is opened next. It
is written under a temporary name and renamed when it is complete. What can only be read once gets a
store that goes with its process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import polars as pl

from stepscope.trace.store.derived import DerivedFiles
from stepscope.trace.store.directory import read_manifest
from stepscope.trace.store.origin import Origin
from stepscope.trace.tables import GROWING, SMALL


def find_store(origin: Origin) -> Path | None:
    """The valid store of a trace; None where there is none."""
    if origin.key is None:
        return None
    return next((path for path in origin.paths if is_store_of(path, origin)), None)


def is_store_of(path: Path, origin: Origin) -> bool:
    """Whether there is a valid store of a trace."""
    return origin.key is not None and read_manifest(path).get("key") == asdict(origin.key)


@dataclass(frozen=True)
class StoredTables:
    """The tables in a store.

    Attributes:
        directory: The store.
        frames: Every table by its name; nothing of them has been read.
        derived_files: Where the store keeps what is derived from it; None: nowhere.
    """

    directory: Path
    frames: Mapping[str, pl.LazyFrame]
    derived_files: DerivedFiles | None


def open_store(store: Path) -> StoredTables:
    """Opens a store: none of its tables is read before it is asked for.

    Args:
        store: Its directory.
    """
    with contextlib.suppress(OSError):  # marks it as used; a store may be read-only
        os.utime(store)

    identity = read_manifest(store).get("identity")
    return StoredTables(
        directory=store,
        frames={
            name: pl.scan_parquet(parts_of(store, name), glob=False) for name in (*GROWING, *SMALL)
        },
        derived_files=DerivedFiles(store, identity) if isinstance(identity, str) else None,
    )


def parts_of(store: Path, table: str) -> list[Path]:
    """The Parquet files of a table, in the order of its rows."""
    return sorted((store / table).glob("*.parquet"))
