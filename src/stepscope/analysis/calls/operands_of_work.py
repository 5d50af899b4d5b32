"""Operands of the operators that most analyses ask about, and the arithmetic of their calls.

To read the arguments of a few operators, a store unpacks those of all events. Matrix products,
elementwise operators, attention and FLOPs are different questions about the same operators, so
whichever is asked first reads them all.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analysis.calls.flop_formulas import FORMULAS, Work, work_of
from stepscope.analysis.calls.operands import (
    compact_operands,
    of_each_way,
    operand_columns,
    operand_texts,
    operands,
    parse_call,
)
from stepscope.analysis.calls.operator_forest import (
    OperatorForest,
    attribute_device_time,
    operator_forest,
)
from stepscope.analysis.calls.recomputation import find_recomputed
from stepscope.analysis.selection.gpu_work import recorded_work, work_on_devices
from stepscope.analysis.selection.names import events_named, names_that
from stepscope.analysis.selection.scope import memoized
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.nullable import filled, nullable
from stepscope.trace.derive.ancestors import nearest_above
from stepscope.trace.model import Trace


def operands_of_work(trace: Trace, events: pl.Series) -> pl.DataFrame:
    """What some operators were called with: fast for those that launched work or have a formula.

    Returns:
        event, dims and types, as `operands` gives them.
    """
    found = operands_as_categories(trace, events)
    return found.with_columns(pl.exclude("event").cast(pl.String))


def operands_as_categories(
    trace: Trace, events: pl.Series, *, concrete: bool = False
) -> pl.DataFrame:
    """The same with categories for texts, which take a quarter of the memory, and group faster.

    Args:
        concrete: Whether values (`Concrete Inputs`) are wanted too: fast for those with a formula.
    """
    columns = ["dims", "types", "concrete"] if concrete else ["dims", "types"]
    if trace.store is not None:  # in memory, any arguments are at hand
        known = operands_of_all_work(trace)
        asked = events.cast(pl.Int64)
        row = _rows_of(known, asked, with_formula=concrete)
        if row is not None:
            return pl.DataFrame([asked.alias("event"), *known[columns][row]])
    found = operands(trace, events, concrete=concrete).select("event", *columns)
    return found.with_columns(pl.exclude("event").cast(pl.Categorical))


def _rows_of(known: pl.DataFrame, asked: pl.Series, *, with_formula: bool) -> pl.Series | None:
    """The row of each event in `known`, null for null; None unless all are there.

    Args:
        known: What `operands_of_all_work` gives.
    """
    is_asked = asked.is_not_null().to_numpy()
    if not len(known):
        return None if is_asked.any() else pl.Series([None] * len(asked), dtype=pl.Int64)
    events = known["event"].to_numpy()  # in order
    number = filled(asked, 0)
    row = np.minimum(np.searchsorted(events, number), len(events) - 1)
    is_known = events[row] == number
    if with_formula:
        is_known &= known["has_formula"].to_numpy()[row]
    if not (is_known | ~is_asked).all():
        return None
    return nullable(row, is_asked if asked.has_nulls() else None, "row")


@memoized
def operands_of_all_work(trace: Trace) -> pl.DataFrame:
    """event, dims, types, concrete and has_formula; texts repeat, and are held once each.

    `concrete` is null without a formula: few need it, and it is the slowest to find.
    """
    launched = recorded_work(trace)["op"].drop_nulls()
    with_formula = events_named(trace, pl.col("name").is_in(list(FORMULAS)))
    is_asked = np.zeros(trace.event_count, np.bool_)
    is_asked[launched.to_numpy()] = True
    is_asked[with_formula] = True
    has_formula = np.zeros(len(is_asked), np.bool_)
    has_formula[with_formula] = True
    asked = np.flatnonzero(is_asked)
    events = pl.Series("event", asked, pl.Int64)
    said = operand_texts(trace, events).alias("args")
    texts = pl.DataFrame([events, said, pl.Series("has_formula", has_formula[asked])])
    distinct = texts.select("args", "has_formula").unique().drop_nulls()
    dims, types, values, _ = operand_columns(pl.col("args").cast(pl.String), concrete=True)
    concrete = distinct.filter("has_formula").select("args", "has_formula", values)
    parsed = compact_operands(distinct.select("args", "has_formula", dims, types)).join(
        concrete, on=["args", "has_formula"], how="left"
    )
    found = texts.join(
        parsed, on=["args", "has_formula"], how="left", maintain_order="left"
    ).select("event", "dims", "types", "concrete", "has_formula")
    return found.with_columns(pl.col("dims", "types", "concrete").cast(pl.Categorical))


NO_SHAPES_OF = "{} matrix operators have no shapes that suffice: FLOPs are a lower bound"


@memoized
def counted_calls(trace: Trace) -> tuple[pl.DataFrame, int]:
    """The innermost calls whose FLOPs are known, and how many are not known at all.

    Returns:
        row in the operator forest, event, name, dims, type, flops, moved_bytes per call of the
        whole file; and the number of calls for which neither they nor any call inside or around
        them gives the shapes. Calls that were begun and abandoned are neither.
    """
    forest = operator_forest(trace)
    names = trace.name_rows["name_id", "name"]
    has_formula = names_that(trace, pl.col("name").is_in(list(FORMULAS)))[forest.name_id]
    row = np.flatnonzero(has_formula)
    rows = (
        forest.rows["event", "name_id"][row]
        .insert_column(0, pl.Series("row", row))
        .join(names, on="name_id", how="left", maintain_order="left")
    )
    texts = operands_as_categories(trace, rows["event"], concrete=True).drop("event")
    calls = pl.concat([rows, texts], how="horizontal")
    ways = calls.select("name", "dims", "types", "concrete")
    schema = {"flops": pl.Int64, "moved_bytes": pl.Int64, "type": pl.String}
    calls = calls.hstack(of_each_way(ways, _work_of_texts, schema))
    has_shapes = calls["flops"].is_not_null().to_numpy()
    abandoned = _abandoned(trace, forest, row[has_shapes])[row]
    is_known = has_shapes & ~abandoned
    counts = np.zeros(len(forest), np.int64)
    counts[row[is_known]] = 1
    below = forest.with_descendants(counts)
    innermost = is_known & (below[row] == 1)
    # A call without shapes is no loss where one inside it, or around it, is counted.
    row_of_lost = row[~is_known & ~abandoned & (below[row] == 0)]
    for are_around in (counts > 0, has_formula):
        row_of_lost = row_of_lost[nearest_above(forest.parent, row_of_lost, are_around) < 0]
    found = calls.filter(pl.Series(innermost))
    return found.with_columns(pl.col("dims", "types", "concrete").cast(pl.String)), len(row_of_lost)


def _work_of_texts(
    name: str, dims: str | None, types: str | None, concrete: str | None
) -> Work | None:
    call = parse_call(name, dims, types, concrete)
    return None if call is None else work_of(call)


def _abandoned(trace: Trace, forest: OperatorForest, counted: Int64Array) -> BoolArray:
    """Which rows checkpointing began to run again, and abandoned before they did anything.

    torch stops running a part again as soon as it has all tensors that the backward needs: by an
    exception in the operator that saves the last of them, before that operator computes. It is in
    the trace like any other, but launches nothing. Only a trace of a GPU can tell.
    """
    again = find_recomputed(trace).rows
    launches = np.zeros(len(forest), np.int64)
    if again.any():
        own = attribute_device_time(forest, work_on_devices(trace)).kernels
        launches = forest.with_descendants(own)
    if not launches[counted].any():  # nothing tells what they launched
        return np.zeros(len(forest), np.bool_)
    found: BoolArray = again & (launches == 0)
    return found
