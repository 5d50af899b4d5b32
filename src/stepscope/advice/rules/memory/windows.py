"""Rules about memory that need no snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject, plain_finding
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding, Severity, seen
from stepscope.analysis.calls.allocations import gets_or_frees_device_memory, memory_peaks
from stepscope.analysis.calls.one_off import one_off_calls
from stepscope.run.figures import percent
from stepscope.terminal.plain_text import cut_in_the_middle

if TYPE_CHECKING:
    from stepscope.memory.view import MemoryView


@dataclass(frozen=True)
class DeviceMemory:
    """One GPU's memory.

    Attributes:
        allocated_bytes: The most that the program held.
        limit_bytes: What the allocator can have.
        limit_source: How that is known; empty: the trace says how large the GPU is.
        batch_bytes: Of what was held at the peak, activations, inputs and temporaries; None:
            without a snapshot, or if most of the peak is of unknown category.
    """

    device: int
    reserved_bytes: int
    allocated_bytes: int
    limit_bytes: int
    limit_source: str = ""
    batch_bytes: int | None = None
    has_failed: bool = False

    @property
    def share(self) -> float:
        """The reserved share of the limit."""
        return self.reserved_bytes / max(1, self.limit_bytes)


def device_memories(subject: Subject) -> list[DeviceMemory]:
    """Each GPU whose size is known, in order; the snapshot counts before the window."""
    window = subject.window
    of_window = {
        row["device"]: row
        for row in ([] if window is None else memory_peaks(window.trace).iter_rows(named=True))
    }
    found = {
        device: DeviceMemory(
            device, row["reserved_bytes"], row["allocated_bytes"], row["total_bytes"]
        )
        for device, row in of_window.items()
        if row["total_bytes"] is not None
    }
    if subject.memory is not None:
        sizes = {device: row["total_bytes"] for device, row in of_window.items()}
        found |= _of_snapshot(subject.memory, sizes)
    return [found[device] for device in sorted(found)]


def _of_snapshot(view: MemoryView, sizes: Mapping[int, int | None]) -> dict[int, DeviceMemory]:
    """What the snapshot says of each GPU whose limit is known."""
    # Most ranks recorded no snapshot, and these import many modules.
    from stepscope.memory.categories.kinds import OF_BATCH, MemoryCategory
    from stepscope.memory.questions.composition import peak
    from stepscope.memory.questions.outside import limit_of
    from stepscope.memory.schema import EXACT_SIZES

    if view.snapshot.settings.get(EXACT_SIZES):
        return {}
    found = {}
    for device in view.devices:
        limit = limit_of(view, device, sizes.get(device))
        if limit is None:
            continue
        curve = view.curve(device)
        categories = peak(view, device).categories.select("category", "allocated_bytes")
        shares = dict(categories.iter_rows())
        held = sum(shares.values())
        is_known = 2 * shares.get(MemoryCategory.UNKNOWN.value, 0) < held
        batch = sum(shares.get(kind.value, 0) for kind in OF_BATCH)  # what grows with it
        found[device] = DeviceMemory(
            device=device,
            reserved_bytes=int(curve["reserved_bytes"].to_numpy().max()),
            allocated_bytes=view.peak_bytes(device),
            limit_bytes=limit[0],
            limit_source=limit[1],
            batch_bytes=batch if is_known else None,
            has_failed=not view.out_of_memory(device).is_empty(),
        )
    return found


def find_allocator_churn(subject: Subject) -> list[Finding]:
    """Allocator churn: steady steps still allocate and free driver memory.

    Measured as calls such as cudaMalloc and cudaFree. They are slow, and freeing waits until the
    GPU is idle. The first step of a trace may get what later steps only use again: it counts only
    if it makes no more such calls than another step. The saving assumes that there are none.
    """
    window = subject.window
    if window is None or not window.has_gpu or len(window.graph.steps) < 2:
        return []
    # Few calls are of the group: patterns are looked for in their names alone.
    calls = window.calls.filter(pl.col("group") == "allocation").filter(
        gets_or_frees_device_memory()
    )
    once = one_off_calls(window.trace)["event"]
    calls = calls.filter(~pl.col("event").is_in(once.implode()))
    calls, steps = _of_steady_steps(window, calls)
    per_step = len(calls) / steps
    if per_step < subject.thresholds.allocator_calls:
        return []
    after = " after the first" if steps < window.steps else ""
    # Threads may be in such calls at the same time: the time is that in which any of them is.
    spent_ns = window.spans(calls).total_ns
    return replayed_finding(
        subject,
        window.without_waiting_in(calls),
        rule="allocator-churn",
        title="steady steps still allocate and free driver memory",
        assumption="no steady step allocates or frees driver memory",
        evidence=(
            Evidence(f"such calls per step{after}", per_step, "count"),
            Evidence("time in them per step", round(spent_ns / steps), "ns"),
        ),
        advice=(
            "Keep shapes steady (pad or bucket), drop torch.cuda.empty_cache() from the loop, "
            "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and leave some memory free."
        ),
        least=subject.thresholds.saving_low / 3,
    )


def _of_steady_steps(window: WindowView, calls: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    steps = window.trace.steps.filter(pl.col("step").is_in(list(window.graph.steps)))
    starts = steps["start_ns"].to_numpy()  # of the host, which makes the calls
    step = np.searchsorted(starts, calls["start_ns"].to_numpy(), side="right") - 1
    counts = np.bincount(np.maximum(step, 0), minlength=window.steps)
    if counts[0] <= counts[1:].max():
        return calls, window.steps
    return calls.filter(pl.Series(step >= 1, dtype=pl.Boolean)), window.steps - 1


_SMALLER = "a smaller batch, activation checkpointing, or sharded optimizer states"
_SMALLER_INFERENCE = "fewer or shorter sequences at once, a smaller cache, or quantised weights"


def find_memory_near_limit(subject: Subject) -> list[Finding]:
    """Memory near the limit: almost all that the allocator can have of the GPU is reserved.

    Measured from the rank's memory snapshot, or from the `[memory]` events, against the size of the
    device, less what samples show outside torch's allocator. Nothing is lost yet: but the next
    larger batch fails, and an allocator that finds nothing free stops the step to free memory. A
    GPU on which a request failed has a finding of its own.
    """
    found = []
    is_inference = subject.memory is not None and subject.memory.categories.is_inference
    smaller = _SMALLER_INFERENCE if is_inference else _SMALLER
    for memory in device_memories(subject):
        if memory.share < subject.thresholds.memory_near_limit or memory.has_failed:
            continue
        found += plain_finding(
            subject,
            rule="memory-near-limit",
            title=f"{percent(memory.share)} of the memory of GPU {memory.device} is reserved",
            severity=Severity.MEDIUM,
            reason="free memory alone does not shorten the step",
            evidence=(
                Evidence("left", max(0, memory.limit_bytes - memory.reserved_bytes), "bytes"),
                Evidence("reserved at the peak", memory.reserved_bytes, "bytes"),
                Evidence("allocated at the peak", memory.allocated_bytes, "bytes"),
                Evidence("limit of the allocator", memory.limit_bytes, "bytes"),
                *seen("limit known from", memory.limit_source, "text"),
            ),
            advice=(
                f"Leave a tenth free: {smaller}. If far more is reserved than allocated, it is "
                "fragmented: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
            ),
        )
    return found


_LARGER = (
    "Try a larger micro-batch with fewer accumulation steps, less activation checkpointing, or "
    "fewer shards, and compare samples per second."
)
_LARGER_INFERENCE = "Try a larger batch or cache, or fewer GPUs, and compare samples per second."
_FILLED = 0.9
"""Share of the limit that a larger batch may fill."""


def find_memory_far_below_limit(subject: Subject) -> list[Finding]:
    """Memory far below the limit: most of the GPU's memory is never used.

    Measured from the rank's memory snapshot, or from the `[memory]` events, against the size of the
    device, less what samples show outside torch's allocator. A larger batch would use the GPU
    better if the step is bound by launches or communication, but it changes the training, so there
    is no saving per step. From a snapshot, the finding says how much larger the batch could be if
    activations, inputs and temporaries grow with it, nothing else does, and a tenth stays free.
    """
    known = [memory for memory in device_memories(subject) if not memory.has_failed]
    if not known:
        return []
    memory = max(known, key=lambda one: one.share)
    if memory.share > subject.thresholds.memory_far_below:
        return []
    is_inference = subject.memory is not None and subject.memory.categories.is_inference
    return plain_finding(
        subject,
        rule="memory-far-below-limit",
        title=f"only {percent(memory.share)} of the GPU's memory is ever reserved",
        severity=Severity.INFO,
        reason="a larger batch does other work per step; judge it by samples per second",
        evidence=(
            Evidence("reserved at the peak", memory.reserved_bytes, "bytes"),
            Evidence("limit of the allocator", memory.limit_bytes, "bytes"),
            *seen("room for a batch larger by", larger_batch(memory), "factor"),
        ),
        advice=_LARGER_INFERENCE if is_inference else _LARGER,
    )


def larger_batch(memory: DeviceMemory) -> float | None:
    """How many times as large the batch could be; None: what grows with it is not known."""
    if not memory.batch_bytes:
        return None
    return 1 + (_FILLED * memory.limit_bytes - memory.reserved_bytes) / memory.batch_bytes


_LEAST_BYTES = 64 * 1024
_LARGE_BYTES = 1024 * 1024
_NOTABLE = 0.1
_MOST_PLACES = 3
_LONGEST_PLACE = 110
_ASK_CALLERS = (
    " This line is a library's: to see which of yours calls it, record with tracemalloc_frames=8 "
    "(stepscope run --tracemalloc --tracemalloc-frames 8)."
)


def find_python_memory_leak(subject: Subject) -> list[Finding]:
    """Python's memory leaks: objects that each step makes are still held at the end of the window.

    Measured from what tracemalloc recorded of a window (`window_recorder="tracemalloc"`). It counts
    Python's objects, not the memory of tensors.
    """
    memory = subject.python_memory
    if memory is None or memory.growth_per_step < _LEAST_BYTES:
        return []
    growth = memory.growth_per_step
    notable = [one for one in memory.places if one.bytes_per_step >= _NOTABLE * growth]
    places = [(one.bytes_per_step, cut_in_the_middle(one.name, _LONGEST_PLACE)) for one in notable]
    worst = places[0][1] if places else "many places"
    hides_caller = bool(notable) and notable[0].is_library and not notable[0].caller
    return plain_finding(
        subject,
        rule="python-memory-leak",
        title=f"every step leaves Python objects behind at {worst}",
        severity=Severity.HIGH if growth >= _LARGE_BYTES else Severity.MEDIUM,
        reason="freeing memory does not shorten the step, but the run ends early otherwise",
        evidence=(
            Evidence("left behind by each step", growth, "bytes"),
            *(
                Evidence(f"of it at {place}", size, "bytes")
                for size, place in places[:_MOST_PLACES]
            ),
            Evidence("held at the end of the window", memory.ends[-1][1], "bytes"),
        ),
        advice=(
            "Look for what keeps these objects: a list or a dictionary that only grows, a cache "
            "without a limit, a closure or a callback that is registered in each step."
            + (_ASK_CALLERS if hides_caller else "")
        ),
        steps=tuple(step for step, _ in memory.ends),
    )
