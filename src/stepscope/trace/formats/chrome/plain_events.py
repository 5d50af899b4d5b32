"""Tables of a block of events, made in one pass by compiled code.

What `assemble.py` does with vectors, step by step, for rows of every kind. Here it is done for
blocks as the scanner reads them in which everything is as it should be: nearly all blocks of nearly
all files. Where anything in a block is unusual, the block is left to the vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.addresses import (
    Data,
    Longs,
    byte_at,
    int_at,
    long_at,
    put_byte,
    put_int,
    put_long,
)
from stepscope.trace.arrays.arrow_columns import numbers_of, strings_of
from stepscope.trace.arrays.buffers import Buffers
from stepscope.trace.arrays.compiled import compiled, part
from stepscope.trace.formats.chrome.rows import (
    COUNTER_ROLE,
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
)
from stepscope.trace.formats.chrome.scan_bytes import (
    PADDING,
    copy_bytes,
)
from stepscope.trace.formats.chrome.scanned import (
    BYTES,
    COLUMNS,
    CORRELATION,
    DATA,
    DEVICE,
    DURATION,
    EXTERNAL,
    FLAGS,
    FLOW,
    INLINE_BYTES,
    LANE,
    NAME,
    PHASES,
    ROOM,
    ROWS,
    STREAM,
    TIME,
    VIEWS,
    Scanned,
)

_LARGEST_DEVICE = 2**31 - 1
_LENGTH = 0xFFFFFFFF  # the part of a view's first word that is its length

# What `_survey` counts.
_EVENTS, _EVENT_BYTES, _MOMENTS, _MOMENT_BYTES, _FLOWS, _METADATA, _NEW = range(7)

# Where `_fill` finds what the numbers stand for; all arrays are of int64, roles are of bytes.
_ROLE_OF, _IS_GPU, _IS_WORK, _NAME_ID, _CODE, _LANE_ID, _LANE_DEVICE, _LANE_STREAM = range(8)

# Where `_fill` puts things: arrays of the type that their columns have.
(
    _EVENT_ROOM, _EVENT_LONGS, _EVENT_INTS, _EVENT_CODES, _EVENT_VIEWS, _EVENT_BITS, _BITS_EACH,
    _EVENT_TEXT, _FIRST_OF_LANE, _FLOW_ROOM, _FLOW_LONGS, _FLOW_INTS, _FLOW_PHASES, _FLOW_BITS,
    _MOMENT_ROWS, _MOMENT_VIEWS, _MOMENT_BITS, _MOMENT_TEXT, _FIRST_EVENT,
) = range(19)  # fmt: skip

# Columns of events of 64 bits, of 32 bits, and those of bits that say which rows are no null.
_NUMBER, _START, _DUR, _CORRELATION_IDS, _EXTERNAL_IDS, _STREAMS, _SIZES = range(7)
_NAME_IDS, _LANE_IDS, _DEVICES = range(3)
_HAS_ARGS, _HAS_CORRELATION, _HAS_EXTERNAL, _HAS_DEVICE, _HAS_STREAM, _HAS_SIZE = range(6)


@dataclass(frozen=True)
class Meaning:
    """What the numbers in a block stand for.

    Attributes:
        role: Of each phase, its role (`rows.*_ROLE`).
        is_gpu: For each code of a category: does it run on a GPU's lane?
        is_work: For each code of a category: does a GPU do it?
        name_id: Of each name of the block, its number in the tables; -1: it has none yet.
        code: Of each name of the block, the code of its category.
        lane_id: Of each lane of the block, its number in the tables; -1: it has none yet.
        device: Of each lane of the block, the device that its pid names; -1: none.
        stream: Of each lane of the block, the stream that its tid names; -1: none.
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
        """The addresses of all of it, for compiled code."""
        return _addresses(
            self.role, self.is_gpu, self.is_work, self.name_id, self.code, self.lane_id,
            self.device, self.stream,
        )  # fmt: skip


@dataclass(frozen=True)
class Survey:
    """How much of what is in a block.

    Attributes:
        counts: Rows of each kind, and bytes of their arguments that do not fit their views.
    """

    counts: npt.NDArray[np.int64]

    @property
    def events(self) -> int:
        """How many complete events there are."""
        return int(self.counts[_EVENTS])

    @property
    def metadata(self) -> int:
        """How many rows of metadata there are."""
        return int(self.counts[_METADATA])

    @property
    def has_new_words(self) -> bool:
        """Whether a name or a lane has no number yet."""
        return bool(self.counts[_NEW])


