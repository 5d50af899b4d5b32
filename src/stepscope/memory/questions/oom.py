"""Why a request failed: what was asked, what was free, whose the memory is, and what would help."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepscope.errors import UsageError
from stepscope.memory.allocator.settings import settings_of
from stepscope.memory.program.lines import NO_STACK, lines_of
from stepscope.memory.questions.composition import composition
from stepscope.memory.questions.fragmentation import fragmentation
from stepscope.memory.questions.growth import growth
from stepscope.memory.questions.remedies import remedies
from stepscope.memory.sampled import of_device
from stepscope.memory.simulator.capacity import capacity_of, needed_bytes
from stepscope.memory.view import MemoryView, Moment


@dataclass(frozen=True)
class OutOfMemory:
    """A request that failed.

    Attributes:
        device: The device.
        event: The event.
        time_ns: When; None where the file has no times.
        failures: How many requests failed in the recording; this is the last.
        line: The line that asked.
        asked_bytes: What it asked for, rounded.
        needed_bytes: What the device would have had to give: a whole segment.
        device_free_bytes: What the device had free; None where the file does not say.
        reserved_bytes: What the allocator had reserved.
        allocated_bytes: What the program held of it.
        releasable_bytes: Free, and would have gone back to the device.
        pinned_bytes: Free, but in segments that were partly in use.
        largest_free_bytes: The largest free block.
        outside_bytes: What of the GPU was neither free nor reserved: outside torch's allocator (the
            CUDA context, NCCL, other processes). None: nobody sampled how large the GPU is.
        capacity_bytes: The most that the allocator could reserve; None where nothing says.
        cause: What the request failed of, in one sentence.
        remedies: What would have helped, the cheapest first: `remedies.REMEDIES`.
        categories: What was held, by category, as in `composition.Composition`.
        lines: The same by line.
        allocations: The same by allocation.
        notes: What a reader must know.
    """

    device: int
    event: int
    time_ns: int | None
    failures: int
    line: str
    asked_bytes: int
    needed_bytes: int
    device_free_bytes: int | None
    reserved_bytes: int
    allocated_bytes: int
    releasable_bytes: int
    pinned_bytes: int
    largest_free_bytes: int
    outside_bytes: int | None
    capacity_bytes: int | None
    cause: str
    remedies: pl.DataFrame
    categories: pl.DataFrame
    lines: pl.DataFrame
    allocations: pl.DataFrame
    notes: tuple[str, ...]


def out_of_memory(view: MemoryView, device: int | None = None) -> OutOfMemory:
    """Explains the last request that failed.

    Args:
        view: The snapshot.
        device: The device; None: the fullest of those on which a request failed.

    Raises:
        UsageError: None failed.
    """
    chosen = _device(view, device)
    failures = view.out_of_memory(chosen)
    row = failures.row(-1, named=True)
    moment = Moment(chosen, row["event"], row["time_ns"], "when a request failed")
    held = composition(view, moment)
    parts = fragmentation(view, moment=moment)
    capacity = capacity_of(view.replay, chosen)
    asked = int(row["size_bytes"] or 0)
    needed = needed_bytes(asked, settings_of(view.snapshot.settings))
    lines = lines_of(view.snapshot)
    free = row["device_free_bytes"]
    return OutOfMemory(
        device=chosen,
        event=moment.event,
        time_ns=moment.time_ns,
        failures=len(failures),
        line=NO_STACK if row["stack"] is None else lines["line"][row["stack"]],
        asked_bytes=asked,
        needed_bytes=needed,
        device_free_bytes=free,
        reserved_bytes=parts.reserved_bytes,
        allocated_bytes=held.allocated_bytes,
        releasable_bytes=parts.releasable_bytes,
        pinned_bytes=parts.pinned_bytes,
        largest_free_bytes=parts.largest_free_bytes,
        outside_bytes=_outside(view, chosen, parts.reserved_bytes, free),
        capacity_bytes=capacity.bytes,
        cause=_cause(asked, needed, free, parts.pinned_bytes),
        remedies=remedies(view, moment.event, held, growth(view, chosen), capacity),
        categories=held.categories,
        lines=held.lines,
        allocations=held.allocations,
        notes=held.notes,
    )


def _device(view: MemoryView, device: int | None) -> int:
    failing = [number for number in view.devices if len(view.out_of_memory(number))]
    if device is None and failing:
        return max(failing, key=view.peak_bytes)
    if device is not None and device in failing:
        return device
    where = "" if device is None else f" on device {device}"
    raise UsageError(
        f"{view.snapshot.path}: no request failed{where}; ask for the peak instead, or record "
        "with oom_snapshot"
    )


def _outside(view: MemoryView, device: int, reserved: int, free: int | None) -> int | None:
    sampled = of_device(view.sampled, device)
    if sampled is None or sampled.total_bytes is None or free is None:
        return None
    return sampled.total_bytes - free - reserved


def _cause(asked: int, needed: int, free: int | None, pinned: int) -> str:
    if free is not None and free >= needed:
        return (
            "a limit of the process stopped it: the device had room (see "
            "torch.cuda.set_per_process_memory_fraction)"
        )
    if pinned >= asked or pinned + (free or 0) >= needed:
        return "fragmentation: enough was free, but in segments that were partly in use"
    return "the memory was full: what was free, even in one piece, would not have sufficed"
