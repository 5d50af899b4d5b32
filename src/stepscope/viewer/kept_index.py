"""The arranged slices of a trace, kept in its store, so that it opens at once the next time.

`TRACE.stepscope/timeline/` holds the slices of events (`events.parquet`) and of steps and busy
times (`extra.parquet`) in the order in which they are drawn, and lanes, rows and notes
(`index.json`).
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl

from stepscope.trace.model import Trace
from stepscope.trace.store.folder import StoreFolder
from stepscope.viewer.index import Lane, TraceIndex, build_index, names_of, places_of
from stepscope.viewer.tiles import SliceRows

_FOLDER = "timeline"
_VERSION = 1
_NAMES = ("events.parquet", "extra.parquet", "index.json")


def index_of(trace: Trace) -> TraceIndex:
    """The index that the trace's store holds, else a new one, which the store keeps."""
    files = trace.derived_files
    if files is None:
        return build_index(trace)
    folder = StoreFolder(files.store / _FOLDER, files.identity, _NAMES)
    found = _read(folder.directory, trace) if folder.is_valid() else None
    if found is None:
        found = build_index(trace)
        kept = found
        folder.keep(lambda directory: _write(directory, kept, len(names_of(trace))))
    return found


def _write(directory: Path, index: TraceIndex, names: int) -> None:
    for rows, file in ((index.events, "events.parquet"), (index.extra, "extra.parquet")):
        frame = pl.DataFrame(
            {
                "start_ns": rows.start_ns,
                "dur_ns": rows.end_ns - rows.start_ns,
                "event": rows.event,
                "name": rows.name,
                "colour": rows.colour,
            }
        )
        frame.write_parquet(directory / file, compression="zstd", compression_level=1)
    head = {
        "version": _VERSION,
        "origin_ns": index.origin_ns,
        "end_ns": index.end_ns,
        "event_offsets": index.events.offsets.tolist(),
        "extra_offsets": index.extra.offsets.tolist(),
        "lanes": [asdict(lane) for lane in index.lanes],
        "events": len(index.place),
        "labels": index.names[names:].to_list(),
        "notes": index.notes,
    }
    (directory / "index.json").write_bytes(orjson.dumps(head))


def _read(directory: Path, trace: Trace) -> TraceIndex | None:
    """The index in a folder; None if another version wrote it, or somebody changes it."""
    try:
        head = orjson.loads((directory / "index.json").read_bytes())
        if head.get("version") != _VERSION:
            return None
        events = _rows(directory / "events.parquet", head["event_offsets"])
        extra = _rows(directory / "extra.parquet", head["extra_offsets"])
    except (OSError, ValueError, pl.exceptions.PolarsError):
        return None
    return TraceIndex(
        head["origin_ns"],
        head["end_ns"],
        events,
        extra,
        tuple(Lane(**lane) for lane in head["lanes"]),
        places_of(events, head["events"]),
        pl.concat([names_of(trace), pl.Series("name", head["labels"], dtype=pl.String)]),
        tuple(head["notes"]),
    )


def _rows(file: Path, offsets: list[int]) -> SliceRows:
    frame = pl.read_parquet(file, glob=False)
    columns: dict[str, Any] = {name: frame[name].to_numpy() for name in frame.columns}
    start = columns["start_ns"]
    return SliceRows.of(
        np.array(offsets, np.int64),
        start,
        start + columns["dur_ns"],
        columns["event"],
        columns["name"],
        columns["colour"],
    )
