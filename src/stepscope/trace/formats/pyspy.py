"""Reads py-spy recordings (`py-spy record --format chrometrace`) as Python functions.

The file is a bare list of beginnings and ends of frames, in microseconds since the start of the
recording, with one lane per pthread. The line of a frame is the one that ran when the frame was
first seen. It remains an argument rather than part of the name, which is `file: function`. With
`--threads`, the outermost frame of each thread is `thread (12901): MainThread`, which also gives
the lane its name. Other events are kept as they are.
"""

from __future__ import annotations

import re
from dataclasses import replace

import polars as pl

from stepscope.errors import UnreadableInputError
from stepscope.trace.formats.chrome.reader import read_tables
from stepscope.trace.formats.event_names import renamed
from stepscope.trace.formats.trace_format import Input, TraceFormat
from stepscope.trace.schema import ARGS, EVENTS, LANES, Category
from stepscope.trace.tables import Tables

_BEGINNING = re.compile(rb'^\s*\[\s*\{[^{}]*(?:\{[^{}]*\}[^{}]*)?"cat"\s*:\s*"py-spy"')
_RAW_CATEGORY = "py-spy"
_THREAD_FRAME = r"^thread \([^)]*\)(?:: (.*))?$"


def read_pyspy(trace: Input) -> Tables:
    """Reads a recording."""
    tables = read_tables(trace.name, trace.content, trace.problems)
    if not (tables.names["raw_category"] == _RAW_CATEGORY).any():
        raise UnreadableInputError(
            f"{trace.name}: has no py-spy frames; record with `py-spy record --format chrometrace`"
        )
    is_frame = pl.col("raw_category") == _RAW_CATEGORY
    file = pl.col("args").str.json_path_match("$.filename").fill_null("")
    events = (
        tables.events.drop("category")
        .join(tables.args, on="event", how="left", maintain_order="left")
        .join(tables.names.select("name_id", "name", "raw_category", "category"), on="name_id")
        # Frames first seen in the same sample start together. The outermost ends last, and events
        # are numbered by their ends.
        .sort("start_ns", "dur_ns", "event", descending=[False, True, True])
        .with_columns(
            pl.when(is_frame & (file != ""))
            .then(pl.format("{}: {}", file, "name"))
            .otherwise("name")
            .alias("name"),
            pl.when(is_frame)
            .then(pl.lit(Category.PYTHON_FUNCTION.value, EVENTS["category"]))
            .otherwise("category")
            .alias("category"),
        )
        .drop("event")
        .with_row_index("event")
    )
    names, events = renamed(tables.names, events)
    return replace(
        tables,
        events=events.select(pl.col(c).cast(dtype) for c, dtype in EVENTS.items()),
        args=events.select(pl.col(c).cast(dtype) for c, dtype in ARGS.items()),
        names=names,
        lanes=_lanes(tables, events),
    )


def _lanes(tables: Tables, events: pl.DataFrame) -> pl.DataFrame:
    """Returns the lanes, named after their outermost frames."""
    given = (
        events.select("lane_id", pl.col("name").str.extract(_THREAD_FRAME).alias("given"))
        .drop_nulls("given")
        .unique("lane_id", keep="first", maintain_order=True)
    )
    return tables.lanes.join(given, on="lane_id", how="left", maintain_order="left").select(
        pl.coalesce("thread_name", "given").alias("thread_name") if c == "thread_name" else c
        for c in LANES
    )


FORMAT = TraceFormat(
    name="py-spy",
    recognises=lambda beginning: _BEGINNING.match(beginning) is not None,
    read=read_pyspy,
)
"""`py-spy record --format chrometrace`."""
