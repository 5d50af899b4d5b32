"""What Stepscope adds to a timeline: why each GPU is idle, findings at their place, counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
import polars as pl

from stepscope.advice.evidence.locations import location_of
from stepscope.advice.finding import Finding
from stepscope.analysis.counters import Series, counters_of
from stepscope.analysis.host.idle_gaps import idle_segments
from stepscope.analysis.selection.gpu_work import gpu_work
from stepscope.analysis.timeline import device_sets
from stepscope.trace.model import Trace

SPANS: dict[str, pl.DataType | type[pl.DataType]] = {
    "device": pl.Int32,  # null: of no device
    "name": pl.String,
    "start_ns": pl.Int64,
    "dur_ns": pl.Int64,
    "args": pl.String,  # JSON
}


@dataclass(frozen=True, eq=False)
class Overlays:
    """What is drawn beside a trace's own events, on the trace's clock.

    Attributes:
        idle: Idle time of each device with its cause; the columns of `SPANS`.
        findings: Findings that have a place; the columns of `SPANS`.
    """

    idle: pl.DataFrame
    findings: pl.DataFrame
    counters: tuple[Series, ...]


def overlays_of(
    trace: Trace,
    findings: Sequence[Finding],
    start_ns: int,
    end_ns: int,
    metrics: Path | None = None,
) -> Overlays:
    """Work out the overlays of a trace between two moments.

    Args:
        trace: The whole trace, since what a queue holds depends on what came before.
        start_ns: First moment, on the trace's clock.
    """
    segments = idle_segments(trace)
    sets = device_sets(gpu_work(trace).table)
    placed = [(location_of(finding, trace, segments, sets), finding) for finding in findings]
    found = pl.DataFrame(
        [
            (None, finding.title, place.start_ns, place.end_ns - place.start_ns, _details(finding))
            for place, finding in placed
            if place is not None and place.end_ns > start_ns and place.start_ns < end_ns
        ],
        schema=SPANS,
        orient="row",
    )
    idle = segments.select(
        "device",
        pl.col("cause").cast(pl.String).str.replace_all("_", " ").alias("name"),
        "start_ns",
        (pl.col("end_ns") - pl.col("start_ns")).alias("dur_ns"),
        pl.lit(None, pl.String).alias("args"),
    ).filter(pl.col("start_ns") < end_ns, pl.col("start_ns") + pl.col("dur_ns") > start_ns)
    counters = tuple(
        kept
        for series in counters_of(trace, 0, metrics)
        if (kept := _between(series, start_ns, end_ns)) is not None
    )
    return Overlays(idle, found, counters)


def _details(finding: Finding) -> str:
    saving = finding.saving_reason if finding.saving_ns is None else finding.saving_ns
    return orjson.dumps(
        {
            "id": finding.id,
            "severity": finding.severity.value,
            "saving_ns": saving,
            "advice": finding.advice,
            "evidence": {one.label: one.value for one in finding.evidence},
        }
    ).decode()


def _between(series: Series, start: int, end: int) -> Series | None:
    """The values that hold between two moments; None where there are none."""
    inside = (series.time_ns >= start) & (series.time_ns <= end)
    earlier = int((series.time_ns < start).sum())
    times, values = series.time_ns[inside], series.value[inside]
    if earlier and (not len(times) or times[0] > start):
        # What held at the start holds until the first change.
        times = np.concatenate(([start], times))
        values = np.concatenate((series.value[earlier - 1 : earlier], values))
    if not len(times):
        return None
    return Series(series.name, series.group, series.unit, times, values)