@dataclass(frozen=True)
class PlainEvents:
    """What a block adds to the tables.

    Attributes:
        events: The columns of `events` but the category.
        code: The code of each event's category.
        args: Their arguments.
        flows: The columns of `flows` but phase and arguments, of which they have none.
        flow_phases: Their phases, as characters.
        moments: Rows of instants and counters, in order.
        moment_args: Their arguments.
        latest_ns: When the last event ends.
        gpu_lanes: Each lane of a GPU, with device and stream (-1: none) of its first event.
    """

    events: list[pl.Series]
    code: npt.NDArray[np.uint8]
    args: pl.Series
    flows: list[pl.Series]
    flow_phases: npt.NDArray[np.uint8]
    moments: npt.NDArray[np.int64]
    moment_args: pl.Series
    latest_ns: int
    gpu_lanes: dict[int, tuple[int, int]]


@compiled
def _survey(block: Longs, meaning: Longs, counts: Longs) -> bool:
    """Counts what is in a block; false where some of it is unusual."""
    phases, flags, views = long_at(block, PHASES), long_at(block, FLAGS), long_at(block, VIEWS)
    name, lane = long_at(block, NAME), long_at(block, LANE)
    times = long_at(block, COLUMNS) + 8 * TIME * long_at(block, ROOM)
    durations = long_at(block, COLUMNS) + 8 * DURATION * long_at(block, ROOM)
    role_of, is_work = long_at(meaning, _ROLE_OF), long_at(meaning, _IS_WORK)
    name_id, lane_id = long_at(meaning, _NAME_ID), long_at(meaning, _LANE_ID)
    code = long_at(meaning, _CODE)
    events = event_bytes = moments = moment_bytes = flows = metadata = new = 0
    for row in range(long_at(block, ROWS)):
        role, has = byte_at(role_of, byte_at(phases, row)), byte_at(flags, row)
        if role == METADATA_ROLE:
            metadata += 1
            continue
        if (has & HAS_TIME) == 0:
            return False
        length = long_at(views, 2 * row) & _LENGTH
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
    put_long(counts, _EVENTS, events)
    put_long(counts, _EVENT_BYTES, event_bytes)
    put_long(counts, _MOMENTS, moments)
    put_long(counts, _MOMENT_BYTES, moment_bytes)
    put_long(counts, _FLOWS, flows)
    put_long(counts, _METADATA, metadata)
    put_long(counts, _NEW, new)
    return True


@part
def _set_bit(bits: Data, at: int) -> None:
    """Says that a row is no null."""
    put_byte(bits, at >> 3, byte_at(bits, at >> 3) | (1 << (at & 7)))


@part
def _put_view(
    views: Longs, at: int, source: Longs, row: int, data: Data, text: Data, used: int
) -> int:
    """Copies a view, and its text where `text` is not 0; returns how much of `text` is used."""
    first, second = long_at(source, 2 * row), long_at(source, 2 * row + 1)
    length = first & _LENGTH
    if text != 0 and length > INLINE_BYTES:
        copy_bytes(text + used, data + (second >> 32), length)
        second = used << 32
        used += length
    put_long(views, 2 * at, first)
    put_long(views, 2 * at + 1, second)
    return used


