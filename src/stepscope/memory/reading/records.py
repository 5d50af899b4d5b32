"""Events, segments and blocks: from dictionaries of a tree into columns.

The loops are compiled. They visit each list that the file has once, follow no reference twice, and
write into arrays whose length was checked before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.memory.arithmetic import as_long
from stepscope.memory.reading.tree import DICT, Arrays, Handle
from stepscope.memory.reading.values import MISSING, integer_at
from stepscope.memory.reading.words import NONE, NUMBERS, TRUE, UNSET, VALUES_FROM
from stepscope.memory.schema import ACTION, BLOCK_STATE, Action, BlockState
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.called import callable_from_loops

_ACTION, _ADDR, _DEVICE_FREE = NUMBERS["action"], NUMBERS["addr"], NUMBERS["device_free"]
_SIZE, _STREAM, _TIME_US = NUMBERS["size"], NUMBERS["stream"], NUMBERS["time_us"]
_FRAMES, _POOL_ID, _CATEGORY = NUMBERS["frames"], NUMBERS["pool_id"], NUMBERS["category"]
_USER_METADATA, _COMPILE_CONTEXT = NUMBERS["user_metadata"], NUMBERS["compile_context"]
_FORWARD_FRAMES = NUMBERS["forward_frames"]
_DEVICE, _ADDRESS, _TOTAL_SIZE = NUMBERS["device"], NUMBERS["address"], NUMBERS["total_size"]
_ALLOCATED_SIZE, _ACTIVE_SIZE = NUMBERS["allocated_size"], NUMBERS["active_size"]
_REQUESTED_SIZE, _REAL_SIZE = NUMBERS["requested_size"], NUMBERS["real_size"]
_SEGMENT_TYPE, _SEGMENT_POOL = NUMBERS["segment_type"], NUMBERS["segment_pool_id"]
_IS_EXPANDABLE, _BLOCKS, _STATE = NUMBERS["is_expandable"], NUMBERS["blocks"], NUMBERS["state"]
_HISTORY, _LARGE, _SMALL = NUMBERS["history"], NUMBERS["large"], NUMBERS["small"]
_EMPTY, _NOT_GIVEN = NUMBERS[""], NUMBERS["N/A"]

MOST_POOLS = 1024
_LONGEST_TIME_US = 9_000_000_000_000_000
_HIGHEST_DEVICE = 2**31 - 1

# What the loops count that they could not keep.
NOT_A_RECORD, UNKNOWN_WORDS, EXTRA_KEYS, BAD_VALUES, POOLS_LOST = range(5)
TALLIES = 5

Int32Array = npt.NDArray[np.int32]
_Ints = Written[np.int32]
_Longs = Written[np.int64]
_Codes = Written[np.uint8]

EventColumns = tuple[
    _Ints, _Codes, _Longs, _Longs, _Longs, _Longs, _Ints,
    Written[Handle], Written[Handle], Written[Handle], Written[Handle], Written[Handle],
]  # fmt: skip
"""device, action, address, size, stream, time, pool, and as values of the tree frames, metadata,
compile context, category and forward frames."""

SegmentColumns = tuple[
    _Ints, _Longs, _Longs, _Longs, _Longs, _Longs, _Longs, _Codes, _Ints, _Codes, Written[Handle],
]  # fmt: skip
"""device, address, size, allocated, active, requested, stream, is large (0, 1, or 2 for unknown),
pool, is expandable, and the frames as values of the tree."""

BlockColumns = tuple[_Ints, _Longs, _Longs, _Longs, _Codes, Written[Handle]]
"""segment, address, size, requested, state, and the frames as values of the tree."""


def no_pools() -> Int64Array:
    """The pools that are known before a file is read: how many, nothing, and pair after pair."""
    pools = np.zeros(2 * (MOST_POOLS + 1), np.int64)
    pools[0] = 1  # the default pool (0, 0) is always there
    return pools


def _codes(words: dict[str, int]) -> Any:
    codes = np.full(VALUES_FROM, 255, np.uint8)
    for word, code in words.items():
        codes[NUMBERS[word]] = code
    return codes


_ACTIONS = ACTION.categories.to_list()
_STATES = BLOCK_STATE.categories.to_list()
ACTION_CODES = _codes(
    {word: _ACTIONS.index(word) for word in _ACTIONS if word != Action.OTHER.value}
)
"""Of each word, its place in `schema.ACTION`; 255: no action."""
STATE_CODES = _codes(
    {word: _STATES.index(word) for word in _STATES}
    | {"active_awaiting_free": _STATES.index(BlockState.PENDING_FREE.value)}
)
"""Of each word, its place in `schema.BLOCK_STATE`; 255: no state."""
OTHER_ACTION = _ACTIONS.index(Action.OTHER.value)


@callable_from_loops
def length_of(container: int, firsts: Int32Array, counts: Int32Array, nexts: Int32Array) -> int:
    """How many values a container holds."""
    total = as_long(0)
    chunk = as_long(firsts[container])
    while chunk >= 0:
        total += as_long(counts[chunk])
        chunk = as_long(nexts[chunk])
    return total


@callable_from_loops
def find_value(
    container: int, word: int, firsts: Int32Array, starts: npt.NDArray[Handle],
    counts: Int32Array, nexts: Int32Array, items: npt.NDArray[Handle],
) -> int:  # fmt: skip
    """The value under a key of a dictionary, the last where there are several; `UNSET`: none."""
    found = as_long(UNSET)
    chunk = as_long(firsts[container])
    while chunk >= 0:
        start = as_long(starts[chunk])
        for place in range(start, start + as_long(counts[chunk]) - 1, 2):
            if items[place] == word:
                found = as_long(items[place + 1])
        chunk = as_long(nexts[chunk])
    return found


@callable_from_loops
def _pool_number(
    form: int, base: int, data: npt.NDArray[np.uint8], firsts: Int32Array,
    starts: npt.NDArray[Handle], counts: Int32Array, items: npt.NDArray[Handle], value: int,
    pools: Written[np.int64], tallies: Written[np.int64],
) -> int:  # fmt: skip
    """The number of the pool that a pair stands for; -1 for anything else.

    `pools` is as `no_pools` says.
    """
    container = value - base
    if container < 0 or firsts[container] < 0 or counts[firsts[container]] != 2:
        tallies[BAD_VALUES] += 1
        return as_long(-1)
    start = as_long(starts[firsts[container]])
    first = integer_at(data, form, as_long(items[start]))
    second = integer_at(data, form, as_long(items[start + 1]))
    if MISSING in (first, second):
        tallies[BAD_VALUES] += 1
        return as_long(-1)
    known = as_long(pools[0])
    for number in range(known):
        if pools[2 * number + 2] == first and pools[2 * number + 3] == second:
            return as_long(number)
    if known == MOST_POOLS:
        tallies[POOLS_LOST] += 1
        return as_long(-1)
    pools[2 * known + 2], pools[2 * known + 3] = first, second
    pools[0] = known + 1
    return known


@callable_from_loops
def _said(value: int) -> int:
    """A text of an event, or `UNSET` for the words by which recorders say that there is none."""
    return as_long(UNSET) if value in (_EMPTY, _NOT_GIVEN, NONE) else value


@callable_from_loops
def _read_event(
    form: int, base: int, tree: Arrays[Handle], event: int, row: int,
    columns: EventColumns[Handle], pools: Written[np.int64],
    action_codes: npt.NDArray[np.uint8], tallies: Written[np.int64],
) -> None:  # fmt: skip
    """Reads one event, all but its device."""
    data, _, firsts, starts, counts, nexts, items = tree
    (
        _, actions, addresses, sizes, streams, times, event_pools,
        frames, metadata, contexts, categories, forwards,
    ) = columns  # fmt: skip
    actions[row] = OTHER_ACTION
    addresses[row] = sizes[row] = streams[row] = times[row] = MISSING
    event_pools[row] = -1
    frames[row] = metadata[row] = contexts[row] = categories[row] = forwards[row] = UNSET
    part = as_long(firsts[event])
    while part >= 0:
        begin = as_long(starts[part])
        for place in range(begin, begin + as_long(counts[part]) - 1, 2):
            key = as_long(items[place])
            value = as_long(items[place + 1])
            if key == _ACTION:
                code = as_long(255)
                if value < VALUES_FROM:
                    code = as_long(action_codes[value])
                if code == 255:
                    tallies[UNKNOWN_WORDS] += 1
                    code = as_long(OTHER_ACTION)
                actions[row] = code
            elif key == _FRAMES:
                frames[row] = value
            elif key == _USER_METADATA:
                metadata[row] = _said(value)
            elif key == _COMPILE_CONTEXT:
                contexts[row] = _said(value)
            elif key == _CATEGORY:
                categories[row] = _said(value)
            elif key == _FORWARD_FRAMES:
                forwards[row] = _said(value)
            elif key == _POOL_ID:
                event_pools[row] = _pool_number(
                    form, base, data, firsts, starts, counts, items, value, pools, tallies
                )
            elif key in (_ADDR, _DEVICE_FREE, _SIZE, _STREAM, _TIME_US):
                number = integer_at(data, form, value)
                is_bad = number == MISSING
                if key in (_ADDR, _DEVICE_FREE):
                    addresses[row] = number
                elif key == _STREAM:
                    streams[row] = number
                elif key == _SIZE:
                    is_bad = number < 0
                    sizes[row] = MISSING if is_bad else number
                else:
                    is_bad = not -_LONGEST_TIME_US <= number <= _LONGEST_TIME_US
                    times[row] = MISSING if is_bad else number * as_long(1000)
                if is_bad:
                    tallies[BAD_VALUES] += 1
            else:
                tallies[EXTRA_KEYS] += 1
        part = as_long(nexts[part])


def read_events(
    form: int, base: int, tree: Arrays[Handle], history: int, device: int, row: int,
    columns: EventColumns[Handle], pools: Written[np.int64],
    action_codes: npt.NDArray[np.uint8], tallies: Written[np.int64],
) -> int:  # fmt: skip
    """Reads one device's history.

    Args:
        form: Of the file.
        base: The value of the first container.
        tree: Arrays of the tree.
        history: The list, as a container.
        device: Its number.
        row: Where the events go in `columns`.
        columns: Receive the events.
        pools: The pools known so far.
        action_codes: `ACTION_CODES`.
        tallies: What could not be kept.

    Returns:
        The row after the last event.
    """
    _, kinds, firsts, starts, counts, nexts, items = tree
    devices, _, _, _, _, _, _, _, _, _, _, _ = columns
    chunk = as_long(firsts[history])
    while chunk >= 0:
        start = as_long(starts[chunk])
        for item in range(start, start + as_long(counts[chunk])):
            event = as_long(items[item]) - base
            if event < 0 or kinds[event] != DICT:
                tallies[NOT_A_RECORD] += 1
                continue
            devices[row] = device
            _read_event(form, base, tree, event, row, columns, pools, action_codes, tallies)
            row += 1
        chunk = as_long(nexts[chunk])
    return row


def count_blocks(base: int, tree: Arrays[Handle], segments: int) -> int:
    """How many blocks the segments of a list have."""
    _, kinds, firsts, starts, counts, nexts, items = tree
    total = as_long(0)
    chunk = as_long(firsts[segments])
    while chunk >= 0:
        start = as_long(starts[chunk])
        for item in range(start, start + as_long(counts[chunk])):
            segment = as_long(items[item]) - base
            if segment >= 0 and kinds[segment] == DICT:
                found = find_value(segment, _BLOCKS, firsts, starts, counts, nexts, items) - base
                if found >= 0 and kinds[found] != DICT:
                    total += length_of(found, firsts, counts, nexts)
        chunk = as_long(nexts[chunk])
    return total


@callable_from_loops
def _read_block(
    form: int, base: int, tree: Arrays[Handle], block: int, row: int,
    columns: BlockColumns[Handle], state_codes: npt.NDArray[np.uint8],
    tallies: Written[np.int64],
) -> None:  # fmt: skip
    """Reads one block; its address is `MISSING` where the file leaves it to be added up."""
    data, _, firsts, starts, counts, nexts, items = tree
    _, addresses, sizes, requested, states, frames = columns
    addresses[row] = sizes[row] = requested[row] = MISSING
    states[row] = 255
    frames[row] = UNSET
    part = as_long(firsts[block])
    while part >= 0:
        begin = as_long(starts[part])
        for place in range(begin, begin + as_long(counts[part]) - 1, 2):
            key = as_long(items[place])
            value = as_long(items[place + 1])
            if key == _FRAMES:
                frames[row] = value
            elif key == _STATE:
                if value < VALUES_FROM:
                    states[row] = state_codes[value]
            elif key == _HISTORY:  # of torch 2.0: the last use of the block is the first entry
                entry = as_long(-1)
                if value >= base and firsts[value - base] >= 0:
                    entry = as_long(items[starts[firsts[value - base]]]) - base
                if entry >= 0:
                    real = find_value(entry, _REAL_SIZE, firsts, starts, counts, nexts, items)
                    if requested[row] == MISSING:
                        requested[row] = integer_at(data, form, real)
                    frames[row] = find_value(entry, _FRAMES, firsts, starts, counts, nexts, items)
            elif key in (_ADDRESS, _SIZE, _REQUESTED_SIZE):
                number = integer_at(data, form, value)
                if number == MISSING or (key != _ADDRESS and number < 0):
                    tallies[BAD_VALUES] += 1
                elif key == _ADDRESS:
                    addresses[row] = number
                elif key == _SIZE:
                    sizes[row] = number
                else:
                    requested[row] = number
            else:
                tallies[EXTRA_KEYS] += 1
        part = as_long(nexts[part])
    if sizes[row] == MISSING:
        tallies[BAD_VALUES] += 1
        sizes[row] = 0
    if states[row] == 255:
        tallies[UNKNOWN_WORDS] += 1
        states[row] = 0


@callable_from_loops
def _read_segment(
    form: int, base: int, tree: Arrays[Handle], segment: int, row: int,
    columns: SegmentColumns[Handle], pools: Written[np.int64], tallies: Written[np.int64],
) -> int:  # fmt: skip
    """Reads one segment without its blocks; returns their list as a container, or less than 0."""
    data, _, firsts, starts, counts, nexts, items = tree
    (
        devices, addresses, sizes, allocated, active, requested, streams, large, segment_pools,
        expandable, frames,
    ) = columns  # fmt: skip
    devices[row] = 0
    addresses[row] = sizes[row] = allocated[row] = active[row] = MISSING
    requested[row] = streams[row] = MISSING
    large[row] = 2
    segment_pools[row] = 0
    expandable[row] = 0
    frames[row] = UNSET
    blocks = as_long(-1)
    part = as_long(firsts[segment])
    while part >= 0:
        begin = as_long(starts[part])
        for place in range(begin, begin + as_long(counts[part]) - 1, 2):
            key = as_long(items[place])
            value = as_long(items[place + 1])
            if key == _FRAMES:
                frames[row] = value
            elif key == _BLOCKS:
                blocks = value - base
            elif key == _SEGMENT_TYPE:
                large[row] = 1 if value == _LARGE else 0 if value == _SMALL else 2
            elif key == _IS_EXPANDABLE:
                expandable[row] = 1 if value == TRUE else 0
            elif key == _SEGMENT_POOL:
                segment_pools[row] = _pool_number(
                    form, base, data, firsts, starts, counts, items, value, pools, tallies
                )
            elif key in (
                _DEVICE, _ADDRESS, _TOTAL_SIZE, _ALLOCATED_SIZE, _ACTIVE_SIZE,
                _REQUESTED_SIZE, _STREAM,
            ):  # fmt: skip
                number = integer_at(data, form, value)
                if number == MISSING or (key not in (_STREAM, _ADDRESS) and number < 0):
                    # torch's own CPU view of a profile writes None for an address.
                    tallies[BAD_VALUES] += 0 if value == NONE else 1
                elif key == _DEVICE:
                    devices[row] = min(number, as_long(_HIGHEST_DEVICE))
                elif key == _ADDRESS:
                    addresses[row] = number
                elif key == _TOTAL_SIZE:
                    sizes[row] = number
                elif key == _ALLOCATED_SIZE:
                    allocated[row] = number
                elif key == _ACTIVE_SIZE:
                    active[row] = number
                elif key == _REQUESTED_SIZE:
                    requested[row] = number
                else:
                    streams[row] = number
            else:
                tallies[EXTRA_KEYS] += 1
        part = as_long(nexts[part])
    return blocks


@callable_from_loops
def _read_blocks(
    form: int, base: int, tree: Arrays[Handle], blocks: int, segment: int, address: int, row: int,
    columns: BlockColumns[Handle], state_codes: npt.NDArray[np.uint8], tallies: Written[np.int64],
) -> int:  # fmt: skip
    """Reads the blocks of a segment; returns the row after the last.

    A block whose address the file leaves out begins where the one before it ends.

    Args:
        form: Of the file.
        base: The value of the first container.
        tree: Arrays of the tree.
        blocks: The list, as a container.
        segment: The row of the segment.
        address: Where the segment begins.
        row: Where the blocks go in `columns`.
        columns: Receive the blocks.
        state_codes: `STATE_CODES`.
        tallies: What could not be kept.
    """
    _, kinds, firsts, starts, counts, nexts, items = tree
    segments, addresses, sizes, _, _, _ = columns
    chunk = as_long(firsts[blocks])
    while chunk >= 0:
        start = as_long(starts[chunk])
        for item in range(start, start + as_long(counts[chunk])):
            block = as_long(items[item]) - base
            if block < 0 or kinds[block] != DICT:
                tallies[NOT_A_RECORD] += 1
                continue
            segments[row] = segment
            _read_block(form, base, tree, block, row, columns, state_codes, tallies)
            if addresses[row] == MISSING:
                addresses[row] = address
            else:
                address = as_long(addresses[row])
            if address != MISSING:
                address += as_long(sizes[row])
            row += 1
        chunk = as_long(nexts[chunk])
    return row


def read_segments(
    form: int, base: int, tree: Arrays[Handle], segments: int,
    columns: SegmentColumns[Handle], block_columns: BlockColumns[Handle],
    pools: Written[np.int64], state_codes: npt.NDArray[np.uint8], tallies: Written[np.int64],
    ends: Written[np.int64],
) -> None:  # fmt: skip
    """Reads the list of segments with their blocks.

    Args:
        form: Of the file.
        base: The value of the first container.
        tree: Arrays of the tree.
        segments: The list, as a container.
        columns: Receive the segments.
        block_columns: Receive the blocks.
        pools: The pools known so far.
        state_codes: `STATE_CODES`.
        tallies: What could not be kept.
        ends: Receives how many segments and how many blocks were read.
    """
    _, kinds, firsts, starts, counts, nexts, items = tree
    _, addresses, _, _, _, _, _, _, _, _, _ = columns
    row, block_row = as_long(0), as_long(0)
    chunk = as_long(firsts[segments])
    while chunk >= 0:
        start = as_long(starts[chunk])
        for item in range(start, start + as_long(counts[chunk])):
            segment = as_long(items[item]) - base
            if segment < 0 or kinds[segment] != DICT:
                tallies[NOT_A_RECORD] += 1
                continue
            blocks = _read_segment(form, base, tree, segment, row, columns, pools, tallies)
            if blocks >= 0 and kinds[blocks] != DICT:
                block_row = _read_blocks(
                    form, base, tree, blocks, row, as_long(addresses[row]), block_row,
                    block_columns, state_codes, tallies,
                )  # fmt: skip
            row += 1
        chunk = as_long(nexts[chunk])
    ends[0], ends[1] = row, block_row
