"""Communication: what each collective moved, how fast, and how much of it computation hid.

Definitions
    Communication and computation of a device are the unions of the GPU work of these kinds on all
    its streams. Overlap ratio: ‖COMP ∩ COMM‖ / ‖COMM‖. Exposed: ‖COMM ∖ COMP‖.
    Exposed time of one collective: what of it no computation covers; a moment that several
    collectives share counts for the one that began first, so that the collectives' exposed times
    add up to the device's.
    Algorithm and bus bandwidth as in nccl-tests: see `calls.collectives`.
    The duration of one rank's kernel includes waiting for the other ranks: from one rank's trace
    the bandwidths are lower bounds. The shortest duration of a kind and size comes nearest to the
    transfer itself; over several ranks see `stragglers`.
    Collectives of backends on the CPU (gloo, MPI, UCC) run on threads of their own. Exposed is the
    time in which the training thread waits for them (`host.waits`), or is inside the operator that
    asks for one; the rest of it overlaps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from stepscope.analysis.calls.collectives import (
    COLLECTIVES,
    algorithm_bandwidth,
    bus_factor,
    read_collectives,
    read_host_collectives,
)
from stepscope.analysis.host.waits import communication_waits
from stepscope.analysis.selection.gpu_work import NO_GPU_WORK, GpuWork, gpu_work
from stepscope.analysis.selection.names import events_named
from stepscope.analysis.selection.scope import AnsweredScope, Scope, memoized
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.model import Trace

_ASKING = r"^(c10d|_c10d_functional)::"
NO_COLLECTIVES = "no collective was recorded in this scope"
_ON_THE_HOST = (
    "the collectives ran on the CPU, beside the training thread: exposed is the time in which it"
    " waits for them"
)

TIMED_COLLECTIVES: dict[str, pl.DataType | type[pl.DataType]] = {
    **COLLECTIVES,
    "exposed_ns": pl.Int64,
    "overlapped_ns": pl.Int64,  # covered by computation, shared moments as for exposed_ns
    "algorithm_bandwidth_gb_per_s": pl.Float64,  # 1 GB = 10^9 bytes; null: size not known
    "bus_bandwidth_gb_per_s": pl.Float64,  # null: size or group not known
}

SIZES: dict[str, pl.DataType | type[pl.DataType]] = {
    "kind": pl.String,
    "message_bytes": pl.Int64,
    "dtype": pl.String,
    "group": pl.String,
    "group_size": pl.Int64,
    "count": pl.Int64,
    "total_ns": pl.Int64,
    "min_ns": pl.Int64,
    "median_ns": pl.Int64,
    "max_ns": pl.Int64,
    "exposed_ns": pl.Int64,
    "algorithm_bandwidth_gb_per_s": pl.Float64,  # of the median duration
    "bus_bandwidth_gb_per_s": pl.Float64,  # of the median duration
    "best_bus_bandwidth_gb_per_s": pl.Float64,  # of the shortest duration
}
"""One row per kind, size, type and process group."""

DEVICES: dict[str, pl.DataType | type[pl.DataType]] = {
    "device": pl.Int32,  # null: collectives of the host
    "collectives": pl.Int64,
    "communication_ns": pl.Int64,  # ‖COMM‖
    "overlapped_ns": pl.Int64,  # ‖COMP ∩ COMM‖
    "exposed_ns": pl.Int64,  # ‖COMM ∖ COMP‖
    "overlap_share": pl.Float64,  # the overlap ratio; null: no communication
}


@dataclass(frozen=True)
class CommunicationReport:
    """The communication of a scope.

    Attributes:
        collectives: One row per collective, columns `TIMED_COLLECTIVES`, in order of start.
        sizes: The same by kind and size, columns `SIZES`, the most exposed time first.
    """

    collectives: pl.DataFrame
    sizes: pl.DataFrame
    devices: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...]


@memoized
def analyse_communication(trace: Trace, scope: Scope | None = None) -> CommunicationReport:
    """What the collectives of a scope moved, how fast, and how much computation hid."""
    work = gpu_work(trace, scope)
    collectives = read_collectives(trace, work.members_of("communication"))
    if collectives.is_empty():
        of_host = read_host_collectives(trace, work.answered.asked)
        if len(of_host):
            return _of_the_host(trace, work, of_host)
        # As most jobs on one GPU have it: without queries.
        notes = (*work.notes, NO_COLLECTIVES) if work.answered.devices else work.notes
        return CommunicationReport(
            pl.DataFrame(schema=TIMED_COLLECTIVES),
            pl.DataFrame(schema=SIZES),
            pl.DataFrame(schema=DEVICES),
            work.answered,
            notes,
        )
    # What hides a step's communication may be computation of the next step. Fills count as
    # computation, as in the timeline.
    compute = work.table.filter(pl.col("kind").is_in(["compute", "memset"]))
    exposed = np.zeros(len(collectives), np.int64)
    overlapped = np.zeros(len(collectives), np.int64)
    rows: list[tuple[int | float | None, ...]] = []
    for device in work.answered.devices:
        mine = filled(collectives["device"] == device, value=False)
        own = collectives.filter(pl.Series(mine))
        start = own["start_ns"].to_numpy()
        end = start + own["dur_ns"].to_numpy()
        computing = _union(compute.filter(pl.col("device") == device))
        communicating = intervals.merge(start, end)
        first, last = first_come(start, end)
        covered = intervals.covered(computing, first, last)
        exposed[mine] = last - first - covered
        overlapped[mine] = covered
        shared_ns = intervals.intersection(computing, communicating).total_ns
        whole_ns = communicating.total_ns
        ratio = shared_ns / whole_ns if whole_ns else None
        rows.append((device, len(own), whole_ns, shared_ns, whole_ns - shared_ns, ratio))
    return _report(collectives, exposed, overlapped, rows, work.answered, work.notes)


def _of_the_host(trace: Trace, work: GpuWork, collectives: pl.DataFrame) -> CommunicationReport:
    start = collectives["start_ns"].to_numpy()
    end = start + collectives["dur_ns"].to_numpy()
    first, last = first_come(start, end)
    exposed = intervals.covered(_held_up(trace), first, last)
    whole_ns, exposed_ns = int((last - first).sum()), int(exposed.sum())
    ratio = (whole_ns - exposed_ns) / whole_ns if whole_ns else None
    row = (None, len(collectives), whole_ns, whole_ns - exposed_ns, exposed_ns, ratio)
    notes = (*(note for note in work.notes if note != NO_GPU_WORK), _ON_THE_HOST)
    answered = replace(work.answered, events=len(collectives))
    return _report(collectives, exposed, last - first - exposed, [row], answered, notes)


def _held_up(trace: Trace) -> intervals.Intervals:
    lane = trace.main_lane
    if lane is None:
        return intervals.empty()
    asked = events_named(trace, pl.col("name").str.contains(_ASKING), (lane,))
    asking = trace.columns("start_ns", "dur_ns")[asked]
    return intervals.union(communication_waits(trace, (lane,))[lane], _union(asking))


def _notes(collectives: pl.DataFrame) -> list[str]:
    notes = []
    if len(collectives):
        notes.append(
            "durations include waiting for other ranks, so bandwidths are lower "
            "bounds; the traces of all ranks show more"
        )
    unknown = collectives["message_bytes"].null_count()
    if unknown:
        notes.append(
            f"the size of {unknown} of {len(collectives)} collectives was not recorded"
            " (record_shapes=True, or torch 2.3 and later)"
        )
    if collectives["group_size_is_assumed"].any():
        notes.append("process groups were not recorded: they are taken to be the whole job")
    return notes


def first_come(start: Int64Array, end: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The part of each interval that none before it covers; together they are the union."""
    if not len(start):
        return start, end
    reached = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
    first = np.maximum(start, reached)
    return first, np.maximum(end, first)


