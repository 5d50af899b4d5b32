"""The calls of operators whose arithmetic is known, from the shapes that they were called with."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analysis.calls.flop_formulas import FORMULAS, work_of
from stepscope.analysis.calls.operands import parse_call
from stepscope.analysis.calls.operands_of_work import operands_of_work
from stepscope.analysis.calls.operator_forest import OperatorForest
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.model import Trace


def counted_calls(trace: Trace, forest: OperatorForest) -> tuple[pl.DataFrame, int]:
    """The innermost calls whose FLOPs are known, and how many are not known at all.

    Returns:
        row, name, dims, type, flops, moved_bytes per call; and the number of calls for which
        neither they nor any call inside or around them gives the shapes.
    """
    names = trace.name_rows["name_id", "name"]
    with_formula = names.filter(pl.col("name").is_in(list(FORMULAS)))
    rows = (
        forest.rows["event", "name_id"]
        .with_row_index("row")
        .with_columns(pl.col("row").cast(pl.Int64))
        .join(with_formula, on="name_id", how="inner", maintain_order="left")
    )
    texts = operands_of_work(trace, rows["event"], concrete=True).drop("event")
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
    row = calls["row"].to_numpy()
    is_known = calls["flops"].is_not_null().to_numpy()
    counts = np.zeros(len(forest), np.int64)
    counts[row[is_known]] = 1
    below = forest.with_descendants(counts)
    innermost = is_known & (below[row] == 1)
    # A call without shapes is no loss where one inside it, or around it, is counted.
    around = forest.nearest(counts > 0)
    lost = ~is_known & (below[row] == 0) & (around[row] < 0)
    lost &= forest.outermost(_has_formula_key(forest, row))[row]
    return calls.filter(pl.Series(innermost)), int(lost.sum())


def _has_formula_key(forest: OperatorForest, rows: Int64Array) -> Int64Array:
    """One key for all rows with a formula, and a key of its own for every other row."""
    keys = np.arange(len(forest), dtype=np.int64)
    keys[rows] = -1
    return keys
