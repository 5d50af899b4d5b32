"""Sorts very many events by lane and start, with few copies of columns.

`by_group_and_time` does the same with a new column for each step of the work. Getting the memory
for them takes several times longer than sorting, since recorders write events nearly in order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.jit import jit

_WIDEST = 2**62
_MOST_MOVES_PER_ROW = 4


def order_with_few_copies(
    rows: npt.NDArray[np.int32],
    lanes: npt.NDArray[np.uint32],
    starts: Int64Array,
    durations: Int64Array,
    rank: npt.NDArray[np.int8],
) -> tuple[npt.NDArray[np.int32], BoolArray] | None:
    """Returns rows by lane and start, and for each whether it is the first of its lane.

    Of one lane and start the longest come first, of these the lowest rank, then the given order.

    Args:
        rows: The rows to sort, at least one.
        rank: Order of rows with the same span.

    Returns:
        None if lane and time do not fit one number, or if very many rows start together.
    """
    earliest = int(starts.min())
    span = int(starts.max()) - earliest + 1
    if (int(lanes.max()) + 1) * span >= _WIDEST:
        return None
    keys = np.empty(len(rows), np.int64)
    jit(keys_by_loop)(rows, lanes, starts, earliest, span, keys)
    order = np.argsort(keys, kind="stable")
    found, is_first = np.empty(len(rows), np.int32), np.empty(len(rows), np.bool_)
    most_moves = _MOST_MOVES_PER_ROW * len(rows)
    columns = (rows, lanes, durations, rank, keys)
    if not jit(settle_by_loop)(*columns, most_moves, order, found, is_first):
        return None
    return found, is_first


def keys_by_loop(
    rows: npt.NDArray[np.int32],
    lanes: npt.NDArray[np.uint32],
    starts: Int64Array,
    earliest: int,
    span: int,
    keys: Written[np.int64],
) -> None:
    """Fills in a number for each row that grows with lane and start.

    `rows` holds rows of the table, and `keys` is as long.
    """
    for place in range(len(rows)):
        row = rows[place]
        keys[place] = int(lanes[row]) * span + (starts[row] - earliest)


def settle_by_loop(
    rows: npt.NDArray[np.int32],
    lanes: npt.NDArray[np.uint32],
    durations: Int64Array,
    rank: npt.NDArray[np.int8],
    keys: Int64Array,
    most_moves: int,
    order: Written[np.int64],
    found: Written[np.int32],
    is_first: Written[np.bool_],
) -> bool:
    """Puts rows with equal keys in order by insertion, and fills in the rows in this order.

    `order` holds each place in `rows` once; `keys`, `found` and `is_first` are as long. False once
    it has moved more rows than it may.
    """
    moves = 0
    for at in range(len(order)):
        mine = order[at]
        row = rows[mine]
        place = at
        while place > 0 and keys[order[place - 1]] == keys[mine]:
            before = rows[order[place - 1]]
            if durations[before] > durations[row]:
                break
            if durations[before] == durations[row] and rank[before] <= rank[row]:
                break
            order[place] = order[place - 1]
            place -= 1
            moves += 1
        order[place] = mine
        if moves > most_moves:
            return False
    for at in range(len(order)):
        found[at] = rows[order[at]]
        is_first[at] = at == 0 or lanes[found[at]] != lanes[found[at - 1]]
    return True
