"""Operators: how often, how long on the host, and the GPU work that they launch.

Definitions
    Host time of an operator is its duration; its self time leaves out the operators inside it.
    Device time is the sum of the durations of the GPU work launched inside it, in the scope; self:
    launched with no other operator in between. Work of a CUDA graph belongs to the operator that
    launched the graph. Busy time is the union instead of the sum, per call of the operator.
    Totals count only calls that are in no other call of the same row (name, or name, shapes and
    types), so nothing is counted twice. Self times add up: over all operators, and with the work
    whose operator is not known, device self time is the sum over all GPU work of the scope.
    Backward of a forward operator: the evaluation of the autograd nodes that it recorded (totals:
    and of those recorded by the operators inside it), without recomputation in there.
    Recomputation: see `calls.recomputation`. It is part of the other columns too.
    A call counts if it begins in a step of the scope; GPU work if it belongs to one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stepscope.analysis.calls.operands import operands
from stepscope.analysis.calls.operator_forest import (
    DeviceTime,
    OperatorForest,
    attribute_device_time,
    busy_by_row,
    operator_forest,
)
from stepscope.analysis.calls.recomputation import Recomputed, find_recomputed
from stepscope.analysis.selection.gpu_work import gpu_work, in_steps
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.run.step_record import SHOWN_RANGES
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.model import Trace

OPERATORS: dict[str, pl.DataType | type[pl.DataType]] = {
    "name": pl.String,
    "category": pl.String,  # cpu_op or user_annotation
    "group": pl.String,  # as the classifier sorts it; null: not sorted
    "count": pl.Int64,  # calls that begin in the scope
    "launching": pl.Int64,  # calls that launched GPU work themselves
    "host_total_ns": pl.Int64,
    "host_self_ns": pl.Int64,
    "kernels": pl.Int64,  # pieces of GPU work launched by the operator itself
    "device_total_ns": pl.Int64,
    "device_self_ns": pl.Int64,
    "device_self_busy_ns": pl.Int64,  # union per call
    "backward_host_ns": pl.Int64,
    "backward_device_ns": pl.Int64,
    "recomputed": pl.Int64,  # calls that are recomputation
    "recomputed_host_ns": pl.Int64,  # self time of these
    "recomputed_device_ns": pl.Int64,  # self device time of these
}
"""Columns of `OperatorReport.table`."""

SHAPES: dict[str, pl.DataType | type[pl.DataType]] = {
    "dims": pl.String,  # the operands' shapes, as JSON; null: not recorded
    "types": pl.String,  # the operands' types, as JSON
}
"""Further columns, after the name, of a table by shape."""

_NO_OPERATOR = "GPU events whose operator is not known"


@dataclass(frozen=True)
class OperatorReport:
    """What the operators of a scope cost.

    Attributes:
        table: One row per name (or per name, shapes and types), columns `OPERATORS` (and
            `SHAPES`), ordered by device self time, then by host self time.
        scope: What it is about; GPU work whose operator is not known counts as left out of the
            table, but not of `device_ns`.
        device_ns: All GPU work of the scope: the table's `device_self_ns` and `unattributed_ns`.
        unattributed_ns: GPU work whose operator is not known.
        recomputed_host_ns: Self time on the host of all recomputation.
        recomputed_device_ns: GPU work of all recomputation.
    """

    table: pl.DataFrame
    scope: AnsweredScope
    device_ns: int = field(metadata={"label": "GPU work"})
    unattributed_ns: int = field(metadata={"label": "GPU work of no known operator"})
    recomputed_host_ns: int = field(metadata={"label": "recomputation on the host"})
    recomputed_device_ns: int = field(metadata={"label": "recomputation on the GPU"})
    recomputed_basis: str = field(metadata={"label": "recomputation seen by"})
    notes: tuple[str, ...]


def analyse_operators(
    trace: Trace, scope: Scope | None = None, *, by_shape: bool = False
) -> OperatorReport:
    """What the operators of a scope cost on the host and on the devices.

    Args:
        by_shape: Whether one row is a name with shapes and types of the operands; else a name.
    """
    work = gpu_work(trace, scope)
    members, asked = work.members, work.answered.asked
    forest = operator_forest(trace)
    device = attribute_device_time(forest, members)
    busy = busy_by_row(len(forest), forest.rows_of(members["op"]), members)
    again = find_recomputed(trace)
    keys = forest.rows.select("name_id")
    if by_shape:
        shapes = operands(trace, forest.rows["event"]).drop("event").cast(pl.Categorical)
        keys = pl.concat([keys, shapes], how="horizontal")
    in_scope = in_steps(forest.rows["step"], asked)
    columns = _columns(forest, device, again, busy, in_scope, _row_numbers(keys))
    table = _aggregate(trace, pl.concat([keys, columns], how="horizontal"), keys.columns)
    return OperatorReport(
        table=table,
        scope=work.answered.leaving_out({_NO_OPERATOR: device.unattributed}),
        device_ns=int(members["dur_ns"].sum()),
        unattributed_ns=device.unattributed_ns,
        recomputed_host_ns=int(table["recomputed_host_ns"].sum()),
        recomputed_device_ns=int(table["recomputed_device_ns"].sum()),
        recomputed_basis=again.basis,
        notes=work.notes,
    )


def analyse_operators_by_shape(trace: Trace, scope: Scope | None = None) -> OperatorReport:
    """As `analyse_operators`, by name, shapes and types of the operands."""
    return analyse_operators(trace, scope, by_shape=True)


def _columns(
    forest: OperatorForest,
    device: DeviceTime,
    again: Recomputed,
    busy: Int64Array,
    in_scope: BoolArray,
    row_numbers: Int64Array,
) -> pl.DataFrame:
    host_self = np.where(in_scope, forest.self_ns, 0)
    host_total = np.where(in_scope, forest.dur_ns, 0)
    first = forest.outermost(row_numbers)
    host_again = np.where(again.rows, host_self, 0)
    device_again = np.where(again.rows, device.self_ns, 0)
    backward_host, backward_device = _backward(
        forest,
        host_total - forest.with_descendants(host_again),
        device.total_ns - forest.with_descendants(device_again),
    )
    counts = in_scope.astype(np.int64)
    return pl.DataFrame(
        {
            "count": counts,
            "launching": (device.kernels > 0).astype(np.int64),
            "host_total_ns": np.where(first, host_total, 0),
            "host_self_ns": host_self,
            "kernels": device.kernels,
            "device_total_ns": np.where(first, device.total_ns, 0),
            "device_self_ns": device.self_ns,
            "device_self_busy_ns": busy,
            "backward_host_ns": np.where(first, backward_host, 0),
            "backward_device_ns": np.where(first, backward_device, 0),
            "recomputed": np.where(again.rows, counts, 0),
            "recomputed_host_ns": host_again,
            "recomputed_device_ns": device_again,
        }
    )


def _row_numbers(keys: pl.DataFrame) -> Int64Array:
    """For each call a number that it shares with the calls of its row of the table."""
    number = np.zeros(len(keys), np.int64)
    largest = 0
    for key in keys.iter_columns():
        codes = filled(key.to_physical().cast(pl.Int64), -1) + 1
        values = int(codes.max(initial=0)) + 1
        if (largest + 1) * values >= 1 << 62:
            number = np.unique(number, return_inverse=True)[1].astype(np.int64)
            largest = int(number.max(initial=0))
        number = number * values + codes
        largest = (largest + 1) * values
    return number


def _backward(
    forest: OperatorForest, host_ns: Int64Array, device_ns: Int64Array
) -> tuple[Int64Array, Int64Array]:
    linked = forest.forward >= 0
    # Of nodes in each other (the engine's evaluation and the node itself) the outer one counts.
    # Rows without a link get keys of their own, so that they never hide one another.
    alone = -2 - np.arange(len(forest), dtype=np.int64)
    chosen = np.nonzero(linked & forest.outermost(np.where(linked, forest.forward, alone)))[0]
    results = []
    for values in (host_ns, device_ns):
        own = np.zeros(len(forest), np.int64)
        np.add.at(own, forest.forward[chosen], np.maximum(values[chosen], 0))
        results.append(forest.with_descendants(own))
    return results[0], results[1]


def _aggregate(trace: Trace, columns: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    values = [column for column in columns.columns if column not in keys]
    names = trace.name_rows[["name_id", "name", "category", "group"]]
    found = (
        columns.lazy()
        .group_by(keys)
        .agg(pl.col(values).sum())
        .filter((pl.col("count") > 0) | (pl.col("kernels") > 0) | (pl.col("device_total_ns") > 0))
        .collect()
        .join(names, on="name_id", how="left")
        .with_columns(pl.col("name").replace(SHOWN_RANGES))
    )
    shapes = [column for column in SHAPES if column in found.columns]
    schema = dict(list(OPERATORS.items())[:1] + [(c, SHAPES[c]) for c in shapes])
    schema.update(OPERATORS)
    # One name may have two ids, from two words for one category: they are one operator.
    return (
        found.with_columns(pl.col(shapes).cast(pl.String))
        .group_by("name", "category", "group", *shapes)
        .agg(pl.col(values).sum())
        .sort(
            ["device_self_ns", "host_self_ns", "name", "category", "group", *shapes],
            descending=[True, True, False, False, False, *(False for _ in shapes)],
        )
        .select(pl.col(column).cast(dtype) for column, dtype in schema.items())
    )
