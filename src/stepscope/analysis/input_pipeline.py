"""The input pipeline: how long the training waited for its batches, and in what.

Definitions
    A wait is an outermost event that fetches a batch: `enumerate(DataLoader)#….__next__`,
    `enumerate(DataPipe)#…`, DataLoader frames of Python, `## load_batch ##`, or
    `stepscope.data_wait`, whatever category the recorder of the time gave it. Waits of the main
    thread count (`trace.main_lane`). Overlaps count once.
    wait      The union of the waits within a host step, and its share of the step.
    GPU idle  The part of each device's idle time whose cause is input (see `idle`): what the
              waits really cost. A wait beside which the GPU has work costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stepscope.analysis.host.causes import is_input_wait
from stepscope.analysis.idle import idle_times
from stepscope.analysis.selection.gpu_work import check_steps, notes_on_steps
from stepscope.analysis.selection.names import events_named, times_of
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.trace.arrays import intervals
from stepscope.trace.categories import is_one_of
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

_IN_PROCESS = "_SingleProcessDataLoaderIter"
_WITH_WORKERS = "_MultiProcessingDataLoaderIter"
_WORKER_THREADS = r"(?i)dataloader|pin_?memory|loader"
MOST_INSIDE = 30


@dataclass(frozen=True)
class InputPipeline:
    """Waiting for batches.

    Attributes:
        wait_ns: Time of all waits; of the scope's steps where the trace has steps.
        wait_share: Of the time of the steps; None without steps.
        gpu_idle_ns: Idle time of all devices together that the waits caused.
        runs_in_process: Whether batches are made in the training process itself (no workers);
            None where no name tells.
        steps: One row per step: wall_ns, waits, wait_ns, wait_share, longest_ns, gpu_idle_ns.
        sources: Waits by name: count, total_ns, mean_ns, p50_ns, max_ns, and the longest's event.
        inside: What ran inside the waits, by name: count, total_ns, self_ns.
        workers: Threads of the loader that the recorder saw, with their events; processes of
            workers are not recorded.
        scope: What the answer covers; its events are the waits.
    """

    waits: int
    wait_ns: int = field(metadata={"label": "waiting"})
    wait_share: float | None = field(metadata={"label": "waiting, of the steps"})
    gpu_idle_ns: int = field(metadata={"label": "GPU idle for it"})
    runs_in_process: bool | None = field(metadata={"label": "batches made in the training process"})
    steps: pl.DataFrame
    sources: pl.DataFrame
    inside: pl.DataFrame
    workers: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...]


def input_pipeline(trace: Trace, scope: Scope | None = None) -> InputPipeline:
    """Look at the waits for batches."""
    asked = scope or Scope()
    covered = check_steps(trace, asked)
    idle = idle_times(trace, asked)
    waits, other_threads = _waits(trace)
    host = trace.steps.filter(pl.col("step").is_in(list(covered)))
    in_scope = waits
    if asked.steps is not None:
        in_scope = waits.filter(pl.col("step").is_in(list(covered)))
    union = intervals.merge(waits["start_ns"].to_numpy(), waits["end_ns"].to_numpy())
    steps = _per_step(host, waits, union, idle.steps)
    wall_ns = int(steps["wall_ns"].sum())
    wait_ns = int(steps["wait_ns"].sum()) if len(host) else union.total_ns
    names = " ".join(in_scope["name"].unique().to_list())
    notes = [*idle.notes]
    notes += [note for note in notes_on_steps(trace) if note not in notes]
    if waits.is_empty():
        notes.append("no wait for a DataLoader, a DataPipe or a batch was recorded")
    runs_in_process = True if _IN_PROCESS in names else False if _WITH_WORKERS in names else None
    if runs_in_process:
        notes.append("batches are made in the training process itself: num_workers is 0")
    excluded = {"waits of other steps or of none": len(waits) - len(in_scope)}
    excluded["waits of other threads"] = other_threads
    return InputPipeline(
        waits=len(in_scope),
        wait_ns=wait_ns,
        wait_share=wait_ns / wall_ns if wall_ns else None,
        gpu_idle_ns=idle.of("input"),
        runs_in_process=runs_in_process,
        steps=steps,
        sources=_sources(in_scope),
        inside=_inside(trace, in_scope),
        workers=_workers(trace),
        scope=AnsweredScope(asked, covered, idle.scope.devices, len(in_scope)).leaving_out(
            excluded
        ),
        notes=tuple(notes),
    )


def _waits(trace: Trace) -> tuple[pl.DataFrame, int]:
    """The outermost waits of the thread that counts, and how many other threads have."""
    names = trace.names.filter(is_input_wait()).select("name_id", "name").collect()
    found = (
        trace.events.filter(
            pl.col("name_id").is_in(names["name_id"].implode()), pl.col("device").is_null()
        )
        .select(
            "event", "name_id", "lane_id", "start_ns", end_ns=pl.col("start_ns") + pl.col("dur_ns")
        )
        .collect()
        .join(names, on="name_id")
        .sort("lane_id", "start_ns", "event")
    )
    found = found.hstack(trace.derived_of(found["event"], "step"))
    reach = pl.col("end_ns").cum_max().shift(1).over("lane_id")
    outer = found.filter(reach.is_null() | (pl.col("end_ns") > reach))
    main = outer.filter(pl.col("lane_id").eq_missing(pl.lit(trace.main_lane)))
    return main, len(outer) - len(main)


def _per_step(
    host: pl.DataFrame, waits: pl.DataFrame, union: intervals.Intervals, idle: pl.DataFrame
) -> pl.DataFrame:
    starts, ends = host["start_ns"].to_numpy(), host["end_ns"].to_numpy()
    by_step = waits.group_by("step").agg(
        pl.len().cast(pl.Int64).alias("waits"),
        (pl.col("end_ns") - pl.col("start_ns")).max().alias("longest_ns"),
    )
    gpu = idle.group_by("step").agg(pl.col("input_ns").sum().alias("gpu_idle_ns"))
    wait_ns = pl.Series("wait_ns", intervals.covered(union, starts, ends), dtype=pl.Int64)
    return (
        host.select("step", wall_ns=pl.col("end_ns") - pl.col("start_ns"))
        .with_columns(wait_ns)
        .join(by_step, on="step", how="left", maintain_order="left")
        .join(gpu, on="step", how="left", maintain_order="left")
        .select(
            "step",
            "wall_ns",
            pl.col("waits").fill_null(0),
            "wait_ns",
            pl.when(pl.col("wall_ns") > 0)
            .then(pl.col("wait_ns") / pl.col("wall_ns"))
            .alias("wait_share"),
            pl.col("longest_ns").fill_null(0),
            pl.col("gpu_idle_ns").fill_null(0),
        )
    )


def _sources(waits: pl.DataFrame) -> pl.DataFrame:
    dur = pl.col("dur_ns")
    return (
        waits.with_columns(dur_ns=pl.col("end_ns") - pl.col("start_ns"))
        .group_by("name")
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            dur.sum().alias("total_ns"),
            dur.mean().round().cast(pl.Int64).alias("mean_ns"),
            dur.quantile(0.5, "nearest").cast(pl.Int64).alias("p50_ns"),
            dur.max().alias("max_ns"),
            pl.col("event").sort_by("dur_ns", maintain_order=True).last(),
        )
        .sort("total_ns", "name", descending=[True, False])
    )


def _inside(trace: Trace, waits: pl.DataFrame) -> pl.DataFrame:
    kinds = (Category.CPU_OP, Category.RUNTIME, Category.PYTHON_FUNCTION)
    events = events_named(trace, is_one_of(kinds), waits["lane_id"].unique())
    union = intervals.merge(waits["start_ns"].to_numpy(), waits["end_ns"].to_numpy())
    within = events[intervals.contains(union, times_of(trace, events)[0])]
    inside = pl.Series(np.setdiff1d(within, waits["event"].to_numpy()))
    return (
        trace.columns("name_id", "dur_ns")[inside]
        .hstack(trace.derived_of(inside, "self_ns"))
        .group_by("name_id")
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("dur_ns").sum().alias("total_ns"),
            pl.col("self_ns").sum(),
        )
        .join(trace.name_rows["name_id", "name"], on="name_id")
        .sort("self_ns", "name", "total_ns", "count", descending=[True, False, True, True])
        .head(MOST_INSIDE)
        .select("name", "count", "total_ns", "self_ns")
    )


def _workers(trace: Trace) -> pl.DataFrame:
    lanes = trace.lanes.filter(
        ~pl.col("is_gpu"),
        pl.col("thread_name").fill_null("").str.contains(_WORKER_THREADS)
        | pl.col("process_name").fill_null("").str.contains(_WORKER_THREADS),
    )
    counts = (
        trace.events.filter(pl.col("lane_id").is_in(lanes["lane_id"].implode()))
        .group_by("lane_id")
        .agg(pl.len().cast(pl.Int64).alias("events"), pl.col("dur_ns").sum().alias("total_ns"))
        .collect()
    )
    return lanes.join(counts, on="lane_id", maintain_order="left").select(
        "pid", "tid", "process_name", "thread_name", "events", "total_ns"
    )
