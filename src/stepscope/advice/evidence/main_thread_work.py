"""What the training thread ran in a window: around some moment, just before it, just after it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np
import polars as pl

from stepscope.advice.evidence.window_view import WindowView
from stepscope.analysis.calls.places import Spans, spans_where
from stepscope.trace.arrays.intervals import BoolArray, Int64Array

_NEVER = 2**62


class MainThreadWork:
    """What the training thread ran: operators and ranges, without those of its steps.

    They are found when they are first needed: where Python frames were recorded, these tell more.
    """

    def __init__(self, window: WindowView) -> None:
        self._window = window

    @functools.cached_property
    def _events(self) -> Int64Array:
        return self._window.main_events(
            pl.col("category").is_in(["cpu_op", "user_annotation"])
            & (pl.col("group") != "profiler_step").fill_null(value=True)
        )

    def around(self, start_ns: int, end_ns: int) -> str | None:
        """The Python frame in which a stretch lies, else the innermost operator or range."""
        frame = self._window.frame_over(start_ns, end_ns)
        if frame is not None:
            return frame
        found = self._those(lambda start, end: (start <= start_ns) & (end >= end_ns))
        return next(self._first_name(found, found.start, found.end - found.start), None)

    def last_before(self, time_ns: int) -> Iterator[str]:
        """What ended last before a moment; of several the one that began last."""
        found = self._those(lambda _, end: _latest(np.where(end <= time_ns, end, -_NEVER)))
        order = np.arange(len(found.event))
        return self._first_name(found, -order, -found.start, -found.end)

    def first_after(self, time_ns: int) -> Iterator[str]:
        """What began first after a moment."""
        found = self._those(lambda start, _: _latest(np.where(start >= time_ns, -start, -_NEVER)))
        return self._first_name(found, found.start)

    def _those(self, choose: Callable[[Int64Array, Int64Array], BoolArray]) -> Spans:
        return spans_where(self._window.trace, self._events, choose)

    def _first_name(self, spans: Spans, *keys: Int64Array) -> Iterator[str]:
        """The name of the first of some spans, by the last key, then the ones before; if any."""
        first = spans.event[np.lexsort(keys)][:1]
        yield from self._window.names_of(pl.Series(first))


def _latest(times: Int64Array) -> BoolArray:
    """Which of some times are the latest; none of those that are never."""
    found: BoolArray = (times == times.max(initial=-_NEVER)) & (times > -_NEVER)
    return found
