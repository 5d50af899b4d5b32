"""Turns rows of any kind into the tables of `schema.py`, with vectorised code."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.nullable import nullable
from stepscope.trace.formats.chrome.names_and_lanes import (
    IS_GPU_CATEGORY,
    IS_GPU_WORK,
    NamesAndLanes,
    categories_of,
)
from stepscope.trace.formats.chrome.pairing import Pairing
from stepscope.trace.formats.chrome.phases import BEGIN_ROLE, END_ROLE, EVENT_ROLE
from stepscope.trace.formats.chrome.rows import (
    HAS_BYTES,
    HAS_CORRELATION,
    HAS_DURATION,
    HAS_EXTERNAL,
    HAS_FLOW,
    INT64_MAX,
    Ids,
    Rows,
)
from stepscope.trace.problems import Problems
from stepscope.trace.schema import FLOWS

_PHASE_WORDS = pl.Series("phase", [chr(code) for code in range(128)] + ["?"] * 128)


def count_rows(rows: Rows, problems: Problems, kind: str, wrong: npt.NDArray[np.bool_]) -> None:
    """Counts a problem of rows, with the offset of the first."""
    count = int(np.count_nonzero(wrong))
    if count:
        problems.add(kind, int(rows.offset[np.argmax(wrong)]), count)


class EventColumns:
    """Creates the columns of `events`, except event numbers."""

    def __init__(self, known: NamesAndLanes, pairing: Pairing, problems: Problems) -> None:
        self._known = known
        self._pairing = pairing
        self._problems = problems

    def of_rows(
        self,
        rows: Rows,
        role: npt.NDArray[np.uint8],
        has_time: npt.NDArray[np.bool_],
        ids: Ids,
    ) -> tuple[pl.DataFrame, pl.Series]:
        """Returns the events that are complete or end in these rows, and their arguments.

        Args:
            has_time: Whether each row has a time. Rows without one are skipped.
        """
        code = self._known.codes_of(ids.name)
        complete = (role == EVENT_ROLE) & has_time
        dur_ns = rows.dur_ns.copy()
        dur_ns[(rows.flags & HAS_DURATION) == 0] = 0
        never_ran = complete & IS_GPU_WORK[code] & (rows.time_ns == 0) & (dur_ns == 0)
        self._count(rows, "zero_time", never_ran)
        complete &= ~never_ran
        self._count(rows, "no_duration", complete & ((rows.flags & HAS_DURATION) == 0))
        self._count(rows, "negative_duration", complete & (dur_ns < 0))
        dur_ns[dur_ns < 0] = 0
        too_long = complete & (rows.time_ns > 0) & (dur_ns > INT64_MAX - rows.time_ns)
        self._count(rows, "overflowed_duration", too_long)
        dur_ns[too_long] = 0

        at = np.flatnonzero(complete)
        frame = self._frame(rows, at, ids, dur_ns)
        args = rows.args[at] if len(at) < len(rows) else rows.args
        paired = np.flatnonzero(((role == BEGIN_ROLE) | (role == END_ROLE)) & has_time)
        if not len(paired):
            return frame, args
        closed = self._pairing.take(rows, paired, ids)
        order = np.argsort(np.concatenate([at, closed.at]), kind="stable")
        frame = pl.concat([frame, self._all_of(closed.rows, closed.ids)])[order]
        return frame, pl.concat([args, closed.rows.args]).gather(order)

    def of_unclosed(self, end_ns: int) -> tuple[pl.DataFrame, pl.Series]:
        """Returns the events without an end, closed at the end of the file, and their arguments."""
        closed = self._pairing.close(end_ns)
        return self._all_of(closed.rows, closed.ids), closed.rows.args

    def _count(self, rows: Rows, kind: str, wrong: npt.NDArray[np.bool_]) -> None:
        count_rows(rows, self._problems, kind, wrong)

    def _all_of(self, rows: Rows, ids: Ids) -> pl.DataFrame:
        return self._frame(rows, np.arange(len(rows)), ids, rows.dur_ns)

    def _frame(
        self, rows: Rows, rows_meant: npt.NDArray[np.intp], ids: Ids, dur_ns: npt.NDArray[np.int64]
    ) -> pl.DataFrame:
        at: npt.NDArray[np.intp] | slice = rows_meant
        if len(rows_meant) == len(rows):
            at = slice(None)  # all rows, without a copy
        name_id, lane_id, flags, size = ids.name[at], ids.lane[at], rows.flags[at], rows.bytes[at]
        code = self._known.codes_of(name_id)
        device, stream = self._known.devices_and_streams(rows, at, lane_id, IS_GPU_CATEGORY[code])
        has_size = IS_GPU_WORK[code] & ((flags & HAS_BYTES) != 0) & (size >= 0)
        has_correlation, has_external = (flags & HAS_CORRELATION) != 0, (flags & HAS_EXTERNAL) != 0
        return pl.DataFrame(
            [
                nullable(name_id, None, "name_id"),
                categories_of(code),
                nullable(lane_id, None, "lane_id"),
                nullable(rows.time_ns[at], None, "start_ns"),
                nullable(dur_ns[at], None, "dur_ns"),
                nullable(rows.correlation[at], has_correlation, "correlation"),
                nullable(rows.external_id[at], has_external, "external_id"),
                nullable(device.astype(np.int32), device >= 0, "device"),
                nullable(stream, stream >= 0, "stream"),
                nullable(size, has_size, "bytes"),
            ]
        )


def moments_of(
    rows: Rows, wanted: npt.NDArray[np.bool_], ids: Ids, schema: dict[str, Any]
) -> pl.DataFrame:
    """Returns rows as `instants` or `counters`."""
    at = np.flatnonzero(wanted)
    if not len(at):
        return pl.DataFrame(schema=schema)
    return pl.DataFrame(
        {
            "name_id": ids.name[at],
            "lane_id": ids.lane[at],
            "time_ns": rows.time_ns[at],
            "args": _texts_of(rows, at),
        },
        schema=schema,
    )


def flows_of(rows: Rows, wanted: npt.NDArray[np.bool_], ids: Ids) -> pl.DataFrame:
    """Returns the wanted rows as `flows`."""
    at = np.flatnonzero(wanted)
    if not len(at):
        return pl.DataFrame(schema=FLOWS)
    present = (rows.flags[at] & HAS_FLOW) != 0
    return pl.DataFrame(
        [
            nullable(rows.flow_id[at], None if present.all() else present, "flow_id"),
            pl.Series("name_id", ids.name[at]),
            pl.Series("lane_id", ids.lane[at]),
            pl.Series("time_ns", rows.time_ns[at]),
            phase_words(rows.phase[at]),
            _texts_of(rows, at),
        ]
    )


def phase_words(phases: npt.NDArray[np.uint8]) -> pl.Series:
    """Returns the phases for codes."""
    return _PHASE_WORDS[phases]


def _texts_of(rows: Rows, at: npt.NDArray[np.intp]) -> pl.Series:
    """Copies the arguments of some rows out of the block of the file.

    Few rows of a block are instants, counters or flows. Without a copy, they would keep the whole
    block in memory until there are enough of them for a part of the store.
    """
    return rows.args[at] + ""  # joined text is new text
