"""Why a request failed: what was asked, what was free, whose the memory is, and what would help."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import polars as pl

from stepscope.errors import UsageError
from stepscope.memory.allocator.rounding import SMALL_BYTES
from stepscope.memory.allocator.settings import settings_of
from stepscope.memory.program.lines import NO_STACK, lines_of
from stepscope.memory.questions.bounded import BoundedRuns
from stepscope.memory.questions.composition import composition
from stepscope.memory.questions.fragmentation import Fragmentation, fragmentation
from stepscope.memory.questions.growth import growth
from stepscope.memory.questions.remedies import Failure, failure_category, remedies
from stepscope.memory.simulator.capacity import Capacity, capacity_of, needed_bytes
from stepscope.memory.view import MemoryView, Moment, of_device
from stepscope.run.figures import binary_size

_USUAL_OUTSIDE_SHARE = 1 / 64
"""Of the card: what the CUDA context and libraries take of any process."""


class Cause(str, Enum):
    """What a request failed of."""

    PROCESS_LIMIT = "a limit of the process"
    """The device had enough free: `set_per_process_memory_fraction` or the like stopped it."""
    LARGER_THAN_CARD = "larger than the card"
    """The request alone is more than the allocator could ever have."""
    FRAGMENTED = "fragmented"
    """What was held and the request fit together, but what was free was in the wrong places."""
    OUTSIDE = "held outside torch"
    """It would have fit if other processes and libraries had not held so much of the card."""
    FULL = "full"
    """What was held and the request do not fit together."""


@dataclass(frozen=True)
class OutOfMemory:
    """A request that failed.

    Attributes:
        failures: How many requests failed in the recording; this is the last.
        requests_after: How many requests were served after it.
        asked_bytes: What it asked for, rounded.
        needed_bytes: What the device would have had to give: a whole segment.
        device_free_bytes: What the device had free; None where the file does not say.
        allocated_bytes: What the program held of it.
        releasable_bytes: Free, and would have gone back to the device.
        pinned_bytes: Free, but in segments that were partly in use, or that a private pool keeps.
        private_pools_bytes: What was reserved for CUDA graphs and other private pools: what is free
            in it serves nothing else.
        outside_bytes: What of the GPU was neither free nor reserved: outside torch's allocator (the
            CUDA context, NCCL, other processes). None: nobody sampled how large the GPU is.
        capacity_bytes: The most that the allocator could reserve; None where nothing says. With a
            limit of the process, the most that it is known to have reserved.
        why: The same in a sentence, with figures.
        categories: What was held, by category, as in `composition.Composition`.
    """

    device: int
    event: int
    time_ns: int | None
    failures: int
    requests_after: int
    line: str
    asked_bytes: int
    needed_bytes: int
    device_free_bytes: int | None
    reserved_bytes: int
    allocated_bytes: int
    releasable_bytes: int
    pinned_bytes: int
    largest_free_bytes: int
    private_pools_bytes: int
    outside_bytes: int | None
    capacity_bytes: int | None
    cause: Cause
    why: str
    remedies: pl.DataFrame
    categories: pl.DataFrame
    lines: pl.DataFrame
    allocations: pl.DataFrame
    notes: tuple[str, ...]


def out_of_memory(view: MemoryView, device: int | None = None) -> OutOfMemory:
    """Explains the last request that failed, by default on the fullest device with one."""
    moment = _failure(view, device)
    chosen = moment.device
    held = composition(view, moment)
    bounded = BoundedRuns(view.replay, chosen)
    facts = _facts(view, moment, bounded.capacity)
    parts = facts.parts
    later = view.replay.allocations.filter(
        (pl.col("device") == chosen) & (pl.col("start_event") > moment.event)
    )
    failure = Failure(
        event=moment.event,
        line=facts.line,
        category=failure_category(view, facts.stack),
        asked_bytes=facts.asked,
        card_bytes=facts.card,
        is_outside=facts.cause is Cause.OUTSIDE,
    )
    tried = remedies(view, failure, held, growth(view, chosen), bounded)
    if facts.cause is Cause.LARGER_THAN_CARD:  # to free something does not help
        tried = tried.filter(pl.col("is_enough").fill_null(value=False))
    notes = [*held.notes]
    if not bounded.is_reproduced:
        notes.append(
            "from an empty allocator on, the model serves the request that failed: how memory was "
            "divided before the recording is not known, so that no remedy is sure to be enough "
            "unless it helps from the recorded state on, too"
        )
    return OutOfMemory(
        device=chosen,
        event=moment.event,
        time_ns=moment.time_ns,
        failures=len(view.out_of_memory(chosen)),
        requests_after=len(later),
        line=facts.line,
        asked_bytes=facts.asked,
        needed_bytes=facts.needed,
        device_free_bytes=facts.device_free,
        reserved_bytes=parts.reserved_bytes,
        allocated_bytes=held.allocated_bytes,
        releasable_bytes=parts.releasable_bytes,
        pinned_bytes=parts.pinned_bytes,
        largest_free_bytes=parts.largest_free_bytes,
        private_pools_bytes=facts.private_pools,
        outside_bytes=facts.outside,
        capacity_bytes=bounded.capacity.bytes,
        cause=facts.cause,
        why=facts.why,
        remedies=tried,
        categories=held.categories,
        lines=held.lines,
        allocations=held.allocations,
        notes=tuple(notes),
    )


def describe_failure(view: MemoryView, device: int) -> str | None:
    """Why the last request of a device that failed did; None: none failed."""
    moment = view.failure(device)
    if moment is None:
        return None
    facts = _facts(view, moment, capacity_of(view.replay, device))
    return f"out of memory ({facts.cause.value}): {facts.why}"


def _facts(view: MemoryView, moment: Moment, capacity: Capacity) -> _Facts:
    row = view.out_of_memory(moment.device).row(-1, named=True)
    sampled = of_device(view.sampled, moment.device)
    asked = int(row["size_bytes"] or 0)
    stack = row["stack"]
    return _Facts(
        stack=stack,
        line=NO_STACK if stack is None else lines_of(view.snapshot)["line"][stack],
        asked=asked,
        needed=needed_bytes(asked, settings_of(view.snapshot.settings)),
        device_free=row["device_free_bytes"],
        place=(row["pool"] or 0, row["stream"] or 0, "large" if asked > SMALL_BYTES else "small"),
        parts=fragmentation(view, moment=moment),
        capacity=capacity,
        total=(sampled.total_bytes or None) if sampled is not None else None,
    )


def _failure(view: MemoryView, device: int | None) -> Moment:
    asked = view.devices if device is None else [device]
    failures = [moment for number in asked if (moment := view.failure(number))]
    if failures:
        return max(failures, key=lambda moment: view.peak_bytes(moment.device))
    where = "" if device is None else f" on device {device}"
    raise UsageError(
        f"{view.snapshot.path}: no request failed{where}; ask for the peak instead, or record "
        "with oom_snapshot"
    )


@dataclass(frozen=True)
class _Facts:
    """What is known of a failed request; sizes in bytes, None where nothing says."""

    stack: int | None
    line: str
    asked: int  # rounded
    needed: int  # of the device
    device_free: int | None
    place: tuple[int, int, str]  # pool, stream and size class, within which free memory serves it
    parts: Fragmentation
    capacity: Capacity
    total: int | None  # of the card

    @property
    def outside(self) -> int | None:
        """What of the card was neither free nor reserved."""
        if self.total is None or self.device_free is None:
            return None
        return self.total - self.device_free - self.parts.reserved_bytes

    @property
    def card(self) -> int | None:
        """What the card has for one process that is alone on it."""
        return None if self.total is None else int(self.total * (1 - _USUAL_OUTSIDE_SHARE))

    @property
    def private_pools(self) -> int:
        groups = self.parts.groups
        return int(groups.filter(pl.col("pool") != 0)["reserved_bytes"].sum())

    @property
    def cause(self) -> Cause:
        if self.capacity.is_limit:
            return Cause.PROCESS_LIMIT
        capacity, in_use = self.capacity.bytes, self.parts.in_use_bytes
        if capacity is None or self.capacity.most_bytes is None:  # nobody knows what was free
            return Cause.FRAGMENTED if self._free >= self.needed else Cause.FULL
        fits_an_empty_card = self.card is not None and self.needed <= self.card
        if self.asked > capacity:
            return Cause.OUTSIDE if fits_an_empty_card else Cause.LARGER_THAN_CARD
        is_scattered = self.asked > (self.device_free or 0)
        if in_use + self.asked <= capacity and is_scattered:
            return Cause.FRAGMENTED
        if self.card is not None and in_use + self.asked <= self.card:
            return Cause.OUTSIDE
        return Cause.FULL

    @property
    def _free(self) -> int:
        return self.parts.reserved_bytes - self.parts.in_use_bytes

    @property
    def why(self) -> str:
        size = binary_size
        asked = f"{self.line} asked for {size(self.asked)}"
        capacity_bytes = self.capacity.bytes
        free = "" if self.device_free is None else f"{size(self.device_free)} free on the device"
        if self.cause is Cause.PROCESS_LIMIT:
            return (
                f"{asked} with {free}: a limit of the process stopped it "
                "(torch.cuda.set_per_process_memory_fraction); "
                f"{size(self.parts.reserved_bytes)} were reserved"
            )
        if self.cause is Cause.LARGER_THAN_CARD and capacity_bytes is not None:
            what = (
                f"the card has {size(self.total)}"
                if self.total is not None
                else f"the allocator could have {size(capacity_bytes)} in all"
            )
            return (
                f"{asked}, but {what}: freeing memory cannot help; check the shape of what is made "
                "there (a broadcast, a product of dimensions, a wrong unit)"
            )
        if self.cause is Cause.OUTSIDE:
            return (
                f"{asked} with {free}; {size(self.outside or 0)} of the card were held outside "
                "torch's allocator, by other processes or libraries"
            )
        if self.cause is Cause.FRAGMENTED:
            return (
                f"{asked}; {size(self._free)} of the reserved memory were free"
                f"{', and ' + free if free else ''}, but not in one piece that could serve it: "
                f"{self._where_it_is_free()}"
            )
        held = f"{size(self.parts.in_use_bytes)} were in use"
        if capacity_bytes is None or self.capacity.most_bytes is None:
            return f"{asked}; {held}, and too little was free"
        if 0 < self.asked <= (self.device_free or 0):
            return (
                f"{asked}, for which the allocator needs {size(self.needed)} in one segment, with "
                f"{free}"
            )
        short = self.parts.in_use_bytes + self.asked - capacity_bytes
        return (
            f"{asked}; {held} of the {size(capacity_bytes)} that there were: {size(short)} too few"
        )

    def _where_it_is_free(self) -> str:
        """Where free memory is, in the order of how much there is."""
        pool, stream, size_class = self.place
        free = pl.col("releasable_bytes") + pl.col("pinned_bytes")
        is_own = (pl.col("pool") == pool) & (pl.col("stream") == stream)
        groups = self.parts.groups.with_columns(
            free=free,
            where=pl.when(is_own & (pl.col("size_class") == size_class))
            .then(pl.lit("in segments that are partly in use"))
            .when(is_own)
            .then(pl.lit("in segments for requests of another size"))
            .when((pl.col("pool") != 0) & (pl.col("pool") != pool))
            .then(pl.lit("in private pools (CUDA graphs, torch.cuda.MemPool)"))
            .when(pl.col("pool") != pool)
            .then(pl.lit("in the default pool"))
            .otherwise(pl.lit("cached by other streams")),
        )
        sums = groups.group_by("where").agg(pl.col("free").sum()).filter(pl.col("free") > 0)
        ordered = sums.sort("free", "where", descending=[True, False]).iter_rows()
        return ", ".join(f"{binary_size(free)} {where}" for where, free in ordered)
