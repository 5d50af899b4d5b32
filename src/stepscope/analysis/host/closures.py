"""Closures: the forward and backward pass that a script has run within an optimizer's step.

`optimizer.step(closure)` is how LBFGS works, and how Lightning trains with any optimizer. The
event `Optimizer.step#…` then holds nearly the whole step, of which the update is a small part.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Int64Array, Intervals

STEP = "Optimizer.step#"
"""How the names of torch's events of optimizer steps begin."""


def without_closures(optimizer: pl.DataFrame, backward: pl.DataFrame) -> Intervals:
    """The moments inside events of the optimizer, but for a closure's passes in its steps.

    Args:
        optimizer: start_ns, end_ns and is_step (whether it is torch's event of a step).
        backward: start_ns and end_ns of events of backward passes.
    """
    steps, others = optimizer.filter("is_step"), optimizer.filter(~pl.col("is_step"))
    within = closures_within(*_bounds(steps), *_bounds(backward))
    own = intervals.difference(intervals.merge(*_bounds(steps)), within)
    return intervals.union(own, intervals.merge(*_bounds(others)))


def _bounds(events: pl.DataFrame) -> tuple[Int64Array, Int64Array]:
    return events["start_ns"].to_numpy(), events["end_ns"].to_numpy()


def closures_within(
    starts: Int64Array, ends: Int64Array, backward_starts: Int64Array, backward_ends: Int64Array
) -> Intervals:
    """The moments of closures: of each step from its beginning to the end of its last backward.

    A step within a backward pass, as by hooks of parameters, has no closure: none begins in it.

    Args:
        starts: When optimizer steps begin.
        backward_starts: When events of backward passes begin, in any order.
    """
    if not len(starts) or not len(backward_starts):
        return intervals.empty()
    order = np.argsort(backward_starts, kind="stable")
    begun, ended = backward_starts[order], backward_ends[order]
    first = np.searchsorted(begun, starts, side="right")
    last = np.searchsorted(begun, ends, side="left")
    has_backward = last > first
    first, last = first[has_backward], last[has_backward]
    if not len(first):
        return intervals.empty()
    # Events nest, so the one that ends last need not be the one that begins last.
    bounds = np.stack([first, np.minimum(last, len(ended) - 1)], axis=1).ravel()
    latest = np.maximum.reduceat(ended, bounds)[::2]
    latest = np.maximum(latest, ended[last - 1])
    return intervals.merge(starts[has_backward], np.minimum(latest, ends[has_backward]))