def _union(work: pl.DataFrame) -> intervals.Intervals:
    start = work["start_ns"].to_numpy()
    return intervals.merge(start, start + work["dur_ns"].to_numpy())


def _report(
    collectives: pl.DataFrame,
    exposed: Int64Array,
    overlapped: Int64Array,
    devices: list[tuple[int | float | None, ...]],
    answered: AnsweredScope,
    notes: tuple[str, ...],
) -> CommunicationReport:
    algorithm = algorithm_bandwidth(pl.col("dur_ns"))
    timed = collectives.with_columns(
        exposed_ns=pl.Series(exposed),
        overlapped_ns=pl.Series(overlapped),
        algorithm_bandwidth_gb_per_s=algorithm,
        bus_bandwidth_gb_per_s=algorithm * bus_factor(),
    ).select(pl.col(column).cast(dtype) for column, dtype in TIMED_COLLECTIVES.items())
    return CommunicationReport(
        timed,
        _by_size(timed),
        pl.DataFrame(devices, schema=DEVICES, orient="row"),
        answered,
        (*notes, *_notes(timed)),
    )


def _by_size(collectives: pl.DataFrame) -> pl.DataFrame:
    duration = pl.col("dur_ns")
    return (
        collectives.group_by("kind", "message_bytes", "dtype", "group", "group_size")
        .agg(
            pl.len().alias("count"),
            duration.sum().alias("total_ns"),
            duration.min().alias("min_ns"),
            duration.median().round().cast(pl.Int64).alias("median_ns"),
            duration.max().alias("max_ns"),
            pl.col("exposed_ns").sum(),
        )
        .with_columns(
            algorithm_bandwidth_gb_per_s=algorithm_bandwidth(pl.col("median_ns")),
            bus_bandwidth_gb_per_s=algorithm_bandwidth(pl.col("median_ns")) * bus_factor(),
            best_bus_bandwidth_gb_per_s=algorithm_bandwidth(pl.col("min_ns")) * bus_factor(),
        )
        .sort(
            ["exposed_ns", "total_ns", "kind", "message_bytes", "group", "group_size", "dtype"],
            descending=[True, True, False, True, False, False, False],
        )
        .select(pl.col(column).cast(dtype) for column, dtype in SIZES.items())
    )
