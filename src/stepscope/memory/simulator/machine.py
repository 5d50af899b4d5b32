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

from stepscope.memory.allocator.rounding import (
    LEAST_BYTES,
    SMALL_BYTES,
)
from stepscope.memory.arithmetic import as_long
from stepscope.memory.simulator.blocks import (
    ADDRESS,
    AFTER,
    ALLOCATED,
    FREE,
    FREE_COUNT,
    GROUP,
    NONE,
    RETRIES,
    SEGMENT,
    SIZE,
    STATE,
    UNMAPPED,
    USED,
    Blocks,
    Numbers,
    Order,
    add_free,
    first_at_least,
    link,
    new_block,
    remove_free,
)
from stepscope.memory.simulator.release import (
    collect_garbage,
    release_all,
    release_large,
)
from stepscope.memory.simulator.segments import (
    grow,
)
from stepscope.memory.simulator.settings import (
    CLASS,
    COLLECT_ABOVE,
    EXPANDABLE,
    MAX_SPLIT,
    ROUNDING_LIMIT,
    Ages,
    Groups,
)
from stepscope.trace.arrays.intervals import Int64Array
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
