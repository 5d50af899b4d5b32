"""Memory from the device, and back to it: segments, and pages of expandable ones."""

from __future__ import annotations

import numpy as np

from stepscope.memory.allocator.rounding import (
    LARGE_STEP_BYTES,
    SMALL_SEGMENT_BYTES,
    segment_bytes,
    up_to_multiple,
)
from stepscope.memory.arithmetic import as_long
from stepscope.memory.simulator.blocks import (
    ADDRESS,
    ADDRESS_SPACE,
    AFTER,
    BEFORE,
    BORN,
    CAPACITY,
    CLASS,
    COLLECT_ABOVE,
    DEVICE_ALLOCS,
    DEVICE_FREES,
    EXPANDABLE,
    FREE,
    FREE_COUNT,
    GIVEN,
    GIVEN_END,
    GROUP,
    LARGE_SEGMENT,
    LIMIT,
    MAX_SPLIT,
    NEXT_ADDRESS,
    NONE,
    OWNER,
    PENDING,
    POOL,
    RELEASABLE,
    RESERVED,
    SEGMENT,
    SIZE,
    SLOTS,
    STATE,
    UNLIMITED,
    UNMAPPED,
    VOID_COUNT,
    Ages,
    Blocks,
    Groups,
    Numbers,
    Order,
    absorb_neighbours,
    add_free,
    add_void,
    drop_block,
    first_at_least,
    link,
    new_block,
    remove_free,
    remove_void,
)
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.machine.called import callable_from_loops


@callable_from_loops
def new_address(
    group: int, size: int, numbers: Numbers, groups: Groups, given_sizes: Int64Array,
    given_addresses: Int64Array,
) -> int:  # fmt: skip
    """Where the device puts a segment: where it was in the recording, if that is known."""
    at = groups[GIVEN, group]
    if at < groups[GIVEN_END, group] and (given_sizes[at] == size or given_sizes[at] == NONE):
        groups[GIVEN, group] = at + 1
        return as_long(given_addresses[at])
    address = as_long(numbers[NEXT_ADDRESS])
    numbers[NEXT_ADDRESS] += up_to_multiple(size, as_long(LARGE_STEP_BYTES))
    return address


@callable_from_loops
def _page_bytes(config: Int64Array, group: int) -> int:
    """The size of the pages that an expandable segment of a group consists of."""
    return as_long(SMALL_SEGMENT_BYTES) if group & 1 else as_long(config[LARGE_SEGMENT])


