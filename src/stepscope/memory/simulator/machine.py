"""The caching allocator, step by step, in the order in which torch tries things.

A request is rounded. Then the smallest free block of its group that fits is taken, unless it is one
that is too large to be split. If there is none: unused blocks are collected where a threshold says
so, and the device is asked for a segment, or for pages of an expandable one. If the device has no
room, large cached blocks of the group are given back; if that is not enough, everything that is
cached; if that is not enough either, the request fails. A block that serves a request is split
where enough remains. Neighbours that are free are joined.

Described in torch's notes on memory management
(https://docs.pytorch.org/docs/stable/notes/cuda.html) and in the comments of its allocator; this is
written anew from the behaviour.
"""

from __future__ import annotations

import numpy as np

from stepscope.memory.allocator.rounding import (
    LARGE_STEP_BYTES,
    LEAST_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    rounded,
    segment_bytes,
    up_to_multiple,
)
from stepscope.memory.simulator.blocks import (
    ADDRESS,
    ADDRESS_SPACE,
    AFTER,
    ALLOCATED,
    ALLOCATED_THEN,
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
    FREE_ONES,
    GIVEN,
    GIVEN_END,
    GROUP,
    LARGE_SEGMENT,
    LEVELS,
    LIMIT,
    MAX_SPLIT,
    NEXT,
    NEXT_ADDRESS,
    NONE,
    OWNER,
    PEAK_ALLOCATED,
    PEAK_RESERVED,
    PENDING,
    POOL,
    RELEASABLE,
    RESERVED,
    RETRIES,
    ROUNDING_LIMIT,
    SEGMENT,
    SIZE,
    SLOT_CAPACITY,
    SLOTS,
    STATE,
    UNLIMITED,
    UNMAPPED,
    USED,
    VOIDS,
    Blocks,
    Machine,
    drop_block,
    first_at_least,
    new_block,
    put,
    put_joined,
    split,
    take,
)
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.helpers import as_long, jit_helper

# -- memory from the device, and back to it: segments, and pages of expandable ones


@jit_helper
def _new_address(machine: Machine, group: int, size: int) -> int:
    """Where the device puts a segment: where it was in the recording, if that is known."""
    _, _, numbers, _, groups, _, _, given = machine
    at = groups[GIVEN, group]
    if at < groups[GIVEN_END, group] and given[0, at] in (size, NONE):
        groups[GIVEN, group] = at + 1
        return as_long(given[1, at])
    address = as_long(numbers[NEXT_ADDRESS])
    numbers[NEXT_ADDRESS] += up_to_multiple(size, as_long(LARGE_STEP_BYTES))
    return address


@jit_helper
def _page_bytes(config: Int64Array, group: int) -> int:
    return as_long(SMALL_SEGMENT_BYTES) if group & 1 else as_long(config[LARGE_SEGMENT])


