"""Runs a history of requests and frees through the simulated allocator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stepscope.memory.allocator.rounding import SMALL_BYTES, rounded
from stepscope.memory.arithmetic import as_long
from stepscope.memory.simulator.blocks import (
    ADDRESS,
    ALLOCATED,
    FREE_COUNT,
    NONE,
    OWNER,
    PENDING,
    RESERVED,
    SIZE,
    SLOTS,
    STATE,
    USED,
    Blocks,
    Numbers,
    Order,
)
from stepscope.memory.simulator.machine import allocate
from stepscope.memory.simulator.release import finish_free, give_back, is_whole, release_all
from stepscope.memory.simulator.settings import RELEASABLE, Ages, Groups
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.loops import in_machine_code

# What happens: a request; a block given back, for which another stream may still wait; a block that
# can be used again; everything cached given back; one segment given back, or a pool let go, as the
# recording shows; and a request that failed in the recording.
REQUEST, GIVE, FREE, RELEASE, RELEASE_SEGMENT, LET_POOL_GO, FAILED = range(7)

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

    Args:
        whats: What each operation is.
        sizes: Bytes of requests; of a failed one already rounded.
        places: Of requests, pool and stream as a number; of segments given back, their address; of
            a pool that is let go, its group.
        allocations: Whose block each operation is about.
        start: The first operation.
        is_tried: Whether requests that failed in the recording are tried again.
        blocks: The blocks. They and what follows: see `blocks` and `machine`.
        free: The order of free blocks.
        voids: The order of unmapped blocks.
        numbers: What changes.
        config: What the allocator is set to.
        divisions: How requests are rounded.
        groups: What is known of groups.
        ages: Searches of each pool and class.
        of_allocation: The block of each allocation, `NONE` for those without.
        given_sizes: Recorded segments by group, in order of time.
        given_addresses: Where they were.
        reserved: Receives the reserved bytes after each operation.
        allocated: Receives the allocated bytes after each operation.
        addresses: Receives the address of each allocation.
        block_sizes: Receives the size of each allocation's block.
        is_served: Receives whether a failed request could be served now.
        status: Receives `FINISHED`, `NEEDS_ROOM` where the arrays of blocks are too small to go on,
            or `OUT_OF_MEMORY` where the operation failed.

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
        elif what in (GIVE, FREE):
            block = as_long(of_allocation[allocation])
            if block != NONE:
                if blocks[STATE, block] == USED:
                    numbers[ALLOCATED] -= blocks[SIZE, block]
                    blocks[STATE, block] = PENDING
                if what == FREE:
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


def compiled_run() -> Callable[..., Any]:
    """The loop, as machine code."""
    return in_machine_code(run_by_loop)
