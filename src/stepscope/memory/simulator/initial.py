"""The state that a simulation begins with: the recorded allocator before the first event."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.memory.allocator.rounding import SMALL_SEGMENT_BYTES
from stepscope.memory.allocator.settings import AllocatorSettings
from stepscope.memory.replay.arrays import Int64Array, whole
from stepscope.memory.replay.state import State
from stepscope.memory.schema import BlockState
from stepscope.memory.simulator import blocks as b
from stepscope.memory.simulator.blocks import (
    CLASS,
    GIVEN,
    GIVEN_END,
    GROUP_FIELDS,
    POOL,
    RELEASABLE,
)
from stepscope.memory.simulator.operations import place_numbers

_SYNTHETIC_FROM = 2**48
"""Addresses of segments whose real one is not known; above all that devices use."""


@dataclass
class Machine:
    """The arrays of a simulated allocator; the loops change them."""

    blocks: Int64Array
    free: Int64Array
    voids: Int64Array
    numbers: Int64Array
    groups: Int64Array
    ages: Int64Array
    of_allocation: Int64Array
    given_sizes: Int64Array
    given_addresses: Int64Array

    def grow(self) -> None:
        """Makes room for twice as many blocks."""
        self.blocks, self.free, self.voids = b.grown_arrays(self.blocks, self.free, self.voids)


def new_machine(
    allocations: int,
    groups: int,
    pools: list[int],
    slots: int = 1024,
) -> Machine:
    """An allocator that holds nothing.

    There are two groups for each pair of pool and stream; `pools` has the pool of each pair.
    """
    blocks, free, voids = b.new_arrays(slots)
    numbers = np.zeros(b.NUMBERS, np.int64)
    numbers[b.SPARE] = b.NONE
    numbers[b.NEXT_ADDRESS] = _SYNTHETIC_FROM
    about = np.zeros((GROUP_FIELDS, groups), np.int64)
    known = sorted(set(pools))
    for group in range(groups):
        pool = pools[group // 2]
        about[POOL, group] = pool
        about[CLASS, group] = 2 * known.index(pool) + group % 2
        about[RELEASABLE, group] = pool == 0
    return Machine(
        blocks=blocks,
        free=free,
        voids=voids,
        numbers=numbers,
        groups=about,
        ages=np.zeros(2 * len(known) + 2, np.int64),
        of_allocation=np.full(allocations, b.NONE, np.int64),
        given_sizes=np.zeros(0, np.int64),
        given_addresses=np.zeros(0, np.int64),
    )


def give_addresses(
    machine: Machine, stretches: pl.DataFrame, places: dict[tuple[int, int], int]
) -> None:
    """Tells the machine where the device put segments in the recording, in order of time."""
    later = stretches.filter(pl.col("start_event").is_not_null()).sort("start_event")
    group = 2 * place_numbers(later, places) + (~later["is_large"]).cast(pl.Int64)
    listed = later.select("address", "size_bytes", "is_expandable", "start_event").with_columns(
        group=group
    )
    fixed = listed.filter(~pl.col("is_expandable"))
    # Of an expandable segment the beginning: the lowest address that was ever mapped.
    grown = (
        listed.filter(pl.col("is_expandable"))
        .group_by("group", maintain_order=True)
        .agg(pl.col("address").min(), pl.col("start_event").first())
        .with_columns(size_bytes=pl.lit(b.NONE, dtype=pl.Int64))
    )
    columns = ["group", "start_event", "size_bytes", "address"]
    ordered = pl.concat([fixed.select(columns), grown.select(columns)]).sort(columns)
    machine.given_sizes = whole(ordered["size_bytes"])
    machine.given_addresses = whole(ordered["address"])
    numbers = whole(ordered["group"])
    every = np.arange(machine.groups.shape[1])
    machine.groups[GIVEN] = np.searchsorted(numbers, every, side="left")
    machine.groups[GIVEN_END] = np.searchsorted(numbers, every, side="right")


def load_state(
    machine: Machine,
    state: State,
    stretches: pl.DataFrame,
    settings: AllocatorSettings,
    places: dict[tuple[int, int], int],
    address_space: int,
) -> None:
    """Puts the segments and blocks of a recorded state into a machine."""
    known = stretches.select("address", "is_large").unique("address", keep="first")
    segments = state.segments.join(
        known.rename({"is_large": "told"}), on="address", how="left", maintain_order="left"
    ).with_columns(is_large=pl.coalesce("is_large", "told", pl.lit(value=True)))
    place = place_numbers(segments, places)
    groups = whole(2 * place + (~segments["is_large"]).cast(pl.Int64))
    lowest = _lowest_mapped(stretches)
    by_segment = state.blocks.partition_by("segment", as_dict=True)
    need = len(state.blocks) + 2 * len(segments) + 64
    while machine.blocks.shape[1] < 2 * need:
        machine.grow()
    ends: dict[int, tuple[int, int]] = {}  # of expandable segments: last block, and its end
    for number, row in enumerate(segments.iter_rows(named=True)):
        group = int(groups[number])
        base = b.NONE
        previous = b.NONE
        if row["is_expandable"]:
            base = min(lowest.get((row["pool"], row["stream"], row["is_large"]), row["address"]),
                       row["address"])  # fmt: skip
            previous, end = ends.get(group, (b.NONE, base))
            if row["address"] > end:
                gap = _add(machine, end, row["address"] - end, b.UNMAPPED, group, base, previous)
                previous = gap
        for block in by_segment[(row["segment"],)].iter_rows(named=True):
            previous = _add_recorded(machine, block, group, base, previous)
        machine.numbers[b.RESERVED] += row["size_bytes"]
        if row["is_expandable"]:
            ends[group] = (previous, row["address"] + row["size_bytes"])
    for group, (last, end) in ends.items():
        page = SMALL_SEGMENT_BYTES if group % 2 else settings.large_segment_bytes
        base = int(machine.blocks[b.SEGMENT, last])
        space = base + -(-address_space // page) * page - end
        if space > 0:
            _add(machine, end, space, b.UNMAPPED, group, base, last)


def _lowest_mapped(stretches: pl.DataFrame) -> dict[tuple[int, int, bool], int]:
    grown = stretches.filter(pl.col("is_expandable"))
    lowest = grown.group_by("pool", "stream", "is_large").agg(pl.col("address").min())
    return {(pool, stream, large): at for pool, stream, large, at in lowest.iter_rows()}


def _add_recorded(
    machine: Machine, block: dict[str, object], group: int, base: int, previous: int
) -> int:
    state = {
        BlockState.ALLOCATED.value: b.USED,
        BlockState.PENDING_FREE.value: b.PENDING,
        BlockState.INACTIVE.value: b.FREE,
    }[str(block["state"])]
    address, size, allocation = (block[k] for k in ("address", "size_bytes", "allocation"))
    assert isinstance(address, int)
    assert isinstance(size, int)
    added = _add(machine, address, size, state, group, base, previous)
    if isinstance(allocation, int):
        machine.blocks[b.OWNER, added] = allocation
        machine.of_allocation[allocation] = added
        if state == b.USED:
            machine.numbers[b.ALLOCATED] += size
    return added


def _add(
    machine: Machine, address: int, size: int, state: int, group: int, base: int, previous: int
) -> int:
    """A block behind another, in the order that its state wants."""
    block = b.new_block(machine.blocks, machine.numbers, address, size, state, group, base)
    b.link(machine.blocks, previous, block)
    if state == b.FREE:
        b.add_free(machine.blocks, machine.free, machine.numbers, block, 0)
    elif state == b.UNMAPPED:
        b.add_void(machine.blocks, machine.voids, machine.numbers, block)
    return int(block)