@jit_helper
def _whole(size: int, config: Int64Array, group: int) -> int:
    """Bytes of the pages of a group that fit into a size."""
    page = _page_bytes(config, group)
    return as_long(np.uint64(size) // np.uint64(max(page, as_long(1))) * np.uint64(page))


@jit_helper
def _up_to_pages(size: int, config: Int64Array, group: int) -> int:
    """Bytes of the pages of a group that hold a size."""
    return _whole(size + _page_bytes(config, group) - 1, config, group)


@jit_helper
def _is_open(blocks: Blocks, block: int) -> bool:
    return block != NONE and blocks[STATE, block] in (FREE, UNMAPPED)


@jit_helper
def _map(machine: Machine, block: int, wanted: int) -> int:
    """Maps the beginning of an unmapped block; the free block that then holds it, or `NONE`."""
    blocks, _, numbers, config, _, _, _, _ = machine
    size = _up_to_pages(min(as_long(blocks[SIZE, block]), wanted), config, blocks[GROUP, block])
    size = min(size, as_long(blocks[SIZE, block]))
    if numbers[RESERVED] + size > config[CAPACITY]:
        return as_long(NONE)
    take(machine, block)
    if blocks[SIZE, block] > size:
        put(machine, split(machine, block, size), as_long(UNMAPPED))
    put_joined(machine, block, as_long(FREE))
    numbers[RESERVED] += size
    numbers[DEVICE_ALLOCS] += 1
    return block


@jit_helper
def _grow_expandable(machine: Machine, size: int, group: int) -> int:
    """Maps pages for a request at the lowest free address; the block, or `NONE`."""
    blocks, _, _, config, _, _, _, _ = machine
    candidate = as_long(NONE)
    at = first_at_least(machine, as_long(VOIDS), group, 0, 0)
    while candidate == NONE and at != NONE and blocks[GROUP, at] == group:
        start = at
        before = as_long(blocks[BEFORE, start])
        if _is_open(blocks, before):
            start = before
        gathered, block = as_long(0), start
        while gathered < size and _is_open(blocks, block):
            gathered += blocks[SIZE, block]
            block = as_long(blocks[AFTER, block])
        if gathered >= size:
            candidate = start
        at = as_long(blocks[NEXT, at])
    if candidate == NONE:
        space = _up_to_pages(as_long(config[ADDRESS_SPACE]), config, group)
        if size > space:
            return as_long(NONE)
        address = _new_address(machine, group, space)
        candidate = new_block(machine, address, space, UNMAPPED, group, address)
        put(machine, candidate, as_long(UNMAPPED))
    if blocks[STATE, candidate] == UNMAPPED:
        candidate = _map(machine, candidate, size)
    while candidate != NONE and blocks[SIZE, candidate] < size:
        after = as_long(blocks[AFTER, candidate])
        candidate = _map(machine, after, size - blocks[SIZE, candidate])
    if candidate != NONE:
        take(machine, candidate)
    return candidate


@jit_helper
def _unmap(machine: Machine, block: int) -> None:
    """Gives the whole pages within a free block of an expandable segment back to the device."""
    blocks, _, numbers, config, _, _, _, _ = machine
    group = blocks[GROUP, block]
    begin = blocks[ADDRESS, block] - blocks[SEGMENT, block]
    end = begin + blocks[SIZE, block]
    first, last = _up_to_pages(begin, config, group), _whole(end, config, group)
    if first >= last:
        return
    take(machine, block)
    if first > begin:
        head = block
        block = split(machine, head, first - begin)
        put(machine, head, as_long(FREE))
    if end > last:
        put(machine, split(machine, block, last - first), as_long(FREE))
    numbers[RESERVED] -= last - first
    numbers[DEVICE_FREES] += 1
    put_joined(machine, block, as_long(UNMAPPED))
    if blocks[BEFORE, block] == NONE and blocks[AFTER, block] == NONE:
        take(machine, block)  # nothing of the segment is left
        drop_block(machine, block)


@jit_helper
def _grow(machine: Machine, size: int, group: int) -> int:
    """Asks the device for a segment; a block that is on no free list, or `NONE`."""
    _, _, numbers, config, _, _, _, _ = machine
    asked = segment_bytes(size, as_long(config[LARGE_SEGMENT]))
    if config[LIMIT] and numbers[RESERVED] + asked > config[LIMIT]:
        return as_long(NONE)
    if config[EXPANDABLE]:
        return _grow_expandable(machine, size, group)
    if numbers[RESERVED] + asked > config[CAPACITY]:
        return as_long(NONE)
    address = _new_address(machine, group, asked)
    numbers[RESERVED] += asked
    numbers[DEVICE_ALLOCS] += 1
    return new_block(machine, address, asked, FREE, group, as_long(NONE))


@jit_helper
def _is_whole(blocks: Blocks, block: int) -> bool:
    """Whether a block is all of a segment, and no part of an expandable one."""
    has_neighbour = blocks[BEFORE, block] != NONE or blocks[AFTER, block] != NONE
    return not has_neighbour and blocks[SEGMENT, block] == NONE


@jit_helper
def _give_back(machine: Machine, block: int) -> None:
    """Gives a free block that is a whole segment back to the device."""
    blocks, _, numbers, _, _, _, _, _ = machine
    take(machine, block)
    numbers[RESERVED] -= blocks[SIZE, block]
    numbers[DEVICE_FREES] += 1
    drop_block(machine, block)


@jit_helper
def _release_all(machine: Machine) -> None:
    """Gives everything back that is cached, after waiting for blocks that are pending."""
    blocks, _, numbers, _, groups, _, of_allocation, _ = machine
    for block in range(numbers[SLOTS]):
        if blocks[STATE, block] == PENDING:
            of_allocation[blocks[OWNER, block]] = NONE
            put_joined(machine, as_long(block), as_long(FREE))
    free = as_long(blocks[NEXT, FREE_ONES])
    while free != NONE:
        following = as_long(blocks[NEXT, free])
        if groups[RELEASABLE, blocks[GROUP, free]] and _is_whole(blocks, free):
            _give_back(machine, free)
        free = following
    # Unmapping changes the order, but no block that another address begins at.
    for block in range(numbers[SLOTS]):
        if (
            blocks[STATE, block] == FREE
            and blocks[SEGMENT, block] != NONE
            and groups[RELEASABLE, blocks[GROUP, block]]
        ):
            _unmap(machine, as_long(block))


@jit_helper
def _release_large(machine: Machine, size: int, group: int) -> bool:
    """Gives blocks of a group back that are too large to be split; whether that may be enough."""
    blocks, passed, _, config, _, _, _, _ = machine
    if config[MAX_SPLIT] >= UNLIMITED:
        return False
    wanted = max(as_long(config[MAX_SPLIT]), size)
    block = first_at_least(machine, as_long(FREE_ONES), group, wanted, 0)
    if block != NONE and blocks[GROUP, block] == group:
        if not _is_whole(blocks, block):
            return False
        _give_back(machine, block)
        return True
    released = as_long(0)
    block = as_long(passed[LEVELS - 1])  # the largest that is less
    while (
        block != FREE_ONES
        and released < wanted
        and blocks[GROUP, block] == group
        and blocks[SIZE, block] >= config[MAX_SPLIT]
        and _is_whole(blocks, block)
    ):
        released += blocks[SIZE, block]
        _give_back(machine, block)  # which passes all that are less
        block = as_long(passed[LEVELS - 1])
    return released >= wanted


@jit_helper
def _collect_garbage(machine: Machine) -> None:
    """Gives the oldest unused segments of the default pool's large class back."""
    blocks, _, numbers, config, groups, ages, _, _ = machine
    if not config[COLLECT_ABOVE] or numbers[RESERVED] <= config[COLLECT_ABOVE]:
        return
    target = numbers[RESERVED] - config[COLLECT_ABOVE]
    total, count = as_long(0), as_long(0)
    block = as_long(blocks[NEXT, FREE_ONES])
    while block != NONE:
        group = blocks[GROUP, block]
        if groups[POOL, group] == 0 and not group & 1 and _is_whole(blocks, block):
            total += ages[groups[CLASS, group]] - blocks[BORN, block]
            count += 1
        block = as_long(blocks[NEXT, block])
    reclaimed, has_freed = as_long(0), True
    while reclaimed < target and has_freed and count > 0:
        all_ages, all_count = total, count
        has_freed = False
        block = as_long(blocks[NEXT, FREE_ONES])
        while block != NONE:
            following = as_long(blocks[NEXT, block])
            group = blocks[GROUP, block]
            is_candidate = groups[POOL, group] == 0 and not group & 1 and _is_whole(blocks, block)
            age = ages[groups[CLASS, group]] - blocks[BORN, block]
            if is_candidate and age * all_count >= all_ages:  # no younger than the mean
                has_freed = True
                reclaimed += blocks[SIZE, block]
                total -= age
                count -= 1
                _give_back(machine, block)
            block = following


# -- requests


@jit_helper
def _growth(blocks: Blocks, block: int) -> int:
    """How large a block is, or could become if its expandable segment grows behind it."""
    after = blocks[AFTER, block]
    grows = after != NONE and blocks[STATE, after] == UNMAPPED
    return as_long(blocks[SIZE, block] + (blocks[SIZE, after] if grows else 0))


@jit_helper
def _take_free(machine: Machine, size: int, group: int) -> int:
    """A free block for a rounded request, out of the order; `NONE` where there is none."""
    blocks, _, _, config, groups, ages, _, _ = machine
    if config[COLLECT_ABOVE]:
        ages[groups[CLASS, group]] += 1
    block = first_at_least(machine, as_long(FREE_ONES), group, size, 0)
    if block == NONE or blocks[GROUP, block] != group:
        return as_long(NONE)
    following = as_long(blocks[NEXT, block])
    if blocks[SEGMENT, block] != NONE and config[EXPANDABLE]:
        while (
            blocks[SEGMENT, block] != NONE
            and following != NONE
            and blocks[GROUP, following] == group
            and _growth(blocks, following) < _growth(blocks, block)
        ):
            block, following = following, as_long(blocks[NEXT, following])
    elif blocks[SEGMENT, block] != NONE:
        while block != NONE and blocks[GROUP, block] == group and blocks[SEGMENT, block] != NONE:
            block = as_long(blocks[NEXT, block])
        if block == NONE or blocks[GROUP, block] != group:
            return as_long(NONE)
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
        _collect_garbage(machine)
        block = _grow(machine, size, group)
    if block == NONE and _release_large(machine, size, group):
        block = _grow(machine, size, group)
    if block == NONE:
        _release_all(machine)
        numbers[RETRIES] += 1
        block = _grow(machine, size, group)
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
# can be used again; everything cached given back by the program; by the recorded allocator, because
# it needed room; one segment that it gave back so; a pool let go, as the recording shows; and a
# request that failed in the recording.
REQUEST, GIVE, FREED, RELEASE, RELEASE_FOR_REQUEST, RELEASE_SEGMENT, LET_POOL_GO, FAILED = range(8)

FINISHED, NEEDS_SLOTS, OUT_OF_MEMORY = range(3)
_SPARE_SLOTS = 16


def run_by_loop(
    events: Int64Array, whats: Int64Array, sizes: Int64Array, places: Int64Array,
    allocations: Int64Array, start: int, is_tried: bool, machine: Machine, divisions: Int64Array,
    reserved: Written[np.int64], allocated: Written[np.int64], is_served: Written[np.bool_],
    status: Written[np.int64],
) -> int:  # fmt: skip
    """Runs operations from one on.

    Operations are as in `Operations`. If `is_tried`, requests that failed in the recording are
    tried again, and what the recorded allocator gave back for room is not. `is_served` receives
    for each failed request whether it could be served now; `reserved` and `allocated`, unless they
    are empty, the bytes after each operation. `status`
    receives `FINISHED`, `NEEDS_SLOTS` where the array of blocks is too small to go on, or
    `OUT_OF_MEMORY` where the operation failed.

    Returns:
        The operation that comes next, or that failed.
    """
    blocks, _, numbers, _, groups, _, of_allocation, _ = machine
    for at in range(start, len(whats)):
        if numbers[SLOTS] + 2 * numbers[FREE_COUNT] + _SPARE_SLOTS > numbers[SLOT_CAPACITY]:
            status[0] = NEEDS_SLOTS
            return at
        what = whats[at]
        allocation = as_long(allocations[at])
        if what in (REQUEST, FAILED):
            if what == REQUEST or is_tried:
                size = rounded(as_long(sizes[at]), divisions)
                group = 2 * as_long(places[at]) + (1 if size <= SMALL_BYTES else 0)
                block = _allocate(machine, size, group)
                if block == NONE:
                    if what == REQUEST:
                        status[0] = OUT_OF_MEMORY
                        return at
                elif what == REQUEST:
                    blocks[OWNER, block] = allocation
                    of_allocation[allocation] = block
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
        elif what == RELEASE or (what == RELEASE_FOR_REQUEST and not is_tried):
            _release_all(machine)
        elif what == RELEASE_SEGMENT and not is_tried:
            block = as_long(blocks[NEXT, FREE_ONES])
            while block != NONE and blocks[ADDRESS, block] != places[at]:
                block = as_long(blocks[NEXT, block])
            if block != NONE and _is_whole(blocks, block):
                _give_back(machine, block)
        elif what == LET_POOL_GO:
            groups[RELEASABLE, places[at]] = 1
        if len(reserved):
            reserved[at] = numbers[RESERVED]
            allocated[at] = numbers[ALLOCATED]
        is_last = True  # of its event
        if at + 1 < len(events):
            is_last = events[at] != events[at + 1]
        if is_last:
            if numbers[RESERVED] > numbers[PEAK_RESERVED]:
                numbers[PEAK_RESERVED] = numbers[RESERVED]
                numbers[ALLOCATED_THEN] = numbers[ALLOCATED]
            numbers[PEAK_ALLOCATED] = max(numbers[PEAK_ALLOCATED], numbers[ALLOCATED])
    status[0] = FINISHED
    return len(whats)
