"""Operands of the operators that most analyses ask about, read out of a store once for all.

To read the arguments of a few operators, a store unpacks those of all events. Matrix products,
elementwise operators, attention and FLOPs are different questions about the same operators, so
whichever is asked first reads them all.
"""

from __future__ import annotations

import polars as pl

from stepscope.analysis.calls.flop_formulas import FORMULAS
from stepscope.analysis.calls.operands import (
    argument_texts,
    compact_operands,
    operand_columns,
    operands,
)
from stepscope.analysis.selection.gpu_work import recorded_work
from stepscope.analysis.selection.names import events_named
from stepscope.analysis.selection.remember import remembered
from stepscope.analysis.selection.scope import Scope
from stepscope.trace.model import Trace


def operands_of_work(trace: Trace, events: pl.Series, *, concrete: bool = False) -> pl.DataFrame:
    """What some operators were called with: fast for those that launched compute or have a formula.

    Args:
        trace: The trace.
        events: Their event numbers.
        concrete: Whether values (`Concrete Inputs`) are wanted too: fast for those with a formula.

    Returns:
        event, dims, types and, where wanted, concrete, as `operands` gives them.
    """
    columns = ["dims", "types", "concrete"] if concrete else ["dims", "types"]
    if trace.store is not None:  # in memory, any arguments are at hand
        known = operands_of_all_work(trace)
        if concrete:
            known = known.filter("has_formula")
        asked = events.cast(pl.Int64).to_frame("event")
        if asked["event"].drop_nulls().is_in(known["event"].implode()).all():
            found = asked.join(known, on="event", how="left", maintain_order="left")
            return found.select("event", pl.col(columns).cast(pl.String))
    return operands(trace, events, concrete=concrete).select("event", *columns)


@remembered
def operands_of_all_work(trace: Trace, _scope: Scope | None = None) -> pl.DataFrame:
    """event, dims, types, concrete and has_formula; texts repeat, and are held once each.

    `concrete` is null without a formula: few need it, and it is the slowest to find.
    """
    launched = recorded_work(trace).filter(pl.col("kind") == "compute")["op"].drop_nulls()
    with_formula = pl.Series(events_named(trace, pl.col("name").is_in(list(FORMULAS))))
    events = pl.concat([launched.cast(pl.Int64), with_formula]).unique().sort()
    texts = pl.DataFrame([events.alias("event"), argument_texts(trace, events)]).with_columns(
        has_formula=pl.col("event").is_in(with_formula.implode())
    )
    dims, types, values, _ = operand_columns(pl.col("args"), concrete=True)
    concrete = texts.filter("has_formula").select("event", values)
    found = compact_operands(texts.select("event", "has_formula", dims, types)).join(
        concrete, on="event", how="left", maintain_order="left"
    )
    return found.with_columns(pl.col("dims", "types", "concrete").cast(pl.Categorical))
