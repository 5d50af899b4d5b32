"""What the questions about a snapshot share: its replay, categories and lines, computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from stepscope.errors import UsageError
from stepscope.memory.categories.categorise import Categories, categorise
from stepscope.memory.categories.census import Census
from stepscope.memory.categories.kinds import Confidence, MemoryCategory, Source
from stepscope.memory.program.lines import NO_STACK, lines_of
from stepscope.memory.replay.arrays import largest
from stepscope.memory.replay.replay import Replay, replay
from stepscope.memory.replay.state import event_at
from stepscope.memory.schema import EXACT_SIZES, HOST_BYTES, Action, Snapshot, Types
from stepscope.run.figures import binary_size, plural

SAMPLES: Types = {
    "time_ns": pl.Int64,  # since 1970
    "used_bytes": pl.Int64,  # of the whole GPU: of every process, and of the driver
}
"""One row per sample, in order of time."""


@dataclass(frozen=True)
class SampledMemory:
    """The samples of one GPU.

    Attributes:
        source: The file that they are from, for messages.
        index: The number of the GPU in the driver; None: the file does not say.
        gpu: A name of the GPU.
        total_bytes: What the GPU has; None: the file does not say.
        samples: With the columns of `SAMPLES`.
    """

    source: str
    index: int | None
    gpu: str
    total_bytes: int | None
    samples: pl.DataFrame


def of_device(sampled: Sequence[SampledMemory], device: int) -> SampledMemory | None:
    """The samples of a device: of the only GPU that was sampled, or of the one with its number.

    Where a process sees only some GPUs of the machine, its numbers differ from the driver's; a
    rank's own monitor samples only the GPU that the rank uses.
    """
    if len(sampled) == 1:
        return sampled[0]
    return next((one for one in sampled if one.index == device), None)


Shape = tuple[int, ...]


@dataclass(frozen=True)
class OperatorCall:
    """One distinct way in which an operator was called.

    Attributes:
        shapes: Of its tensors, those in lists among them.
        element_bytes: Size of an element of the first.
        asked: The shape that it was asked for; None: it follows from its operands.
    """

    name: str
    shapes: tuple[Shape, ...]
    element_bytes: int
    asked: Shape | None


@dataclass(frozen=True)
class OperatorCalls:
    """The calls of operators that requests were made in.

    Attributes:
        table: start_event, call: its number among the calls; only of requests whose operator is
            known.
    """

    table: pl.DataFrame
    calls: tuple[OperatorCall, ...]


START = -1
"""Stands for the moment before the first event."""


@dataclass(frozen=True)
class Moment:
    """A moment of a device's history.

    Attributes:
        event: The last event that has happened; `START` before the first.
        what: A phrase on what the moment is.
    """

    device: int
    event: int
    time_ns: int | None
    what: str


@dataclass(frozen=True)
class MemoryView:
    """A snapshot with what is derived from it. Everything is computed when it is first used.

    Attributes:
        census: What the training noted about its tensors.
        remarks: What could not be read beside the snapshot, and what it does not show.
        sampled: What was sampled of the memory of GPUs meanwhile.
        kind: A phrase on what the file is.
        calls: Reads what the operators that made requests were called with; None: nobody recorded
            it.
    """

    snapshot: Snapshot
    census: Census | None = None
    remarks: tuple[str, ...] = ()
    sampled: tuple[SampledMemory, ...] = ()
    kind: str = "memory snapshot"
    calls: Callable[[], OperatorCalls] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether it shows what was held before the recording; a trace does by a census alone."""
        return self.census is not None or not self.snapshot.settings.get(EXACT_SIZES)

    @cached_property
    def replay(self) -> Replay:
        """The replayed history."""
        return replay(self.snapshot)

    @cached_property
    def categories(self) -> Categories:
        """The category of each allocation."""
        return categorise(self.replay, self.census)

    @cached_property
    def allocations(self) -> pl.DataFrame:
        """The allocations of the replay, each with what the categories say of it and its line.

        Columns: `replay.allocations.ALLOCATIONS` without `category`, then those of
        `categories.categorise.CATEGORIES` and of `program.lines.LINES`. Where only the
        stack of the free is known, the line says so.
        """
        lines = lines_of(self.snapshot)
        found = self.replay.allocations.drop("category").hstack(
            self.categories.table.drop("allocation")
        )
        line = lines["line"].gather(found["stack"]).fill_null(NO_STACK)
        return found.with_columns(
            line=pl.when("is_stack_of_free")
            .then(pl.concat_str(pl.lit("freed at "), line))
            .otherwise(line),
            is_own=lines["is_own"].gather(found["stack"]).fill_null(value=False),
        )

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """The devices that have anything to show, in order."""
        found = {
            *self.snapshot.segments["device"].unique().to_list(),
            *self.replay.curve["device"].unique().to_list(),
        }
        return tuple(sorted(found))

    @cached_property
    def origin_ns(self) -> int:
        """The first moment, from which people count others; 0 where the file has no times."""
        # A step may begin before the first event.
        moments = (self.replay.curve["time_ns"], self.categories.ranges.table["start_ns"])
        times = pl.concat([column.cast(pl.Int64) for column in moments]).drop_nulls()
        return int(times.to_numpy().min()) if len(times) else 0

    @cached_property
    def fullest_device(self) -> int:
        """The device with the greatest peak; 0 where nothing was ever allocated."""
        return max(self.devices, key=self.peak_bytes, default=0)

    def device(self, asked: int | None = None) -> int:
        """The device that an answer is about: the one asked for, or the fullest."""
        if asked is None:
            return self.fullest_device
        if asked not in self.devices:
            have = ", ".join(map(str, self.devices)) or "none"
            raise UsageError(f"{self.snapshot.path}: no device {asked}; it has {have}")
        return asked

    def curve(self, device: int) -> pl.DataFrame:
        """The curve of a device, from the moment before its first event on.

        Columns: `replay.replay.CURVE` without device. The first row has the event `START`.
        """
        mine = self.replay.curve.drop("device")
        if not (is_mine := self.replay.curve["device"] == device).all():
            mine = mine.filter(is_mine)
        held = held_at(self.replay.allocations, device, START)
        active = _active_at_start(self.replay.allocations, device)
        reserved = self.replay.reserved.filter(
            (pl.col("device") == device) & pl.col("start_event").is_null()
        )
        first = pl.DataFrame(
            {
                "event": [START],
                "time_ns": [None],
                "requested_bytes": [held["requested_bytes"].sum()],
                "allocated_bytes": [held["size_bytes"].sum()],
                "active_bytes": [active["size_bytes"].sum()],
                "reserved_bytes": [reserved["size_bytes"].sum()],
            },
            schema=mine.schema,
        )
        return pl.concat([first, mine])

    def has_history(self, device: int) -> bool:
        """Whether any request or free of a device was recorded, rather than a state alone."""
        return bool((self.replay.curve["device"] == device).any())

    def peak_bytes(self, device: int) -> int:
        """The most that the program held at any time, in rounded sizes."""
        return largest(self.curve(device)["allocated_bytes"])

    def peak(self, device: int, of: str = "allocated_bytes") -> Moment:
        """The moment at which a column of the curve is at its largest; of several, the fullest.

        Memory is reserved before the request that it is for is served, so that the first moment at
        which most is reserved has too little in use.
        """
        curve = self.curve(device)
        values, held = curve[of].to_numpy(), curve["allocated_bytes"].to_numpy()
        rows = np.flatnonzero(values == values.max())
        row = int(rows[held[rows].argmax()])
        what = "the peak" if of == "allocated_bytes" else f"the peak of {of.removesuffix('_bytes')}"
        if not self.has_history(device):
            what = "when the snapshot was taken"
        return Moment(device, int(curve["event"][row]), curve["time_ns"][row], what)

    def end(self, device: int) -> Moment:
        """The moment of the snapshot."""
        curve = self.curve(device)
        return Moment(device, int(curve["event"][-1]), curve["time_ns"][-1], "the end")

    def moment(self, device: int, event: int | None = None, time_ns: int | None = None) -> Moment:
        """The moment after an event, or at a time."""
        curve = self.curve(device)
        if event is not None:
            row = curve.filter(pl.col("event") == event)
            if row.is_empty():
                first, last = curve["event"][min(1, len(curve) - 1)], curve["event"][-1]
                raise UsageError(
                    f"{self.snapshot.path}: event {event} is not one of device {device}, whose "
                    f"events are from {first} to {last}; -1 is the moment before"
                )
            return Moment(device, event, row["time_ns"][0], f"event {event}")
        if time_ns is None:
            return self.end(device)
        if curve["time_ns"].null_count() == len(curve):
            raise UsageError(
                f"{self.snapshot.path}: its events have no times (torch before 2.2); name an event"
            )
        found = event_at(self.replay, device, time_ns)
        return Moment(device, found, time_ns, "the time asked for")

    def out_of_memory(self, device: int) -> pl.DataFrame:
        """Requests that failed on a device, with some columns of `schema.EVENTS`."""
        return (
            self.snapshot.events.filter(
                (pl.col("device") == device) & (pl.col("action") == Action.OOM.value)
            )
            .select(
                "event", "size_bytes", "device_free_bytes", "stack", "time_ns", "pool", "stream"
            )
            .collect()
        )

    def failure(self, device: int) -> Moment | None:
        """When the last request of a device that failed did; None: none failed."""
        failed = self.out_of_memory(device)
        if failed.is_empty():
            return None
        return Moment(device, failed["event"][-1], failed["time_ns"][-1], "when a request failed")

    def notes(self, device: int) -> tuple[str, ...]:
        """What a reader of any answer about a device must know."""
        found = [
            f"{plural(row['count'], 'contradiction')}: {row['message']}"
            for row in self.replay.contradictions.iter_rows(named=True)
            if row["device"] == device
        ]
        if not self.devices:
            found.append(
                "the snapshot holds no segment and no event: nothing was recorded; begin with "
                "torch.cuda.memory._record_memory_history() before the first tensor is made, or "
                "record with memory_history=True"
            )
        elif not self.has_history(device):
            found.append(
                "no history was recorded: this is what was held when the snapshot was taken, not a "
                "peak, and steps, leaks and causes cannot be seen; begin with "
                "torch.cuda.memory._record_memory_history() before the training, or record with "
                "memory_history=True"
            )
        if self.replay.is_overflowed:
            found.append(
                "the recorder's ring was full: older events are missing, and the peak may have "
                "been before the first event; raise memory_max_entries"
            )
        curve = self.curve(device)
        if (curve["allocated_bytes"] > curve["reserved_bytes"]).any():
            found.append(
                "at some moments more is held than reserved, which cannot be: the history of "
                "segments is incomplete, and reserved bytes are too low"
            )
        found += self._kept_by_inference(device)
        if host := self.snapshot.settings.get(HOST_BYTES):
            found.append(
                f"beside the GPU's memory, {binary_size(host)} of pinned host memory were reserved"
            )
        found += [row["message"] for row in self.snapshot.problems.iter_rows(named=True)]
        joined = self.categories.census
        if joined is None and self.snapshot.settings.get(EXACT_SIZES):
            found.append(
                "what was held before the recording began, as the model is, is in none of these "
                "numbers: record with memory_census=True to add it"
            )
        if joined is not None and joined.unmatched:
            found.append(f"{joined.unmatched} sightings of the census match no allocation")
        if self.census is not None and self.census.skipped_lines:
            found.append(f"{self.census.skipped_lines} damaged lines of the census were skipped")
        return (*found, *self.remarks)

    def _kept_by_inference(self, device: int) -> list[str]:
        """What is taken for weights, and for a static cache, and why."""
        if not self.categories.is_inference:
            return []
        guessed = self.allocations.filter(
            (pl.col("device") == device) & (pl.col("confidence") == Confidence.GUESSED.value)
        )
        found = []
        caches = guessed.filter(pl.col("category") == MemoryCategory.CACHE.value)
        in_a_row = caches.filter(pl.col("source") == Source.SIZE.value)
        if len(in_a_row):
            size = binary_size(int(in_a_row["size_bytes"].sum()))
            found.append(
                f"1 block that stays, of {size}, lies behind the weights and is larger than a "
                "layer of them: it is taken for a static cache (keys and values)"
                if len(in_a_row) == 1
                else f"{plural(len(in_a_row), 'block')} that stay, {size} in all, lie together, as "
                "many for each layer of the weights: they are taken for a static cache (keys and "
                "values)"
            )
        weights = guessed.filter(
            (pl.col("category") == MemoryCategory.PARAMETER.value)
            & (pl.col("source") == Source.LIFETIME.value)
        )
        if len(weights):
            rest = (
                ""
                if len(in_a_row)
                else ", and a cache that was allocated with them looks like "
                "these unless its blocks are as many for each layer, one after the other, or "
                "one block is larger than a layer"
            )
            found.append(
                f"{binary_size(int(weights['size_bytes'].sum()))} stay from before the first "
                "forward pass to the end in a program that only computes: they are taken for "
                f"weights{rest}"
            )
        return found


def held_at(allocations: pl.DataFrame, device: int, event: int) -> pl.DataFrame:
    """What the program held after an event: requested, and not given back.

    Event `START` is the moment before the first.
    """
    has_begun = pl.col("start_event").is_null() | (pl.col("start_event") <= event)
    is_kept = (pl.col("free_event") > event).fill_null(value=True)
    is_programs = ~pl.col("is_given_back_before")
    return allocations.filter((pl.col("device") == device) & has_begun & is_kept & is_programs)


def _active_at_start(allocations: pl.DataFrame, device: int) -> pl.DataFrame:
    return allocations.filter((pl.col("device") == device) & pl.col("start_event").is_null())
