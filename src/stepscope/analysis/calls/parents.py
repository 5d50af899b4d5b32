"""The event around each event of a trace, as an array: what all walks up the calls start from."""

from __future__ import annotations

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
