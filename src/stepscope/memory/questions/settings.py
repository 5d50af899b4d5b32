"""What other settings of the allocator would have reserved, by simulation.

The requests and frees of the recording are run through a model of the allocator, each time with
other settings, from an empty allocator on: what was there before the recording is requested first.
How well the model reproduces the recording with its own settings is stated; no answer is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from stepscope.memory.allocator.settings import (
    INTERVALS,
    MIB,
    AllocatorSettings,
    parse_settings,
    settings_of,
)
from stepscope.memory.questions.bounded import BoundedRuns, Change
from stepscope.memory.schema import Types
from stepscope.memory.simulator.simulate import reproduce
from stepscope.memory.view import MemoryView

_UNBOUNDED = (
    "max_split_size_mb together with expandable_segments can let reserved memory grow "
    "without bound (pytorch#193400): leave max_split_size_mb out"
)
_NEEDS_LIMIT = (
    "garbage_collection_threshold is simulated with a limit of the process; without "
    "torch.cuda.set_per_process_memory_fraction it has no effect"
)
_UNKNOWN_CAPACITY = (
    "garbage_collection_threshold is left out: it depends on the memory of the device, "
    "which the file does not say"
)
_SPLITS_MIB = (64, 128, 512)
_DIVISIONS = (4, 8)
_WORTHWHILE = 0.05
"""Of the reserved bytes: what settings must save to be worth a run."""

ALTERNATIVES: Types = {
    "settings": pl.String,
    "peak_reserved_bytes": pl.Int64,
    "saved_bytes": pl.Int64,
    "unused_share": pl.Float64,
    "device_requests": pl.Int64,
    "device_releases": pl.Int64,
    "retries": pl.Int64,
    "is_out_of_memory": pl.Boolean,
    "is_recorded": pl.Boolean,
}


@dataclass(frozen=True)
class SettingsAnswer:
    """What settings would have reserved.

    Attributes:
        peak_allocated_bytes: The most that the program held: no setting reserves less.
        peak_reserved_bytes: The most that was reserved in the recording.
        reproduction_error_share: By how much the model, with the settings of the recording and
            from its first state on, misses the reserved bytes at the worst event.
        capacity_bytes: The most that the allocator could reserve; None where the file does not say.
        capacity_source: A phrase on how that is known.
        alternatives: One row per settings, the least reserved first: settings,
            peak_reserved_bytes, saved_bytes (against the simulation of the recorded settings),
            unused_share (how much of the peak reserved is not allocated at that moment),
            device_requests, device_releases, retries, is_out_of_memory (a request that was served
            in the recording would fail, or the last that failed would fail again; null: not known),
            is_recorded.
    """

    device: int
    settings: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    reproduction_error_share: float
    capacity_bytes: int | None
    capacity_source: str
    alternatives: pl.DataFrame
    notes: tuple[str, ...]

    @property
    def recorded(self) -> dict[str, Any]:
        """The row of `alternatives` with the settings of the recording."""
        return self.alternatives.row(by_predicate=pl.col("is_recorded"), named=True)

    @property
    def worth_a_run(self) -> pl.DataFrame:
        """The rows of `alternatives` that are worth a run, the best first.

        They serve every request, and save a twentieth of the reserved bytes and more than the
        model misses of the recording, or need fewer retries. Fewer retries come before fewer
        bytes: each retry gives back every cached block and waits for the GPU.
        """
        least = max(_WORTHWHILE, self.reproduction_error_share) * self.peak_reserved_bytes
        return self.alternatives.filter(
            ~pl.col("is_recorded") & ~pl.col("is_out_of_memory").fill_null(value=True),
            (pl.col("saved_bytes") >= least) | (pl.col("retries") < self.recorded["retries"]),
        ).sort("retries", "peak_reserved_bytes", maintain_order=True)


def settings(
    view: MemoryView, device: int | None = None, asked: Sequence[str] = ()
) -> SettingsAnswer:
    """Simulates settings of the allocator.

    `asked` are values of PYTORCH_CUDA_ALLOC_CONF, by default those that help most often; options
    that they do not name are as recorded.
    """
    chosen = view.device(device)
    recorded = settings_of(view.snapshot.settings)
    candidates = [parse_settings(text, recorded) for text in asked] or usual_settings(recorded)
    bounded = BoundedRuns(view.replay, chosen)
    capacity = bounded.capacity
    made = reproduce(view.replay, chosen, bounded.recorded.requests)
    peak = view.peak(chosen, "reserved_bytes")
    at_peak = view.curve(chosen).filter(pl.col("event") == peak.event)
    others = [one for one in candidates if one != recorded]
    simulated = [
        one
        for one in (recorded, *others)
        if capacity.bytes is not None or not one.garbage_collection_threshold
    ]
    runs = [_outcome(bounded, replace(bounded.recorded, settings=one)) for one in simulated]
    if capacity.most_bytes is not None:  # known from a request that failed
        runs[0]["is_out_of_memory"] = True
    notes = [*view.notes(chosen)]
    if not made.is_right:
        notes.append(
            f"the model misses the recorded reserved bytes by up to {made.largest_error:.1%}: "
            "smaller differences between settings mean nothing"
        )
    if recorded.expandable_segments and recorded.max_split_bytes is not None:
        notes.append(_UNBOUNDED)
    if any(one.garbage_collection_threshold for one in candidates):
        notes.append(_NEEDS_LIMIT)
    if len(simulated) < 1 + len(others):
        notes.append(_UNKNOWN_CAPACITY)
    return SettingsAnswer(
        device=chosen,
        settings=str(recorded),
        peak_allocated_bytes=view.peak_bytes(chosen),
        peak_reserved_bytes=int(at_peak["reserved_bytes"].item()),
        reproduction_error_share=made.largest_error,
        capacity_bytes=capacity.bytes,
        capacity_source=capacity.source,
        alternatives=_table(runs),
        notes=tuple(notes),
    )


def usual_settings(recorded: AllocatorSettings) -> list[AllocatorSettings]:
    """The settings that help most often, each as one change of the recorded ones.

    Expandable segments come without a limit for splitting: with both, reserved memory can grow
    without a bound.
    """
    fixed = replace(recorded, expandable_segments=False)
    grown = replace(recorded, expandable_segments=True, max_split_bytes=None)
    return [
        fixed if recorded.expandable_segments else grown,
        *(replace(fixed, max_split_bytes=size * MIB) for size in _SPLITS_MIB),
        *(replace(recorded, power2_divisions=(parts,) * INTERVALS) for parts in _DIVISIONS),
    ]


def _outcome(bounded: BoundedRuns, change: Change) -> dict[str, Any]:
    found = bounded.outcome(change, change.capacity.bytes)
    is_enough = found.is_enough if change.capacity.bytes is None else bounded.is_enough(change)
    return {
        "settings": str(change.settings),
        "peak_reserved_bytes": found.peak_reserved_bytes,
        "unused_share": found.unused_share,
        "device_requests": found.device_allocs,
        "device_releases": found.device_frees,
        "retries": found.retries,
        "is_out_of_memory": None if is_enough is None else not is_enough,
    }


def _table(runs: Sequence[dict[str, Any]]) -> pl.DataFrame:
    base = runs[0]["peak_reserved_bytes"]
    rows = [
        {**run, "saved_bytes": base - run["peak_reserved_bytes"], "is_recorded": not number}
        for number, run in enumerate(runs)
    ]
    table = pl.DataFrame(rows, schema=ALTERNATIVES)
    is_failing = pl.col("is_out_of_memory").cast(pl.Float64).fill_null(0.5)
    return table.sort(is_failing, "peak_reserved_bytes", maintain_order=True)
