"""The arranged slices of a trace, cached in its store, so that it opens at once the next time.

`TRACE.stepscope/timeline/` holds the slices of events (`events-COLUMN.npy`) and of steps and busy
times (`extra-COLUMN.npy`) in the order in which they are drawn, and lanes, rows and notes
(`index.json`). The columns are not compressed: they are mapped into memory, so that the first
picture reads only what it shows.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Literal

import numpy as np
import orjson
import polars as pl

from stepscope.trace.model import Trace
from stepscope.trace.store.directory import StoreFolder
from stepscope.viewer.index import Lane, TraceIndex
from stepscope.viewer.slice_rows import SliceRows

_FOLDER = "timeline"
_VERSION = 3
_HEAD = "index.json"
_ROWS = ("events", "extra")
_COLUMNS = tuple(column.name for column in fields(SliceRows))
_NAMES = (_HEAD, *(f"{rows}-{column}.npy" for rows in _ROWS for column in _COLUMNS))


def _folder_of(trace: Trace) -> StoreFolder | None:
    files = trace.derived_files
    if files is None:
        return None
    return StoreFolder(files.store / _FOLDER, _NAMES, {"store": files.identity})


def cached_index(trace: Trace) -> TraceIndex | None:
    """The index that a trace's store holds; None if there is none that is valid."""
    folder = _folder_of(trace)
    return _read(folder.directory, trace) if folder is not None and folder.is_valid() else None


def cache_index(trace: Trace, index: TraceIndex) -> None:
    """Cache an index in the trace's store, if it has one."""
    folder = _folder_of(trace)
    if folder is not None:
        folder.keep(lambda directory: _write(directory, index, len(trace.name_rows["name"])))


def _write(directory: Path, index: TraceIndex, names: int) -> None:
    for name in _ROWS:
        rows = getattr(index, name)
        for column in _COLUMNS:
            np.save(directory / f"{name}-{column}.npy", getattr(rows, column), allow_pickle=False)
    head = {
        "version": _VERSION,
        "origin_ns": index.origin_ns,
        "end_ns": index.end_ns,
        "lanes": [asdict(lane) for lane in index.lanes],
        "events": index.event_count,
        "labels": index.names[names:].to_list(),
        "notes": index.notes,
    }
    (directory / _HEAD).write_bytes(orjson.dumps(head))


def _read(directory: Path, trace: Trace) -> TraceIndex | None:
    """The index in a folder; None if another version wrote it, or somebody changes it."""
    try:
        head = orjson.loads((directory / _HEAD).read_bytes())
        if head.get("version") != _VERSION:
            return None
        events, extra = (_rows(directory, name) for name in _ROWS)
    except (OSError, ValueError):
        return None
    return TraceIndex(
        head["origin_ns"],
        head["end_ns"],
        events,
        extra,
        tuple(Lane(**lane) for lane in head["lanes"]),
        head["events"],
        pl.concat([trace.name_rows["name"], pl.Series("name", head["labels"], dtype=pl.String)]),
        tuple(head["notes"]),
    )


def _rows(directory: Path, name: str) -> SliceRows:
    # Windows does not replace a file that is mapped: a store could not be written again.
    mode: Literal["r"] | None = None if sys.platform == "win32" else "r"
    return SliceRows.kept(
        **{
            column: np.asarray(
                np.load(directory / f"{name}-{column}.npy", mmap_mode=mode, allow_pickle=False)
            )
            for column in _COLUMNS
        }
    )
