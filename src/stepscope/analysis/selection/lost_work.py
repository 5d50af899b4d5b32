"""Launches without GPU work and GPU work without a launch, step by step.

Definitions
    launch     A call that launches kernels or a CUDA graph. Copies and fills are none: those of no
               bytes have no GPU work. Nor is a call within another launch (the driver's within the
               runtime's), nor one by a name that no GPU work in the file is linked to, if other
               names have some: recorders do not link the calls of every interface.
    lost       A launch that no GPU work is linked to. At the end of a recording that is ordinary if
               the GPU worked until then: the host is ahead, and the recorder stops before the GPU
               gets there. So it is no loss after the last linked launch of its thread, if the file
               has no steps or the step is its last and no other lacks work.
    lacks work A step that lost a twentieth of its launches; or any launches, and its GPU work is
               less by a twentieth than the median of the steps that lost none, or is missing on a
               stream on which most of those have some.
    open end   A step whose last launch is lost: nobody knows when its GPU work ended, so nobody
               knows when the next one's began.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.selection.gpu_work import work_on_devices
from stepscope.analysis.selection.names import events_named, is_call
from stepscope.analysis.selection.scope import memoized
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.nullable import are_among, filled
from stepscope.trace.model import Trace

NOTABLE_LOSS = 0.05
"""Of the launches, or of the GPU work, of a step."""
_SHORT_NS = 1_000_000
_AS_LONG = 2  # times as long as the longest work

_STEPS: dict[str, pl.DataType | type[pl.DataType]] = {
    "step": pl.Int32,
    "launches": pl.Int64,
    "lost": pl.Int64,
    "unlaunched": pl.Int64,
    "lacks_work": pl.Boolean,
    "has_open_end": pl.Boolean,
}


@dataclass(frozen=True)
class LostWork:
    """What the file lacks of launches and of GPU work.

    Attributes:
        steps: One row per step that is not empty, in order: step; launches; lost, those without GPU
            work; unlaunched, pieces of GPU work without a launch; lacks_work; has_open_end.
        calls: If any is lost, every launch of the file by thread and start: lane_id, start_ns,
            is_lost.
    """

    steps: pl.DataFrame
    launches: int
    lost: int
    calls: pl.DataFrame

    @property
    def share(self) -> float:
        """Share of the launches of the file that are lost."""
        return self.lost / max(1, self.launches)

    def lacking(self) -> tuple[int, ...]:
        """The steps that lack GPU work."""
        return tuple(self.steps.filter("lacks_work")["step"].to_list())

    def after_open_ends(self) -> tuple[int, ...]:
        """The steps of which nobody knows when they began, because the one before has no end."""
        has_unknown_start = pl.col("has_open_end").shift(1, fill_value=False)
        return tuple(self.steps.filter(has_unknown_start)["step"].to_list())

    def precede(self, lane: Int64Array, times: Int64Array) -> BoolArray:
        """For each moment on a thread whether the last launch before it is lost."""
        found = np.zeros(len(times), np.bool_)
        if not self.lost:
            return found
        for (one,), rows in self.calls.partition_by("lane_id", as_dict=True).items():
            mine = np.flatnonzero(lane == one)
            last = np.searchsorted(rows["start_ns"].to_numpy(), times[mine]) - 1
            is_lost = rows["is_lost"].to_numpy()[np.maximum(last, 0)]
            found[mine] = is_lost & (last >= 0)
        return found


@memoized
def lost_work(trace: Trace) -> LostWork:
    """Count what the file lacks of launches and of GPU work."""
    work = work_on_devices(trace)
    calls = _launches(trace, work)
    steps = trace.steps.filter(~pl.col("is_empty"))["step"]
    table = _of_steps(steps, calls, work)
    if not calls["is_lost"].any():
        return LostWork(table, len(calls), 0, calls["lane_id", "start_ns", "is_lost"].clear())
    # Calls are in order of thread and start: no launch that follows on the thread has GPU work.
    has_work = (~pl.col("is_lost")).cast(pl.Int64)
    is_at_the_end = has_work.cum_sum(reverse=True).over("lane_id") == 0
    is_ordinary = is_at_the_end & _works_until_the_end(work, calls)
    if len(steps):
        # The last step lacks its end all the same, which makes it no example of the others.
        is_ordinary &= pl.col("step") == steps[-1]
        if table["lacks_work"].sum() > 1 or not table["lacks_work"][-1]:
            is_ordinary &= False
    calls = calls.with_columns(pl.col("is_lost") & ~is_ordinary.fill_null(value=False))
    counted = _of_steps(steps, calls, work)
    if not counted["lacks_work"].any():
        counted = counted.with_columns(table["lacks_work"])
    lost = int(calls["is_lost"].sum())
    return LostWork(counted, len(calls), lost, calls["lane_id", "start_ns", "is_lost"])


def _works_until_the_end(work: pl.DataFrame, calls: pl.DataFrame) -> bool:
    """Whether GPU work was recorded until about the last launch."""
    if work.is_empty() or calls.is_empty():
        return False
    ends = work["end_ns"].to_numpy()
    idle_ns = int(calls["start_ns"].to_numpy().max()) - int(ends.max())
    # Work that the recorder did not see end is not in the file.
    return idle_ns <= max(_SHORT_NS, _AS_LONG * int(work["dur_ns"].to_numpy().max()))


def _launches(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """The launches by thread and start: lane_id, start_ns, step, is_lost."""
    events = events_named(trace, is_call() & (pl.col("group") == "launch"))
    has_work = are_among(work["launch"], trace.event_count)
    derived = trace.derived_of(pl.Series(events, dtype=pl.Int64), "step", "parent")
    parent = filled(derived["parent"], -1)
    is_launch = np.zeros(trace.event_count + 1, np.bool_)  # the last: no parent
    is_launch[events] = True
    is_inner = is_launch[parent]
    # What the inner call of two launched, the outer one launched.
    has_work[parent[is_inner & has_work[events]]] = True
    known = trace.columns("name_id", "lane_id", "start_ns")[events]
    calls = known.with_columns(step=derived["step"], is_lost=~pl.Series(has_work[events]))
    calls = calls.filter(~pl.Series(is_inner))
    if len(work):
        calls = calls.filter((~pl.col("is_lost")).any().over("name_id"))
    return calls.sort("lane_id", "start_ns", maintain_order=True)


def _of_steps(steps: pl.Series, calls: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    counts = calls.group_by("step").agg(
        launches=pl.len(),
        lost=pl.col("is_lost").sum(),
        has_open_end=pl.col("is_lost").sort_by("start_ns").last(),
    )
    done = work.group_by("step").agg(
        unlaunched=pl.col("launch").is_null().sum(), work_ns=pl.col("dur_ns").sum()
    )
    table = (
        pl.DataFrame([steps])
        .join(counts, on="step", how="left", maintain_order="left")
        .join(done, on="step", how="left", maintain_order="left")
        .with_columns(pl.col("launches", "lost", "unlaunched", "work_ns").fill_null(0))
    )
    return table.with_columns(
        lacks_work=_lacks_work(table, work),
        has_open_end=pl.col("has_open_end").fill_null(value=False),
    ).select(pl.col(name).cast(dtype) for name, dtype in _STEPS.items())


def _lacks_work(table: pl.DataFrame, work: pl.DataFrame) -> pl.Series:
    """For each step whether so much of its GPU work is lost that it is no example of others."""
    if not table["lost"].sum():
        return pl.repeat(False, len(table), eager=True)
    whole = table.filter(pl.col("lost") == 0, pl.col("launches") > 0)
    usual_ns = float(np.median(whole["work_ns"].to_numpy())) if len(whole) else 0.0
    streams = work.select("step", "lane_id").unique().drop_nulls()
    usual = (
        streams.join(whole, on="step", how="semi")
        .group_by("lane_id")
        .len("steps")
        .filter(2 * pl.col("steps") > len(whole))
    )
    used = streams.join(usual, on="lane_id", how="semi").group_by("step").len("streams")
    lacks_work = (pl.col("lost") > 0) & (
        (pl.col("lost") >= NOTABLE_LOSS * pl.col("launches"))
        | (pl.col("work_ns") < (1 - NOTABLE_LOSS) * usual_ns)
        | (pl.col("streams").fill_null(0) < len(usual))
    )
    with_streams = table.join(used, on="step", how="left", maintain_order="left")
    return with_streams.select(lacks_work).to_series()
