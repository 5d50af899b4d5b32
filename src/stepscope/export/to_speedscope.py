"""`--to speedscope`: the chosen part of each trace as flame graphs.

The schema (https://www.speedscope.app/file-format-schema.json) wants the frames of a profile opened
and closed like brackets, at moments that never decrease, so slices that overlap without nesting get
profiles of their own. Times are whole nanoseconds after the first event.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import orjson
import polars as pl

from stepscope._version import __version__
from stepscope.export.lag import lag_notes
from stepscope.export.marks import LaneMarks, marks_of
from stepscope.export.request import Exported, Request, Source, Write, each_in_a_file
from stepscope.export.selection import Cut, cut

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_MARKS_AT_ONCE = 500_000
_PYTHON_FRAME = r"^(.*)\((\d+)\): (.*)$"
"""torch's name of a Python frame: "file(line): function"."""


def export(asked: Request) -> Exported:
    """Write one file per trace."""
    notes: list[str] = []

    def one(source: Source, write: Write) -> str:
        found = cut(source.ref.open(), asked.selection)
        notes.extend(lag_notes(found, asked.selection, asked.rank_of(source)))
        return f"{write_speedscope(found, write):,} slices"

    files, said = each_in_a_file(asked, ".speedscope.json", one)
    return Exported(files, said, tuple(notes))


def write_speedscope(cut: Cut, write: Callable[[bytes], object]) -> int:
    """Write a trace, and return the number of slices."""
    placed = marks_of(cut.trace)
    names = cut.trace.name_rows["name"]
    head = {
        "$schema": SCHEMA,
        "name": cut.trace.path.replace("\\", "/").rpartition("/")[2],
        "exporter": f"stepscope {__version__}",
        "activeProfileIndex": _busiest(placed),
        "shared": {"frames": _frames(names)},
    }
    write(orjson.dumps(head)[:-1] + b',"profiles":[')
    for track in range(len(placed.titles)):
        if track:
            write(b",")
        _write_profile(placed, track, write)
    write(b"]}\n")
    return len(placed.marks.slice) // 2


def _frames(names: pl.Series) -> list[dict[str, object]]:
    parts = names.str.extract_groups(_PYTHON_FRAME).struct.unnest()
    return [
        {"name": name} if function is None else {"name": function, "file": file, "line": int(line)}
        for name, (file, line, function) in zip(names, parts.iter_rows(), strict=True)
    ]


def _busiest(placed: LaneMarks) -> int:
    """The profile to open first: the main thread's, else that with most slices."""
    if placed.main_track is not None:
        return placed.main_track
    return int(np.bincount(placed.marks.track, minlength=1).argmax())


def _write_profile(placed: LaneMarks, track: int, write: Callable[[bytes], object]) -> None:
    first, last = np.searchsorted(placed.marks.track, [track, track + 1])
    times = placed.marks.time_ns[first:last] - placed.origin_ns
    head = {
        "type": "evented",
        "name": placed.titles[track],
        "unit": "nanoseconds",
        "startValue": int(times[0]),
        "endValue": int(times[-1]),
    }
    write(orjson.dumps(head)[:-1] + b',"events":[')
    for begin in range(first, last, _MARKS_AT_ONCE):
        rows = slice(begin, min(begin + _MARKS_AT_ONCE, last))
        events = pl.DataFrame(
            {
                "type": placed.marks.is_begin[rows],
                "frame": placed.name_id[placed.marks.slice[rows]],
                "at": placed.marks.time_ns[rows] - placed.origin_ns,
            }
        ).select(
            pl.concat_str(
                pl.when("type")
                .then(pl.lit('{"type":"O","frame":'))
                .otherwise(pl.lit('{"type":"C","frame":')),
                pl.col("frame").cast(pl.String),
                pl.lit(',"at":'),
                pl.col("at").cast(pl.String),
                pl.lit("}"),
            ).str.join(",")
        )
        write((b"," if begin > first else b"") + events.item().encode())
    write(b"]}")
