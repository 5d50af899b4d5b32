"""Finds the main thread of a trace: the one that runs the training loop.

Steps divide the time of this thread. If steps are annotated, the thread with the annotations is the
main one. Otherwise the first of these that any thread has decides:

1. calls of `Optimizer.step`: the thread with the most;
2. calls of `backward()`, seen in Python frames or annotated phases;
3. waits for a DataLoader: the thread that waits longest;
4. launches of GPU work outside the autograd engine;
5. operators outside the autograd engine: the thread that spends the most time in them;
6. launches, then operators, then calls, of any kind.

The autograd engine runs the backward pass of a GPU training on a thread of its own, which often
launches more than the main thread does. That is why the number of launches alone decides nothing.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.schema import Category

ENGINE = "autograd::engine::evaluate_function"
"""How the names of the autograd engine's operators begin."""
_BACKWARD_FRAME = r"torch/(_tensor|autograd/__init__)\.py\(\d+\): (backward|grad)$"
_LAUNCHING = ("launch", "graph", "copy_call", "fill_call")
_CALLS = (Category.RUNTIME.value, Category.DRIVER.value)


def is_optimizer_step() -> pl.Expr:
    """Of rows of `names`: whether the event is an optimizer's step, not its `zero_grad`."""
    is_step = (pl.col("group") == "optimizer_step") & ~pl.col("name").str.contains("zero_grad")
    return is_step.fill_null(value=False)


def find_main_lane(events: pl.DataFrame, names: pl.DataFrame) -> int | None:
    """Returns the lane of the main thread of a trace without annotated steps.

    Args:
        events: The columns `name_id`, `lane_id`, `start_ns` and `dur_ns` of the events.
        names: The table of names, in order of `name_id`.

    Returns:
        The lane, or None if no thread has an operator or a call.
    """
    is_optimizer, is_backward, is_wait, is_launch, is_operator, is_engine, is_call = _roles(names)
    name_id = events["name_id"].to_numpy()
    lane = events["lane_id"].to_numpy()
    duration = events["dur_ns"].to_numpy()

    def most(mask: BoolArray, weights: Int64Array | None = None) -> int | None:
        rows = np.nonzero(mask)[0]
        if not len(rows):
            return None
        # Doubles hold sums of nanoseconds exactly up to 104 days.
        total = np.bincount(lane[rows], None if weights is None else weights[rows])
        return int(np.argmax(total))

    for role, weights in ((is_optimizer, None), (is_backward, None), (is_wait, duration)):
        found = most(role[name_id], weights)
        if found is not None:
            return found
    launches, operators = is_launch[name_id], is_operator[name_id]
    inside = _inside_engine(events, is_engine[name_id], launches | operators)
    for mask, weights in (
        (launches & ~inside, None),
        (operators & ~inside, duration),
        (launches, None),
        (operators, duration),
        (is_call[name_id], duration),
    ):
        found = most(mask, weights)
        if found is not None:
            return found
    return None


def _roles(names: pl.DataFrame) -> list[BoolArray]:
    """For each name whether it has each role, in the order in which they are unpacked."""
    name, group = pl.col("name").fill_null(""), pl.col("group")
    category = pl.col("category").cast(pl.String)
    is_call = category.is_in(_CALLS)
    is_python = category == Category.PYTHON_FUNCTION.value
    found = names.select(
        optimizer=is_optimizer_step(),
        backward=((group == "backward") & ~name.str.starts_with(ENGINE) & ~is_python)
        | (is_python & name.str.contains(_BACKWARD_FRAME)),
        wait=group == "dataloader",
        launch=is_call & group.is_in(_LAUNCHING),
        operator=(category == Category.CPU_OP.value)
        & (group != "profiler_step").fill_null(value=True),
        engine=name.str.starts_with(ENGINE),
        call=is_call,
    )
    return [filled(column, value=False) for column in found]


def _inside_engine(events: pl.DataFrame, is_engine: BoolArray, wanted: BoolArray) -> BoolArray:
    """For each wanted event whether it lies in one of the autograd engine's operators."""
    lane, start = events["lane_id"].to_numpy(), events["start_ns"].to_numpy()
    end = start + events["dur_ns"].to_numpy()
    inside = np.zeros(len(events), np.bool_)
    for one in np.unique(lane[is_engine]):
        mine = is_engine & (lane == one)
        rows = np.nonzero(wanted & (lane == one))[0]
        inside[rows] = intervals.contains(intervals.merge(start[mine], end[mine]), start[rows])
    return inside
