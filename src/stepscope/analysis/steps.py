"""The steps of a trace: how long each took on the host and on each device, and where it went.

Definitions
    host wall    From the start of the step's annotation to the start of the next one's; of the
                 last step to its annotation's own end.
    device step  From the moment the work of earlier steps has ended to the moment the work
                 launched up to this step has ended; its parts are those of the timeline.
    Both divide their clock without gaps: the steps' durations add up to the window.

Every step of the file is in the table. Its `state` says whether it counts as a steady step: see
`host.steady_steps`, which every answer about a step uses.

Recording slows steps down, so a run has two step times: that of the steps recorded in detail, and
that of the others, which its step record tells. The run's step time is the record's: the report
states it, and savings are taken from it. Tables of what was recorded keep the recorded times. The
scope of the answer states both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from stepscope.analysis.host.steady_steps import StepState, steady_steps
from stepscope.analysis.record.summary import summarise_steps
from stepscope.analysis.selection.gpu_work import check_steps, gpu_work, notes_on_steps
from stepscope.analysis.selection.lost_work import lost_work
from stepscope.analysis.selection.scope import AnsweredScope, RecordedSteps, Scope
from stepscope.analysis.timeline import timeline_of
from stepscope.run.step_record import StepRecord
from stepscope.trace.model import Trace

_PARTS = (
    "compute_ns",
    "exposed_comm_ns",
    "exposed_memcpy_ns",
    "idle_ns",
    "busy_ns",
)


@dataclass(frozen=True)
class StepTable:
    """The steps of a scope.

    Attributes:
        step_ns: Mean of the steady steps, or of those asked for; None where there are none; of a
            run with a step record the mean of its steady steps (`in_run_steps`). The report,
            what-if and the critical path state the same.
        steps: One row per step and device (one per step without GPU work): step, device, state,
            start_ns and wall_ns on the host, device_start_ns and device_ns on the device, the
            parts of the device step, busy_share of it, and events of GPU work that began in it;
            lost_launches, launches of the step without GPU work, and unlaunched_events, its GPU
            work without a launch (see `selection.lost_work`).
        summary: One row per device: number of the steps counted; median, mean, shortest and
            longest of wall_ns and device_ns over them.
    """

    step_ns: int | None
    steps: pl.DataFrame
    summary: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...]


def step_table(trace: Trace, scope: Scope | None = None) -> StepTable:
    """List the steps."""
    asked = scope or Scope()
    covered = check_steps(trace, asked)
    work = gpu_work(trace, asked)
    device = timeline_of(work).steps.select(
        "device",
        "step",
        pl.col("start_ns").alias("device_start_ns"),
        pl.col("total_ns").alias("device_ns"),
        *_PARTS,
        "events",
    )
    steady = steady_steps(trace, Scope(steps=asked.steps, devices=asked.devices))
    last = trace.steps["step"].last()
    is_last = pl.lit(value=False) if last is None else pl.col("step") == last
    states = pl.DataFrame(
        [(one.step, one.state.value) for one in steady.classified],
        schema={"step": pl.Int32, "state": pl.String},
        orient="row",
    )
    host = (
        trace.steps.join(states, on="step", how="left", maintain_order="left")
        .filter(pl.col("step").is_in(list(covered)))
        .select(
            "step",
            "start_ns",
            wall_ns=pl.col("end_ns")
            - pl.col("start_ns")
            - pl.when(is_last).then(steady.tail_ns).otherwise(0),
            state="state",
        )
    )
    lost = lost_work(trace).steps.select(
        "step", lost_launches="lost", unlaunched_events="unlaunched"
    )
    host = host.join(lost, on="step", how="left", maintain_order="left")
    steps = host.join(device, on="step", how="left", maintain_order="left_right").select(
        "step",
        "device",
        "state",
        "start_ns",
        "wall_ns",
        "device_start_ns",
        "device_ns",
        *_PARTS,
        pl.when(pl.col("device_ns") > 0)
        .then(pl.col("busy_ns") / pl.col("device_ns"))
        .alias("busy_share"),
        "events",
        pl.col("lost_launches", "unlaunched_events").fill_null(0),
    )
    notes = list(work.notes)
    notes += [note for note in notes_on_steps(trace) if note not in notes]
    empty = [one.step for one in steady.of_state(StepState.EMPTY) if one.step in covered]
    if empty:
        notes.append(f"empty, and not in the summary: step {', '.join(map(str, empty))}")
    notes += steady.notes
    return StepTable(
        steady.step_ns if steady.steps else None,
        steps,
        steps.filter(pl.col("step").is_in(list(steady.steps)))
        .group_by("device", maintain_order=True)
        .agg(pl.len().cast(pl.Int64).alias("steps"), *_spread("wall_ns"), *_spread("device_ns")),
        work.answered,
        tuple(notes),
    )


def _spread(name: str) -> list[pl.Expr]:
    column = pl.col(name)
    found = {
        "median": column.median(),
        "mean": column.mean(),
        "shortest": column.min(),
        "longest": column.max(),
    }
    return [value.round().cast(pl.Int64).alias(f"{word}_{name}") for word, value in found.items()]


def in_run_steps(result: Any, trace: Trace, records: Sequence[StepRecord]) -> Any:
    """An answer about a window, in the step time of its run.

    Args:
        result: The answer about the whole window, with an `AnsweredScope` as `scope`.

    Returns:
        The answer with the record's mean steady step as its step time, if it states one, and with
        both step times in its scope. It is unchanged if the record has no complete step.
    """
    summary = summarise_steps(records)
    scope = getattr(result, "scope", None)
    if summary is None or not isinstance(scope, AnsweredScope):
        return result
    # Some answers convert their tables to the time of the run, too.
    is_scaled = hasattr(result, "in_run")
    if is_scaled:
        result = result.in_run(summary, trace)
    elif hasattr(result, "step_ns"):
        result = replace(result, step_ns=summary.mean_ns)
    steady = steady_steps(trace)
    window_step_ns = steady.step_ns if steady.steps else None
    both = RecordedSteps(window_step_ns, summary.mean_ns, len(summary.steps), is_scaled)
    return replace(result, scope=replace(scope, recorded=both))
