"""What the training thread ran in a window: around some moment, just before it, just after it."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import polars as pl

from stepscope.advice.window_view import WindowView
from stepscope.trace.arrays.intervals import Int64Array


class MainThreadWork:
    """What the training thread ran: operators and ranges, without those of its steps.

    They are found when they are first needed: where Python frames were recorded, these tell more.

    Args:
        window: The window.
    """

    def __init__(self, window: WindowView) -> None:
        self._window = window

    @functools.cached_property
    def _rows(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Event number, start and end of each, in the order of the file."""
        events = self._window.main_events(
            pl.col("category").is_in(["cpu_op", "user_annotation"])
            & (pl.col("group") != "profiler_step").fill_null(value=True)
        )
        columns = self._window.trace.columns("start_ns", "dur_ns")
        starts = columns["start_ns"].to_numpy()[events]
        return events, starts, starts + columns["dur_ns"].to_numpy()[events]

    def around(self, start_ns: int, end_ns: int) -> str | None:
        """The Python frame in which a stretch lies, else the innermost operator or range."""
        frame = self._window.frame_over(start_ns, end_ns)
        if frame is not None:
            return frame
        _, starts, ends = self._rows
        rows = np.flatnonzero((starts <= start_ns) & (ends >= end_ns))
        return next(self._names(rows, starts[rows], ends[rows] - starts[rows]), None)

    def last_before(self, time_ns: int) -> Iterator[str]:
        """What ended last before a moment; of several the one that began last."""
        _, starts, ends = self._rows
        ended = ends[ends <= time_ns]
        rows = np.flatnonzero(ends == ended.max()) if len(ended) else np.zeros(0, np.int64)
        return self._names(rows, -rows, -starts[rows])

    def first_after(self, time_ns: int) -> Iterator[str]:
        """What began first after a moment."""
        _, starts, _ = self._rows
        begun = starts[starts >= time_ns]
        rows = np.flatnonzero(starts == begun.min()) if len(begun) else np.zeros(0, np.int64)
        return self._names(rows, rows)

    def _names(self, rows: Int64Array, *keys: Int64Array) -> Iterator[str]:
        """The name of the first of some rows, by the last key, then the ones before; if any."""
        first = rows[np.lexsort(keys)][:1]
        yield from self._window.names_of(pl.Series(self._rows[0][first]))
