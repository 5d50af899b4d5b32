"""The caching allocator, step by step, in the order in which torch tries things.

A request is rounded. Then the smallest free block of its group that fits is taken, unless it is one
that is too large to be split. If there is none: unused blocks are collected where a threshold says
so, and the device is asked for a segment, or for pages of an expandable one. If the device has no
room, large cached blocks of the group are given back; if that is not enough, everything that is
cached; if that is not enough either, the request fails. A block that serves a request is split
where enough remains. Neighbours that are free are joined.

Described in torch's notes on memory management (https://docs.pytorch.org/docs/stable/notes/cuda.html)
and in the comments of its allocator; this is written anew from the behaviour.
"""

from __future__ import annotations

import numpy as np

from stepscope.memory.allocator.rounding import (
    LEAST_BYTES,
    SMALL_BYTES,
    rounded,
)
from stepscope.memory.arithmetic import as_long
from stepscope.memory.simulator.blocks import (
    ADDRESS,
    AFTER,
    ALLOCATED,
    CLASS,
    COLLECT_ABOVE,
    EXPANDABLE,
    FREE,
    FREE_COUNT,
    GROUP,
    MAX_SPLIT,
    NONE,
    OWNER,
    PENDING,
    RELEASABLE,
    RESERVED,
    RETRIES,
    ROUNDING_LIMIT,
    SEGMENT,
    SIZE,
    SLOTS,
    STATE,
    UNMAPPED,
    USED,
    Ages,
    Blocks,
    Groups,
    Numbers,
    Order,
    add_free,
    first_at_least,
    link,
    new_block,
    remove_free,
)
from stepscope.memory.simulator.segments import (
    collect_garbage,
    finish_free,
    give_back,
    grow,
    is_whole,
    release_all,
    release_large,
)
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.called import callable_from_loops


@callable_from_loops
def _growth(blocks: Blocks, block: int) -> int:
    """How large a block is, or could become where its expandable segment has room behind it."""
    after = blocks[AFTER, block]
    grows = after != NONE and blocks[STATE, after] == UNMAPPED
    return as_long(blocks[SIZE, block] + (blocks[SIZE, after] if grows else 0))


@callable_from_loops
def _take_free(
    blocks: Blocks, free: Order, numbers: Numbers, config: Int64Array, groups: Groups, ages: Ages,
    size: int, group: int,
) -> int:  # fmt: skip
    """A free block for a rounded request, out of the order; `NONE` where there is none."""
    if config[COLLECT_ABOVE]:
        ages[groups[CLASS, group]] += 1
    count = numbers[FREE_COUNT]
    at = first_at_least(blocks, free, count, group, size, 0, True)
    if at == count or blocks[GROUP, free[at]] != group:
        return as_long(NONE)
    if blocks[SEGMENT, free[at]] != NONE:
        if config[EXPANDABLE]:
            while (
                blocks[SEGMENT, free[at]] != NONE
                and at + 1 < count
                and blocks[GROUP, free[at + 1]] == group
                and _growth(blocks, free[at + 1]) < _growth(blocks, free[at])
            ):
                at += 1
        else:
            while at < count and blocks[GROUP, free[at]] == group:
                if blocks[SEGMENT, free[at]] == NONE:
                    break
                at += 1
            if at == count or blocks[GROUP, free[at]] != group:
                return as_long(NONE)
    block = as_long(free[at])
    if size < config[MAX_SPLIT] and config[MAX_SPLIT] <= blocks[SIZE, block]:
        return as_long(NONE)
    if size >= config[MAX_SPLIT] and blocks[SIZE, block] >= size + config[ROUNDING_LIMIT]:
        return as_long(NONE)
    remove_free(blocks, free, numbers, block)
    return block


@callable_from_loops
def allocate(
    blocks: Blocks, free: Order, voids: Order, numbers: Numbers, config: Int64Array,
    groups: Groups, ages: Ages, of_allocation: Order, given_sizes: Int64Array,
    given_addresses: Int64Array, size: int, group: int,
) -> int:  # fmt: skip
    """Serves a rounded request; the block, now in use, or `NONE` where memory does not suffice."""
    block = _take_free(blocks, free, numbers, config, groups, ages, size, group)
    if block == NONE:
        collect_garbage(blocks, free, numbers, config, groups, ages)
        block = grow(
            blocks, free, voids, numbers, config, groups, ages, given_sizes, given_addresses,
            size, group,
        )  # fmt: skip
    if block == NONE and release_large(blocks, free, numbers, config, size, group):
        block = grow(
            blocks, free, voids, numbers, config, groups, ages, given_sizes, given_addresses,
            size, group,
        )  # fmt: skip
    if block == NONE:
        release_all(blocks, free, voids, numbers, config, groups, ages, of_allocation)
        numbers[RETRIES] += 1
        block = grow(
            blocks, free, voids, numbers, config, groups, ages, given_sizes, given_addresses,
            size, group,
        )  # fmt: skip
    if block == NONE:
        return block
    left = blocks[SIZE, block] - size
    if size <= SMALL_BYTES or config[EXPANDABLE]:
        is_split = left >= LEAST_BYTES
    else:
        is_split = size < config[MAX_SPLIT] and left > SMALL_BYTES
    if is_split:
        rest = new_block(
            blocks, numbers, blocks[ADDRESS, block] + size, left, FREE, group,
            blocks[SEGMENT, block],
        )  # fmt: skip
        link(blocks, rest, as_long(blocks[AFTER, block]))
        link(blocks, block, rest)
        blocks[SIZE, block] = size
        add_free(blocks, free, numbers, rest, ages[groups[CLASS, group]])
    blocks[STATE, block] = USED
    numbers[ALLOCATED] += blocks[SIZE, block]
    return block


