"""Turns the events of a file, stretch by stretch, into the tables of `schema.py`.

Everything that gives an event its meaning happens here, once for both readers: phases become
tables, pairs of beginnings and ends become durations, names and lanes get their numbers in the
order of their first appearance.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.buffers import Buffers
from stepscope.trace.categories import GPU_CATEGORIES, GPU_WORK, category_of
from stepscope.trace.classify import classify_names
from stepscope.trace.formats.chrome.rows import (
    BEGIN_ROLE,
    COUNTER_ROLE,
    END_ROLE,
    EVENT_ROLE,
    FLOW_ROLE,
    HAS_BYTES,
    HAS_CORRELATION,
    HAS_DEVICE,
    HAS_DURATION,
    HAS_EXTERNAL,
    HAS_FLOW,
    HAS_STREAM,
    HAS_TIME,
    INSTANT_ROLE,
    INT64_MAX,
    METADATA_ROLE,
    UNKNOWN_ROLE,
    LanePair,
    NamePair,
    Rows,
    Vocabulary,
)
from stepscope.trace.problems import Problems
from stepscope.trace.schema import (
    ARGS,
    CATEGORY,
    COUNTERS,
    FLOWS,
    INSTANTS,
    LANES,
    METADATA,
    NAMES,
    Category,
)
from stepscope.trace.tables import Chunk, SmallTables

if TYPE_CHECKING:  # they import numba
    from stepscope.trace.formats.chrome.plain_events import Filling, Meaning, PlainEvents
    from stepscope.trace.formats.chrome.scanned import Scanned

_CATEGORIES = list(Category)
_CATEGORY_VALUES = pl.Series("category", [category.value for category in _CATEGORIES], CATEGORY)
_CODES = {category: code for code, category in enumerate(_CATEGORIES)}

_ROLES = np.zeros(256, np.uint8)
for _role, _phases in (
    (EVENT_ROLE, "X"),
    (INSTANT_ROLE, "iIRn"),
    (COUNTER_ROLE, "C"),
    (FLOW_ROLE, "stf"),
    (METADATA_ROLE, "M"),
    (BEGIN_ROLE, "BbS"),
    (END_ROLE, "EeF"),
):
    for _phase in _phases:
        _ROLES[ord(_phase)] = _role
_NAMED = np.isin(np.arange(8), (EVENT_ROLE, INSTANT_ROLE, COUNTER_ROLE, FLOW_ROLE, BEGIN_ROLE))
_IS_ASYNCHRONOUS = np.isin(np.arange(256), list(map(ord, "bSeF")))

_PHASE_WORDS = pl.Series("phase", [chr(code) for code in range(128)] + ["?"] * 128)

_NO_TEXT = pl.Series("args", [None], pl.String)
_MOST_UNDER_WAY = 3  # each keeps its block in memory

_NO_MOMENTS = pl.DataFrame(schema=INSTANTS)

_is_gpu_category = np.array([category in GPU_CATEGORIES for category in _CATEGORIES])
_is_gpu_work = np.array([category in GPU_WORK for category in _CATEGORIES])


@dataclass(frozen=True)
class _Ids:
    """Numbers of names and lanes, row for row."""

    name: npt.NDArray[np.uint32]
    lane: npt.NDArray[np.uint32]


@dataclass(frozen=True)
class _Open:
    """A beginning that waits for its end."""

    name: int
    time_ns: int
    values: tuple[int, ...]
    args: str | None


def _lane_number(text: str | None) -> int | None:
    """The device or stream number in a pid or tid: `7`, or `stream 7` as of 2021."""
    if text is None:
        return None
    digits = text.removeprefix("stream ").strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None


class Assembler:
    """Collects the tables of one file from consecutive `Rows`.

    What has to happen in the order of the file happens here and is little; the columns of blocks
    as the scanner reads them are written by other threads.

    Args:
        pool: Threads for that.
        stays: Whether the tables stay in memory. Then they are not made in memory that is used
            again, and they keep no block of the file there for the arguments that stand in it.
    """

    def __init__(self, pool: Executor, *, stays: bool = False) -> None:
        self._pool = pool
        self._under_way: deque[Future[tuple[Chunk, PlainEvents]]] = deque()
        self._buffers = None if stays else Buffers()
        self.problems = Problems()
        self.metadata: list[tuple[str, str]] = []
        self._names: dict[NamePair, int] = {}
        self._lanes: dict[LanePair, int] = {}
        self._name_category: list[int] = []
        self._lane_device: list[int] = []  # -1: none in the pid
        self._lane_stream: list[int] = []
        self._gpu_lanes: dict[int, tuple[int | None, int | None]] = {}
        self._open: dict[int, list[_Open]] = {}
        self._process_names: dict[str | None, str] = {}
        self._thread_names: dict[LanePair, str] = {}
        self._events = 0
        self._latest_ns = 0

    # -- names and lanes -------------------------------------------------------------------

    def _name_ids(self, rows: Rows, named: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
        for index in _first_appearances(rows.name[named], rows.names.found_in(self._names)):
            pair = rows.names.pairs[index]
            if pair not in self._names:  # one name may be spelt in two ways
                self._names[pair] = len(self._names)
                self._name_category.append(_CODES[category_of(pair[1])])
        return _numbers(rows.names.found_in(self._names), rows.name)

    def _lane_ids(self, rows: Rows, named: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
        lanes, of_row = _with_asynchronous_lanes(rows)
        for index in _first_appearances(of_row[named], lanes.found_in(self._lanes)):
            pair = lanes.pairs[index]
            if pair not in self._lanes:
                self._lanes[pair] = len(self._lanes)
                device, stream = map(_lane_number, pair)
                self._lane_device.append(-1 if device is None or device >= 2**31 else device)
                self._lane_stream.append(-1 if stream is None else stream)
        return _numbers(lanes.found_in(self._lanes), of_row)

    # -- stretches -------------------------------------------------------------------------

    def add(self, rows: Rows | Scanned) -> list[Chunk]:
        """Appends consecutive events.

        Returns:
            What these and earlier ones add to the tables, in the order of the file. Of some of them
            later calls will tell.
        """
        if not isinstance(rows, Rows):
            if self._start(rows):
                return self._finished(_MOST_UNDER_WAY)
            rows = rows.rows()
        return [*self._finished(0), self._added(rows)]

    def _added(self, rows: Rows) -> Chunk:
        self.problems.merge(rows.problems)
        role = _ROLES[rows.phase]
        named = _NAMED[role]
        name_id = self._name_ids(rows, named)
        # An end must find the lane of its beginning, or none at all.
        lane_id = self._lane_ids(rows, named | (role == END_ROLE))
        has_time = (rows.flags & HAS_TIME) != 0
        self._count(rows, "no_phase", rows.phase == 0)
        self._count(rows, "phase_not_kept", (role == UNKNOWN_ROLE) & (rows.phase != 0))
        needs_time = named | (role == END_ROLE)
        self._count(rows, "no_time", needs_time & ~has_time)

        for index in np.flatnonzero(role == METADATA_ROLE):
            name, _ = rows.names.pairs[int(rows.name[index])]
            lane = rows.lanes.pairs[int(rows.lane[index])]
            self._add_metadata(name, lane, rows.args[int(index)])
        return Chunk(
            *self._event_tables(rows, role, has_time, _Ids(name_id, lane_id)),
            self._moments(rows, (role == INSTANT_ROLE) & has_time, name_id, lane_id, INSTANTS),
            self._moments(rows, (role == COUNTER_ROLE) & has_time, name_id, lane_id, COUNTERS),
            self._flows(rows, (role == FLOW_ROLE) & has_time, name_id, lane_id),
        )

    def _count(self, rows: Rows, kind: str, wrong: npt.NDArray[np.bool_]) -> None:
        count = int(np.count_nonzero(wrong))
        if count:
            self.problems.add(kind, int(rows.place[np.argmax(wrong)]), count)

    def _event_tables(
        self,
        rows: Rows,
        role: npt.NDArray[np.uint8],
        has_time: npt.NDArray[np.bool_],
        ids: _Ids,
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        name_id, lane_id = ids.name, ids.lane
        codes = np.array(self._name_category, np.uint8)
        code = codes[name_id] if len(codes) else np.zeros(len(rows), np.uint8)
        complete = (role == EVENT_ROLE) & has_time
        dur = rows.dur_ns.copy()
        dur[(rows.flags & HAS_DURATION) == 0] = 0
        never_ran = complete & _is_gpu_work[code] & (rows.time_ns == 0) & (dur == 0)
        self._count(rows, "zero_time", never_ran)
        complete &= ~never_ran
        self._count(rows, "no_duration", complete & ((rows.flags & HAS_DURATION) == 0))
        self._count(rows, "negative_duration", complete & (dur < 0))
        dur[dur < 0] = 0
        too_long = complete & (rows.time_ns > 0) & (dur > INT64_MAX - rows.time_ns)
        self._count(rows, "overflowed_duration", too_long)
        dur[too_long] = 0

        at = np.flatnonzero(complete)
        frame = self._frame(rows, at, code, ids, dur)
        args = rows.args.gather(at) if len(at) < len(rows) else rows.args
        paired = np.flatnonzero(((role == BEGIN_ROLE) | (role == END_ROLE)) & has_time)
        if len(paired):
            closed, closed_args, places = self._pair(rows, paired, name_id, lane_id)
            order = np.argsort(np.concatenate([at, places]), kind="stable")
            frame = pl.concat([frame, closed])[order]
            args = pl.concat([args, closed_args]).gather(order)
        if len(frame):
            ends = frame["start_ns"].to_numpy() + frame["dur_ns"].to_numpy()
            self._latest_ns = max(self._latest_ns, int(ends.max()))
        return self._numbered(frame, args)

    # -- blocks as the scanner reads them --------------------------------------------------

    def _start(self, scanned: Scanned) -> bool:
        """Has the columns of a block written; False, and nothing done, where some is unusual."""
        from stepscope.trace.formats.chrome.plain_events import Filling, survey_of

        meaning = self._meaning(scanned)
        survey = survey_of(scanned, meaning)
        if survey is not None and survey.has_new_words:
            rows = scanned.rows()
            named = _NAMED[_ROLES[rows.phase]]
            self._name_ids(rows, named)
            self._lane_ids(rows, named)
            meaning = self._meaning(scanned)
            survey = survey_of(scanned, meaning)
        if survey is None:
            return False
        filling = Filling(scanned, meaning, survey, self._events, self._buffers)
        self._events += survey.events
        self._under_way.append(self._pool.submit(_filled, filling))
        if survey.metadata:
            for row in np.flatnonzero(
                _ROLES[scanned.phases[: len(scanned)]] == METADATA_ROLE
            ).tolist():
                name, _ = scanned.names.pairs[int(scanned.name[row])]
                lane = scanned.lanes.pairs[int(scanned.lane[row])]
                self._add_metadata(name, lane, scanned.text(row))
        return True

    def _finished(self, most: int) -> list[Chunk]:
        """Takes the oldest of the blocks under way until at most so many are left."""
        chunks = []
        while len(self._under_way) > most:
            chunk, found = self._under_way.popleft().result()
            self._latest_ns = max(self._latest_ns, found.latest_ns)
            for lane, place in found.gpu_lanes.items():
                self._note_gpu_lane(lane, *place)
            chunks.append(chunk)
        return chunks

    def _meaning(self, scanned: Scanned) -> Meaning:
        from stepscope.trace.formats.chrome.plain_events import Meaning

        name_id, lane_id = scanned.names.found_in(self._names), scanned.lanes.found_in(self._lanes)
        return Meaning(
            role=_ROLES,
            is_gpu=_is_gpu_category.astype(np.int64),
            is_work=_is_gpu_work.astype(np.int64),
            name_id=name_id,
            code=np.array(self._name_category or [0], np.int64)[name_id.clip(0)],
            lane_id=lane_id,
            device=np.array(self._lane_device or [-1], np.int64)[lane_id.clip(0)],
            stream=np.array(self._lane_stream or [-1], np.int64)[lane_id.clip(0)],
        )

    # -- complete events -------------------------------------------------------------------

    def _numbered(self, frame: pl.DataFrame, args: pl.Series) -> tuple[pl.DataFrame, pl.DataFrame]:
        number = pl.Series(
            "event", np.arange(self._events, self._events + len(frame), dtype=np.int64)
        )
        self._events += len(frame)
        events = frame.insert_column(0, number)
        return events, pl.DataFrame({"event": number, "args": args}, schema=ARGS)

    def _frame(
        self,
        rows: Rows,
        at: npt.NDArray[np.intp],
        code: npt.NDArray[np.uint8],
        ids: _Ids,
        dur: npt.NDArray[np.int64],
    ) -> pl.DataFrame:
        """The complete events of some rows as `events` without their numbers."""
        name_id, lane_id = ids.name, ids.lane
        if len(at) < len(rows):
            code, name_id, lane_id, dur = code[at], name_id[at], lane_id[at], dur[at]
            flags, time_ns = rows.flags[at], rows.time_ns[at]
            correlation, external = rows.correlation[at], rows.external_id[at]
            device, stream, size = rows.device[at], rows.stream[at], rows.bytes[at]
        else:
            flags, time_ns = rows.flags, rows.time_ns
            correlation, external = rows.correlation, rows.external_id
            device, stream, size = rows.device, rows.stream, rows.bytes
        gpu = _is_gpu_category[code]
        lane_device = np.array(self._lane_device or [-1], np.int64)[lane_id]
        lane_stream = np.array(self._lane_stream or [-1], np.int64)[lane_id]
        device = np.where((flags & HAS_DEVICE) != 0, device, lane_device)
        stream = np.where((flags & HAS_STREAM) != 0, stream, lane_stream)
        has_device = gpu & (device >= 0) & (device < 2**31)
        has_stream = gpu & (stream >= 0)
        has_size = _is_gpu_work[code] & ((flags & HAS_BYTES) != 0) & (size >= 0)
        device = np.where(has_device, device, -1)
        stream = np.where(has_stream, stream, -1)
        self._note_gpu_lanes(lane_id, np.flatnonzero(gpu), device, stream)
        return pl.DataFrame(
            [
                numbers_of(name_id, None, "name_id"),
                _categories(code),
                numbers_of(lane_id, None, "lane_id"),
                numbers_of(time_ns, None, "start_ns"),
                numbers_of(dur, None, "dur_ns"),
                numbers_of(correlation, (flags & HAS_CORRELATION) != 0, "correlation"),
                numbers_of(external, (flags & HAS_EXTERNAL) != 0, "external_id"),
                numbers_of(device.astype(np.int32), has_device, "device"),
                numbers_of(stream, has_stream, "stream"),
                numbers_of(size, has_size, "bytes"),
            ]
        )

    def _note_gpu_lanes(
        self,
        lane_id: npt.NDArray[np.uint32],
        at: npt.NDArray[np.intp],
        device: npt.NDArray[np.int64],
        stream: npt.NDArray[np.int64],
    ) -> None:
        """Notes lanes of GPUs, with the device and stream (-1: none) of their first event."""
        lanes, first = np.unique(lane_id[at], return_index=True)
        for lane, index in zip(lanes.tolist(), at[first].tolist(), strict=True):
            self._note_gpu_lane(lane, int(device[index]), int(stream[index]))

    def _note_gpu_lane(self, lane: int, device: int, stream: int) -> None:
        if lane not in self._gpu_lanes:
            self._gpu_lanes[lane] = (
                device if device >= 0 else None,
                stream if stream >= 0 else None,
            )

    # -- beginnings and ends ---------------------------------------------------------------

    def _pair(
        self,
        rows: Rows,
        paired: npt.NDArray[np.intp],
        name_id: npt.NDArray[np.uint32],
        lane_id: npt.NDArray[np.uint32],
    ) -> tuple[pl.DataFrame, pl.Series, npt.NDArray[np.intp]]:
        """Closes what ends in these rows; an event stands where its end stands."""
        closed: list[tuple[_Open, int, int]] = []
        args: list[str | None] = []
        places: list[int] = []
        for index, text in zip(paired.tolist(), rows.args.gather(paired), strict=True):
            lane, time_ns = int(lane_id[index]), int(rows.time_ns[index])
            self._latest_ns = max(self._latest_ns, time_ns)
            if _ROLES[rows.phase[index]] == BEGIN_ROLE:
                values = _optional_values(rows, index)
                opened = _Open(int(name_id[index]), time_ns, values, text)
                self._open.setdefault(lane, []).append(opened)
                continue
            stack = self._open.get(lane)
            if not stack:
                self.problems.add("unmatched_end", int(rows.place[index]))
                continue
            opened = stack.pop()
            dur = time_ns - opened.time_ns
            if dur < 0 or dur > INT64_MAX:
                kind = "negative_duration" if dur < 0 else "overflowed_duration"
                self.problems.add(kind, int(rows.place[index]))
                dur = 0
            closed.append((opened, lane, dur))
            args.append(_merged_args(opened.args, text))
            places.append(index)
        series = pl.Series("args", args, pl.String)
        return self._closed_frame(closed), series, np.array(places, np.intp)

    def _closed_frame(self, closed: list[tuple[_Open, int, int]]) -> pl.DataFrame:
        """Finished pairs in the columns of `_frame`."""
        values = [opened.values for opened, _, _ in closed]
        columns = np.array(values, object).reshape(len(closed), 6).T
        count = len(closed)
        rows = Rows(
            phase=np.full(count, ord("X"), np.uint8),
            flags=columns[0].astype(np.uint32),
            name=np.zeros(count, np.int32),
            lane=np.zeros(count, np.int32),
            time_ns=np.array([opened.time_ns for opened, _, _ in closed], np.int64),
            dur_ns=np.zeros(count, np.int64),
            flow_id=np.zeros(count, np.uint64),
            correlation=columns[1].astype(np.uint64),
            external_id=columns[2].astype(np.uint64),
            device=columns[3].astype(np.int64),
            stream=columns[4].astype(np.int64),
            bytes=columns[5].astype(np.int64),
            place=np.zeros(count, np.int64),
            args=pl.Series("args", [], pl.String),
            names=Vocabulary(),
            lanes=Vocabulary(),
        )
        names = np.array([opened.name for opened, _, _ in closed], np.uint32)
        lanes = np.array([lane for _, lane, _ in closed], np.uint32)
        durations = np.array([dur for _, _, dur in closed], np.int64)
        code = np.array(self._name_category or [0], np.uint8)[names]
        return self._frame(rows, np.arange(count), code, _Ids(names, lanes), durations)

    def close(self) -> list[Chunk]:
        """Ends the file: what is still open ends with the latest time seen."""
        finished = self._finished(0)
        left = [
            (opened.time_ns, lane, opened)
            for lane, stack in sorted(self._open.items())
            for opened in stack
        ]
        self._open.clear()
        self.problems.add("unclosed", None, len(left))
        closed = [
            (opened, lane, max(0, min(self._latest_ns - time_ns, INT64_MAX)))
            for time_ns, lane, opened in left
        ]
        series = pl.Series("args", [opened.args for opened, _, _ in closed], pl.String)
        frame = self._closed_frame(closed)
        chunk = Chunk(
            *self._numbered(frame, series),
            pl.DataFrame(schema=INSTANTS),
            pl.DataFrame(schema=COUNTERS),
            pl.DataFrame(schema=FLOWS),
        )
        return [*finished, chunk]

    # -- the other tables ------------------------------------------------------------------

    def _moments(
        self,
        rows: Rows,
        wanted: npt.NDArray[np.bool_],
        name_id: npt.NDArray[np.uint32],
        lane_id: npt.NDArray[np.uint32],
        schema: dict[str, Any],
    ) -> pl.DataFrame:
        at = np.flatnonzero(wanted)
        if not len(at):
            return pl.DataFrame(schema=schema)
        return pl.DataFrame(
            {
                "name_id": name_id[at],
                "lane_id": lane_id[at],
                "time_ns": rows.time_ns[at],
                "args": _texts_of(rows, at),
            },
            schema=schema,
        )

    def _flows(
        self,
        rows: Rows,
        wanted: npt.NDArray[np.bool_],
        name_id: npt.NDArray[np.uint32],
        lane_id: npt.NDArray[np.uint32],
    ) -> pl.DataFrame:
        at = np.flatnonzero(wanted)
        if not len(at):
            return pl.DataFrame(schema=FLOWS)
        present = (rows.flags[at] & HAS_FLOW) != 0
        return pl.DataFrame(
            [
                numbers_of(rows.flow_id[at], None if present.all() else present, "flow_id"),
                pl.Series("name_id", name_id[at]),
                pl.Series("lane_id", lane_id[at]),
                pl.Series("time_ns", rows.time_ns[at]),
                _PHASE_WORDS.gather(rows.phase[at]),
                _texts_of(rows, at),
            ]
        )

    def _add_metadata(self, name: str, lane: LanePair, text: str | None) -> None:
        """Names of processes and threads; anything else goes to `metadata`, sort orders aside."""
        pid, tid = lane
        if name.endswith("_sort_index"):
            return
        if name in ("process_name", "thread_name"):
            value = _object(text).get("name")
            if isinstance(value, str):
                if name == "process_name":
                    self._process_names[pid] = value
                else:
                    self._thread_names[pid, tid] = value
                return
        entry = (f"{name} (pid {pid}, tid {tid})", text or "null")
        if entry not in self.metadata:
            self.metadata.append(entry)

    def names_table(self) -> pl.DataFrame:
        """`names`, without what the classifier adds."""
        names = list(self._names)
        return pl.DataFrame(
            {
                "name_id": np.arange(len(names), dtype=np.uint32),
                "name": pl.Series([name for name, _ in names], dtype=pl.String),
                "raw_category": pl.Series([category for _, category in names], dtype=pl.String),
                "category": _categories(np.array(self._name_category, np.uint8)),
            }
        )

    def lanes_table(self) -> pl.DataFrame:
        """`lanes`."""
        pairs: Sequence[LanePair] = list(self._lanes)
        nothing = (None, None)
        gpu = [self._gpu_lanes.get(lane, nothing) for lane in range(len(pairs))]
        return pl.DataFrame(
            {
                "lane_id": np.arange(len(pairs), dtype=np.uint32),
                "pid": [pid for pid, _ in pairs],
                "tid": [tid for _, tid in pairs],
                "is_gpu": [lane in self._gpu_lanes for lane in range(len(pairs))],
                "device": [device for device, _ in gpu],
                "stream": [stream for _, stream in gpu],
                "process_name": [self._process_names.get(pid) for pid, _ in pairs],
                "thread_name": [self._thread_names.get(pair) for pair in pairs],
            },
            schema=LANES,
        )

    def small_tables(self) -> SmallTables:
        """The tables that do not grow with the file, complete once `close` has been called."""
        return SmallTables(
            names=classified(self.names_table()),
            lanes=self.lanes_table(),
            metadata=pl.DataFrame(self.metadata, schema=METADATA, orient="row"),
            problems=self.problems.frame(),
        )


def _filled(filling: Filling) -> tuple[Chunk, PlainEvents]:
    """Writes the columns of a block; called in any thread."""
    found = filling.run()
    scanned, meaning = filling.scanned, filling.meaning
    args = pl.DataFrame([found.events[0], found.args])
    events = pl.DataFrame(found.events).insert_column(2, _categories(found.code))
    phases, nothing = _PHASE_WORDS.gather(found.flow_phases), _NO_TEXT.new_from_index
    flows = pl.DataFrame([*found.flows, phases, nothing(0, len(found.flow_phases))])
    instants = counters = _NO_MOMENTS
    if len(found.moments):
        moments = pl.DataFrame(
            {
                "name_id": meaning.name_id[scanned.name[found.moments]],
                "lane_id": meaning.lane_id[scanned.lane[found.moments]],
                "time_ns": scanned.times[found.moments],
                "args": found.moment_args,
            },
            schema=INSTANTS,
        )
        is_instant = pl.Series(_ROLES[scanned.phases[found.moments]] == INSTANT_ROLE)
        instants, counters = moments.filter(is_instant), moments.filter(~is_instant)
    return Chunk(events, args, instants, counters, flows), found


def classified(names: pl.DataFrame) -> pl.DataFrame:
    """`names` complete: with `kind` and `group` from the classifier."""
    return classify_names(names).select(list(NAMES)).cast(NAMES)  # type: ignore[arg-type]


def numbers_of(
    values: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None, name: str
) -> pl.Series:
    """A column of numbers, null where they are not present (None: all of them are)."""
    column = pl.Series(name, values)
    if present is None:
        return column
    return pl.select(
        pl.when(pl.lit(pl.Series(present))).then(pl.lit(column)).alias(name)
    ).to_series()


def _categories(code: npt.NDArray[np.uint8]) -> pl.Series:
    return _CATEGORY_VALUES.gather(code)


def _texts_of(rows: Rows, at: npt.NDArray[np.intp]) -> pl.Series:
    """The arguments of some rows, without the block of the file that they stand in.

    Few rows of a block are moments or flows: they must not keep all of it in memory until there
    are enough of them for a part of the store.
    """
    return pl.Series("args", rows.args.gather(at).to_list(), pl.String)


def _numbers(known: npt.NDArray[np.int64], words: npt.NDArray[np.int32]) -> npt.NDArray[np.uint32]:
    """The number of each row's word; 0 for words without one, which stand in no table."""
    return known.clip(0).astype(np.uint32)[words]


