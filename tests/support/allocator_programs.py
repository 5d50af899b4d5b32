"""Programs for the plain allocator, drawn by hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.support.allocator import KIB, MIB, UNLIMITED, Allocator, OutOfMemory, Settings

SIZES = st.one_of(
    st.integers(1, 4 * KIB),
    st.integers(4 * KIB, MIB),
    st.integers(MIB - 600, 3 * MIB),
    st.integers(3 * MIB, 30 * MIB),
    st.sampled_from([512, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 24 * MIB]),
)
STREAMS = st.sampled_from([0, 0, 0, 7, 9])
POOLS = st.sampled_from([(0, 0), (0, 0), (0, 0), (0, 1), (3, 0)])
STEPS = st.one_of(
    st.tuples(st.just("malloc"), SIZES, STREAMS, POOLS),
    st.tuples(st.just("malloc"), SIZES, STREAMS, POOLS),
    st.tuples(st.just("free"), st.integers(0, 10**6), st.booleans()),
    st.tuples(st.just("free"), st.integers(0, 10**6), st.just(value=False)),
    st.tuples(st.just("complete"), st.integers(0, 10**6)),
    st.tuples(st.just("empty")),
)
SETTINGS = st.builds(
    Settings,
    expandable=st.booleans(),
    max_split=st.sampled_from([UNLIMITED, UNLIMITED, 20 * MIB, 25 * MIB]),
    divisions=st.sampled_from([0, 0, 1, 2, 4, 16]),
)
PROGRAMS = st.lists(STEPS, max_size=60)


class Program:
    """A program as it runs: what it holds, and what waits for another stream."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.live: list[int] = []
        self.waiting: list[int] = []
        self.is_over = False

    def run(self, steps):
        for step in steps:
            self.step(*step)
        return self

    def step(self, what, *arguments):
        """One step; after an allocation that failed, nothing happens any more."""
        if self.is_over:
            return
        if what == "malloc":
            size, stream, pool = arguments
            try:
                self.live.append(self.allocator.malloc(size, stream, pool=pool))
            except OutOfMemory:
                self.is_over = True
        elif what == "free" and self.live:
            address = self.live.pop(arguments[0] % len(self.live))
            self.allocator.free(address, pending=arguments[1])
            if arguments[1]:
                self.waiting.append(address)
        elif what == "complete" and self.waiting:
            self.allocator.complete(self.waiting.pop(arguments[0] % len(self.waiting)))
        elif what == "empty":
            self.allocator.empty_cache()
        held = {
            block.address
            for segment in self.allocator.segments
            for block in segment.blocks
            if block.state == "pending"
        }
        self.waiting = [address for address in self.waiting if address in held]
