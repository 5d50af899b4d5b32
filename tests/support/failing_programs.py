"""Programs that run out of memory for a known cause, on the plain allocator.

A program is a list of requests, so that it can run again with a remedy: with other settings, more
memory, smaller tensors, one stream or one pool. Its cause holds by the numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.support.allocator import DEFAULT_POOL, MIB, Allocator, OutOfMemory, Settings
from tests.support.snapshots import Frames

CARD_SHARE = 63 / 64
"""Of a card: what a process that is alone on it can have."""
_KEEP, _TEMPORARY, _ASK = "model.py:5:keep", "model.py:9:temporary", "loss.py:3:logits"


@dataclass(frozen=True)
class Request:
    """One request, or with `freed` the return of an earlier one."""

    name: int
    size: int = 0
    line: str = ""
    stream: int = 0
    pool: tuple[int, int] = DEFAULT_POOL
    freed: bool = False


@dataclass(frozen=True)
class Program:
    """A program, of which the last request fails.

    Attributes:
        cause: The cause, as the product names it.
        total: What the card has left for the process.
        card: The whole card; None: nobody knows.
    """

    cause: str
    total: int
    card: int | None
    requests: tuple[Request, ...]
    settings: Settings = field(default_factory=Settings)

    def run(self) -> tuple[Allocator, bool]:
        """The allocator afterwards, and whether all was served."""
        allocator, stack = Allocator(total=self.total, settings=self.settings), Frames()
        addresses = {}
        for one in self.requests:
            if one.freed:
                allocator.free(addresses.pop(one.name))
                continue
            try:
                addresses[one.name] = allocator.malloc(
                    one.size, one.stream, stack(one.line), one.pool
                )
            except OutOfMemory:
                return allocator, False
        return allocator, True

    @property
    def held(self) -> int:
        """What is held when the last request is made, in rounded sizes."""
        allocator = Allocator(settings=self.settings)
        live: dict[int, int] = {}
        for one in self.requests[:-1]:
            if one.freed:
                del live[one.name]
            else:
                live[one.name] = allocator.rounded(one.size)
        return sum(live.values())

    def with_requests(self, change: Callable[[Request], Request]) -> Program:
        """The program with changed requests."""
        return replace(self, requests=tuple(map(change, self.requests)))


class _Writer:
    """Writes a program: what is asked for and given back."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def ask(self, size: int, line: str, **more: object) -> int:
        name = len(self.requests)
        self.requests.append(Request(name, size, line, **more))
        return name

    def free(self, name: int) -> None:
        self.requests.append(Request(name, freed=True))

    def held_and_freed(self, chance: random.Random, most: int, **more: object) -> None:
        """Some that stay, some that go, in at most so many bytes."""
        used, gone = 0, []
        while True:
            size = chance.randrange(11, 60) * MIB + chance.randrange(0, 4) * 512
            if used + size + 2 * MIB > most:
                break
            used += size + 2 * MIB
            is_kept = chance.random() < 0.6
            name = self.ask(size, _KEEP if is_kept else _TEMPORARY, **more)
            if not is_kept:
                gone.append(name)
        for name in gone:
            self.free(name)


