"""Will it fit: the peak at a size that was not run, such as a larger batch or a longer sequence.

Runs of one program at different sizes make the same requests in the same order; only their bytes
differ. The requests of the runs are matched by the stack that makes them and their order within it,
and the bytes of each are continued to the new size: by a line through two runs, by a parabola
through three (attention grows with the square of the sequence). The largest run is then replayed
with the continued requests, through the model of the GPU's allocator, so that a peak that moves
elsewhere is found as well. A run on a CPU can stand for one on a GPU, as far as both make the same
requests: kernels on a GPU have workspaces of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.errors import UsageError
from stepscope.memory.allocator.settings import AllocatorSettings, settings_of
from stepscope.memory.questions.prediction import (
    Peaks,
    Run,
    fits_into,
    observed_peaks,
    peak_requested,
    predicted_peaks,
)
from stepscope.memory.replay.replay import Replay
from stepscope.memory.schema import Types
from stepscope.memory.view import MemoryView

_MOST_RUNS = 3
_LARGEST_SIZE = 1 << 20
TARGETS: Types = {
    "size": pl.Float64,
    "is_observed": pl.Boolean,
    "peak_requested_bytes": pl.Int64,
    "peak_allocated_bytes": pl.Int64,
    "peak_reserved_bytes": pl.Int64,
    "fits": pl.Boolean,
}


@dataclass(frozen=True)
class Fit:
    """The peak at other sizes.

    Attributes:
        device: The device of the runs.
        sizes: The sizes that were run.
        matched_share: How much of the largest run's requested bytes has its like in all runs. The
            rest keeps its size.
        error_share: By how much the peak is missed at the worst when each run is predicted from
            the others; None with two runs, which are needed to predict at all.
        capacity_bytes: What the device has for the allocator; None: not given.
        largest_size: The largest whole size that fits; None without a capacity.
        settings: Of the simulated allocator.
        targets: One row per size that was asked for, after those that were run: size, is_observed,
            peak_requested_bytes, peak_allocated_bytes (rounded to blocks), peak_reserved_bytes (by
            simulation), fits (null without a capacity).
        notes: What a reader must know.
    """

    device: int
    sizes: tuple[float, ...]
    matched_share: float
    error_share: float | None
    capacity_bytes: int | None
    largest_size: int | None
    settings: str
    targets: pl.DataFrame
    notes: tuple[str, ...]


def will_it_fit(
    runs: Sequence[Run],
    targets: Sequence[float],
    device: int | None = None,
    capacity_bytes: int | None = None,
    settings: AllocatorSettings | None = None,
) -> Fit:
    """Predicts the peak at other sizes.

    Args:
        runs: Two or three runs of the same program at different sizes.
        targets: Sizes to predict.
        device: The device; None: the fullest of the largest run.
        capacity_bytes: What the device has for the allocator.
        settings: Of the simulated allocator; None: as recorded.

    Raises:
        UsageError: There are too few or too many runs, or two have the same size.
    """
    ordered = sorted(runs, key=lambda run: run.size)
    sizes = tuple(run.size for run in ordered)
    if not 2 <= len(ordered) <= _MOST_RUNS or len(set(sizes)) < len(sizes):
        raise UsageError(
            "fit needs two or three runs of the same program at different sizes: "
            "stepscope memory RUN fit --size 4 --also OTHER=8 --target 16"
        )
    largest = ordered[-1].view
    chosen = largest.device(device)
    settings = settings or settings_of(largest.snapshot.settings)
    model = _Model(ordered, chosen)
    error = None if len(ordered) < _MOST_RUNS else _error(ordered, chosen)
    notes = list(largest.notes(chosen))
    if error is None:
        notes.append("with two runs the error is not known: add a third with --also")
    if model.matched_share < 1:
        notes.append(
            f"{1 - model.matched_share:.1%} of the requested bytes have no like in the other runs, "
            "and keep their size"
        )
    rows = [_row(run.size, observed_peaks(run.view, chosen), is_observed=True) for run in ordered]
    for size in targets:
        peaks = predicted_peaks(model.at(size), chosen, settings, capacity_bytes)
        rows.append(_row(size, peaks, is_observed=False))
    return Fit(
        device=chosen,
        sizes=sizes,
        matched_share=model.matched_share,
        error_share=error,
        capacity_bytes=capacity_bytes,
        largest_size=_largest(model, settings, capacity_bytes),
        settings=str(settings),
        targets=pl.DataFrame(rows, schema=TARGETS, orient="row"),
        notes=tuple(notes),
    )


class _Model:
    """The requests of the largest run, and how each grows with the size.

    Args:
        runs: In order of their sizes.
        device: The device.
    """

    def __init__(self, runs: Sequence[Run], device: int) -> None:
        self.device = device
        self.replay: Replay = runs[-1].view.replay
        self._sizes = np.array([run.size for run in runs])
        keys: dict[str, int] = {}
        keyed = [_keyed(run.view, device, keys) for run in runs]
        base = keyed[-1]
        for number, other in enumerate(keyed[:-1]):
            base = base.join(
                other.select("key", "place", pl.col("requested_bytes").alias(f"bytes_{number}")),
                on=["key", "place"],
                how="left",
                maintain_order="left",
            )
        self._allocation = base["allocation"]
        self._last = base["requested_bytes"].to_numpy().astype(np.float64)
        others = [base[f"bytes_{number}"] for number in range(len(runs) - 1)]
        matched = pl.select(pl.all_horizontal(*(one.is_not_null() for one in others))).to_series()
        self._is_matched = matched.to_numpy()
        self._bytes = np.stack(
            [*(one.fill_null(0).to_numpy().astype(np.float64) for one in others), self._last]
        )
        total = self._last.sum()
        self.matched_share = float(self._last[self._is_matched].sum() / total) if total else 1.0

    def at(self, size: float) -> Replay:
        """The largest run as it would be at a size."""
        predicted = np.where(self._is_matched, self._continued(size), self._last)
        whole = np.maximum(np.rint(predicted), 1).astype(np.int64)
        changed = pl.DataFrame({"allocation": self._allocation, "changed": whole})
        allocations = self.replay.allocations.join(
            changed, on="allocation", how="left", maintain_order="left"
        )
        return replace(
            self.replay,
            allocations=allocations.with_columns(
                requested_bytes=pl.coalesce("changed", "requested_bytes")
            ).drop("changed"),
        )

    def _continued(self, size: float) -> npt.NDArray[np.float64]:
        """The polynomial through what each request asked for in the runs, at a size (Lagrange)."""
        total = np.zeros_like(self._last)
        for one, known in enumerate(self._sizes):
            weight = 1.0
            for other, apart in enumerate(self._sizes):
                if other != one:
                    weight *= (size - apart) / (known - apart)
            total += weight * self._bytes[one]
        return total


def _keyed(view: MemoryView, device: int, keys: dict[str, int]) -> pl.DataFrame:
    """The allocations of a device, each with the number of its key and its place among its like.

    Args:
        view: The run.
        device: The device.
        keys: The number of each key; those that are new are added.
    """
    snapshot = view.snapshot
    frame = snapshot.frames.select(
        "frame",
        text=pl.concat_str(
            pl.col("filename").fill_null(""),
            pl.col("line").cast(pl.String).fill_null(""),
            pl.col("name").fill_null(""),
            separator=":",
        ),
    )
    stacks = (
        snapshot.stacks.explode("frames")
        .join(frame, left_on="frames", right_on="frame", how="left", maintain_order="left")
        .group_by("stack", maintain_order=True)
        .agg(pl.col("text").str.join("\n"))
    )
    of_stack = stacks.select("stack", key=_numbered(stacks["text"].fill_null(""), keys))
    mine = view.allocations.filter(pl.col("device") == device)
    # What was there before has no stack of its own: its name, or its size, tells it.
    names = mine.select("name").unique(maintain_order=True)
    before = "before " + names["name"].fill_null("")
    of_name = names.with_columns(before=_numbered(before, keys))
    return (
        mine.join(of_stack, on="stack", how="left", maintain_order="left")
        .join(of_name, on="name", how="left", maintain_order="left", nulls_equal=True)
        .select(
            "allocation",
            "requested_bytes",
            "start_event",
            key=pl.when(pl.col("start_event").is_null())
            .then("before")
            .otherwise(pl.col("key").fill_null(keys.setdefault("", len(keys)))),
        )
        .sort("start_event", "requested_bytes", "allocation", nulls_last=False)
        .with_columns(place=pl.int_range(pl.len()).over("key"))
    )


def _numbered(texts: pl.Series, keys: dict[str, int]) -> pl.Series:
    """The number of each text: stacks are long, and every allocation has one."""
    return pl.Series([keys.setdefault(text, len(keys)) for text in texts], dtype=pl.Int64)


def _row(size: float, peaks: Peaks, *, is_observed: bool) -> tuple[object, ...]:
    sizes = (peaks.requested_bytes, peaks.allocated_bytes, peaks.reserved_bytes)
    return (float(size), is_observed, *sizes, peaks.fits)


def _largest(model: _Model, settings: AllocatorSettings, capacity: int | None) -> int | None:
    """The largest whole size that fits, by bisection; 0: not even 1 does."""
    if capacity is None:
        return None

    def fits(size: int) -> bool:
        return fits_into(model.at(size), model.device, settings, capacity)

    low, high = 0, 1
    while high < _LARGEST_SIZE and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def _error(runs: Sequence[Run], device: int) -> float:
    """The worst error of the peak when each run is predicted from the others."""
    worst = 0.0
    for number, left_out in enumerate(runs):
        model = _Model([run for other, run in enumerate(runs) if other != number], device)
        predicted = peak_requested(model.at(left_out.size), device)
        observed = peak_requested(left_out.view.replay, device)
        worst = max(worst, abs(predicted - observed) / max(1, observed))
    return worst
