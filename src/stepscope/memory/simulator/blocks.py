"""Blocks of the simulated allocator: in flat arrays, with the free ones in order of size.

A group is what one search looks through: the blocks of one pool, one stream and one size class; its
number is even for the large class and odd for the small. Free blocks are kept in order of group,
size and address, as torch keeps them in sorted sets; unmapped parts of expandable segments in order
of group and address. All loops run as machine code, and as plain Python in the tests.
"""

from __future__ import annotations

import numpy as np

from stepscope.memory.arithmetic import as_long
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.machine.arrays import Written, WrittenTable
from stepscope.trace.machine.called import callable_from_loops

UNLIMITED = 2**62

# What the allocator is set to, as numbers.
(
    EXPANDABLE, MAX_SPLIT, ROUNDING_LIMIT, LARGE_SEGMENT, CAPACITY, LIMIT, COLLECT_ABOVE,
    ADDRESS_SPACE,
) = range(8)  # fmt: skip
CONFIG_FIELDS = 8

# What is known of each group: its pool, the number of its pool and class (for ages), whether its
# pool may be released, and which of the recorded segments' addresses comes next.
POOL, CLASS, RELEASABLE, GIVEN, GIVEN_END = range(5)
GROUP_FIELDS = 5
Groups = WrittenTable[np.int64]
"""A row for each field, a column for each group."""
Ages = Written[np.int64]
"""Searches of each pool and class."""


FREE, USED, PENDING, UNMAPPED, NO_BLOCK = 0, 1, 2, 3, 4
"""States of a block; a pending one was given back, but waits for another stream."""

NONE = -1

# The fields of a block: rows of one array of 64-bit numbers.
ADDRESS, SIZE, STATE, BEFORE, AFTER, GROUP, BORN, SEGMENT, OWNER = range(9)
FIELDS = 9
"""`SEGMENT` is the address of the block's expandable segment, `NONE` for any other block; `OWNER`
the allocation that a used or pending block serves; `BORN` how many searches of its pool and class
there had been when the block became free."""

# The numbers that change as the simulation runs.
(
    SLOTS, SPARE, FREE_COUNT, VOID_COUNT, RESERVED, ALLOCATED, NEXT_ADDRESS,
    DEVICE_ALLOCS, DEVICE_FREES, RETRIES,
) = range(10)  # fmt: skip
NUMBERS = 10

Blocks = WrittenTable[np.int64]
"""A row for each field, a column for each block."""
Numbers = Written[np.int64]
"""The numbers that change."""
Order = Written[np.int64]
"""Blocks, in order."""


