"""Which steps, which thread and which time the graph of the steps is about."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analysis.graph.work import StepWork
from stepscope.analysis.host.causes import HostCause
from stepscope.analysis.host.events import HostEvents
from stepscope.analysis.host.steady_steps import steady_steps
from stepscope.analysis.selection.scope import Scope
from stepscope.errors import UsageError
from stepscope.trace.arrays.ordering import distinct_groups
from stepscope.trace.model import Trace
from stepscope.trace.problems import counted
from stepscope.trace.schema import Category

NO_THREAD = -1
"""The main lane of a file that holds nothing of the host."""
_WITHOUT_TIME = (
    "no_time",
    "no_duration",
    "negative_duration",
    "overflowed_duration",
    "phase_not_kept",
    "relative_clock",
)


def choose_steps(
    trace: Trace, steps: tuple[int, ...] | None
) -> tuple[pl.DataFrame, tuple[int, int]]:
    """The host steps in question, and the time that they span."""
    host = trace.steps
    if steps is None:
        chosen = host.filter(pl.col("step").is_in(list(steady_steps(trace).steps)))
    else:
        missing = sorted(set(steps) - set(host["step"].to_list()))
        if missing:
            raise UsageError(
                f"{trace.path}: no step {missing[0]}; it holds"
                f" {', '.join(map(str, host['step'].to_list())) or 'none'}"
            )
        chosen = host.filter(pl.col("step").is_in(steps))
        if (chosen["start_ns"][1:] != chosen["end_ns"][:-1]).any():
            raise UsageError(f"{trace.path}: a replay needs steps that follow one another")
    if len(chosen):
        return chosen, (int(chosen["start_ns"][0]), int(chosen["end_ns"][-1]))
    extent = trace.events.select(
        first=pl.col("start_ns").min(),
        last=(pl.col("start_ns") + pl.col("dur_ns")).max(),
        longest=pl.col("dur_ns").max(),
    ).collect()
    if extent["first"][0] is None:
        raise UsageError(f"{trace.path}: it holds no events{_passed_over(trace)}")
    if extent["longest"][0] <= 0:
        raise UsageError(f"{trace.path}: none of its events has a duration{_passed_over(trace)}")
    return chosen, (int(extent["first"][0]), int(extent["last"][0]))


def _passed_over(trace: Trace) -> str:
    """What was done to events for want of a time, to follow what the trace lacks."""
    wrong = trace.all_problems.filter(pl.col("problem").is_in(_WITHOUT_TIME))
    problems = [counted(message, count) for count, message in wrong["count", "message"].iter_rows()]
    return f" ({'; '.join(problems)})" if problems else ""


def main_lane_of(trace: Trace, work: StepWork) -> int:
    """The lane of the main thread; `NO_THREAD` in a file that holds only GPU work.

    Raises:
        UsageError: The file holds neither operators nor calls nor GPU work.
    """
    active = trace.events.filter(
        pl.col("category").is_in([Category.CPU_OP.value, Category.RUNTIME.value])
    )
    if trace.main_lane is not None and (len(work) or len(active.head(1).collect())):
        return trace.main_lane
    if len(work):
        return NO_THREAD
    raise UsageError(
        f"{trace.path}: holds no operators and no calls of a device's runtime, which torch's"
        " profiler records; `stepscope view` and `stepscope query` show any trace"
    )


def device_start(trace: Trace, chosen: pl.DataFrame, work: StepWork) -> int | None:
    """When the devices were done with what came before these steps; None without GPU work.

    Without steps it is when the first GPU work begins.
    """
    if not len(work):
        return None
    if not len(chosen):
        return int(work.start_ns.min())
    first = trace.device_steps.filter(
        pl.col("step") == chosen["step"][0],
        pl.col("device").is_in(distinct_groups(work.device)),
    )
    return int(first["start_ns"].max()) if len(first) else None  # type: ignore[arg-type]


def measured_step_ns(trace: Trace, chosen: pl.DataFrame) -> int:
    """The mean step of the graph, as every other answer about these steps states it."""
    steps = tuple(chosen["step"].to_list()) if len(chosen) else None
    return steady_steps(trace, Scope(steps=steps)).step_ns


def whole_window(host: HostEvents, work: StepWork, window: tuple[int, int]) -> tuple[int, int]:
    """Without steps: from the first GPU work (else operator, call or wait for input) to the last.

    Args:
        window: What to return if there is nothing of these.
    """
    known = host.table.filter(pl.col("is_work") | (pl.col("cause") == int(HostCause.INPUT)))
    starts, ends = known["start_ns"].to_numpy(), known["end_ns"].to_numpy()
    if len(work):
        return int(work.start_ns.min()), int(np.concatenate((work.end_ns, ends)).max())
    return (int(starts.min()), int(ends.max())) if len(starts) else window
