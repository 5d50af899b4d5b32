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
    COUNTS,
    EXPANDABLE,
    FREE,
    FREE_ONES,
    GROUP,
    MAX_SPLIT,
    NONE,
    OWNER,
    PENDING,
    RELEASABLE,
    RESERVED,
    RETRIES,
    ROOM,
    ROUNDING_LIMIT,
    SEGMENT,
    SIZE,
    SLOTS,
    STATE,
    UNMAPPED,
    USED,
    Blocks,
    Machine,
    first_at_least,
    put,
    put_joined,
    split,
    take,
)
from stepscope.memory.simulator.segments import (
    collect_garbage,
    give_back,
    grow,
    is_whole,
    release_all,
    release_large,
)
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.helpers import jit_helper


@jit_helper
def _growth(blocks: Blocks, block: int) -> int:
    """How large a block is, or could become where its expandable segment has room behind it."""
    after = blocks[AFTER, block]
    grows = after != NONE and blocks[STATE, after] == UNMAPPED
    return as_long(blocks[SIZE, block] + (blocks[SIZE, after] if grows else 0))


@jit_helper
def _take_free(machine: Machine, size: int, group: int) -> int:
    """A free block for a rounded request, out of the order; `NONE` where there is none."""
    blocks, orders, numbers, config, groups, ages, _, _ = machine
    if config[COLLECT_ABOVE]:
        ages[groups[CLASS, group]] += 1
    count = numbers[COUNTS]
    at = first_at_least(machine, as_long(FREE_ONES), group, size, 0)
    if at == count or blocks[GROUP, orders[at]] != group:
        return as_long(NONE)
    if blocks[SEGMENT, orders[at]] != NONE:
        if config[EXPANDABLE]:
            while (
                blocks[SEGMENT, orders[at]] != NONE
                and at + 1 < count
                and blocks[GROUP, orders[at + 1]] == group
                and _growth(blocks, orders[at + 1]) < _growth(blocks, orders[at])
            ):
                at += 1
        else:
            while at < count and blocks[GROUP, orders[at]] == group:
                if blocks[SEGMENT, orders[at]] == NONE:
                    break
                at += 1
            if at == count or blocks[GROUP, orders[at]] != group:
                return as_long(NONE)
    block = as_long(orders[at])
    if size < config[MAX_SPLIT] and config[MAX_SPLIT] <= blocks[SIZE, block]:
        return as_long(NONE)
    if size >= config[MAX_SPLIT] and blocks[SIZE, block] >= size + config[ROUNDING_LIMIT]:
        return as_long(NONE)
    take(machine, block)
    return block


@jit_helper
def _allocate(machine: Machine, size: int, group: int) -> int:
    """Serves a rounded request; the block, now in use, or `NONE` where memory does not suffice."""
    blocks, _, numbers, config, _, _, _, _ = machine
    block = _take_free(machine, size, group)
    if block == NONE:
        collect_garbage(machine)
        block = grow(machine, size, group)
    if block == NONE and release_large(machine, size, group):
        block = grow(machine, size, group)
    if block == NONE:
        release_all(machine)
        numbers[RETRIES] += 1
        block = grow(machine, size, group)
    if block == NONE:
        return block
    left = blocks[SIZE, block] - size
    if size <= SMALL_BYTES or config[EXPANDABLE]:
        is_split = left >= LEAST_BYTES
    else:
        is_split = size < config[MAX_SPLIT] and left > SMALL_BYTES
    if is_split:
        put(machine, split(machine, block, size), as_long(FREE))
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
    is_tried: bool, machine: Machine, divisions: Int64Array, reserved: Written[np.int64],
    allocated: Written[np.int64], addresses: Written[np.int64], block_sizes: Written[np.int64],
    is_served: Written[np.bool_], status: Written[np.int64],
) -> int:  # fmt: skip
    """Runs operations from one on.

    Operations are as in `Operations`. Requests that failed in the recording are tried again if
    `is_tried`. The arrays from `reserved` on
    receive, for each operation, the reserved and allocated bytes after it, for each allocation
    its address and the size of its block, and for each failed request whether it could be
    served now. `status` receives `FINISHED`, `NEEDS_ROOM` where the arrays of blocks are too
    small to go on, or `OUT_OF_MEMORY` where the operation failed.

    Returns:
        The operation that comes next, or that failed.
    """
    blocks, orders, numbers, _, groups, _, of_allocation, _ = machine
    for at in range(start, len(whats)):
        if numbers[SLOTS] + 2 * numbers[COUNTS] + _SPARE_SLOTS > numbers[ROOM]:
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
                block = _allocate(machine, size, group)
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
                    put_joined(machine, block, as_long(FREE))
        elif what in (GIVE, FREED):
            block = as_long(of_allocation[allocation])
            if block != NONE:
                if blocks[STATE, block] == USED:
                    numbers[ALLOCATED] -= blocks[SIZE, block]
                    blocks[STATE, block] = PENDING
                if what == FREED:
                    of_allocation[allocation] = NONE
                    put_joined(machine, block, as_long(FREE))
        elif what == RELEASE:
            release_all(machine)
        elif what == RELEASE_SEGMENT:
            for place in range(numbers[COUNTS]):
                block = as_long(orders[place])
                if blocks[ADDRESS, block] == places[at] and is_whole(blocks, block):
                    give_back(machine, block)
                    break
        else:
            groups[RELEASABLE, places[at]] = 1
        reserved[at] = numbers[RESERVED]
        allocated[at] = numbers[ALLOCATED]
    status[0] = FINISHED
    return len(whats)