@compiled
def _fill(block: Longs, meaning: Longs, target: Longs) -> int:
    """Writes the columns of a block that `_survey` found nothing unusual in.

    Where `_EVENT_TEXT` is 0, the arguments of events stay where they are.

    Returns:
        When the last event ends.
    """
    phases, flags, views = long_at(block, PHASES), long_at(block, FLAGS), long_at(block, VIEWS)
    name, lane, data = long_at(block, NAME), long_at(block, LANE), long_at(block, DATA)
    columns, room = long_at(block, COLUMNS), long_at(block, ROOM)
    role_of, is_work = long_at(meaning, _ROLE_OF), long_at(meaning, _IS_WORK)
    is_gpu, codes = long_at(meaning, _IS_GPU), long_at(meaning, _CODE)
    name_ids, lane_ids = long_at(meaning, _NAME_ID), long_at(meaning, _LANE_ID)
    event_longs, event_room = long_at(target, _EVENT_LONGS), long_at(target, _EVENT_ROOM)
    event_ints, event_codes = long_at(target, _EVENT_INTS), long_at(target, _EVENT_CODES)
    event_views, event_text = long_at(target, _EVENT_VIEWS), long_at(target, _EVENT_TEXT)
    event_bits, bits_each = long_at(target, _EVENT_BITS), long_at(target, _BITS_EACH)
    first_of_lane, first_event = long_at(target, _FIRST_OF_LANE), long_at(target, _FIRST_EVENT)
    flow_longs, flow_ints = long_at(target, _FLOW_LONGS), long_at(target, _FLOW_INTS)
    flow_room = long_at(target, _FLOW_ROOM)
    latest = -INT64_MAX
    at = used = flow = moment = moment_used = 0
    for row in range(long_at(block, ROWS)):
        phase, has = byte_at(phases, row), byte_at(flags, row)
        role = byte_at(role_of, phase)
        if role == METADATA_ROLE:
            continue
        name_number, lane_number = int_at(name, row), int_at(lane, row)
        if role == FLOW_ROLE:
            put_long(flow_longs, flow, long_at(columns, FLOW * room + row))
            put_long(flow_longs, flow_room + flow, long_at(columns, TIME * room + row))
            put_int(flow_ints, flow, long_at(name_ids, name_number))
            put_int(flow_ints, flow_room + flow, long_at(lane_ids, lane_number))
            put_byte(long_at(target, _FLOW_PHASES), flow, phase)
            if has & HAS_FLOW:
                _set_bit(long_at(target, _FLOW_BITS), flow)
            flow += 1
            continue
        has_args = (long_at(views, 2 * row) & _LENGTH) != 0
        if role != EVENT_ROLE:
            put_long(long_at(target, _MOMENT_ROWS), moment, row)
            moment_used = _put_view(
                long_at(target, _MOMENT_VIEWS), moment, views, row, data,
                long_at(target, _MOMENT_TEXT), moment_used,
            )  # fmt: skip
            if has_args:
                _set_bit(long_at(target, _MOMENT_BITS), moment)
            moment += 1
            continue
        code = long_at(codes, name_number)
        put_int(event_ints, _NAME_IDS * event_room + at, long_at(name_ids, name_number))
        put_int(event_ints, _LANE_IDS * event_room + at, long_at(lane_ids, lane_number))
        put_byte(event_codes, at, code)
        start = long_at(columns, TIME * room + row)
        dur = long_at(columns, DURATION * room + row)
        latest = max(latest, start + dur)
        put_long(event_longs, _NUMBER * event_room + at, first_event + at)
        put_long(event_longs, _START * event_room + at, start)
        put_long(event_longs, _DUR * event_room + at, dur)
        value = long_at(columns, CORRELATION * room + row)
        put_long(event_longs, _CORRELATION_IDS * event_room + at, value)
        if has & HAS_CORRELATION:
            _set_bit(event_bits + _HAS_CORRELATION * bits_each, at)
        value = long_at(columns, EXTERNAL * room + row)
        put_long(event_longs, _EXTERNAL_IDS * event_room + at, value)
        if has & HAS_EXTERNAL:
            _set_bit(event_bits + _HAS_EXTERNAL * bits_each, at)
        device = stream = -1
        if long_at(is_gpu, code):
            device = long_at(long_at(meaning, _LANE_DEVICE), lane_number)
            if has & HAS_DEVICE:
                device = long_at(columns, DEVICE * room + row)
            stream = long_at(long_at(meaning, _LANE_STREAM), lane_number)
            if has & HAS_STREAM:
                stream = long_at(columns, STREAM * room + row)
            if 0 <= device <= _LARGEST_DEVICE:
                _set_bit(event_bits + _HAS_DEVICE * bits_each, at)
            else:
                device = -1
            if stream >= 0:
                _set_bit(event_bits + _HAS_STREAM * bits_each, at)
            else:
                stream = -1
            if long_at(first_of_lane, lane_number) < 0:
                put_long(first_of_lane, lane_number, at)
        put_int(event_ints, _DEVICES * event_room + at, device)
        put_long(event_longs, _STREAMS * event_room + at, stream)
        size = long_at(columns, BYTES * room + row)
        put_long(event_longs, _SIZES * event_room + at, size)
        if (has & HAS_BYTES) and size >= 0 and long_at(is_work, code):
            _set_bit(event_bits + _HAS_SIZE * bits_each, at)
        used = _put_view(event_views, at, views, row, data, event_text, used)
        if has_args:
            _set_bit(event_bits + _HAS_ARGS * bits_each, at)
        at += 1
    return latest


