"""Which steps, which thread and which time the graph of the steps is about."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analysis.graph.work import StepWork
from stepscope.analysis.host.causes import HostCause
from stepscope.analysis.host.events import HostEvents
from stepscope.errors import UsageError
from stepscope.trace.arrays.search import places
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

NO_THREAD = -1
"""The main lane of a file that holds nothing of the host."""
_LEAST_STEPS = 3
_NOTABLE_TAIL_NS = 1_000_000


def choose_steps(
    trace: Trace, steps: tuple[int, ...] | None
) -> tuple[pl.DataFrame, tuple[int, int]]:
    """The host steps in question, and the time that they span."""
    # A step in which nothing ran is left out, unless it is asked for.
    host = trace.steps
    if steps is None:
        chosen = _longest_run(host.filter(~pl.col("is_empty")))
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
        first=pl.col("start_ns").min(), last=(pl.col("start_ns") + pl.col("dur_ns")).max()
    ).collect()
    if extent["first"][0] is None:
        raise UsageError(f"{trace.path}: holds no events")
    return chosen, (int(extent["first"][0]), int(extent["last"][0]))


def _longest_run(host: pl.DataFrame) -> pl.DataFrame:
    """The most steps that follow one another without a break; the first such run."""
    if len(host) < 2:
        return host
    is_break = host["start_ns"][1:].to_numpy() != host["end_ns"][:-1].to_numpy()
    edges = np.concatenate(([0], np.flatnonzero(is_break) + 1, [len(host)]))
    longest = int(np.argmax(np.diff(edges)))
    return host[int(edges[longest]) : int(edges[longest + 1])]


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
    raise UsageError(f"{trace.path}: holds no operators and no calls of a device's runtime")


def tail_of(trace: Trace, chosen: pl.DataFrame, activity: pl.DataFrame) -> int:
    """What the last step of the file takes at its end beyond what any other does.

    Where the loop ends within the window, the last annotation also covers what comes after the
    loop: workers that are shut down, the profiler that is stopped.
    """
    if len(chosen) < _LEAST_STEPS or chosen["step"][-1] != trace.steps["step"][-1]:
        return 0
    starts, ends = chosen["start_ns"].to_numpy(), chosen["end_ns"].to_numpy()
    begun = activity["start_ns"].to_numpy()
    index = places(starts, begun, "right") - 1
    mine = (index >= 0) & (begun < ends[np.maximum(index, 0)])
    last = starts.copy()
    np.maximum.at(last, index[mine], activity["end_ns"].to_numpy()[mine])
    quiet = np.maximum(ends - last, 0)
    beyond = int(quiet[-1] - quiet[:-1].max())
    return beyond if beyond > _NOTABLE_TAIL_NS else 0


def whole_window(host: HostEvents, work: StepWork, window: tuple[int, int]) -> tuple[int, int]:
    """Without steps: from the first to the last operator, call, wait for input or GPU work.

    Args:
        host: The host's events.
        work: The GPU work.
        window: What to return if there is nothing of these.
    """
    known = host.table.filter(pl.col("is_work") | (pl.col("cause") == int(HostCause.INPUT)))
    starts = np.concatenate((known["start_ns"].to_numpy(), work.start_ns))
    ends = np.concatenate((known["end_ns"].to_numpy(), work.end_ns))
    return (int(starts.min()), int(ends.max())) if len(starts) else window