def _first_appearances(ids: npt.NDArray[np.int32], known: npt.NDArray[np.int64]) -> Sequence[int]:
    """Those of the `ids` that `known` marks as new (-1), in the order of their appearance."""
    if not len(known) or known.min() >= 0:
        return []
    new = ids[known[ids] < 0]
    distinct, first = np.unique(new, return_index=True)
    return [int(index) for index in distinct[np.argsort(first)]]


def _with_asynchronous_lanes(
    rows: Rows,
) -> tuple[Vocabulary[LanePair], npt.NDArray[np.int32]]:
    """Lanes of rows, where asynchronous events stand on lanes of their own, one per identifier."""
    at = np.flatnonzero(_IS_ASYNCHRONOUS[rows.phase])
    if not len(at):
        return rows.lanes, rows.lane
    lanes = Vocabulary(rows.lanes.pairs)
    added: dict[LanePair, int] = {}
    of_row = rows.lane.copy()
    for index in at.tolist():
        pid, tid = rows.lanes.pairs[int(rows.lane[index])]
        category = rows.names.pairs[int(rows.name[index])][1]
        number = int(rows.flow_id[index]) if rows.flags[index] & HAS_FLOW else f"tid {tid}"
        key = (pid, f"async {category or ''}:{number}")
        if key not in added:
            added[key] = len(lanes)
            lanes.pairs.append(key)
        of_row[index] = added[key]
    return lanes, of_row


def _optional_values(rows: Rows, index: int) -> tuple[int, ...]:
    return (
        int(rows.flags[index]) | HAS_DURATION,
        int(rows.correlation[index]),
        int(rows.external_id[index]),
        int(rows.device[index]),
        int(rows.stream[index]),
        int(rows.bytes[index]),
    )


def _object(text: str | None) -> dict[str, Any]:
    value = json.loads(text) if text else {}
    return value if isinstance(value, dict) else {}


def _merged_args(begin: str | None, end: str | None) -> str | None:
    """Arguments of a pair: those of both sides, the end's where they differ."""
    if end is None or begin is None:
        return begin if end is None else end
    return json.dumps(_object(begin) | _object(end), ensure_ascii=False)
