"""Pairs beginnings with ends at each address: of blocks, of segments, of mapped pages.

At one address, things follow each other: one begins, is perhaps asked to go, ends, and the next
begins. What exists when the snapshot is taken comes last. So the history of an address begins
with an end only where its beginning was before the recording; everything else that does not
alternate is a contradiction, and is noted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.helpers import as_long
from stepscope.trace.machine.jit import compiled

BEGIN, ASKED_TO_GO, END, AT_SNAPSHOT = 0, 1, 2, 3
"""What happens at an address; `AT_SNAPSHOT`: it is there when the snapshot is taken."""

NONE = -1

# Contradictions.
(
    BEGINS_TWICE, END_WITHOUT_BEGIN, GONE_AT_SNAPSHOT, THERE_AT_SNAPSHOT, OTHER_SIZE, OTHER_STATE,
) = range(6)  # fmt: skip


@dataclass(frozen=True)
class Paired:
    """One entry for each thing that was at an address for a time.

    Attributes:
        key: The row of `pair`'s input in which it first appears.
        begin: The event with which it began; `NONE`: before the recording.
        asked: The event with which it was asked to go; `NONE`: none was.
        end: The event with which it ended; `NONE`: it is there at the snapshot.
        final: Its number among what exists at the snapshot; `NONE`: it is gone.
        is_begin_known: False where `begin` is only the last event before it, as its own is missing.
        kinds: The kind of each contradiction.
        rows: The row of `pair`'s input at which it shows.
    """

    key: Int64Array
    begin: Int64Array
    asked: Int64Array
    end: Int64Array
    final: Int64Array
    is_begin_known: npt.NDArray[np.bool_]
    kinds: npt.NDArray[np.uint8]
    rows: Int64Array


def pair(
    device: npt.NDArray[np.int32],
    address: Int64Array,
    what: npt.NDArray[np.uint8],
    size: Int64Array,
    number: Int64Array,
    is_going: npt.NDArray[np.bool_],
) -> Paired:
    """Pairs beginnings and ends.

    Args:
        what: What happens: `BEGIN`, `ASKED_TO_GO`, `END`, or `AT_SNAPSHOT`.
        size: Its size, which all rows of one thing should agree on.
        number: The event's number; of what exists at the snapshot its own.
        is_going: Of what exists at the snapshot, whether it was asked to go.

    Rows of one address are in order of time, with what exists at the snapshot last.
    """
    order = np.lexsort((address, device))  # stable: in order of time
    count = len(order)
    found = [np.empty(count, np.int64) for _ in range(5)]
    known = np.empty(count, np.bool_)
    # A row can contradict in two ways at once, and an address in one more at its end.
    kinds, rows = np.empty(3 * count + 1, np.uint8), np.empty(3 * count + 1, np.int64)
    columns, counts = (device, address, what, size, number, is_going), np.zeros(2, np.int64)
    compiled(pair_by_loop)(
        order, *map(np.ascontiguousarray, columns), *found, known, kinds, rows, counts
    )
    used, contradictions = (int(each) for each in counts)
    key, begin, asked, end, final = (array[:used] for array in found)
    kinds, rows = kinds[:contradictions], rows[:contradictions]
    return Paired(key, begin, asked, end, final, known[:used], kinds, rows)


def pair_by_loop(
    order: Int64Array,
    device: npt.NDArray[np.int32],
    address: Int64Array,
    what: npt.NDArray[np.uint8],
    size: Int64Array,
    number: Int64Array,
    is_going: npt.NDArray[np.bool_],
    keys: Written[np.int64],
    begins: Written[np.int64],
    asked: Written[np.int64],
    ends: Written[np.int64],
    finals: Written[np.int64],
    known: Written[np.bool_],
    kinds: Written[np.uint8],
    rows: Written[np.int64],
    counts: Written[np.int64],
) -> None:
    """The loop of `pair`: goes through the rows in `order`, and fills the arrays after `is_going`.

    `counts` receives how many things and how many contradictions there are. No row begins more than
    one thing; how many contradictions there can be, `pair` says.
    """
    used, contradictions = as_long(0), as_long(0)
    current = as_long(NONE)  # what is at the address now
    last_end = as_long(NONE)  # the event with which the one before it ended
    for place in range(len(order)):
        row = as_long(order[place])
        if place:
            before = as_long(order[place - 1])
            if device[row] != device[before] or address[row] != address[before]:
                if current != NONE:
                    kinds[contradictions], rows[contradictions] = GONE_AT_SNAPSHOT, keys[current]
                    contradictions += 1
                current, last_end = as_long(NONE), as_long(NONE)
        kind = what[row]
        if kind == BEGIN and current != NONE:
            kinds[contradictions], rows[contradictions] = BEGINS_TWICE, row
            contradictions += 1
            ends[current] = number[row]
            current = as_long(NONE)
        if current == NONE:
            current = used
            used += 1
            keys[current] = row
            begins[current] = number[row] if kind == BEGIN else last_end
            asked[current] = ends[current] = finals[current] = NONE
            known[current] = kind == BEGIN or last_end == NONE
            if not known[current]:
                missing = THERE_AT_SNAPSHOT if kind == AT_SNAPSHOT else END_WITHOUT_BEGIN
                kinds[contradictions], rows[contradictions] = missing, row
                contradictions += 1
        elif size[row] != size[keys[current]]:
            kinds[contradictions], rows[contradictions] = OTHER_SIZE, row
            contradictions += 1
        if kind == ASKED_TO_GO:
            asked[current] = number[row]
        elif kind == END:
            ends[current] = last_end = as_long(number[row])
            current = as_long(NONE)
        elif kind == AT_SNAPSHOT:
            finals[current] = number[row]
            if keys[current] != row and is_going[row] != (asked[current] != NONE):
                kinds[contradictions], rows[contradictions] = OTHER_STATE, row
                contradictions += 1
            current = as_long(NONE)
            last_end = as_long(NONE)
    if current != NONE:
        kinds[contradictions], rows[contradictions] = GONE_AT_SNAPSHOT, keys[current]
        contradictions += 1
    counts[0], counts[1] = used, contradictions