# What happens: a request; a block given back, for which another stream may still wait; a block that
# can be used again; everything cached given back; one segment given back, or a pool let go, as the
# recording shows; and a request that failed in the recording.
REQUEST, GIVE, FREED, RELEASE, RELEASE_SEGMENT, LET_POOL_GO, FAILED = range(7)

FINISHED, NEEDS_ROOM, OUT_OF_MEMORY = range(3)
_SPARE_SLOTS = 16


def run_by_loop(
    whats: Int64Array, sizes: Int64Array, places: Int64Array, allocations: Int64Array, start: int,
    is_tried: bool, blocks: Blocks, free: Order, voids: Order, numbers: Numbers,
    config: Int64Array, divisions: Int64Array, groups: Groups, ages: Ages, of_allocation: Order,
    given_sizes: Int64Array, given_addresses: Int64Array, reserved: Written[np.int64],
    allocated: Written[np.int64], addresses: Written[np.int64], block_sizes: Written[np.int64],
    is_served: Written[np.bool_], status: Written[np.int64],
) -> int:  # fmt: skip
    """Runs operations from one on.

    Operations are as in `Operations`. Requests that failed in the recording are tried again if
    `is_tried`. The arrays from `blocks` on are those of `Machine`; those from `reserved` on
    receive, for each operation, the reserved and allocated bytes after it, for each allocation
    its address and the size of its block, and for each failed request whether it could be
    served now. `status` receives `FINISHED`, `NEEDS_ROOM` where the arrays of blocks are too
    small to go on, or `OUT_OF_MEMORY` where the operation failed.

    Returns:
        The operation that comes next, or that failed.
    """
    slots = len(free)  # there is a place for each block
    for at in range(start, len(whats)):
        if numbers[SLOTS] + 2 * numbers[FREE_COUNT] + _SPARE_SLOTS > slots:
            status[0] = NEEDS_ROOM
            return at
        what = whats[at]
        allocation = as_long(allocations[at])
        if what in (REQUEST, FAILED):
            if what == REQUEST or is_tried:
                size = as_long(sizes[at])
                if what == REQUEST:
                    size = rounded(size, divisions)
                group = 2 * as_long(places[at]) + (1 if size <= SMALL_BYTES else 0)
                block = allocate(
                    blocks, free, voids, numbers, config, groups, ages, of_allocation,
                    given_sizes, given_addresses, size, group,
                )  # fmt: skip
                if block == NONE:
                    if what == REQUEST:
                        status[0] = OUT_OF_MEMORY
                        return at
                elif what == REQUEST:
                    blocks[OWNER, block] = allocation
                    of_allocation[allocation] = block
                    addresses[allocation] = blocks[ADDRESS, block]
                    block_sizes[allocation] = blocks[SIZE, block]
                else:  # how long it would have lived is not known
                    is_served[at] = True
                    numbers[ALLOCATED] -= blocks[SIZE, block]
                    finish_free(blocks, free, voids, numbers, groups, ages, block)
        elif what in (GIVE, FREED):
            block = as_long(of_allocation[allocation])
            if block != NONE:
                if blocks[STATE, block] == USED:
                    numbers[ALLOCATED] -= blocks[SIZE, block]
                    blocks[STATE, block] = PENDING
                if what == FREED:
                    of_allocation[allocation] = NONE
                    finish_free(blocks, free, voids, numbers, groups, ages, block)
        elif what == RELEASE:
            release_all(blocks, free, voids, numbers, config, groups, ages, of_allocation)
        elif what == RELEASE_SEGMENT:
            for place in range(numbers[FREE_COUNT]):
                block = as_long(free[place])
                if blocks[ADDRESS, block] == places[at] and is_whole(blocks, block):
                    give_back(blocks, free, numbers, block)
                    break
        else:
            groups[RELEASABLE, places[at]] = 1
        reserved[at] = numbers[RESERVED]
        allocated[at] = numbers[ALLOCATED]
    status[0] = FINISHED
    return len(whats)
