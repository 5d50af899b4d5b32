"""Closures: the forward and backward pass that a script has run within an optimizer's step.

`optimizer.step(closure)` is how LBFGS works, and how Lightning trains with any optimizer. The
event `Optimizer.step#…` then holds nearly the whole step, of which the update is a small part.
"""

from __future__ import annotations

import numpy as np

from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Int64Array, Intervals

STEP = "Optimizer.step#"
"""How the names of torch's events of optimizer steps begin."""


def closures_within(
    starts: Int64Array, ends: Int64Array, backward_starts: Int64Array, backward_ends: Int64Array
) -> Intervals:
    """The moments of closures: of each step from its beginning to the end of its last backward.

    A step within a backward pass, as by hooks of parameters, has no closure: none begins in it.

    Args:
        starts: When optimizer steps begin.
        ends: When they end.
        backward_starts: When events of backward passes begin, in any order.
        backward_ends: When they end.
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