def _addresses(*arrays: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    return np.array([array.ctypes.data for array in arrays], np.int64)


def survey_of(scanned: Scanned, meaning: Meaning) -> Survey | None:
    """Counts what is in a block; None where some of it is unusual."""
    counts = np.zeros(7, np.int64)
    table = meaning.table()
    if not _survey(scanned.block.ctypes.data, table.ctypes.data, counts.ctypes.data):
        return None
    return Survey(counts)


class Filling:
    """Writing what a block adds to the tables.

    Made where the order of blocks is known; `run` may be called in any thread.

    Args:
        scanned: The block.
        meaning: What its numbers stand for, all of them.
        survey: What is in it.
        first_event: The number of its first event.
        buffers: Where to take arrays from, for tables that are soon let go of. None: they stay, and
            the arguments are copied, so that the text they stand in need not stay too.
    """

    def __init__(
        self,
        scanned: Scanned,
        meaning: Meaning,
        survey: Survey,
        first_event: int,
        buffers: Buffers | None,
    ) -> None:
        self.scanned = scanned
        self.meaning = meaning
        self._counts = survey.counts.tolist()
        self._first_event = first_event
        self._copies_text = buffers is None
        take = np.empty if buffers is None else buffers.take
        events, flows = self._counts[_EVENTS], self._counts[_FLOWS]
        # Memory that shall fit again comes in powers of two.
        room = events if buffers is None else 1 << events.bit_length()
        flow_room = flows if buffers is None else 1 << flows.bit_length()
        self._longs, self._ints = take((7, room), np.int64), take((3, room), np.int32)
        self._codes, self._views = take((room,), np.uint8), take((room, 2), np.int64)
        self._flow_longs = take((2, flow_room), np.int64)
        self._flow_ints = take((2, flow_room), np.int32)

    def run(self) -> PlainEvents:
        """Does it."""
        scanned, meaning, counts = self.scanned, self.meaning, self._counts
        count, moments, flows = counts[_EVENTS], counts[_MOMENTS], counts[_FLOWS]
        longs, ints, codes, views = self._longs, self._ints, self._codes, self._views
        flow_longs, flow_ints = self._flow_longs, self._flow_ints
        text = scanned.data
        if self._copies_text:
            text = np.empty(counts[_EVENT_BYTES] + PADDING, np.uint8)
        flow_phases = np.empty(flows, np.uint8)
        bits, flow_bits = np.zeros((6, (count + 7) // 8), np.uint8), np.zeros(flows, np.uint8)
        moment_rows, moment_views = np.empty(moments, np.int64), np.empty((moments, 2), np.int64)
        moment_bits = np.zeros((moments + 7) // 8, np.uint8)
        moment_text = np.empty(counts[_MOMENT_BYTES] + PADDING, np.uint8)
        first_of_lane = np.full(len(meaning.lane_id), -1, np.int64)
        target = np.empty(19, np.int64)
        target[_EVENT_ROOM], target[_FLOW_ROOM] = codes.size, flow_ints.shape[1]
        target[_BITS_EACH], target[_FIRST_EVENT] = bits.shape[1], self._first_event
        target[_EVENT_TEXT] = text.ctypes.data if self._copies_text else 0
        for field, array in (
            (_EVENT_LONGS, longs), (_EVENT_INTS, ints), (_EVENT_CODES, codes),
            (_EVENT_VIEWS, views), (_EVENT_BITS, bits), (_FIRST_OF_LANE, first_of_lane),
            (_FLOW_LONGS, flow_longs), (_FLOW_INTS, flow_ints), (_FLOW_PHASES, flow_phases),
            (_FLOW_BITS, flow_bits), (_MOMENT_ROWS, moment_rows), (_MOMENT_VIEWS, moment_views),
            (_MOMENT_BITS, moment_bits), (_MOMENT_TEXT, moment_text),
        ):  # fmt: skip
            target[field] = array.ctypes.data
        table = meaning.table()
        latest_ns = _fill(scanned.block.ctypes.data, table.ctypes.data, target.ctypes.data)
        gpu_lanes = {
            int(meaning.lane_id[lane]): (int(ints[_DEVICES, at]), int(longs[_STREAMS, at]))
            for lane, at in enumerate(first_of_lane.tolist())
            if at >= 0
        }
        longs, ints = longs[:, :count], ints[:, :count]
        unsigned, identifiers = ints.view(np.uint32), longs.view(np.uint64)
        return PlainEvents(
            events=[
                numbers_of("event", longs[_NUMBER]),
                numbers_of("name_id", unsigned[_NAME_IDS]),
                numbers_of("lane_id", unsigned[_LANE_IDS]),
                numbers_of("start_ns", longs[_START]),
                numbers_of("dur_ns", longs[_DUR]),
                numbers_of("correlation", identifiers[_CORRELATION_IDS], bits[_HAS_CORRELATION]),
                numbers_of("external_id", identifiers[_EXTERNAL_IDS], bits[_HAS_EXTERNAL]),
                numbers_of("device", ints[_DEVICES], bits[_HAS_DEVICE]),
                numbers_of("stream", longs[_STREAMS], bits[_HAS_STREAM]),
                numbers_of("bytes", longs[_SIZES], bits[_HAS_SIZE]),
            ],
            code=codes[:count],
            args=strings_of("args", text, views[:count].view(np.uint32), bits[_HAS_ARGS]),
            flows=[
                numbers_of("flow_id", flow_longs[0, :flows].view(np.uint64), flow_bits),
                numbers_of("name_id", flow_ints[0, :flows].view(np.uint32)),
                numbers_of("lane_id", flow_ints[1, :flows].view(np.uint32)),
                numbers_of("time_ns", flow_longs[1, :flows]),
            ],
            flow_phases=flow_phases,
            moments=moment_rows,
            moment_args=strings_of("args", moment_text, moment_views.view(np.uint32), moment_bits),
            latest_ns=latest_ns,
            gpu_lanes=gpu_lanes,
        )
