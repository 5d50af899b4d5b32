"""Cuts a trace to the steps, the range or the lanes that someone wants to look at.

Definitions
    An event is in the steps if it belongs to one of them (`derived.step`), or if it is a host event
    that is open while one of them runs: the frames and annotations around the loop.
    An event is in a range if it is open in it. Ranges count from the trace's first event.
    Events are kept whole, not clipped. Arrows between events stay if both ends do. Samples and
    instants stay if they lie between the first and the last moment of what was chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.errors import UsageError
from stepscope.run.figures import steps_in_words
from stepscope.trace.model import Trace
from stepscope.trace.tables import Tables

LANES = ("host", "gpu", "main")
"""What `Selection.lanes` may name beside titles: all threads, all streams, the main thread."""


@dataclass(frozen=True)
class Selection:
    """What to keep of a trace.

    Attributes:
        steps: Only these steps; None: everything.
        start_ns: Only from here on, in ns after the trace's first event.
        end_ns: Only up to here.
        lanes: Only these lanes: words of `LANES`, or numbers of threads and streams ("7").
    """

    steps: tuple[int, ...] | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    lanes: tuple[str, ...] = ()

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return self == Selection()


@dataclass(frozen=True)
class Cut:
    """A trace cut to a selection.

    Attributes:
        trace: What remains, with events numbered anew.
        event: For each remaining event, its number in the whole trace.
        start_ns: First moment of the selection, on the trace's clock.
    """

    trace: Trace
    whole: Trace
    event: pl.Series
    start_ns: int
    end_ns: int
    left_out: int


def cut(trace: Trace, selection: Selection) -> Cut:
    """Cut a trace."""
    events = trace.columns("start_ns", "dur_ns", "lane_id")
    start = events["start_ns"]
    end = start + events["dur_ns"]
    if not len(events):
        raise UsageError(f"{trace.path}: has no events to export")
    if selection.is_everything:
        whole = pl.Series("event", np.arange(len(events)))
        return Cut(trace, trace, whole, _least(start), _greatest(end), 0)
    first, last = _least(start), _greatest(end)
    kept = np.ones(len(events), np.bool_)
    if selection.steps is not None:
        of_steps, first, last = _in_steps(trace, selection.steps, start, end)
        kept &= of_steps
    if selection.start_ns is not None or selection.end_ns is not None:
        origin = _least(start)
        begin = origin + (selection.start_ns or 0)
        finish = _greatest(end) if selection.end_ns is None else origin + selection.end_ns
        kept &= ((end >= begin) & (start <= finish)).to_numpy()
        first, last = max(first, begin), min(last, finish)
    if selection.lanes:
        lanes = pl.Series(chosen_lanes(trace, selection.lanes), dtype=pl.UInt32)
        kept &= events["lane_id"].is_in(lanes.implode()).to_numpy()
    rows = np.flatnonzero(kept)
    if not len(rows):
        raise UsageError(f"{trace.path}: the selection holds no events")
    tables = _tables_of(trace, rows, first, last)
    return Cut(
        Trace.from_tables(tables, trace.path),
        trace,
        pl.Series("event", rows),
        first,
        last,
        len(events) - len(rows),
    )


def _least(times: pl.Series) -> int:
    return int(times.to_numpy().min())


def _greatest(times: pl.Series) -> int:
    return int(times.to_numpy().max())


def _in_steps(
    trace: Trace, steps: tuple[int, ...], start: pl.Series, end: pl.Series
) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], int, int]:
    """Which events are in the steps; the first and the last moment of those that belong to them."""
    known = trace.steps.filter(pl.col("step").is_in(list(steps)))
    missing = sorted(set(steps) - set(known["step"].to_list()))
    if missing:
        have = trace.steps["step"].unique().sort().to_list()
        has = f"it has {steps_in_words(have)}" if have else "it has none"
        raise UsageError(f"{trace.path}: has no step {missing[0]}; {has}")
    of = trace.derived.select(pl.col("step").is_in(list(steps)).fill_null(False)).collect()["step"]
    mine = of.to_numpy()
    gpu = trace.lanes.filter("is_gpu")["lane_id"]
    on_host = ~trace.columns("lane_id")["lane_id"].is_in(gpu.implode()).to_numpy()
    starts, ends = start.to_numpy(), end.to_numpy()
    around = np.zeros(len(starts), np.bool_)
    for step_start, step_end in known.select("start_ns", "end_ns").iter_rows():
        around |= (starts <= step_start) & (ends >= step_end)
    first = min(int(known["start_ns"].to_numpy().min()), int(starts[mine].min(initial=2**62)))
    last = max(int(known["end_ns"].to_numpy().max()), int(ends[mine].max(initial=-(2**62))))
    return mine | (around & on_host), first, last


def chosen_lanes(trace: Trace, wanted: tuple[str, ...]) -> list[int]:
    """The numbers of the lanes that words stand for."""
    lanes = trace.lanes
    found: list[int] = []
    for word in wanted:
        if word == "host":
            chosen = lanes.filter(~pl.col("is_gpu"))
        elif word == "gpu":
            chosen = lanes.filter("is_gpu")
        elif word == "main":
            chosen = lanes.filter(pl.col("lane_id") == trace.main_lane)
        else:
            by_number = (pl.col("tid") == word) | (pl.col("stream").cast(pl.String) == word)
            chosen = lanes.filter(by_number)
        if not len(chosen):
            have = ", ".join(filter(None, lanes["tid"].unique().sort().to_list()[:20]))
            raise UsageError(
                f"{trace.path}: has no lane '{word}'; choose {', '.join(LANES)}, or one of {have}"
            )
        found += chosen["lane_id"].to_list()
    return sorted(set(found))


def _tables_of(
    trace: Trace, rows: np.ndarray[tuple[int], np.dtype[np.int64]], first: int, last: int
) -> Tables:
    """The tables with only these events, numbered anew."""
    chosen = pl.DataFrame({"event": rows}).with_row_index("number")
    number = pl.col("number").cast(pl.Int64).alias("event")

    def of_events(table: pl.LazyFrame) -> pl.DataFrame:
        joined = table.join(chosen.lazy(), on="event", how="inner", maintain_order="left")
        return joined.with_columns(number).drop("number").collect()

    events = of_events(trace.events)
    within = pl.col("time_ns").is_between(first, last)
    kept_lanes = events["lane_id"].unique().implode()
    on_lane = pl.col("lane_id").is_in(kept_lanes)
    return Tables.shaped(
        {
            "events": events,
            "args": of_events(trace.args),
            "names": trace.names.collect(),
            "lanes": trace.lanes,
            "instants": trace.instants.filter(within).collect(),
            "counters": trace.counters.filter(within).collect(),
            "flows": _flows(trace.flows.filter(on_lane).collect(), events),
            "metadata": trace.metadata.collect(),
            "problems": trace.problems,
        }
    )


def _flows(flows: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Arrows with both ends at events that remain."""
    spot = events.select("lane_id", time_ns="start_ns").unique()
    held = flows.join(spot, on=["lane_id", "time_ns"], how="semi", maintain_order="left")
    whole = held.group_by("flow_id", "name_id").len().filter(pl.col("len") > 1)
    return held.join(whole, on=["flow_id", "name_id"], how="semi", maintain_order="left")
