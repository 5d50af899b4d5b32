"""The event and the operator around each event of a trace, which many questions look up."""

from __future__ import annotations

import polars as pl

from stepscope.analysis.selection.memoize import memoized
from stepscope.trace.derive.nesting import RowNumbers
from stepscope.trace.model import Trace


@memoized
def parents_of_events(trace: Trace) -> RowNumbers:
    """For each event the number of its parent, in 32 bits where that is enough; -1 for a root."""
    return trace.parents


@memoized
def operators_of_events(trace: Trace) -> pl.Series:
    """For each event the number of its operator (`derived.op`), null without."""
    return trace.derived_numbers("op")
