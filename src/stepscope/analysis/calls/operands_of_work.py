"""Operands of the operators that most analyses ask about, read out of a store once for all.

To read the arguments of a few operators, a store unpacks those of all events. Matrix products,
elementwise operators, attention and FLOPs are different questions about the same operators, so
whichever is asked first reads them all.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analysis.calls.flop_formulas import FORMULAS
from stepscope.analysis.calls.operands import (
    compact_operands,
    operand_columns,
    operand_texts,
    operands,
)
from stepscope.analysis.selection.gpu_work import recorded_work
from stepscope.analysis.selection.memoize import memoized
from stepscope.analysis.selection.names import events_named
from stepscope.trace.arrays.nullable import filled, nullable
from stepscope.trace.model import Trace


def operands_of_work(trace: Trace, events: pl.Series, *, concrete: bool = False) -> pl.DataFrame:
    """What some operators were called with: fast for those that launched compute or have a formula.

    Args:
        concrete: Whether values (`Concrete Inputs`) are wanted too: fast for those with a formula.

    Returns:
        event, dims, types and, where wanted, concrete, as `operands` gives them.
    """
    found = operands_as_categories(trace, events, concrete=concrete)
    return found.with_columns(pl.exclude("event").cast(pl.String))


def operands_as_categories(
    trace: Trace, events: pl.Series, *, concrete: bool = False
) -> pl.DataFrame:
    """The same with categories for texts, which take a quarter of the memory, and group faster."""
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
    launched = recorded_work(trace).filter(pl.col("kind") == "compute")["op"].drop_nulls()
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
