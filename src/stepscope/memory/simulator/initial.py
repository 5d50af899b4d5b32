"""The state that a simulation begins with: the recorded allocator before the first event."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.memory.allocator.rounding import SMALL_SEGMENT_BYTES
from stepscope.memory.allocator.settings import AllocatorSettings
from stepscope.memory.replay.arrays import whole
from stepscope.memory.replay.state import State
from stepscope.memory.schema import BlockState
from stepscope.memory.simulator import blocks as b
from stepscope.memory.simulator.operations import place_numbers

_SYNTHETIC_FROM = 2**48
"""Addresses of segments whose real one is not known; above all that devices use."""
_FIRST_SLOTS = 1024


class Machine:
    """A simulated allocator that holds nothing; the loops change its arrays.

    Args:
        allocations: How many allocations there will be.
        pools: The pool of each pair of pool and stream, of which each has two groups.
    """

    def __init__(self, allocations: int, pools: list[int]) -> None:
        self.blocks = b.new_blocks(_FIRST_SLOTS)
        self.passed = np.zeros(b.LEVELS, np.int64)
        self.numbers = np.zeros(b.NUMBERS, np.int64)
        self.numbers[b.SLOTS] = b.VOIDS + 1  # behind those that the orders begin with
        self.numbers[[b.SPARE, b.NEXT_ADDRESS, b.SLOT_CAPACITY]] = (
            b.NONE,
            _SYNTHETIC_FROM,
            _FIRST_SLOTS,
        )
        self.config = np.zeros(b.CONFIG_FIELDS, np.int64)
        self.groups = np.zeros((b.GROUP_FIELDS, 2 * len(pools)), np.int64)
        known = sorted(set(pools))
        for group in range(2 * len(pools)):
            pool = pools[group // 2]
            self.groups[b.POOL, group] = pool
            self.groups[b.CLASS, group] = 2 * known.index(pool) + group % 2
            self.groups[b.RELEASABLE, group] = pool == 0
        self.ages = np.zeros(2 * len(known) + 2, np.int64)
        self.of_allocation = np.full(allocations, b.NONE, np.int64)
        self.given = np.zeros((2, 0), np.int64)

    @property
    def arrays(self) -> b.Machine:
        """What the loops take."""
        return (
            self.blocks, self.passed, self.numbers, self.config, self.groups, self.ages,
            self.of_allocation, self.given,
        )  # fmt: skip

    def grow(self) -> None:
        """Doubles the capacity for blocks."""
        slots = self.blocks.shape[1]
        blocks = b.new_blocks(2 * slots)
        blocks[:, :slots] = self.blocks
        self.blocks = blocks
        self.numbers[b.SLOT_CAPACITY] = 2 * slots


def give_addresses(
    machine: Machine, stretches: pl.DataFrame, places: dict[tuple[int, int], int]
) -> None:
    """Tells the machine where the device put segments in the recording, in order of time."""
    group = 2 * place_numbers(stretches, places) + (~stretches["is_large"]).cast(pl.Int64)
    listed = stretches.select(
        "address", "size_bytes", "is_expandable", "start_event", "end_event"
    ).with_columns(group=group)
    fixed = listed.filter(~pl.col("is_expandable") & pl.col("start_event").is_not_null())
    # Of an expandable segment the beginning: the lowest address that was ever mapped. Once nothing
    # of it is mapped, it is gone, and what is mapped next is another.
    until = pl.col("end_event").fill_null(b.UNLIMITED).cum_max().shift().over("group")
    is_next = (pl.col("start_event") > until).fill_null(value=False)
    grown = (
        listed.filter("is_expandable")
        .sort("start_event", nulls_last=False)
        .with_columns(segment=is_next.cum_sum().over("group"))
        .group_by("group", "segment", maintain_order=True)
        .agg(pl.col("address").min(), pl.col("start_event").first())
        .drop_nulls("start_event")
        .with_columns(size_bytes=pl.lit(b.NONE, dtype=pl.Int64))
    )
    columns = ["group", "start_event", "size_bytes", "address"]
    ordered = pl.concat([fixed.select(columns), grown.select(columns)]).sort(columns)
    machine.given = np.stack([whole(ordered["size_bytes"]), whole(ordered["address"])])
    numbers = whole(ordered["group"])
    every = np.arange(machine.groups.shape[1])
    machine.groups[b.GIVEN] = np.searchsorted(numbers, every, side="left")
    machine.groups[b.GIVEN_END] = np.searchsorted(numbers, every, side="right")


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
    block = b.new_block(machine.arrays, address, size, state, group, base)
    b.link(machine.blocks, previous, block)
    if state in (b.FREE, b.UNMAPPED):
        b.put(machine.arrays, block, state)
    return int(block)
