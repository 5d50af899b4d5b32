"""Turns the events of a file into the tables of `schema.py`, one stretch at a time.

Shared by both readers of the list of events. Everything that depends on file order is done here:
numbering names and lanes (`names_and_lanes.py`), pairing beginnings and ends (`pairing.py`), and
numbering events. Columns are created in `row_tables.py`, or by compiled code: in `plain/events.py`
for tables in memory, in `plain/pages.py` for the store.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Executor, Future
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.trace.arrays.buffers import Buffers
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

if TYPE_CHECKING:  # they import llvmlite
    from stepscope.trace.formats.chrome.plain.target import PlainBlock, Target
    from stepscope.trace.formats.chrome.scanner.scanned import Scanned

# Blocks whose columns are made at once, and how often that may be under way. Both keep blocks in
# memory. Groups of two blocks took a tenth more processor time for the store, and no less time.
_BLOCKS_AT_ONCE = 4
_MOST_UNDER_WAY = 2


class Assembler:
    """Collects the tables of one file from consecutive stretches of it.

    Only the little work that depends on file order is done here. Other threads write the columns of
    scanned blocks.

    Args:
        stays: Whether the tables stay in memory. If not, chunks hold rows encoded for the store
            where the blocks are plain.

    Attributes:
        metadata: Key and JSON text of everything outside the list of events, in file order.
    """

    def __init__(self, pool: Executor, *, stays: bool = False) -> None:
        self.problems = Problems()
        self.metadata: list[tuple[str, str]] = []
        self._pool = pool
        self._waiting: list[PlainBlock] = []
        self._under_way: deque[tuple[Future[Chunk], Target]] = deque()
        self._buffers = None if stays else Buffers()
        self._known = NamesAndLanes()
        self._pairing = Pairing(self.problems)
        self._columns = EventColumns(self._known, self._pairing, self.problems)
        self._events = 0
        self._latest_ns = INT64_MIN
        self._names = pl.DataFrame(schema=NAMES)

    def add(self, rows: Rows | Scanned) -> list[Chunk]:
        """Adds consecutive events.

        Returns:
            Finished chunks of these and earlier events, in file order. Others follow in later
            calls.
        """
        if not isinstance(rows, Rows):
            if self._start(rows):
                return self._finished(_MOST_UNDER_WAY)
            rows = rows.rows()
        self._fill_waiting()
        return [*self._finished(0), self._added(rows)]

    def close(self) -> list[Chunk]:
        """Ends the file. Open events end at the latest time seen."""
        self._fill_waiting()
        # All names are known, and most are classified: the rest while columns are under way.
        self._names = self._known.names_table()
        finished = self._finished(0)
        end_ns = max(self._latest_ns, self._pairing.latest_ns)
        events, args = self._numbered(*self._columns.of_unclosed(end_ns))
        empty = (pl.DataFrame(schema=schema) for schema in (INSTANTS, COUNTERS, FLOWS))
        return [*finished, Chunk(events, args, *empty)]

    def small_tables(self) -> SmallTables:
        """Returns the tables that do not grow with the file, complete after `close`."""
        return SmallTables(
            names=self._names,
            lanes=self._known.lanes_table(),
            metadata=pl.DataFrame(self.metadata, schema=METADATA, orient="row"),
            problems=self.problems.frame(),
        )

    # -- rows of any kind ------------------------------------------------------------------

    def _added(self, rows: Rows) -> Chunk:
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
        """Numbers the next events, and returns their rows of `events` and `args`."""
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

    # -- scanned blocks --------------------------------------------------------------------

    def _start(self, scanned: Scanned) -> bool:
        """Starts writing the columns of a block; does nothing and returns False if not plain."""
        from stepscope.trace.formats.chrome.plain.target import PlainBlock

        survey = scanned.survey
        if survey is None:
            return False
        self.problems.merge(scanned.problems)
        self._waiting.append(PlainBlock(scanned, self._known.meaning_of(scanned, survey), survey))
        if len(self._waiting) == _BLOCKS_AT_ONCE:
            self._fill_waiting()
        if survey.rows[METADATA_ROLE]:
            roles = ROLE_OF_PHASE[scanned.phases[: len(scanned)]]
            for row in np.flatnonzero(roles == METADATA_ROLE).tolist():
                name, _ = scanned.names.pairs[int(scanned.name[row])]
                lane = scanned.lanes.pairs[int(scanned.lane[row])]
                self._add_metadata(name, lane, scanned.text(row))
        return True

    def _fill_waiting(self) -> None:
        if not self._waiting:
            return
        from stepscope.trace.formats.chrome.plain.events import frames_of
        from stepscope.trace.formats.chrome.plain.pages import (
            MOST_BLOCK_BYTES,
            pages_of,
            room_for_pages,
        )
        from stepscope.trace.formats.chrome.plain.target import Target

        blocks, self._waiting = self._waiting, []
        buffers = self._buffers
        if buffers is None or any(len(block.scanned.data) > MOST_BLOCK_BYTES for block in blocks):
            target = Target(blocks, self._events, None)
            work = partial(frames_of, target, blocks)
        else:
            target = Target(blocks, self._events, buffers)
            work = partial(pages_of, target, blocks, room_for_pages(target, buffers))
        self._events += target.events
        future = self._pool.submit(copy_context().run, work)
        self._under_way.append((future, target))
        self._known.classify_ahead(self._pool)

    def _finished(self, most: int) -> list[Chunk]:
        """Waits for the oldest columns under way until at most so many are left."""
        chunks = []
        while len(self._under_way) > most:
            future, target = self._under_way.popleft()
            chunk = future.result()
            self._latest_ns = max(self._latest_ns, target.latest_ns)
            for lane, (device, stream) in target.gpu_lanes.items():
                self._known.note_gpu_lane(lane, device, stream)
            chunks.append(chunk)
        return chunks
