"""Turns the events of a file into the tables of `schema.py`, one stretch at a time.

Shared by both readers of the list of events. Everything that depends on file order is done here:
numbering names and lanes (`names_and_lanes.py`), pairing beginnings and ends (`pairing.py`), and
numbering events. Columns are created in `row_tables.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.trace.formats.chrome.names_and_lanes import NamesAndLanes
from stepscope.trace.formats.chrome.pairing import Pairing
from stepscope.trace.formats.chrome.phases import (
    COUNTER_ROLE,
    END_ROLE,
    FLOW_ROLE,
    HAS_NAME,
    INSTANT_ROLE,
    METADATA_ROLE,
    ROLE_OF_PHASE,
    UNKNOWN_ROLE,
)
from stepscope.trace.formats.chrome.row_tables import (
    EventColumns,
    count_rows,
    flows_of,
    moments_of,
)
from stepscope.trace.formats.chrome.rows import HAS_TIME, INT64_MIN, Ids, LanePair, Rows
from stepscope.trace.problems import Problems
from stepscope.trace.schema import ARGS, COUNTERS, FLOWS, INSTANTS, METADATA, NAMES
from stepscope.trace.tables import Chunk, SmallTables

if TYPE_CHECKING:  # it imports llvmlite
    from stepscope.trace.formats.chrome.scanner.scanned import Scanned


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
        self._columns = EventColumns(self._known, self._pairing, self.problems)
        self._events = 0
        self._latest_ns = INT64_MIN
        self._names = pl.DataFrame(schema=NAMES)

    def close(self) -> Chunk:
        """Ends the file, and returns the rest. Open events end at the latest time seen."""
        self._names = self._known.names_table()
        end_ns = max(self._latest_ns, self._pairing.latest_ns)
        events, args = self._numbered(*self._columns.of_unclosed(end_ns))
        empty = (pl.DataFrame(schema=schema) for schema in (INSTANTS, COUNTERS, FLOWS))
        return Chunk(events, args, *empty)

    def small_tables(self) -> SmallTables:
        """Returns the tables that do not grow with the file, complete after `close`."""
        return SmallTables(
            names=self._names,
            lanes=self._known.lanes_table(),
            metadata=pl.DataFrame(self.metadata, schema=METADATA, orient="row"),
            problems=self.problems.frame(),
        )

    def add(self, events: Rows | Scanned) -> Chunk:
        """Adds consecutive events."""
        rows = events if isinstance(events, Rows) else events.rows()
        self.problems.merge(rows.problems)
        role = ROLE_OF_PHASE[rows.phase]
        named = HAS_NAME[role]
        is_end = role == END_ROLE
        # Ends need a lane too, to find their beginning.
        ids = Ids(self._known.name_ids(rows, named), self._known.lane_ids(rows, named | is_end))
        has_time = (rows.flags & HAS_TIME) != 0
        for kind, wrong in (
            ("no_phase", rows.phase == 0),
            ("phase_not_kept", (role == UNKNOWN_ROLE) & (rows.phase != 0)),
            ("no_time", (named | is_end) & ~has_time),
        ):
            count_rows(rows, self.problems, kind, wrong)
        for index in np.flatnonzero(role == METADATA_ROLE):
            name, _ = rows.names.pairs[int(rows.name[index])]
            lane = rows.lanes.pairs[int(rows.lane[index])]
            self._add_metadata(name, lane, rows.args[int(index)])
        return Chunk(
            *self._numbered(*self._columns.of_rows(rows, role, has_time, ids)),
            moments_of(rows, (role == INSTANT_ROLE) & has_time, ids, INSTANTS),
            moments_of(rows, (role == COUNTER_ROLE) & has_time, ids, COUNTERS),
            flows_of(rows, (role == FLOW_ROLE) & has_time, ids),
        )

    def _numbered(self, frame: pl.DataFrame, args: pl.Series) -> tuple[pl.DataFrame, pl.DataFrame]:
        if len(frame):
            ends = frame["start_ns"].to_numpy() + frame["dur_ns"].to_numpy()
            self._latest_ns = max(self._latest_ns, int(ends.max()))
        number = pl.Series(
            "event", np.arange(self._events, self._events + len(frame), dtype=np.int64)
        )
        self._events += len(frame)
        events = frame.insert_column(0, number)
        return events, pl.DataFrame({"event": number, "args": args}, schema=ARGS)

    def _add_metadata(self, name: str, lane: LanePair, text: str | None) -> None:
        """Takes names of processes and threads. Adds the rest to `metadata`, except sort orders."""
        if name.endswith("_sort_index") or self._known.take_description(name, lane, text):
            return
        pid, tid = lane
        entry = (f"{name} (pid {pid}, tid {tid})", text or "null")
        if entry not in self.metadata:
            self.metadata.append(entry)
