"""Few events among millions, by when they begin and end, without a table of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.model import Trace

_AT_ONCE = 2**16
"""Events looked at in one go."""


class Spans(NamedTuple):
    """Some events."""

    event: Int64Array
    start: Int64Array
    end: Int64Array


def spans_where(
    trace: Trace, events: Int64Array, choose: Callable[[Int64Array, Int64Array], BoolArray]
) -> Spans:
    """Those of some events that a condition on starts and ends chooses, in the order given.

    Args:
        choose: Is given the starts and ends of one part of them after the other.
    """
    columns = trace.columns("start_ns", "dur_ns")
    starts, lengths = columns["start_ns"].to_numpy(), columns["dur_ns"].to_numpy()
    found = [Spans(events[:0], starts[:0], starts[:0])]
    for first in range(0, len(events), _AT_ONCE):
        some = events[first : first + _AT_ONCE]
        start = starts[some]
        end = start + lengths[some]
        chosen = choose(start, end)
        found.append(Spans(some[chosen], start[chosen], end[chosen]))
    return Spans(*(np.concatenate(column) for column in zip(*found, strict=True)))
