"""A block of the list of events, with the events repaired that the scanner cannot read.

A copy of the block's text is made in steps, repaired (`repair_events.py`), and scanned. Where the
scanner cannot read an event nevertheless, the tolerant reader reads the original, and the copy goes
on after it. So positions in the copy differ from those in the block.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.trace.formats.chrome.scanner.repair_events import (
    AT,
    CAPACITY,
    COPY_END,
    COPY_FULL,
    COPY_START,
    JOB_FIELDS,
    LIMIT,
    LOG,
    LOG_CAPACITY,
    LOG_FIELDS,
    LOGGED,
    NOT_JSON,
    NOT_UTF8,
    NOTHING,
    SHIFT,
    SOURCE_START,
    TARGET,
    UNKNOWN_KEYS,
    USED,
    WRONG,
    repair,
)
from stepscope.trace.formats.chrome.scanner.scan_bytes import PADDING
from stepscope.trace.problems import Problems

_LEAST_AT_ONCE, _MOST_AT_ONCE = 1 << 15, 1 << 20
_TRIED = 1 << 16  # room for trying whether an event can be repaired
_COPY_UNIT = 1 << 17  # sizes of copies are multiples of this
_BYTES_EACH = 32  # of the smallest events that are likely to need repair
_PROBLEMS = {NOT_UTF8: "invalid_utf8", NOT_JSON: "invalid_json", UNKNOWN_KEYS: "extra_keys"}


def can_repair(data: npt.NDArray[np.uint8], at: int, end: int) -> bool:
    """Whether the event at `at` is one that can be repaired, and has to be."""
    job, log = _job(data, at, end), np.empty((LOG_FIELDS, 1), np.int64)
    copy = np.empty(_TRIED, np.uint8)
    _describe(job, copy, 0, log)
    job[LIMIT] = at + 1
    repair(job.ctypes.data)
    return int(job[LOGGED]) == 1


def _job(data: npt.NDArray[np.uint8], at: int, end: int) -> npt.NDArray[np.int64]:
    job = np.zeros(JOB_FIELDS, np.int64)
    job[:3] = data.ctypes.data, at, end
    return job


def _describe(
    job: npt.NDArray[np.int64],
    copy: npt.NDArray[np.uint8],
    used: int,
    log: npt.NDArray[np.int64],
) -> None:
    job[TARGET : CAPACITY + 1] = copy.ctypes.data, used, len(copy) - PADDING
    job[LOG : LOG_CAPACITY + 1] = log.ctypes.data, job[LOGGED], log.shape[1]


class RepairedBlock:
    """The copy of a block, as far as it has been made.

    Args:
        at: Where repair begins: before an event. What is before is copied unchanged.

    Attributes:
        data: The copy, with padding.
    """

    def __init__(self, data: npt.NDArray[np.uint8], at: int, end: int) -> None:
        self._end = end
        self._job = _job(data, at, end)
        self._log = np.empty((LOG_FIELDS, (end - at) // _BYTES_EACH + 64), np.int64)
        self._at_once = _LEAST_AT_ONCE
        self.data = data
        self._copy_to(at + (end - at) * 5 // 4, at)

    def _copy_to(self, size: int, used: int) -> None:
        units = -(-(size + PADDING) // _COPY_UNIT) + 1
        data = np.empty(units * _COPY_UNIT, np.uint8)
        data[:used] = self.data[:used]
        self.data = data
        _describe(self._job, data, used, self._log)

    @property
    def end(self) -> int:
        """Length of the copy."""
        return int(self._job[USED])

    def copy_next(self) -> bool:
        """Copies more of the block. False if there is no more, or an event that cannot be copied.

        `data` may be another array then, with the same text.
        """
        at = int(self._job[AT])
        self._job[LIMIT] = at + self._at_once
        while repair(self._job.ctypes.data) == COPY_FULL:
            self._copy_to(2 * len(self.data), self.end)
        self._at_once = min(2 * self._at_once, _MOST_AT_ONCE)
        self.data[self.end : self.end + PADDING] = 0
        return int(self._job[AT]) > at

    def continue_from(self, position: int, original: int) -> None:
        """Has the copy go on with other text of the block.

        Args:
            position: A position in the copy, between events. What follows there is forgotten.
            original: The position in the block.
        """
        job = self._job
        count = int(np.searchsorted(self._log[COPY_START, : job[LOGGED]], position))
        if count == self._log.shape[1]:
            # Events were smaller than expected. Without a line for this, the rest has no place.
            self._log = np.concatenate([self._log, np.empty_like(self._log)], axis=1)
        log = self._log
        log[COPY_START, count] = log[COPY_END, count] = position
        log[SHIFT, count] = original - position
        log[WRONG, count] = NOTHING
        job[AT], job[LOGGED] = original, count + 1
        _describe(job, self.data, position, log)
        self.data[position : position + PADDING] = 0
        self._at_once = _LEAST_AT_ONCE

    def originals(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns where in the block something is. Positions are between events, or before them."""
        log, count = self._log, int(self._job[LOGGED])
        latest = np.searchsorted(log[COPY_END, :count], positions, side="right") - 1
        shifts = np.where(latest < 0, 0, log[SHIFT, np.maximum(latest, 0)]) if count else 0
        return positions + shifts

    def original(self, position: int) -> int:
        """Returns where in the block a position between events is."""
        return int(self.originals(np.array([position], np.int64))[0])

    def problems(self, position: int, offset: int) -> Problems:
        """Returns what was wrong with the events before a position in the copy.

        Args:
            offset: Of the block, in the file.
        """
        log, problems = self._log, Problems()
        count = int(np.searchsorted(log[COPY_START, : self._job[LOGGED]], position))
        for wrong, kind in _PROBLEMS.items():
            found = np.flatnonzero(log[WRONG, :count] & wrong)
            if found.size:
                problems.add(kind, offset + int(log[SOURCE_START, found[0]]), found.size)
        return problems
