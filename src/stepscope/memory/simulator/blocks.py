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
from stepscope.trace.machine.arrays import Table, Written, WrittenTable
from stepscope.trace.machine.helpers import jit_helper

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
    SLOTS, SPARE, COUNTS, _, RESERVED, ALLOCATED, NEXT_ADDRESS,
    DEVICE_ALLOCS, DEVICE_FREES, RETRIES, ROOM,
) = range(11)  # fmt: skip
NUMBERS = 11
"""`ROOM` is how many blocks the arrays have room for."""
FREE_ONES, VOIDS = 0, 1
"""The two orders, of free blocks and of unmapped ones; from `COUNTS` on is how many each has."""

Blocks = WrittenTable[np.int64]
"""A row for each field, a column for each block."""
Machine = tuple[
    Blocks,
    Written[np.int64],
    Written[np.int64],
    Written[np.int64],
    WrittenTable[np.int64],
    Written[np.int64],
    Written[np.int64],
    Table[np.int64],
]
"""A simulated allocator: its blocks; two orders of them, free ones and, from `ROOM` on, unmapped
ones; the numbers
that change; what it is set to; a row for each field of groups; searches of each pool and class; the
block of each allocation, `NONE` for those without; and the sizes and addresses of the recorded
segments, by group and in order of time."""


def new_arrays(slots: int) -> tuple[Int64Array, Int64Array]:
    """Blocks, and their two orders, for so many."""
    blocks = np.zeros((FIELDS, slots), np.int64)
    blocks[STATE] = NO_BLOCK
    return blocks, np.zeros(2 * slots, np.int64)


@jit_helper
def new_block(
    machine: Machine, address: int, size: int, state: int, group: int, segment: int
) -> int:
    """A block without neighbours, in no order."""
    blocks, _, numbers, _, _, _, _, _ = machine
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


@jit_helper
def drop_block(machine: Machine, block: int) -> None:
    """Gives a slot back; the block is in no order, and no neighbour knows it."""
    blocks, _, numbers, _, _, _, _, _ = machine
    blocks[STATE, block] = NO_BLOCK
    blocks[AFTER, block] = numbers[SPARE]
    numbers[SPARE] = block


@jit_helper
def link(blocks: Blocks, before: int, after: int) -> None:
    """Makes two blocks neighbours; either may be `NONE`."""
    if before != NONE:
        blocks[AFTER, before] = after
    if after != NONE:
        blocks[BEFORE, after] = before


@jit_helper
def split(machine: Machine, block: int, size: int) -> int:
    """Cuts a block, which is in no order, after so many bytes; the rest, in no order either."""
    blocks, _, _, _, _, _, _, _ = machine
    rest = new_block(
        machine, blocks[ADDRESS, block] + size, blocks[SIZE, block] - size, blocks[STATE, block],
        blocks[GROUP, block], blocks[SEGMENT, block],
    )  # fmt: skip
    link(blocks, rest, as_long(blocks[AFTER, block]))
    link(blocks, block, rest)
    blocks[SIZE, block] = size
    return rest


@jit_helper
def first_at_least(machine: Machine, order: int, group: int, size: int, address: int) -> int:
    """The place of the first block in an order that is no less than a group, size and address.

    Unmapped blocks are in order of group and address alone.
    """
    blocks, orders, numbers, _, _, _, _, _ = machine
    begin = order * numbers[ROOM]
    low, high = as_long(0), as_long(numbers[COUNTS + order])
    while low < high:
        middle = (low + high) >> as_long(1)
        block = orders[begin + middle]
        of_group = blocks[GROUP, block]
        is_less = of_group < group
        if of_group == group:
            of_size = blocks[SIZE, block] if order == FREE_ONES else size
            is_less = of_size < size or (of_size == size and blocks[ADDRESS, block] < address)
        if is_less:
            low = middle + 1
        else:
            high = middle
    return low


@jit_helper
def put(machine: Machine, block: int, state: int) -> None:
    """Makes a block free or unmapped, and puts it in order."""
    blocks, orders, numbers, _, groups, ages, _, _ = machine
    blocks[STATE, block] = state
    blocks[BORN, block] = ages[groups[CLASS, blocks[GROUP, block]]]
    order = as_long(FREE_ONES if state == FREE else VOIDS)
    at = first_at_least(
        machine, order, blocks[GROUP, block], blocks[SIZE, block], blocks[ADDRESS, block]
    )
    begin = order * numbers[ROOM]
    place = begin + numbers[COUNTS + order]
    while place > begin + at:
        orders[place] = orders[place - 1]
        place -= 1
    orders[place] = block
    numbers[COUNTS + order] += 1


@jit_helper
def take(machine: Machine, block: int) -> None:
    """Takes a free or unmapped block out of its order."""
    blocks, orders, numbers, _, _, _, _, _ = machine
    order = as_long(FREE_ONES if blocks[STATE, block] == FREE else VOIDS)
    at = first_at_least(
        machine, order, blocks[GROUP, block], blocks[SIZE, block], blocks[ADDRESS, block]
    )
    numbers[COUNTS + order] -= 1
    begin = order * numbers[ROOM]
    for place in range(begin + at, begin + numbers[COUNTS + order]):
        orders[place] = orders[place + 1]


@jit_helper
def put_joined(machine: Machine, block: int, state: int) -> None:
    """Makes a block free or unmapped, joins it with neighbours alike, and puts it in order."""
    blocks, _, _, _, _, _, _, _ = machine
    blocks[STATE, block] = state
    _absorb(machine, block, BEFORE)
    _absorb(machine, block, AFTER)
    put(machine, block, state)


@jit_helper
def _absorb(machine: Machine, block: int, side: int) -> None:
    """Joins a block with the neighbour on one side, if that has the same state."""
    blocks, _, _, _, _, _, _, _ = machine
    other = as_long(blocks[side, block])
    if other == NONE or blocks[STATE, other] != blocks[STATE, block]:
        return
    take(machine, other)
    if side == BEFORE:
        blocks[ADDRESS, block] = blocks[ADDRESS, other]
        blocks[BEFORE, block] = NONE
        link(blocks, as_long(blocks[BEFORE, other]), block)
    else:
        blocks[AFTER, block] = NONE
        link(blocks, block, as_long(blocks[AFTER, other]))
    blocks[SIZE, block] += blocks[SIZE, other]
    drop_block(machine, other)
