"""Will it fit: the peak at a size that was not run, such as a larger batch or a longer sequence.

Runs of one program at different sizes make the same requests in the same order; only their bytes
differ. The requests of the runs are matched by what they are: the functions that make them, without
line numbers, which change with every edit and every option, and their order within these. A match
must obey a law of size: a request stays, or grows no faster than the square of the size (attention
does). The bytes of each are continued to the new size: by a parabola through three runs; with two,
by a line, or, for what grows faster than in proportion, by a parabola that begins at nothing. The
largest run is then replayed with the continued requests, through the model of
the GPU's allocator, so that a peak that moves elsewhere is found as well. A run on a CPU can stand
for one on a GPU, as far as both make the same requests: kernels on a GPU have workspaces of their
own.

From one run, the size is taken to be the batch, and `batch_law` says what grows with it: by the
shapes that operators were called with, or by category.

What has no like in the other runs, or is not known to grow or stay, may do either: the peak is then
a range, and so is the answer. Where that is too much of the peak, nothing is said to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.errors import UsageError
from stepscope.memory.allocator.settings import AllocatorSettings, settings_of
from stepscope.memory.program.lines import file_name
from stepscope.memory.questions.batch_law import by_batch
from stepscope.memory.questions.bounded import (
    Run,
    fits_into,
    observed_peaks,
    peak_requested,
    predicted_peaks,
)
from stepscope.memory.replay.replay import Replay
from stepscope.memory.schema import Types
from stepscope.memory.view import MemoryView, held_at
from stepscope.run.figures import percent

_MOST_RUNS = 3
_LARGEST_SIZE = 1 << 20
_LEAST_FOR_A_LINE = 2
_LEAST_COVERED = 0.9
"""Of the largest run's peak: what must be known to grow or stay before anything is said to fit."""
_MISS_OF_ONE_RUN = 0.02
"""Of the peak: what predictions from one run have missed at the most, where shapes were known."""
_ROUNDING = 0.05
"""By what share a request may grow faster than the square of the size: it is padded."""
TARGETS: Types = {
    "size": pl.Float64,
    "is_observed": pl.Boolean,
    "peak_requested_bytes": pl.Int64,
    "at_least_bytes": pl.Int64,
    "at_most_bytes": pl.Int64,
    "peak_allocated_bytes": pl.Int64,
    "peak_reserved_bytes": pl.Int64,
    "fits": pl.Boolean,
}


@dataclass(frozen=True)
class Fit:
    """The peak at other sizes.

    Attributes:
        matched_share: How much of the largest run's requested bytes has its like in all runs; with
            one run, how much is known to stay or to grow.
        covered_share: How much of what the largest run holds at its peak has.
        error_share: By how much the peak is missed at the worst when each run is predicted from
            the others; None with fewer than three runs.
        capacity_bytes: What the device has for the allocator; None: not given.
        largest_size: The largest whole size that certainly fits; None without a capacity, and where
            too little is covered.
        largest_size_at_most: The largest whole size that may fit; None without a capacity, and
            where nothing is known to grow.
        targets: One row per size that was asked for, after those that were run: size, is_observed,
            peak_requested_bytes, the range that it is in (at_least_bytes, at_most_bytes: the error,
            and what may stay or grow), peak_allocated_bytes (rounded to blocks),
            peak_reserved_bytes (by simulation), fits (null: without a capacity, or it cannot be
            said).
    """

    device: int
    sizes: tuple[float, ...]
    verdict: str
    matched_share: float
    covered_share: float
    error_share: float | None
    capacity_bytes: int | None
    largest_size: int | None
    largest_size_at_most: int | None
    settings: str
    targets: pl.DataFrame
    notes: tuple[str, ...]


def will_it_fit(
    runs: Sequence[Run],
    targets: Sequence[float],
    device: int | None = None,
    capacity_bytes: int | None = None,
) -> Fit:
    """Predicts the peak at other sizes, by default on the fullest device of the largest run."""
    ordered = sorted(runs, key=lambda run: run.size)
    sizes = tuple(run.size for run in ordered)
    is_right = 1 <= len(ordered) <= _MOST_RUNS and len(set(sizes)) == len(sizes)
    if not is_right or sizes[0] <= 0:
        raise UsageError(
            "fit needs one to three runs of the same program at different sizes: "
            "stepscope memory RUN fit --size 4 --also OTHER=8 --target 16"
        )
    largest = ordered[-1].view
    chosen = largest.device(device)
    settings = settings_of(largest.snapshot.settings)
    model = _Model(ordered, chosen)
    error = None if len(ordered) < _MOST_RUNS else _error(ordered, chosen)
    answers = _Answers(model, settings, capacity_bytes, error or 0.0)
    rows = [_observed(run, chosen) for run in ordered] + [answers.row(size) for size in targets]
    least, most = answers.largest()
    return Fit(
        device=chosen,
        sizes=sizes,
        verdict=_verdict(model, rows[len(ordered) :], capacity_bytes),
        matched_share=model.matched_share,
        covered_share=model.covered_share,
        error_share=error,
        capacity_bytes=capacity_bytes,
        largest_size=least,
        largest_size_at_most=most,
        settings=str(settings),
        targets=pl.DataFrame(rows, schema=TARGETS, orient="row"),
        notes=(*largest.notes(chosen), *_notes(model, len(ordered))),
    )


