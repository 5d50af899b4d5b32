"""Segments and their blocks: from dictionaries of a tree into columns. The loops are compiled."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.memory.arithmetic import as_long
from stepscope.memory.reading.records import (
    BAD_VALUES,
    EXTRA_KEYS,
    NO_CODE,
    NOT_A_RECORD,
    UNKNOWN_WORDS,
    Codes,
    Ints,
    Longs,
    codes_of,
    find_value,
    length_of,
    pool_number,
)
from stepscope.memory.reading.tree import DICT, Arrays, Handle
from stepscope.memory.reading.values import MISSING, integer_at
from stepscope.memory.reading.words import NONE, NUMBERS, TRUE, UNSET, VALUES_FROM
from stepscope.memory.schema import BLOCK_STATE, BlockState
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.called import callable_from_loops

_FRAMES, _SIZE, _STREAM = NUMBERS["frames"], NUMBERS["size"], NUMBERS["stream"]
_DEVICE, _ADDRESS, _TOTAL_SIZE = NUMBERS["device"], NUMBERS["address"], NUMBERS["total_size"]
_ALLOCATED_SIZE, _ACTIVE_SIZE = NUMBERS["allocated_size"], NUMBERS["active_size"]
_REQUESTED_SIZE, _REAL_SIZE = NUMBERS["requested_size"], NUMBERS["real_size"]
_SEGMENT_TYPE, _SEGMENT_POOL = NUMBERS["segment_type"], NUMBERS["segment_pool_id"]
_IS_EXPANDABLE, _BLOCKS, _STATE = NUMBERS["is_expandable"], NUMBERS["blocks"], NUMBERS["state"]
_HISTORY, _LARGE, _SMALL = NUMBERS["history"], NUMBERS["large"], NUMBERS["small"]

_HIGHEST_DEVICE = 2**31 - 1

SegmentColumns = tuple[
    Ints, Longs, Longs, Longs, Longs, Longs, Longs, Codes, Ints, Codes, Written[Handle],
]  # fmt: skip
"""device, address, size, allocated, active, requested, stream, is large (0, 1, or 2 for unknown),
pool, is expandable, and the frames as values of the tree."""

BlockColumns = tuple[Ints, Longs, Longs, Longs, Codes, Written[Handle]]
"""segment, address, size, requested, state, and the frames as values of the tree."""

_STATES = BLOCK_STATE.categories.to_list()
STATE_CODES = codes_of(
    {word: _STATES.index(word) for word in _STATES}
    | {"active_awaiting_free": _STATES.index(BlockState.PENDING_FREE.value)}
)
"""Of each word, its place in `schema.BLOCK_STATE`."""


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
    states[row] = NO_CODE
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
    if states[row] == NO_CODE:
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
                segment_pools[row] = pool_number(
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
