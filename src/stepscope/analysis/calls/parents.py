"""The event and the operator around each event of a trace, which many questions look up."""

from __future__ import annotations

import polars as pl

from stepscope.analysis.selection.remember import remembered
from stepscope.analysis.selection.scope import Scope
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.model import Trace


@remembered
def parents_of_events(trace: Trace, _scope: Scope | None = None) -> Int64Array:
    """For each event the number of its parent; -1 for a root."""
    parent = trace.derived.select("parent").collect()["parent"]
    found: Int64Array = parent.fill_null(-1).to_numpy()
    return found


@remembered
def operators_of_events(trace: Trace, _scope: Scope | None = None) -> pl.Series:
    """For each event the number of its operator (`derived.op`), null without, in 32 bits."""
    few = pl.col("op").cast(pl.Int32, strict=False)
    operators = trace.derived.select("op", few.alias("few")).collect()
    fits = operators["few"].null_count() == operators["op"].null_count()
    return operators["few" if fits else "op"].alias("op")