def _verdict(model: _Model, predicted: Sequence[tuple[object, ...]], capacity: int | None) -> str:
    if not model.is_covered:
        why = "have no like in the other runs" if model.has_others else "may stay or grow"
        begin = f"cannot say: {percent(1 - model.covered_share)} of the bytes at the peak {why}"
    elif capacity is None:
        begin = "give --capacity to ask whether it fits"
    else:
        begin = "; ".join(
            f"size {row[0]:g}: "
            + {True: "fits", False: "does not fit", None: "cannot say, it is too close"}[row[-1]]  # type: ignore[index]
            for row in predicted
        )
    certain = [f"{row[0]:g}" for row in predicted if row[-1] is False]
    if not model.is_covered and certain:
        begin += f"; but what is known does not fit at {', '.join(certain)}"
    return begin


def _notes(model: _Model, runs: int) -> list[str]:
    notes = []
    if runs == 1:
        notes.append(
            "from one run, the size is taken to be the batch, and what grows with it is known "
            f"{model.basis}; add a run at another size with --also"
        )
    elif runs < _MOST_RUNS:
        notes.append("with two runs the error is not known: add a third with --also")
    if model.matched_share < 1 and model.has_others:
        notes.append(
            f"{percent(1 - model.matched_share)} of the requested bytes have no like in the other "
            "runs: they may keep their size, or change with it"
        )
    return notes


class _Model:
    """The requests of the largest run, and how each grows with the size."""

    def __init__(self, runs: Sequence[Run], device: int) -> None:
        self.device = device
        view = runs[-1].view
        self.replay: Replay = view.replay
        self.has_others = len(runs) > 1
        self.basis = (
            "by category alone (a trace with record_shapes=True and profile_memory=True says more)"
            if view.calls is None
            else "by the shapes that operators were called with, and by category without these"
        )
        self._sizes = np.array([run.size for run in runs])
        keys: dict[str, int] = {}
        keyed = [_keyed(run.view, device, keys) for run in runs]
        base = keyed[-1]
        for number, other in enumerate(keyed[:-1]):
            base = base.join(
                _expected_places(base, other, number),
                on=["key", "place"],
                how="left",
                maintain_order="left",
            )
        self._allocation = base["allocation"]
        self._last = base["requested_bytes"].to_numpy().astype(np.float64)
        if self.has_others:
            others = [base[f"bytes_{number}"] for number in range(len(runs) - 1)]
            self._bytes = np.stack(
                [*(one.fill_null(-1).to_numpy().astype(np.float64) for one in others), self._last]
            )
            self._is_known = self._obeys_a_law()
            if len(runs) == _LEAST_FOR_A_LINE:
                self._begin_at_nothing()
        else:
            power, self._is_known = by_batch(view, base["allocation"], runs[-1].size)
            parts = np.array([0.0, 0.5, 1.0])
            self._sizes = parts * runs[-1].size
            self._bytes = self._last * parts[:, None] ** power
        total = self._last.sum()
        self.matched_share = float(self._last[self._is_known].sum() / total) if total else 1.0
        self.covered_share = self._covered(view)

    @property
    def is_covered(self) -> bool:
        return self.covered_share >= _LEAST_COVERED

    def _obeys_a_law(self) -> npt.NDArray[np.bool_]:
        """Whether each request is in all runs, and grows as a tensor can with the size.

        It never shrinks by more than rounding, and grows no faster than the square of the size.
        """
        known = (self._bytes >= 0).all(axis=0)
        for row in range(len(self._bytes) - 1):
            smaller, larger = self._bytes[row], self._bytes[row + 1]
            most = (self._sizes[row + 1] / self._sizes[row]) ** 2 * (1 + _ROUNDING)
            known &= (larger >= smaller * (1 - _ROUNDING)) & (larger <= smaller * most + 512)
        return np.asarray(known)

    def _begin_at_nothing(self) -> None:
        """Adds to two runs what each request would be at size 0."""
        (few, many), (smaller, larger) = self._sizes, self._bytes
        at_zero = smaller - (larger - smaller) * few / (many - few)
        is_faster = larger > smaller * (many / few) * (1 + _ROUNDING)
        self._sizes = np.array([0.0, few, many])
        self._bytes = np.stack([np.where(is_faster, 0.0, at_zero), smaller, larger])

    def _covered(self, view: MemoryView) -> float:
        held = held_at(view.allocations, self.device, view.peak(self.device).event)
        known = pl.DataFrame({"allocation": self._allocation, "is_known": self._is_known})
        joined = held.join(known, on="allocation", how="left")
        size = joined["requested_bytes"]
        total = int(size.sum())
        return int(size.filter(joined["is_known"]).sum()) / total if total else 1.0

    def at(self, size: float, bound: Callable[..., float] | None = None) -> Replay:
        """The largest run as it would be at a size.

        What is not known stays, or, at the `bound` (`min` or `max`), does what comes to that: what
        has no like in another run may grow with the square of the size.
        """
        times = size / self._sizes[-1]
        others = (1.0, times, times**2) if self.has_others and times > 1 else (1.0, times)
        rest = self._last * (1.0 if bound is None else bound(others))
        predicted = np.where(self._is_known, self._continued(size), rest)
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


