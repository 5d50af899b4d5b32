"""Cuts a trace to the steps that someone wants to look at.

Definitions
    An event is in the steps if it belongs to one of them (`derived.step`), or if it is a host event
    that is open while one of them runs: the frames and annotations around the loop.
    Events are kept whole, not clipped. Arrows between events stay if both ends do. Samples and
    instants stay if they lie between the first and the last moment of what was chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.errors import UsageError
from stepscope.run.figures import step_ranges
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.model import Trace
from stepscope.trace.tables import Tables

_NOTABLY_BEHIND = 0.05
"""Of a step: from here on the host runs ahead of the GPU by more than a launch takes."""


@dataclass(frozen=True)
class Cut:
    """A trace cut to some steps.

    Attributes:
        trace: What remains, with events numbered anew.
        start_ns: First moment of what was chosen, on the trace's clock.
    """

    trace: Trace
    whole: Trace
    start_ns: int
    end_ns: int


def cut(trace: Trace, steps: tuple[int, ...] | None) -> Cut:
    """Cut a trace to steps; None keeps everything."""
    events = trace.columns("start_ns", "dur_ns")
    if not len(events):
        raise UsageError(f"{trace.path}: has no events to export")
    start = events["start_ns"].to_numpy()
    end = start + events["dur_ns"].to_numpy()
    if steps is None:
        return Cut(trace, trace, int(start.min()), int(end.max()))
    kept, first, last = _in_steps(trace, steps, start, end)
    tables = _tables_of(trace, np.flatnonzero(kept), first, last)
    return Cut(Trace.from_tables(tables, trace.path), trace, first, last)


def _in_steps(
    trace: Trace, steps: tuple[int, ...], starts: Int64Array, ends: Int64Array
) -> tuple[BoolArray, int, int]:
    """Which events are in the steps; the first and the last moment of those that belong to them."""
    known = trace.steps.filter(pl.col("step").is_in(list(steps)))
    missing = sorted(set(steps) - set(known["step"].to_list()))
    if missing:
        have = trace.steps["step"].unique().sort().to_list()
        has = f"it has {step_ranges(have)}" if have else "it has none"
        raise UsageError(f"{trace.path}: has no step {missing[0]}; {has}")
    of = trace.derived.select(pl.col("step").is_in(list(steps)).fill_null(False)).collect()["step"]
    mine = of.to_numpy()
    gpu = trace.lanes.filter("is_gpu")["lane_id"]
    on_host = ~trace.columns("lane_id")["lane_id"].is_in(gpu.implode()).to_numpy()
    around = np.zeros(len(starts), np.bool_)
    for step_start, step_end in known.select("start_ns", "end_ns").iter_rows():
        around |= (starts <= step_start) & (ends >= step_end)
    first = min(int(known["start_ns"].to_numpy().min()), int(starts[mine].min(initial=2**62)))
    last = max(int(known["end_ns"].to_numpy().max()), int(ends[mine].max(initial=-(2**62))))
    return mine | (around & on_host), first, last


def _tables_of(trace: Trace, rows: Int64Array, first: int, last: int) -> Tables:
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


def lag_notes(found: Cut, steps: tuple[int, ...] | None, rank: int | None = None) -> list[str]:
    """Why the first step of a cut seems longer in it than in the whole trace, if it does.

    The host launches work and continues, so the GPU may still be busy with earlier steps when the
    host begins one. The cut lacks that work, and the wait for it counts as part of the step.
    """
    if steps is None or not len(found.whole.device_steps) or not found.trace.lanes["is_gpu"].any():
        return []
    first = min(steps)
    host = found.whole.steps.filter(step=first)["start_ns"].sort()
    device = found.whole.device_steps.filter(step=first)
    if host.is_empty() or device.is_empty() or not (found.whole.steps["step"] < first).any():
        return []
    begins, ends = device.select("start_ns", "end_ns").sort("start_ns").row(0)
    behind_ns = int(begins) - int(host[0])
    if behind_ns <= _NOTABLY_BEHIND * (int(ends) - int(begins)):
        return []
    of = "" if rank is None else f"rank {rank}: "
    note = (
        f"step {first} begins on the GPU {behind_ns / 1e6:.3g} ms after the host, which runs "
        "ahead: in this file that counts as part of the step, because the work before is missing; "
        f"export step {first - 1}, too, and judge with --steps {first}"
    )
    return [of + note]
