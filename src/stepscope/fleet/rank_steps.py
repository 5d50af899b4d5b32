"""One rank's steps, as a small table: what each took and where its time went.

Definitions
    On a GPU these are device steps (see `analysis.timeline`): compute, exposed communication,
    exposed copies and idle time add up to the step. `input_ns` is the part of the idle time in
    which the host waited for a batch, `other_ns` the rest of it.
    Without GPU work they are host steps, divided by what the main thread did (see
    `analysis.host.partition`): forward, backward and optimizer count as compute.
    Either way input, compute, exposed communication, copies and other add up to the step.
"""

from __future__ import annotations

import polars as pl

from stepscope.analysis.host.partition import partition_host
from stepscope.analysis.idle import idle_times
from stepscope.analysis.selection.scope import Scope
from stepscope.analysis.timeline import timeline
from stepscope.trace.arrays.packed_columns import PackedColumns
from stepscope.trace.model import Trace

STEPS: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "step": pl.Int64,
    "wall_ns": pl.Int64,
    "input_ns": pl.Int64,
    "compute_ns": pl.Int64,
    "exposed_comm_ns": pl.Int64,
    "copies_ns": pl.Int64,
    "other_ns": pl.Int64,
}
"""One row per rank and step; of a rank with several GPUs, their sums."""
PARTS = ("input_ns", "compute_ns", "exposed_comm_ns", "copies_ns", "other_ns")
"""The parts that add up to `wall_ns`."""


def read_steps(trace: Trace, scope: Scope | None = None) -> PackedColumns:
    """Reads the steps of a rank: the columns of `STEPS` but the first."""
    table = _device_steps(trace, scope)
    if table.is_empty():
        table = _host_steps(trace, scope)
    names = list(STEPS)[1:]
    columns = table.select(pl.col(name).cast(pl.Int64) for name in names).to_numpy().T
    return PackedColumns.of(names, columns)


def _device_steps(trace: Trace, scope: Scope | None) -> pl.DataFrame:
    steps = timeline(trace, scope).steps
    if steps.is_empty():
        return steps
    idle = idle_times(trace, scope).steps.select("device", "step", "input_ns")
    return (
        steps.join(idle, on=["device", "step"], how="left", maintain_order="left")
        .group_by("step", maintain_order=True)
        .agg(
            pl.col("total_ns").sum().alias("wall_ns"),
            pl.col("input_ns").fill_null(0).sum(),
            pl.col("compute_ns", "exposed_comm_ns").sum(),
            pl.col("exposed_memcpy_ns").sum().alias("copies_ns"),
            pl.col("idle_ns").sum(),
        )
        .with_columns(other_ns=pl.col("idle_ns") - pl.col("input_ns"))
    )


def _host_steps(trace: Trace, scope: Scope | None) -> pl.DataFrame:
    partition = partition_host(trace, None if scope is None else scope.steps)
    if partition is None:
        return pl.DataFrame(schema=STEPS)
    return partition.steps.with_columns(
        compute_ns=pl.sum_horizontal("forward_ns", "backward_ns", "optimizer_ns"),
        exposed_comm_ns="communication_ns",
        copies_ns=pl.lit(0, pl.Int64),
    )