@callable_from_loops
def _whole(size: int, config: Int64Array, group: int) -> int:
    """Bytes of the pages of a group that fit into a size."""
    page = _page_bytes(config, group)
    return as_long(np.uint64(size) // np.uint64(max(page, as_long(1))) * np.uint64(page))


@callable_from_loops
def _up_to_pages(size: int, config: Int64Array, group: int) -> int:
    """Bytes of the pages of a group that hold a size."""
    return _whole(size + _page_bytes(config, group) - 1, config, group)


@callable_from_loops
def _is_open(blocks: Blocks, block: int) -> bool:
    return block != NONE and blocks[STATE, block] in (FREE, UNMAPPED)


@callable_from_loops
def _map(
    blocks: Blocks, free: Order, voids: Order, numbers: Numbers, config: Int64Array,
    groups: Groups, ages: Ages, block: int, wanted: int,
) -> int:  # fmt: skip
    """Maps the beginning of an unmapped block; the free block that then holds it, or `NONE`."""
    group = blocks[GROUP, block]
    size = min(_up_to_pages(wanted, config, group), as_long(blocks[SIZE, block]))
    if numbers[RESERVED] + size > config[CAPACITY]:
        return as_long(NONE)
    remove_void(blocks, voids, numbers, block)
    left = blocks[SIZE, block] - size
    if left > 0:
        rest = new_block(
            blocks, numbers, blocks[ADDRESS, block] + size, left, UNMAPPED, group,
            blocks[SEGMENT, block],
        )  # fmt: skip
        link(blocks, rest, as_long(blocks[AFTER, block]))
        link(blocks, block, rest)
        blocks[SIZE, block] = size
        add_void(blocks, voids, numbers, rest)
    blocks[STATE, block] = FREE
    absorb_neighbours(blocks, free, voids, numbers, block)
    add_free(blocks, free, numbers, block, ages[groups[CLASS, group]])
    numbers[RESERVED] += size
    numbers[DEVICE_ALLOCS] += 1
    return block


@callable_from_loops
def _grow_expandable(
    blocks: Blocks, free: Order, voids: Order, numbers: Numbers, config: Int64Array,
    groups: Groups, ages: Ages, given_sizes: Int64Array, given_addresses: Int64Array, size: int,
    group: int,
) -> int:  # fmt: skip
    """Maps room for a request at the lowest address that has it; the block, or `NONE`."""
    candidate = as_long(NONE)
    at = first_at_least(blocks, voids, numbers[VOID_COUNT], group, 0, 0, False)
    while candidate == NONE and at < numbers[VOID_COUNT] and blocks[GROUP, voids[at]] == group:
        start = as_long(voids[at])
        before = as_long(blocks[BEFORE, start])
        if _is_open(blocks, before):
            start = before
        room, block = as_long(0), start
        while room < size and _is_open(blocks, block):
            room += blocks[SIZE, block]
            block = as_long(blocks[AFTER, block])
        if room >= size:
            candidate = start
        at += 1
    if candidate == NONE:
        space = _up_to_pages(as_long(config[ADDRESS_SPACE]), config, group)
        address = new_address(group, space, numbers, groups, given_sizes, given_addresses)
        candidate = new_block(blocks, numbers, address, space, UNMAPPED, group, address)
        add_void(blocks, voids, numbers, candidate)
    if blocks[STATE, candidate] == UNMAPPED:
        candidate = _map(
            blocks, free, voids, numbers, config, groups, ages, candidate,
            min(as_long(blocks[SIZE, candidate]), size),
        )  # fmt: skip
    while candidate != NONE and blocks[SIZE, candidate] < size:
        after = as_long(blocks[AFTER, candidate])
        candidate = _map(
            blocks, free, voids, numbers, config, groups, ages, after,
            min(as_long(blocks[SIZE, after]), size - blocks[SIZE, candidate]),
        )  # fmt: skip
    if candidate != NONE:
        remove_free(blocks, free, numbers, candidate)
    return candidate


@callable_from_loops
def unmap(
    blocks: Blocks, free: Order, voids: Order, numbers: Numbers, config: Int64Array,
    groups: Groups, ages: Ages, block: int,
) -> None:  # fmt: skip
    """Gives the whole pages within a free block of an expandable segment back to the device."""
    group = blocks[GROUP, block]
    segment = blocks[SEGMENT, block]
    begin = blocks[ADDRESS, block] - segment
    end = begin + blocks[SIZE, block]
    first, last = _up_to_pages(begin, config, group), _whole(end, config, group)
    if first >= last:
        return
    now = ages[groups[CLASS, group]]
    remove_free(blocks, free, numbers, block)
    if first > begin:
        head = new_block(blocks, numbers, segment + begin, first - begin, FREE, group, segment)
        link(blocks, as_long(blocks[BEFORE, block]), head)
        link(blocks, head, block)
        add_free(blocks, free, numbers, head, now)
    if end > last:
        tail = new_block(blocks, numbers, segment + last, end - last, FREE, group, segment)
        link(blocks, tail, as_long(blocks[AFTER, block]))
        link(blocks, block, tail)
        add_free(blocks, free, numbers, tail, now)
    blocks[ADDRESS, block], blocks[SIZE, block] = segment + first, last - first
    blocks[STATE, block] = UNMAPPED
    absorb_neighbours(blocks, free, voids, numbers, block)
    numbers[RESERVED] -= last - first
    numbers[DEVICE_FREES] += 1
    if blocks[BEFORE, block] == NONE and blocks[AFTER, block] == NONE:
        drop_block(blocks, numbers, block)  # nothing of the segment is left
    else:
        add_void(blocks, voids, numbers, block)


@callable_from_loops
def grow(
    blocks: Blocks, free: Order, voids: Order, numbers: Numbers, config: Int64Array,
    groups: Groups, ages: Ages, given_sizes: Int64Array, given_addresses: Int64Array, size: int,
    group: int,
) -> int:  # fmt: skip
    """Asks the device for room; a block that is in no order, or `NONE`."""
    asked = segment_bytes(size, as_long(config[LARGE_SEGMENT]))
    if config[LIMIT] and numbers[RESERVED] + asked > config[LIMIT]:
        return as_long(NONE)
    if config[EXPANDABLE]:
        return _grow_expandable(
            blocks, free, voids, numbers, config, groups, ages, given_sizes, given_addresses,
            size, group,
        )  # fmt: skip
    if numbers[RESERVED] + asked > config[CAPACITY]:
        return as_long(NONE)
    address = new_address(group, asked, numbers, groups, given_sizes, given_addresses)
    numbers[RESERVED] += asked
    numbers[DEVICE_ALLOCS] += 1
    return new_block(blocks, numbers, address, asked, FREE, group, as_long(NONE))


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
