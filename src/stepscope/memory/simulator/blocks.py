"""Blocks of the simulated allocator: in flat arrays, with the free ones in order of size.

A group is what one search looks through: the blocks of one pool, one stream and one size class; its
number is even for the large class and odd for the small. Free blocks are kept in order of group,
size and address, as torch keeps them in sorted sets; unmapped parts of expandable segments in order
of group and address. Both orders are skip lists. All loops run as machine code, and as plain Python
in the tests.
"""

from __future__ import annotations

import numpy as np

from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.machine.arrays import Table, Written, WrittenTable
from stepscope.trace.machine.helpers import as_long, jit_helper

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
ADDRESS, SIZE, STATE, BEFORE, AFTER, GROUP, BORN, SEGMENT, OWNER, TOP = range(10)
LEVELS = 7
NEXT = TOP + LEVELS - 1
FIELDS = NEXT + 1
"""`SEGMENT` is the address of the block's expandable segment, `NONE` for any other block; `OWNER`
the allocation that a used or pending block serves; `BORN` how many searches of its pool and class
there had been when the block became free. From `TOP` to `NEXT` is which block follows in the order,
by level of the skip list: `NEXT` links all, and each level above about a quarter of the one below.
Levels that a block does not reach have no meaning."""

# The numbers that change as the simulation runs.
(
    SLOTS, SPARE, FREE_COUNT, DRAW, RESERVED, ALLOCATED, NEXT_ADDRESS, DEVICE_ALLOCS, DEVICE_FREES,
    RETRIES, SLOT_CAPACITY, PEAK_RESERVED, ALLOCATED_THEN, PEAK_ALLOCATED,
) = range(14)  # fmt: skip
NUMBERS = 14
"""`FREE_COUNT` is how many blocks are free, `DRAW` the last random number, `SLOT_CAPACITY` how many
blocks the array can hold, and `ALLOCATED_THEN` what was allocated when the most was reserved."""
FREE_ONES, VOIDS = 0, 1
"""The two orders, of free blocks and of unmapped ones: the block that each begins with, which is
none of the allocator's."""

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
"""A simulated allocator: its blocks; by level, the last block that a search of an order passed; the
numbers that change; what it is set to; a row for each field of groups; searches of each pool and
class; the block of each allocation, `NONE` for those without; and the sizes and addresses of the
recorded segments, by group and in order of time."""


def new_blocks(slots: int) -> Int64Array:
    """Blocks for so many, and empty orders."""
    blocks = np.zeros((FIELDS, slots), np.int64)
    blocks[STATE] = NO_BLOCK
    blocks[TOP:, [FREE_ONES, VOIDS]] = NONE
    return blocks


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
    """The first block in an order that is no less than a group, size and address, or `NONE`.

    Unmapped blocks are in order of group and address alone.
    """
    blocks, passed, _, _, _, _, _, _ = machine
    at, following = as_long(order), as_long(NONE)
    for level in range(LEVELS):
        is_less = True
        while is_less:
            following = as_long(blocks[TOP + level, at])
            is_less = following != NONE
            if following != NONE:
                of_group = blocks[GROUP, following]
                is_less = of_group < group
                if of_group == group:
                    of_size = blocks[SIZE, following] if order == FREE_ONES else size
                    is_less = of_size < size or (
                        of_size == size and blocks[ADDRESS, following] < address
                    )
            if is_less:
                at = following
        passed[level] = at
    return following


@jit_helper
def _order_of(state: int) -> int:
    return as_long(FREE_ONES if state == FREE else VOIDS)


@jit_helper
def put(machine: Machine, block: int, state: int) -> None:
    """Makes a block free or unmapped, and puts it in order."""
    blocks, passed, numbers, _, groups, ages, _, _ = machine
    blocks[STATE, block] = state
    blocks[BORN, block] = ages[groups[CLASS, blocks[GROUP, block]]]
    first_at_least(
        machine, _order_of(state), as_long(blocks[GROUP, block]), as_long(blocks[SIZE, block]),
        as_long(blocks[ADDRESS, block]),
    )  # fmt: skip
    draw = as_long(numbers[DRAW] * 1103515245 + 12345) & 0x7FFFFFFF
    numbers[DRAW] = draw
    draw >>= 16
    level = as_long(LEVELS - 1)
    is_reached = True
    while is_reached:
        before = passed[level]
        blocks[TOP + level, block] = blocks[TOP + level, before]
        blocks[TOP + level, before] = block
        is_reached = level > 0 and draw & 3 == 0
        draw >>= 2
        level -= 1
    numbers[FREE_COUNT] += 1 if state == FREE else 0


@jit_helper
def take(machine: Machine, block: int) -> None:
    """Takes a free or unmapped block out of its order."""
    blocks, passed, numbers, _, _, _, _, _ = machine
    state = as_long(blocks[STATE, block])
    first_at_least(
        machine, _order_of(state), as_long(blocks[GROUP, block]), as_long(blocks[SIZE, block]),
        as_long(blocks[ADDRESS, block]),
    )  # fmt: skip
    for level in range(LEVELS):
        before = passed[level]
        if blocks[TOP + level, before] == block:
            blocks[TOP + level, before] = blocks[TOP + level, block]
    numbers[FREE_COUNT] -= 1 if state == FREE else 0


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
