"""Where in a trace to look for a finding."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding, seen
from stepscope.analysis.calls.call_sites import (
    Spans,
    call_sites,
    shares_of,
    sites_of_calls,
    sites_of_work,
    spans_where,
)
from stepscope.analysis.timeline import DeviceSets
from stepscope.run.figures import duration, significant
from stepscope.run.step_record import SHOWN_RANGES
from stepscope.trace.arrays.intervals import BoolArray, Int64Array, Intervals
from stepscope.trace.model import Trace

_MOST = 3
_LEAST = 0.01  # of the wait at all places


def waiting_sites(window: WindowView, calls: pl.DataFrame) -> list[str]:
    """Where the host waits longest: operator, module and Python line, how often and how long."""
    places = call_sites(window.trace, calls["event"])
    by_site = (
        calls.with_columns(
            operator=pl.coalesce(places["operator"], window.names_of(calls["op"]), "name"),
            line=sites_of_calls(window.trace, calls["event"]),
        )
        .group_by("operator", "line")
        .agg("start_ns", "end_ns")
    )
    waits = [
        (
            window.waits_of(pl.DataFrame({"start_ns": starts, "end_ns": ends})).total_ns,
            operator if line is None else f"{operator} in {line}",
            len(starts),
        )
        for operator, line, starts, ends in by_site.iter_rows()
    ]
    least_ns = max(1.0, _LEAST * sum(wait for wait, _, _ in waits))
    return [
        f"{place} ({significant(count / window.steps)}× per step, "
        f"{duration(total_ns / window.steps)})"
        for total_ns, place, count in sorted(waits, key=lambda wait: (-wait[0], wait[1]))[:_MOST]
        if total_ns >= least_ns
    ]


def origins(window: WindowView, work: pl.DataFrame, label: str) -> tuple[Evidence, ...]:
    """The operators that launched most of some GPU work, and the modules or functions around it.

    Args:
        label: What the operators are called.
    """
    operators = shares_of(window.names_of(work["op"]), work["dur_ns"])
    places = shares_of(sites_of_work(window.trace, work), work["dur_ns"])
    return (*seen(label, operators, "text"), *seen("in", places, "text"))


_CAUSES_OF: dict[str, tuple[str, ...]] = {
    "input-bound": ("input",),
    "slow-epoch-start": ("input",),
    "synchronisation": ("synchronisation",),
    "allocator-churn": ("allocation",),
    "pageable-copies": ("pageable_copy",),
    "slow-phase": ("annotated_phase",),
    "launch-bound": ("op_dispatch",),
    "many-small-kernels": ("op_dispatch",),
    "cpu-operators": ("cpu_operators",),
    "cpu-bound-python": ("python", "not_recorded", "backward"),
    "garbage-collector": ("garbage_collection", "python", "not_recorded"),
    "one-off-costs": ("one_off",),
}
"""Findings whose time is idle time of some causes: its longest stretch is where to look."""
_EXPOSED_OF = {
    "exposed-communication": "exposed_communication",
    "poor-overlap": "exposed_communication",
    "exposed-copies": "exposed_memcpy",
}
"""Findings about work that nothing hides: its longest stretch."""


class Location(NamedTuple):
    """Where to look, on the trace's clock.

    Attributes:
        event: The piece of GPU work, or what the host did then, such as a Python function; None
            where nothing tells.
    """

    start_ns: int
    end_ns: int
    event: int | None = None


def location_of(
    finding: Finding, trace: Trace, idle: pl.DataFrame | None, sets: Sequence[DeviceSets]
) -> Location | None:
    """The longest stretch or piece of GPU work of what a finding counts, else its first step.

    Args:
        finding: The finding, about the rank of this trace.
        idle: Its idle time (`analysis.host.idle_gaps.idle_segments`); None: nobody asked for it
            yet.
        sets: What each of its devices does when.

    Returns:
        The place; None where the trace has none to show.
    """
    causes = _CAUSES_OF.get(finding.id)
    if idle is not None and causes is not None:
        mine = idle.filter(pl.col("cause").is_in(list(causes)))
        if len(mine):
            row = mine.row(int((mine["end_ns"] - mine["start_ns"]).arg_max() or 0), named=True)
            return Location(row["start_ns"], row["end_ns"], row["event"])
    longest = _longest_exposed(finding.id, sets)
    if longest is not None:
        return Location(*longest)
    if finding.longest_work is not None:
        return Location(*finding.longest_work)
    steps = trace.steps.filter(pl.col("step").is_in(list(finding.steps)))
    if not len(steps):
        return None
    first = steps.row(0, named=True)
    return Location(first["start_ns"], first["end_ns"])


def _longest_exposed(rule: str, sets: Sequence[DeviceSets]) -> tuple[int, int] | None:
    """The longest stretch of what a rule about exposed work counts; None for other rules."""
    attribute = _EXPOSED_OF.get(rule)
    if attribute is None:
        return None
    best: tuple[int, int] | None = None
    for device in sets:
        stretches: Intervals = getattr(device, attribute)
        if len(stretches):
            at = int(stretches.lengths.argmax())
            span = int(stretches.starts[at]), int(stretches.ends[at])
            if best is None or span[1] - span[0] > best[1] - best[0]:
                best = span
    return best


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
        yield from self._window.names_of(pl.Series(first)).replace(SHOWN_RANGES)


def _latest(times: Int64Array) -> BoolArray:
    """Which of some times are the latest; none of those that are never."""
    found: BoolArray = (times == times.max(initial=-_NEVER)) & (times > -_NEVER)
    return found
