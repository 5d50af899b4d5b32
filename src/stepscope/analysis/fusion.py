"""Fusion: known patterns of kernels that one fused kernel replaces, and what that saves.

Definitions
    The patterns, and how long they take once fused, are those of `calls.fusible`. Each row fuses
    one pattern and leaves the rest unchanged, so the savings do not add up: the steps are replayed
    with the fused kernels, each launched once.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepscope.analysis.calls.fusible import PATTERNS, Fusible, find_fusible
from stepscope.analysis.graph.build import build_step_graph
from stepscope.analysis.graph.changes import Changes
from stepscope.analysis.graph.nodes import spans_of_sources, work_of_nodes
from stepscope.analysis.graph.replay import replay, unchanged
from stepscope.analysis.hardware.devices import memory_speeds
from stepscope.analysis.host.steady_steps import steady_steps
from stepscope.analysis.selection.gpu_work import gpu_work
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import BoolArray
from stepscope.trace.model import Trace

FUSION: dict[str, pl.DataType | type[pl.DataType]] = {
    "pattern": pl.String,
    "occurrences": pl.Int64,  # in the forward
    "kernels": pl.Int64,
    "total_ns": pl.Int64,
    "work_share": pl.Float64,  # of all GPU work
    "fused_ns": pl.Int64,
    "moved_bytes": pl.Int64,  # null: not known of any occurrence
    "saved_bytes": pl.Int64,
    "basis": pl.String,  # what most of fused_ns rests on
    "saving_ns": pl.Int64,  # of the mean step, by replay
    "replacement": pl.String,
}


@dataclass(frozen=True)
class Fusion:
    """The patterns among the GPU work of the steps.

    Attributes:
        step_ns: Mean step of the replayed steps.
        patterns: Columns `FUSION`, the most time first; totals are over all the steps.
    """

    step_ns: int
    patterns: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...]


def fusion(trace: Trace, scope: Scope | None = None) -> Fusion:
    """Find the patterns, and replay the steps with each of them fused.

    Args:
        scope: Which consecutive steps, devices and events; the replay holds all devices and events.
    """
    asked = scope or Scope()
    gpu_work(trace, asked)  # raises where the scope names what the trace does not have
    graph = build_step_graph(trace, asked.steps)
    steady = steady_steps(trace, Scope(steps=asked.steps))
    work = work_of_nodes(trace, graph, asked)
    fusible = fusible_of(trace, work)
    whole_ns = max(1, int(work["dur_ns"].sum()))
    rows = []
    for name in dict.fromkeys(one.name for one in PATTERNS):
        chosen = fusible.are_of(name)
        if not chosen.any():
            continue
        found = fusible.occurrences_of(name)
        total_ns = int(found["total_ns"].sum())
        known = found.drop_nulls("bytes_now")
        again = replay(fused_changes(unchanged(graph), trace, work, fusible, chosen))
        rows.append(
            (
                name,
                int(found["is_backward"].not_().sum()),
                int(found["kernels"].sum()),
                total_ns,
                total_ns / whole_ns,
                int(found["fused_ns"].sum()),
                int(known["bytes_now"].sum()) if len(known) else None,
                int(known["bytes_saved"].sum()) if len(known) else None,
                _basis(found),
                again.saving_ns,
                next(one.replacement for one in PATTERNS if one.name == name),
            )
        )
    table = pl.DataFrame(rows, schema=FUSION, orient="row")
    return Fusion(
        graph.mean_step_ns,
        table.sort("total_ns", "pattern", descending=[True, False]),
        AnsweredScope(asked, graph.steps, (), events=len(work)),
        (*steady.notes, *graph.notes),
    )


def fusible_of(trace: Trace, work: pl.DataFrame) -> Fusible:
    """The patterns among some GPU work, on the devices that it ran on."""
    return find_fusible(trace, work, memory_speeds(trace, work["device"]))


def fused_changes(
    start: Changes, trace: Trace, work: pl.DataFrame, fusible: Fusible, rows: BoolArray
) -> Changes:
    """Changes with some rows of the GPU work fused, and the host launching each result once.

    Args:
        work: The GPU work of the graph (`work_of_nodes`).
    """
    dur = start.graph.dur_ns.copy()
    dur[work["node"].to_numpy()[rows]] = fusible.rows["fused_ns"].to_numpy()[rows]
    goes = fusible.rows["goes"].to_numpy()
    gone, kept = (
        spans_of_sources(trace, work.filter(pl.Series(rows & which))) for which in (goes, ~goes)
    )
    return start.shorten_work(dur).scale_host(intervals.difference(gone, kept))


def _basis(occurrences: pl.DataFrame) -> str:
    """What the time of some occurrences once fused mostly rests on."""
    by_time = occurrences.group_by("basis").agg(pl.col("total_ns").sum())
    return str(by_time.sort("total_ns", "basis", descending=[True, False])["basis"][0])
