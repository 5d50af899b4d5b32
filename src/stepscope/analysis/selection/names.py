"""What names stand for: conditions on rows of `names`, and what all of them together tell."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import polars as pl

from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

_LAUNCHES = r"Launch(Kernel|CooperativeKernel)|EnqueueKernel"
CALLS = (Category.RUNTIME.value, Category.DRIVER.value)


def is_call() -> pl.Expr:
    """Calls of a device's runtime or driver, on the host; of events as well as of names."""
    return pl.col("category").is_in(CALLS)


def is_operator() -> pl.Expr:
    """Operators, but for those that mark steps."""
    return (pl.col("category") == Category.CPU_OP.value) & ~is_step()


def is_step() -> pl.Expr:
    """What marks a step, whether as an annotation or as an operator."""
    return (pl.col("group") == "profiler_step").fill_null(value=False)


def events_named(
    trace: Trace, condition: pl.Expr, lanes: Iterable[int] | None = None
) -> Int64Array:
    """The numbers of the events whose names meet a condition, in order.

    The columns that this looks at stay in memory, unlike those of a filter on `Trace.events`.

    Args:
        trace: The trace.
        condition: Of rows of `names`.
        lanes: Only events on these lanes.
    """
    is_named = names_that(trace, condition)
    if not is_named.any():
        return np.zeros(0, np.int64)
    columns = trace.columns("name_id", "lane_id")
    chosen = is_named[columns["name_id"].to_numpy()]
    if lanes is not None:
        is_there = np.zeros(trace.lanes.height, np.bool_)
        is_there[list(lanes)] = True
        chosen &= is_there[columns["lane_id"].to_numpy()]
    return np.flatnonzero(chosen)


def names_that(trace: Trace, condition: pl.Expr) -> BoolArray:
    """For each row of `names` whether it meets a condition; not where the condition is null."""
    met = trace.name_rows.select(condition.fill_null(value=False).alias("met"))["met"]
    found: BoolArray = met.to_numpy()
    return found


def told_by_name(rows: pl.DataFrame, told: pl.Expr) -> pl.Series:
    """The value of an expression of `name` for each row, worked out once for each distinct name.

    Args:
        rows: Rows with `name_id` and `name`. Few names repeat in very many rows, and a pattern
            takes longer to look for in a text than a number to look up.
        told: The expression.
    """
    ids = rows["name_id"]
    if ids.is_empty():
        return rows.select(told=told)["told"]
    names = rows["name_id", "name"].lazy().unique("name_id").select("name_id", told=told).collect()
    row = ids.to_numpy()
    place = np.zeros(int(row.max()) + 1, np.uint32)
    place[names["name_id"].to_numpy()] = np.arange(len(names))
    return names["told"].gather(place[row])


def is_training(trace: Trace) -> bool:
    """Whether a trace shows a backward or an optimizer."""
    of_training = (pl.col("group") == "optimizer_step").fill_null(value=False) | pl.col(
        "name"
    ).str.starts_with("autograd::engine")
    return bool(names_that(trace, of_training).any())


def launching_calls(trace: Trace) -> int:
    """Number of calls that launch kernels."""
    names = trace.names.filter(is_call(), pl.col("name").str.contains(_LAUNCHES)).select("name_id")
    return int(trace.events.join(names, on="name_id").select(pl.len()).collect().item())
