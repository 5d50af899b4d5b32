"""Determines whether a scanned block is plain, and counts what is in it.

This needs nothing of earlier blocks, and so is done in the thread that scans the block.

A block is plain if nothing in it needs special treatment, which is true for nearly all blocks of
nearly all files. `plain/fill.py` creates its columns in one pass.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.trace.formats.chrome.phases import (
    EVENT_ROLE,
    FLOW_ROLE,
    INSTANT_ROLE,
    METADATA_ROLE,
    ROLE_OF_PHASE,
)
from stepscope.trace.formats.chrome.plain.layout import (
    LANES,
    LENGTH,
    NAMES,
    ROLES,
    SURVEY_FIELDS,
    TEXT_BYTES,
)
from stepscope.trace.formats.chrome.rows import HAS_DURATION, HAS_TIME, INT64_MAX
from stepscope.trace.formats.chrome.scanner.scanned import (
    COLUMNS,
    DURATION,
    FLAGS,
    INLINE_BYTES,
    LANE,
    NAME,
    PHASES,
    ROOM,
    ROWS,
    TIME,
    VIEWS,
    Survey,
)
from stepscope.trace.machine.helpers import jit_inline
from stepscope.trace.machine.instructions import (
    Data,
    Ints,
    Longs,
    byte_at,
    int_at,
    long_at,
    put_byte,
    put_int,
    put_long,
)
from stepscope.trace.machine.jit import jit


@jit_inline
def _note(seen: Data, distinct: Ints, count: int, number: int) -> int:
    """Adds a number to the distinct ones if it is new, and returns how many there are."""
    if byte_at(seen, number) == 0:
        put_byte(seen, number, 1)
        put_int(distinct, count, number)
        return count + 1
    return count


@jit
def _survey(
    block: Longs, role_of: Data, seen_names: Data, names: Ints, seen_lanes: Data, lanes: Ints,
    counts: Longs,
) -> bool:  # fmt: skip
    """Counts what is in a block; false if the block is not plain."""
    phases, flags, views = long_at(block, PHASES), long_at(block, FLAGS), long_at(block, VIEWS)
    name, lane = long_at(block, NAME), long_at(block, LANE)
    times = long_at(block, COLUMNS) + 8 * TIME * long_at(block, ROOM)
    durations = long_at(block, COLUMNS) + 8 * DURATION * long_at(block, ROOM)
    distinct_names = distinct_lanes = 0
    for row in range(long_at(block, ROWS)):
        role, has = byte_at(role_of, byte_at(phases, row)), byte_at(flags, row)
        put_long(counts, role, long_at(counts, role) + 1)
        if role == METADATA_ROLE:
            continue
        if (has & HAS_TIME) == 0:
            return False
        if role == EVENT_ROLE:
            start, dur = long_at(times, row), long_at(durations, row)
            if (has & HAS_DURATION) == 0 or dur < 0 or (start > 0 and dur > INT64_MAX - start):
                return False
            if start == 0 and dur == 0:
                return False  # might be GPU work that did not run
        elif not (INSTANT_ROLE <= role <= FLOW_ROLE):
            return False
        length = long_at(views, 2 * row) & LENGTH
        if length > INLINE_BYTES:
            put_long(counts, TEXT_BYTES + role, long_at(counts, TEXT_BYTES + role) + length)
        distinct_names = _note(seen_names, names, distinct_names, int_at(name, row))
        distinct_lanes = _note(seen_lanes, lanes, distinct_lanes, int_at(lane, row))
    put_long(counts, NAMES, distinct_names)
    put_long(counts, LANES, distinct_lanes)
    return True


def survey_of(block: npt.NDArray[np.int64], names: int, lanes: int) -> Survey | None:
    """Returns the survey of a block; None if the block is not plain.

    Args:
        block: Description of the block (`scanned`).
        names: Number of names that its rows can refer to.
        lanes: Number of lanes.
    """
    counts = np.zeros(SURVEY_FIELDS, np.int64)
    seen_names, seen_lanes = np.zeros(names, np.uint8), np.zeros(lanes, np.uint8)
    used_names, used_lanes = np.empty(names, np.int32), np.empty(lanes, np.int32)
    addressed = (block, ROLE_OF_PHASE, seen_names, used_names, seen_lanes, used_lanes, counts)
    if not _survey(*(array.ctypes.data for array in addressed)):
        return None
    found = counts.tolist()
    return Survey(
        rows=found[:ROLES],
        text_bytes=found[TEXT_BYTES : TEXT_BYTES + ROLES],
        names=used_names[: found[NAMES]],
        lanes=used_lanes[: found[LANES]],
    )
