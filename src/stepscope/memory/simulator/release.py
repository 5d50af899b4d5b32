"""Gives cached blocks back to the device: all of them, large ones of a group, or old ones."""

from __future__ import annotations

from stepscope.memory.arithmetic import as_long
from stepscope.memory.simulator.blocks import (
    AFTER,
    BEFORE,
    BORN,
    DEVICE_FREES,
    FREE,
    FREE_COUNT,
    GROUP,
    NONE,
    OWNER,
    PENDING,
    RESERVED,
    SEGMENT,
    SIZE,
    SLOTS,
    STATE,
    Blocks,
    Numbers,
    Order,
    absorb_neighbours,
    add_free,
    drop_block,
    first_at_least,
    remove_free,
)
from stepscope.memory.simulator.segments import (
    unmap,
)
from stepscope.memory.simulator.settings import (
    CLASS,
    COLLECT_ABOVE,
    MAX_SPLIT,
    POOL,
    RELEASABLE,
    UNLIMITED,
    Ages,
    Groups,
)
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.machine.called import callable_from_loops


@callable_from_loops
def finish_free(
    blocks: Blocks, free: Order, voids: Order, numbers: Numbers, groups: Groups, ages: Ages,
    block: int,
) -> None:  # fmt: skip
    """Makes a used or pending block free."""
    blocks[STATE, block] = FREE
    absorb_neighbours(blocks, free, voids, numbers, block)
    add_free(blocks, free, numbers, block, ages[groups[CLASS, blocks[GROUP, block]]])


@callable_from_loops
def is_whole(blocks: Blocks, block: int) -> bool:
    """Whether a block is all of a segment, and no part of an expandable one."""
    has_neighbour = blocks[BEFORE, block] != NONE or blocks[AFTER, block] != NONE
    return not has_neighbour and blocks[SEGMENT, block] == NONE


@callable_from_loops
def give_back(blocks: Blocks, free: Order, numbers: Numbers, block: int) -> None:
    """Gives a free block that is a whole segment back to the device."""
    remove_free(blocks, free, numbers, block)
    numbers[RESERVED] -= blocks[SIZE, block]
    numbers[DEVICE_FREES] += 1
    drop_block(blocks, numbers, block)


@callable_from_loops
def release_all(
    blocks: Blocks, free: Order, voids: Order, numbers: Numbers, config: Int64Array,
    groups: Groups, ages: Ages, of_allocation: Order,
) -> None:  # fmt: skip
    """Gives everything back that is cached, after waiting for blocks that are pending."""
    for block in range(numbers[SLOTS]):
        if blocks[STATE, block] == PENDING:
            of_allocation[blocks[OWNER, block]] = NONE
            finish_free(blocks, free, voids, numbers, groups, ages, as_long(block))
    at = as_long(0)
    while at < numbers[FREE_COUNT]:
        block = as_long(free[at])
        if groups[RELEASABLE, blocks[GROUP, block]] and is_whole(blocks, block):
            give_back(blocks, free, numbers, block)
        else:
            at += 1
    # Unmapping changes the order, but no block that another address begins at.
    for block in range(numbers[SLOTS]):
        if (
            blocks[STATE, block] == FREE
            and blocks[SEGMENT, block] != NONE
            and groups[RELEASABLE, blocks[GROUP, block]]
        ):
            unmap(blocks, free, voids, numbers, config, groups, ages, as_long(block))


@callable_from_loops
def release_large(
    blocks: Blocks, free: Order, numbers: Numbers, config: Int64Array, size: int, group: int
) -> bool:
    """Gives blocks of a group back that are too large to be split; whether that may be enough."""
    if config[MAX_SPLIT] >= UNLIMITED:
        return False
    wanted = max(as_long(config[MAX_SPLIT]), size)
    at = first_at_least(blocks, free, numbers[FREE_COUNT], group, wanted, 0, True)
    if at < numbers[FREE_COUNT] and blocks[GROUP, free[at]] == group:
        if not is_whole(blocks, as_long(free[at])):
            return False
        give_back(blocks, free, numbers, as_long(free[at]))
        return True
    released = as_long(0)
    at -= 1
    while (
        at >= 0
        and released < wanted
        and blocks[GROUP, free[at]] == group
        and blocks[SIZE, free[at]] >= config[MAX_SPLIT]
        and is_whole(blocks, as_long(free[at]))
    ):
        released += blocks[SIZE, free[at]]
        give_back(blocks, free, numbers, as_long(free[at]))
        at -= 1
    return released >= wanted


@callable_from_loops
def collect_garbage(
    blocks: Blocks, free: Order, numbers: Numbers, config: Int64Array, groups: Groups, ages: Ages,
) -> None:  # fmt: skip
    """Gives the oldest unused segments of the default pool's large class back."""
    if not config[COLLECT_ABOVE] or numbers[RESERVED] <= config[COLLECT_ABOVE]:
        return
    target = numbers[RESERVED] - config[COLLECT_ABOVE]
    total, count = as_long(0), as_long(0)
    for at in range(numbers[FREE_COUNT]):
        block = as_long(free[at])
        group = blocks[GROUP, block]
        if groups[POOL, group] == 0 and not group & 1 and is_whole(blocks, block):
            total += ages[groups[CLASS, group]] - blocks[BORN, block]
            count += 1
    reclaimed, has_freed = as_long(0), True
    while reclaimed < target and has_freed and count > 0:
        all_ages, all_count = total, count
        has_freed = False
        place = as_long(0)
        while place < numbers[FREE_COUNT]:
            block = as_long(free[place])
            group = blocks[GROUP, block]
            is_candidate = groups[POOL, group] == 0 and not group & 1 and is_whole(blocks, block)
            age = ages[groups[CLASS, group]] - blocks[BORN, block]
            if is_candidate and age * all_count >= all_ages:  # no younger than the mean
                has_freed = True
                reclaimed += blocks[SIZE, block]
                total -= age
                count -= 1
                give_back(blocks, free, numbers, block)
            else:
                place += 1