def _pinned(writer: _Writer, chance: random.Random, count: int, hole: int, **more: object) -> None:
    """Segments with a hole each, and a block that pins it."""
    segments = []
    for _ in range(count):
        whole = writer.ask(2 * hole, _TEMPORARY, **more)
        segments.append(whole)
    for whole in segments:
        writer.free(whole)
        writer.ask(hole, _KEEP, **more)
        kept = chance.randrange(2, 1 + hole // MIB) * MIB
        writer.ask(kept, _KEEP, **more)
    # Each segment now holds a block of half of it, a second one, and a hole.


def _full(chance: random.Random, total: int, **more: object) -> list[Request]:
    writer = _Writer()
    writer.held_and_freed(chance, int(total * chance.uniform(0.4, 0.9)), **more)
    live = {one.name: one.size for one in writer.requests if not one.freed}
    for one in writer.requests:
        if one.freed:
            live.pop(one.name)
    left = total - sum(live.values())
    writer.ask(left + chance.randrange(1, 2 + (total - left) // MIB) * MIB, _ASK, **more)
    return writer.requests


def full(chance: random.Random) -> Program:
    """What is held and the request are more than there is."""
    total = chance.randrange(500, 4000) * MIB
    is_expandable = chance.random() < 0.4
    requests = _full(chance, total)
    settings = Settings(expandable=is_expandable)
    return Program("full", total, None, tuple(requests), settings)


def outside(chance: random.Random) -> Program:
    """Another process holds what is missing."""
    total = chance.randrange(500, 2000) * MIB
    writer = _Writer()
    writer.requests = _full(chance, total)
    missing = writer.requests[-1].size
    card = int((total + missing) / CARD_SHARE) + chance.randrange(20, 500) * MIB
    settings = Settings(expandable=chance.random() < 0.4)
    return Program("held outside torch", total, card, tuple(writer.requests), settings)


def larger(chance: random.Random) -> Program:
    """One request that no such card could serve."""
    total = chance.randrange(500, 2000) * MIB
    card = chance.choice([None, int(total * 1.1)])
    writer = _Writer()
    writer.held_and_freed(chance, total // 2)
    writer.ask(int((card or total) * chance.uniform(1.01, 9)) + 2 * MIB, _ASK)
    settings = Settings(expandable=chance.random() < 0.4)
    return Program("larger than the card", total, card, tuple(writer.requests), settings)


def limited(chance: random.Random) -> Program:
    """The process is allowed a part of the card, which has enough free."""
    total = chance.randrange(1000, 4000) * MIB
    fraction = chance.uniform(0.2, 0.4)
    allowed = int(total * fraction)
    requests = _full(chance, allowed)
    settings = Settings(fraction=fraction, expandable=chance.random() < 0.4)
    return Program("a limit of the process", total, None, tuple(requests), settings)


def fragmented(chance: random.Random) -> Program:
    """Enough is free, but every hole is smaller than the request."""
    hole = chance.randrange(20, 60) * MIB
    count = chance.randrange(5, 14)
    writer = _Writer()
    _pinned(writer, chance, count, hole)
    writer.ask(hole + chance.randrange(1, 10) * MIB, _ASK)
    total = 2 * hole * count + chance.randrange(1, 10) * MIB
    return Program("fragmented", total, None, tuple(writer.requests))


def in_another_stream(chance: random.Random) -> Program:
    """What is free is cached by another stream."""
    hole = chance.randrange(20, 60) * MIB
    count = chance.randrange(5, 14)
    writer = _Writer()
    _pinned(writer, chance, count, hole, stream=0x55D0_1000)
    writer.ask(chance.randrange(11, hole // MIB) * MIB, _ASK)
    total = 2 * hole * count + chance.randrange(1, 10) * MIB
    return Program("fragmented", total, None, tuple(writer.requests))


def in_a_private_pool(chance: random.Random) -> Program:
    """What is free belongs to a CUDA graph's pool, which gives nothing back."""
    writer = _Writer()
    sizes = [chance.randrange(20, 80) * MIB for _ in range(chance.randrange(4, 10))]
    names = [writer.ask(size, _TEMPORARY, pool=(0, 1)) for size in sizes]
    gone = chance.sample(names, len(names) - 1)
    for name in gone:
        writer.free(name)
    free = sum(sizes[name] for name in gone)
    total = sum(-(-size // (2 * MIB)) * 2 * MIB for size in sizes) + chance.randrange(1, 10) * MIB
    writer.ask(chance.randrange(11, max(12, free // MIB)) * MIB, _ASK)
    settings = Settings(expandable=chance.random() < 0.4)
    return Program("fragmented", total, None, tuple(writer.requests), settings)


KINDS = (full, outside, larger, limited, fragmented, in_another_stream, in_a_private_pool)


def failing_program(seed: int) -> Program:
    """The program of a seed: of the kinds in turn, the next that fails in its last request."""
    kind = KINDS[seed % len(KINDS)]
    for attempt in range(100):
        program = kind(random.Random(1000 * seed + attempt))
        allocator, is_served = program.run()
        asked = program.requests[-1].size
        if is_served or allocator.events[-1]["action"] != "oom":
            continue
        if allocator.events[-1]["size"] != allocator.rounded(asked):
            continue  # an earlier request failed
        if _holds(program, allocator, allocator.rounded(asked)):
            return program
    raise AssertionError(f"no program of the kind {kind.__name__} fails as it should")


def _holds(program: Program, allocator: Allocator, asked: int) -> bool:
    """Whether the cause holds by the numbers."""
    free, held = allocator.device_free, program.held
    page = 20 * MIB if program.settings.expandable else 2 * MIB
    needed = -(-asked // page) * page
    return {
        "full": held + asked > program.total,
        "held outside torch": program.total < held + asked < (program.card or 0) * CARD_SHARE,
        "larger than the card": needed > (program.card or program.total),
        "a limit of the process": needed <= free,
        "fragmented": free < asked <= program.total - held and free < needed,
    }[program.cause]
