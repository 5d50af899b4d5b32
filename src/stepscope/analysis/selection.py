"""The GPU work that a question is about, by its scope, and what that leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.scope import AnsweredScope, EventChoice, Scope
from stepscope.errors import UsageError
from stepscope.trace.categories import GPU_WORK
from stepscope.trace.model import Trace

_FROM_EVENTS = [
    "event",
    "name_id",
    "category",
    "lane_id",
    "device",
    "stream",
    "start_ns",
    "dur_ns",
    "bytes",
    "external_id",
]
_FROM_DERIVED = ["step", "launch", "op", "kind", "group"]

OUTSIDE_STEPS = "GPU events outside the steps"
OTHER_DEVICES = "GPU events of other devices"
NOT_LINKED = "GPU events without a launch"


@dataclass(frozen=True)
class GpuWork:
    """The GPU work of a scope.

    Attributes:
        events: One row per kernel, copy and fill, in file order, with the columns of
            `schema.EVENTS` and of `schema.DERIVED` that describe GPU work.
        scope: What it covers and what it leaves out; an event is counted under one reason only:
            its launch, then its device, then its step.
    """

    events: pl.DataFrame
    scope: AnsweredScope

    @property
    def total_ns(self) -> int:
        """Sum of the durations; what runs at the same time counts for each."""
        return int(self.events["dur_ns"].sum())


def side_by_side(
    trace: Trace, from_events: Sequence[str], from_derived: Sequence[str]
) -> pl.DataFrame:
    """Columns of `events` and of `derived`, row for row."""
    return pl.concat(
        [
            trace.events.select(from_events).collect(),
            trace.derived.select(from_derived).collect(),
        ],
        how="horizontal",
    )


def select_gpu_work(trace: Trace, scope: Scope | None = None) -> GpuWork:
    """The GPU work of a scope.

    Raises:
        UsageError: The scope names a step or a device that the trace does not have.
    """
    asked = scope or Scope()
    events = side_by_side(trace, _FROM_EVENTS, _FROM_DERIVED).filter(
        pl.col("category").is_in([category.value for category in GPU_WORK])
    )
    check_scope(trace, asked, events)
    wrong_link = (
        pl.col("launch").is_null() if asked.events is EventChoice.LINKED else pl.lit(value=False)
    )
    wrong_device = (
        ~pl.col("device").is_in(list(asked.devices)).fill_null(value=False)
        if asked.devices is not None
        else pl.lit(value=False)
    )
    wrong_step = (
        ~pl.col("step").is_in(list(asked.steps)).fill_null(value=False)
        if asked.steps is not None
        else pl.lit(value=False)
    )
    reason = (
        pl.when(wrong_link)
        .then(pl.lit(NOT_LINKED))
        .when(wrong_device)
        .then(pl.lit(OTHER_DEVICES))
        .when(wrong_step)
        .then(pl.lit(OUTSIDE_STEPS))
    )
    judged = events.with_columns(reason.alias("reason"))
    kept = judged.filter(pl.col("reason").is_null()).drop("reason")
    counts = judged.drop_nulls("reason").group_by("reason").len().sort("reason")
    return GpuWork(
        kept,
        AnsweredScope(
            asked,
            steps_of(trace, asked),
            tuple(kept["device"].drop_nulls().unique().sort().to_list()),
            len(kept),
            dict(counts.iter_rows()),
        ),
    )


def steps_of(trace: Trace, scope: Scope) -> tuple[int, ...]:
    """The steps that an answer covers, in order of time."""
    steps = trace.steps["step"].to_list()
    return tuple(step for step in steps if scope.steps is None or step in scope.steps)


def check_scope(trace: Trace, scope: Scope, gpu_work: pl.DataFrame) -> None:
    """Refuse a scope of steps or devices that are not there.

    Raises:
        UsageError: It names what the trace does not have.
    """
    if scope.steps is not None:
        known = trace.steps["step"].to_list()
        missing = [step for step in scope.steps if step not in known]
        if missing:
            has = f"steps {known[0]} to {known[-1]}" if known else "no annotated steps"
            raise UsageError(f"{trace.path}: there is no step {missing[0]}; it has {has}")
    if scope.devices is not None:
        devices = gpu_work["device"].drop_nulls().unique().sort().to_list()
        lacking = [device for device in scope.devices if device not in devices]
        if lacking:
            has = ", ".join(map(str, devices)) or "none"
            raise UsageError(
                f"{trace.path}: there is no GPU work on device {lacking[0]}; devices: {has}"
            )


def in_steps(step: pl.Series, scope: Scope) -> npt.NDArray[np.bool_]:
    """For each event whether its step is one that the scope asks for."""
    if scope.steps is None:
        return np.ones(len(step), np.bool_)
    chosen: npt.NDArray[np.bool_] = step.is_in(list(scope.steps)).fill_null(value=False).to_numpy()
    return chosen
