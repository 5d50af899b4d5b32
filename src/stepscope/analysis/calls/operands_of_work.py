"""Operands of the operators that most analyses ask about, read out of a store once for all.

To read the arguments of a few operators, a store unpacks those of all events. Matrix products,
elementwise operators, attention and FLOPs are different questions about the same operators, so
whichever is asked first reads them all.
"""

from __future__ import annotations

import polars as pl

from stepscope.analysis.calls.flop_formulas import FORMULAS
from stepscope.analysis.calls.operands import operands
from stepscope.analysis.selection.gpu_work import recorded_work
from stepscope.analysis.selection.remember import remembered
from stepscope.analysis.selection.scope import Scope
from stepscope.trace.model import Trace


def operands_of_work(trace: Trace, events: pl.Series, *, concrete: bool = False) -> pl.DataFrame:
    """The same as `operands`, but fast for operators that launched compute or have a formula."""
    if trace.store is None:  # in memory, any arguments are at hand
        return operands(trace, events, concrete=concrete)
    known = _operands(trace)
    asked = events.cast(pl.Int64).to_frame("event")
    if not asked["event"].drop_nulls().is_in(known["event"].implode()).all():
        return operands(trace, events, concrete=concrete)
    columns = ["dims", "types", *(["concrete", "strides"] if concrete else [])]
    found = asked.join(known, on="event", how="left", maintain_order="left")
    return found.select("event", pl.col(columns).cast(pl.String))


@remembered
def _operands(trace: Trace, _scope: Scope | None = None) -> pl.DataFrame:
    """event, dims, types, concrete and strides of these operators; repeated texts are held once."""
    launched = recorded_work(trace).filter(pl.col("kind") == "compute")["op"].drop_nulls()
    names = trace.names.select(pl.col("name").is_in(list(FORMULAS))).collect().to_series()
    name_id = trace.columns("name_id").to_series()
    has_formula = names.gather(name_id).fill_null(value=False).arg_true().cast(pl.Int64)
    events = pl.concat([launched.cast(pl.Int64), has_formula]).unique().sort()
    found = operands(trace, events, concrete=True)
    return found.select("event", pl.exclude("event").cast(pl.Categorical))
