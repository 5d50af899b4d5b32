"""Determines whether a scanned block is plain, and counts what is in it.

A block is plain if nothing in it needs special treatment, which is true for nearly all blocks of
nearly all files. `plain_fill.py` creates its columns in one pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.trace.formats.chrome.phases import (
    COUNTER_ROLE,
    EVENT_ROLE,
    FLOW_ROLE,
    INSTANT_ROLE,
    METADATA_ROLE,
)
from stepscope.trace.formats.chrome.plain_layout import (
    CODE,
    EVENT_BYTES,
    EVENTS,
    FLOWS,
    IS_WORK,
    LANE_ID,
    LENGTH,
    METADATA,
    MOMENT_BYTES,
    MOMENTS,
    NAME_ID,
    NEW_WORDS,
    ROLE_OF,
    SURVEY_FIELDS,
)
from stepscope.trace.formats.chrome.rows import HAS_DURATION, HAS_TIME, INT64_MAX
from stepscope.trace.formats.chrome.scanned import (
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
    Scanned,
)
from stepscope.trace.machine.calling import translated
from stepscope.trace.machine.instructions import Longs, byte_at, int_at, long_at, put_long


@dataclass(frozen=True)
class Meaning:
    """The meaning of the numbers in a block.

    Attributes:
        role: Role of each phase (`phases.ROLE_OF_PHASE`).
        is_gpu: For each category code, whether its events are on GPU lanes.
        is_work: For each category code, whether its events are GPU work.
        name_id: For each name of the block, its number in the tables; -1 if it has none yet.
        code: For each name of the block, the category code.
        lane_id: For each lane of the block, its number in the tables; -1 if it has none yet.
        device: For each lane of the block, the device in its pid; -1 for none.
        stream: For each lane of the block, the stream in its tid; -1 for none.
    """

    role: npt.NDArray[np.uint8]
    is_gpu: npt.NDArray[np.int64]
    is_work: npt.NDArray[np.int64]
    name_id: npt.NDArray[np.int64]
    code: npt.NDArray[np.int64]
    lane_id: npt.NDArray[np.int64]
    device: npt.NDArray[np.int64]
    stream: npt.NDArray[np.int64]

    def table(self) -> npt.NDArray[np.int64]:
        """Returns the addresses of all arrays, for compiled code."""
        return _addresses(
            self.role, self.is_gpu, self.is_work, self.name_id, self.code, self.lane_id,
            self.device, self.stream,
        )  # fmt: skip


@dataclass(frozen=True)
class Survey:
    """What is in a plain block.

    Attributes:
        events: Number of complete events.
        event_bytes: Bytes of their arguments that do not fit into string views.
        moments: Number of instants and counter samples.
        moment_bytes: Bytes of their arguments that do not fit into string views.
        flows: Number of ends of arrows.
        metadata: Number of metadata events.
        has_new_words: Whether a name or lane has no number yet.
    """

    events: int
    event_bytes: int
    moments: int
    moment_bytes: int
    flows: int
    metadata: int
    has_new_words: bool


@translated
def _survey(block: Longs, meaning: Longs, counts: Longs) -> bool:
    """Counts what is in a block; false if the block is not plain."""
    phases, flags, views = long_at(block, PHASES), long_at(block, FLAGS), long_at(block, VIEWS)
    name, lane = long_at(block, NAME), long_at(block, LANE)
    times = long_at(block, COLUMNS) + 8 * TIME * long_at(block, ROOM)
    durations = long_at(block, COLUMNS) + 8 * DURATION * long_at(block, ROOM)
    role_of, is_work = long_at(meaning, ROLE_OF), long_at(meaning, IS_WORK)
    name_id, lane_id = long_at(meaning, NAME_ID), long_at(meaning, LANE_ID)
    code = long_at(meaning, CODE)
    events = event_bytes = moments = moment_bytes = flows = metadata = new = 0
    for row in range(long_at(block, ROWS)):
        role, has = byte_at(role_of, byte_at(phases, row)), byte_at(flags, row)
        if role == METADATA_ROLE:
            metadata += 1
            continue
        if (has & HAS_TIME) == 0:
            return False
        length = long_at(views, 2 * row) & LENGTH
        if role == EVENT_ROLE:
            start, dur = long_at(times, row), long_at(durations, row)
            if (has & HAS_DURATION) == 0 or dur < 0 or (start > 0 and dur > INT64_MAX - start):
                return False
            did_not_run = start == 0 and dur == 0
            if did_not_run and long_at(is_work, long_at(code, int_at(name, row))) != 0:
                return False
            events += 1
            if length > INLINE_BYTES:
                event_bytes += length
        elif role == FLOW_ROLE:
            if length:
                return False
            flows += 1
        elif role in (INSTANT_ROLE, COUNTER_ROLE):
            moments += 1
            if length > INLINE_BYTES:
                moment_bytes += length
        else:
            return False
        if long_at(name_id, int_at(name, row)) < 0 or long_at(lane_id, int_at(lane, row)) < 0:
            new = 1
    put_long(counts, EVENTS, events)
    put_long(counts, EVENT_BYTES, event_bytes)
    put_long(counts, MOMENTS, moments)
    put_long(counts, MOMENT_BYTES, moment_bytes)
    put_long(counts, FLOWS, flows)
    put_long(counts, METADATA, metadata)
    put_long(counts, NEW_WORDS, new)
    return True


def survey_of(scanned: Scanned, meaning: Meaning) -> Survey | None:
    """Returns the survey of a block; None if the block is not plain."""
    counts = np.zeros(SURVEY_FIELDS, np.int64)
    table = meaning.table()
    if not _survey(scanned.block.ctypes.data, table.ctypes.data, counts.ctypes.data):
        return None
    found = counts.tolist()
    return Survey(
        events=found[EVENTS],
        event_bytes=found[EVENT_BYTES],
        moments=found[MOMENTS],
        moment_bytes=found[MOMENT_BYTES],
        flows=found[FLOWS],
        metadata=found[METADATA],
        has_new_words=bool(found[NEW_WORDS]),
    )


def _addresses(*arrays: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    return np.array([array.ctypes.data for array in arrays], np.int64)