def new_arrays(slots: int) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Blocks, the order of free ones, and the order of unmapped ones, for so many blocks."""
    blocks = np.zeros((FIELDS, slots), np.int64)
    blocks[STATE] = NO_BLOCK
    return blocks, np.zeros(slots, np.int64), np.zeros(slots, np.int64)


def grown_arrays(
    blocks: Int64Array, free: Int64Array, voids: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """The same with room for twice as many."""
    old = blocks.shape[1]
    more = new_arrays(2 * old)
    more[0][:, :old] = blocks
    more[1][:old] = free
    more[2][:old] = voids
    return more


@callable_from_loops
def new_block(
    blocks: Blocks, numbers: Numbers, address: int, size: int, state: int, group: int, segment: int
) -> int:
    """A block without neighbours."""
    block = as_long(numbers[SPARE])
    if block != NONE:  # slots that are free are chained by `AFTER`
        numbers[SPARE] = blocks[AFTER, block]
    else:
        block = as_long(numbers[SLOTS])
        numbers[SLOTS] += 1
    blocks[ADDRESS, block], blocks[SIZE, block] = address, size
    blocks[STATE, block], blocks[GROUP, block] = state, group
    blocks[BEFORE, block] = blocks[AFTER, block] = NONE
    blocks[BORN, block], blocks[SEGMENT, block], blocks[OWNER, block] = 0, segment, NONE
    return block


@callable_from_loops
def drop_block(blocks: Blocks, numbers: Numbers, block: int) -> None:
    """Gives a slot back; the block is in no order, and no neighbour knows it."""
    blocks[STATE, block] = NO_BLOCK
    blocks[AFTER, block] = numbers[SPARE]
    numbers[SPARE] = block


@callable_from_loops
def link(blocks: Blocks, before: int, after: int) -> None:
    """Makes two blocks neighbours; either may be `NONE`."""
    if before != NONE:
        blocks[AFTER, before] = after
    if after != NONE:
        blocks[BEFORE, after] = before


@callable_from_loops
def first_at_least(
    blocks: Blocks, order: Order, count: int, group: int, size: int, address: int, by_size: bool
) -> int:
    """The place of the first block in an order that is no less than a group, size and address."""
    low, high = as_long(0), as_long(count)
    while low < high:
        middle = (low + high) >> as_long(1)
        block = order[middle]
        of_group = blocks[GROUP, block]
        is_less = of_group < group
        if of_group == group:
            of_size = blocks[SIZE, block] if by_size else size
            is_less = of_size < size or (of_size == size and blocks[ADDRESS, block] < address)
        if is_less:
            low = middle + 1
        else:
            high = middle
    return low


@callable_from_loops
def _insert(order: Order, count: int, at: int, block: int) -> None:
    place = count
    while place > at:
        order[place] = order[place - 1]
        place -= 1
    order[at] = block


@callable_from_loops
def _remove(order: Order, count: int, at: int) -> None:
    for place in range(at, count - 1):
        order[place] = order[place + 1]


@callable_from_loops
def add_free(blocks: Blocks, free: Order, numbers: Numbers, block: int, now: int) -> None:
    """Puts a free block in order; `now` is the number of searches of its pool and class."""
    blocks[STATE, block] = FREE
    blocks[BORN, block] = now
    at = first_at_least(
        blocks, free, numbers[FREE_COUNT], blocks[GROUP, block], blocks[SIZE, block],
        blocks[ADDRESS, block], True,
    )  # fmt: skip
    _insert(free, numbers[FREE_COUNT], at, block)
    numbers[FREE_COUNT] += 1


@callable_from_loops
def remove_free(blocks: Blocks, free: Order, numbers: Numbers, block: int) -> None:
    """Takes a free block out of the order."""
    at = first_at_least(
        blocks, free, numbers[FREE_COUNT], blocks[GROUP, block], blocks[SIZE, block],
        blocks[ADDRESS, block], True,
    )  # fmt: skip
    _remove(free, numbers[FREE_COUNT], at)
    numbers[FREE_COUNT] -= 1


@callable_from_loops
def add_void(blocks: Blocks, voids: Order, numbers: Numbers, block: int) -> None:
    """Puts an unmapped block in order."""
    blocks[STATE, block] = UNMAPPED
    at = first_at_least(
        blocks, voids, numbers[VOID_COUNT], blocks[GROUP, block], 0, blocks[ADDRESS, block], False
    )
    _insert(voids, numbers[VOID_COUNT], at, block)
    numbers[VOID_COUNT] += 1


@callable_from_loops
def remove_void(blocks: Blocks, voids: Order, numbers: Numbers, block: int) -> None:
    """Takes an unmapped block out of the order."""
    at = first_at_least(
        blocks, voids, numbers[VOID_COUNT], blocks[GROUP, block], 0, blocks[ADDRESS, block], False
    )
    _remove(voids, numbers[VOID_COUNT], at)
    numbers[VOID_COUNT] -= 1


@callable_from_loops
def absorb_neighbours(
    blocks: Blocks, free: Order, voids: Order, numbers: Numbers, block: int
) -> None:
    """Joins a block, which is in no order, with neighbours of the same state."""
    _absorb(blocks, free, voids, numbers, block, BEFORE)
    _absorb(blocks, free, voids, numbers, block, AFTER)


@callable_from_loops
def _absorb(
    blocks: Blocks, free: Order, voids: Order, numbers: Numbers, block: int, side: int
) -> None:
    """Joins a block with the neighbour on one side, if that has the same state."""
    other = as_long(blocks[side, block])
    if other == NONE or blocks[STATE, other] != blocks[STATE, block]:
        return
    if blocks[STATE, other] == UNMAPPED:
        remove_void(blocks, voids, numbers, other)
    else:
        remove_free(blocks, free, numbers, other)
    if side == BEFORE:
        blocks[ADDRESS, block] = blocks[ADDRESS, other]
        blocks[BEFORE, block] = NONE
        link(blocks, as_long(blocks[BEFORE, other]), block)
    else:
        blocks[AFTER, block] = NONE
        link(blocks, block, as_long(blocks[AFTER, other]))
    blocks[SIZE, block] += blocks[SIZE, other]
    drop_block(blocks, numbers, other)
