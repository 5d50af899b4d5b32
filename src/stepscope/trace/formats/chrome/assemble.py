"""Turns the events of a file into the tables of `schema.py`, one stretch at a time.

Shared by both readers of the list of events. Everything that depends on file order is done here:
numbering names and lanes (`names_and_lanes.py`), pairing beginnings and ends (`pairing.py`), and
numbering events.
"""

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
from stepscope.trace.formats.chrome.rows import (
    BEGIN_ROLE,
    COUNTER_ROLE,
    END_ROLE,
    EVENT_ROLE,
    FLOW_ROLE,
    HAS_BYTES,
    HAS_CORRELATION,
    HAS_DURATION,
    HAS_EXTERNAL,
    HAS_FLOW,
    HAS_NAME,
    HAS_TIME,
    INSTANT_ROLE,
    INT64_MAX,
    INT64_MIN,
    METADATA_ROLE,
    ROLE_OF_PHASE,
    UNKNOWN_ROLE,
    Ids,
    LanePair,
    Rows,
)
from stepscope.trace.problems import Problems
from stepscope.trace.schema import ARGS, COUNTERS, FLOWS, INSTANTS, METADATA, NAMES
from stepscope.trace.tables import Frames

_NO_TEXT = pl.Series("args", [None], dtype=pl.String)
_PHASE_LETTERS = pl.Series("phase", [chr(code) for code in range(128)] + ["?"] * 128)


class Assembler:
    """Collects the tables of one file from consecutive stretches of it.

    Attributes:
        metadata: Key and JSON text of everything outside the list of events, in file order.
    """

    def __init__(self) -> None:
        self.problems = Problems()
        self.metadata: list[tuple[str, str]] = []
        self._known = NamesAndLanes()
        self._pairing = Pairing(self.problems)
        self._events = 0
        self._latest_ns = INT64_MIN
        self._names = pl.DataFrame(schema=NAMES)

    def close(self) -> Frames:
        """Ends the file, and returns the rest. Open events end at the latest time seen."""
        self._names = self._known.names_table()
        closed, texts = self._pairing.close(max(self._latest_ns, self._pairing.latest_ns))
        self._known.mark_gpu_lanes(closed)
        return self._numbered(closed, texts)

    def small_tables(self) -> Frames:
        """Returns the tables that do not grow with the file, complete after `close`."""
        return {
            "names": self._names,
            "lanes": self._known.lanes_table(),
            "metadata": pl.DataFrame(self.metadata, schema=METADATA, orient="row"),
            "problems": self.problems.frame(),
        }

    def add(self, rows: Rows) -> Frames:
        """Adds consecutive events."""
        self.problems.merge(rows.problems)
        role = ROLE_OF_PHASE[rows.phase]
        named = HAS_NAME[role]
        is_end = role == END_ROLE
        # Ends need a lane too, to find their beginning.
        ids = Ids(self._known.name_ids(rows, named), self._known.lane_ids(rows, named | is_end))
        has_time = (rows.flags & HAS_TIME) != 0
        self._count(rows, "no_phase", rows.phase == 0)
        self._count(rows, "phase_not_kept", (role == UNKNOWN_ROLE) & (rows.phase != 0))
        self._count(rows, "no_time", (named | is_end) & ~has_time)
        for index in np.flatnonzero(role == METADATA_ROLE):
            name, _ = rows.names.pairs[int(rows.name[index])]
            lane = rows.lanes.pairs[int(rows.lane[index])]
            self._add_metadata(name, lane, rows.args[int(index)])
        return {
            **self._numbered(*self._events_of(rows, role, has_time, ids)),
            "instants": _moments_of(rows, (role == INSTANT_ROLE) & has_time, ids, INSTANTS),
            "counters": _moments_of(rows, (role == COUNTER_ROLE) & has_time, ids, COUNTERS),
            "flows": _flows_of(rows, (role == FLOW_ROLE) & has_time, ids),
        }

    def _count(self, rows: Rows, kind: str, wrong: npt.NDArray[np.bool_]) -> None:
        """Counts a problem of rows, with the offset of the first."""
        count = int(np.count_nonzero(wrong))
        if count:
            self.problems.add(kind, int(rows.offset[np.argmax(wrong)]), count)

    def _events_of(
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
            self._known.mark_gpu_lanes(frame)
            return frame, args
        begun = self._frame(rows, paired[role[paired] == BEGIN_ROLE], ids, dur_ns)
        closed, closed_args, closed_at = self._pairing.take(rows, paired, ids.lane, begun)
        order = np.argsort(np.concatenate([at, closed_at]), kind="stable")
        frame = pl.concat([frame, closed])
        self._known.mark_gpu_lanes(frame)
        return frame[order], pl.concat([args, closed_args]).gather(order)

    def _frame(
        self, rows: Rows, rows_meant: npt.NDArray[np.intp], ids: Ids, dur_ns: npt.NDArray[np.int64]
    ) -> pl.DataFrame:
        """Returns the columns of `events`, except their numbers."""
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

    def _numbered(self, frame: pl.DataFrame, args: pl.Series) -> Frames:
        if len(frame):
            ends = frame["start_ns"].to_numpy() + frame["dur_ns"].to_numpy()
            self._latest_ns = max(self._latest_ns, int(ends.max()))
        number = pl.Series(
            "event", np.arange(self._events, self._events + len(frame), dtype=np.int64)
        )
        self._events += len(frame)
        args_of = pl.DataFrame({"event": number, "args": args}, schema=ARGS)
        return {"events": frame.insert_column(0, number), "args": args_of}

    def _add_metadata(self, name: str, lane: LanePair, text: str | None) -> None:
        """Takes names of processes and threads. Adds the rest to `metadata`, except sort orders."""
        if name.endswith("_sort_index") or self._known.take_description(name, lane, text):
            return
        pid, tid = lane
        entry = (f"{name} (pid {pid}, tid {tid})", text or "null")
        if entry not in self.metadata:
            self.metadata.append(entry)


def _moments_of(
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


def _flows_of(rows: Rows, wanted: npt.NDArray[np.bool_], ids: Ids) -> pl.DataFrame:
    """Returns the wanted rows as `flows`."""
    at = np.flatnonzero(wanted)
    if not len(at):
        return pl.DataFrame(schema=FLOWS)
    return pl.DataFrame(
        [
            nullable(rows.flow_id[at], (rows.flags[at] & HAS_FLOW) != 0, "flow_id"),
            pl.Series("name_id", ids.name[at]),
            pl.Series("lane_id", ids.lane[at]),
            pl.Series("time_ns", rows.time_ns[at]),
            _PHASE_LETTERS[rows.phase[at]],
            _texts_of(rows, at),
        ]
    )


def _texts_of(rows: Rows, at: npt.NDArray[np.intp]) -> pl.Series:
    """Copies the arguments of some rows out of the block of the file.

    Few rows of a block are instants, counters or flows. Without a copy, they would keep the whole
    block in memory until there are enough of them for a part of the store.
    """
    texts = rows.args[at]
    if texts.null_count() == len(texts):
        return _NO_TEXT.new_from_index(0, len(texts))
    return texts + ""  # joined text is new text
