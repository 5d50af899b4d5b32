"""The calls of operators whose arithmetic is known, from the shapes that they were called with."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analysis.calls.flop_formulas import FORMULAS, work_of
from stepscope.analysis.calls.operands import parse_call
from stepscope.analysis.calls.operands_of_work import operands_as_categories
from stepscope.analysis.calls.operator_forest import (
    OperatorForest,
    operator_forest,
    rows_of_work,
)
from stepscope.analysis.calls.recomputation import find_recomputed
from stepscope.analysis.selection.gpu_work import work_on_devices
from stepscope.analysis.selection.memoize import memoized
from stepscope.analysis.selection.names import names_that
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.derive.ancestors import nearest_above
from stepscope.trace.model import Trace

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
    keys = ["name", "dims", "types", "concrete"]
    distinct = calls.select(keys).unique(maintain_order=True)
    works = []
    for name, dims, types, concrete in distinct.iter_rows():
        call = parse_call(name, dims, types, concrete)
        work = None if call is None else work_of(call)
        works.append((work.flops, work.bytes, work.type) if work else (None, None, None))
    known = pl.concat(
        [
            distinct,
            pl.DataFrame(
                works,
                schema={"flops": pl.Int64, "moved_bytes": pl.Int64, "type": pl.String},
                orient="row",
            ),
        ],
        how="horizontal",
    )
    calls = calls.join(known, on=keys, how="left", nulls_equal=True, maintain_order="left")
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


def _abandoned(trace: Trace, forest: OperatorForest, counted: Int64Array) -> BoolArray:
    """Which rows checkpointing began to run again, and abandoned before they did anything.

    torch stops running a part again as soon as it has all tensors that the backward needs: by an
    exception in the operator that saves the last of them, before that operator computes. It is in
    the trace like any other, but launches nothing. Only a trace of a GPU can tell.
    """
    again = find_recomputed(trace).rows
    launches = np.zeros(len(forest), np.int64)
    if again.any():
        rows = rows_of_work(forest, work_on_devices(trace))
        np.add.at(launches, rows[rows >= 0], 1)
        launches = forest.with_descendants(launches)
    if not launches[counted].any():  # nothing tells what they launched
        return np.zeros(len(forest), np.bool_)
    found: BoolArray = again & (launches == 0)
    return found