def _expected_places(base: pl.DataFrame, other: pl.DataFrame, number: int) -> pl.DataFrame:
    """The requests of another run by the keys and places that they have in the largest.

    A run with more steps than another repeats its requests. Where the numbers of requests of a key
    are no multiples of each other, nobody knows which belong together: these are left out.

    Returns:
        key, place, bytes_`number`.
    """
    counts = base.group_by("key").agg(pl.len().alias("count"))
    counts = counts.join(other.group_by("key").agg(pl.len().alias("other")), on="key")
    few, many = pl.min_horizontal("count", "other"), pl.max_horizontal("count", "other")
    counts = counts.filter(many % few == 0)
    return (
        base.select("key", "place")
        .join(counts, on="key")
        .with_columns(wanted=pl.col("place") % pl.col("other"))
        .join(
            other.select("key", "place", pl.col("requested_bytes").alias(f"bytes_{number}")),
            left_on=["key", "wanted"],
            right_on=["key", "place"],
        )
        .select("key", "place", f"bytes_{number}")
    )


class _Answers:
    def __init__(
        self, model: _Model, settings: AllocatorSettings, capacity: int | None, error: float
    ) -> None:
        self._model = model
        self._settings = settings
        self._capacity = capacity
        self._error = error

    def row(self, size: float) -> tuple[object, ...]:
        model = self._model
        device = model.device
        peaks = predicted_peaks(model.at(size), device, self._settings)
        least, most = (peak_requested(model.at(size, bound), device) for bound in (min, max))
        fits = None
        if self._capacity is not None:
            fits = None if self._may_fit(size) else False
            if fits is None and model.is_covered and self._surely_fits(size):
                fits = True
        return (
            float(size),
            False,
            peaks.requested_bytes,
            round(least * (1 - self._error)),
            round(most * (1 + self._error)),
            peaks.allocated_bytes,
            peaks.reserved_bytes,
            fits,
        )

    def largest(self) -> tuple[int | None, int | None]:
        if self._capacity is None:
            return None, None
        least = _largest(self._surely_fits) if self._model.is_covered else None
        most = max(least or 0, _largest(self._may_fit))
        return (least, most) if most < _LARGEST_SIZE - 1 else (least, None)

    def _surely_fits(self, size: float) -> bool:
        return self._fits(self._model.at(size, max), 1 + self._margin)

    def _may_fit(self, size: float) -> bool:
        return self._fits(self._model.at(size, min), 1 - self._margin)

    @property
    def _margin(self) -> float:
        return self._error if self._model.has_others else _MISS_OF_ONE_RUN

    def _fits(self, replay: Replay, factor: float) -> bool:
        capacity = int((self._capacity or 0) / max(factor, 0.01))
        return fits_into(replay, self._model.device, self._settings, capacity)


def _keyed(view: MemoryView, device: int, keys: dict[str, int]) -> pl.DataFrame:
    """The allocations of a device, each with the number of its key and its place among its like.

    `keys` has the number of each key; those that are new are added.
    """
    snapshot = view.snapshot
    frame = snapshot.frames.select(
        "frame",
        text=pl.concat_str(
            file_name().str.split("/").list.last(), pl.col("name").fill_null(""), separator=":"
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
    return pl.Series([keys.setdefault(text, len(keys)) for text in texts], dtype=pl.Int64)


def _observed(run: Run, device: int) -> tuple[object, ...]:
    peaks = observed_peaks(run.view, device)
    known = peaks.requested_bytes
    sizes = (known, known, known, peaks.allocated_bytes, peaks.reserved_bytes)
    return (float(run.size), True, *sizes, None)


def _largest(fits: Callable[[int], bool]) -> int:
    """The largest whole size that fits, by bisection; 0: not even 1 does."""
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
