"""The step of a run without a GPU: where the time of the main thread went.

Each moment of a step belongs to the first of these that it lies in:

1. compilation: the stages of `torch.compile` (see `causes`);
2. input: waiting for a batch (`enumerate(DataLoader)#…`, `stepscope.data_wait`, a phase `data`),
   or for another thread that reads one (`waits`), and making one (`train.py(9): get_batch`);
3. communication: operators of a process group (`c10d::`, `gloo:`, …), the phase of that name, and
   waiting for those that another thread does (`waits`);
4. optimizer: `Optimizer.step#…` without a closure's forward and backward,
   `Optimizer.zero_grad#…`, and phases named optimizer;
5. backward: the autograd engine's evaluation of functions, and phases named backward;
6. forward: all other operators, and phases named forward;
7. other: the rest, which is Python outside operators.

A gap of at most 0.2 ms with the same part on both sides counts to that part: it is its dispatch.
Other gaps are other. The parts add up to the step.

A closure is the forward and backward pass that a script has run within an optimizer's step:
`optimizer.step(closure)` is how LBFGS works, and how Lightning trains with any optimizer. The event
`Optimizer.step#…` then holds nearly the whole step, of which the update is a small part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.host.causes import HostCause, cause_of_names, is_input_wait, makes_batch
from stepscope.analysis.host.events import by_precedence, host_events
from stepscope.analysis.host.steady_steps import tail_of
from stepscope.analysis.host.waits import communication_waits, input_waits
from stepscope.analysis.selection.names import events_with_names, names_that
from stepscope.analysis.selection.partition import INPUT, OTHER, Part, Partition
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Int64Array, Intervals
from stepscope.trace.categories import is_one_of
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

BRIDGED_GAP_NS = 200_000
BASIS = "trace: the main thread's time"
WHOLE_FILE = ", the whole file as one step"
PARTS = ("compilation", INPUT, "communication", "optimizer", "backward", "forward")

_COMMUNICATION = "communication"
"""The phase of the collectives that hold the thread."""
_COLLECTIVE_CALL = r"^(c10d::|c10d_functional|_c10d_functional::|gloo:|nccl:|mpi:|ucc:|xccl:)"
_PHASES = {
    "optimizer": r"(?i)^#{0,2} ?(optimizer(_step)?|optim|zero_grad) ?#{0,2}$",
    "backward": r"(?i)^#{0,2} ?(backward|backward_pass) ?#{0,2}$",
    "forward": r"(?i)^#{0,2} ?(forward|forward_pass) ?#{0,2}$",
}

OPTIMIZER_STEP = "Optimizer.step#"
"""How the names of torch's events of optimizer steps begin."""


@dataclass(frozen=True)
class HostPartition:
    """The main thread's time, per step and in all.

    Attributes:
        steps: One row per step: step, wall_ns, and one column `<part>_ns` per part.
        excluded_steps: A last step in which nothing ran is left out: the loop had ended.
    """

    partition: Partition
    steps: pl.DataFrame
    excluded_steps: tuple[int, ...]

    @property
    def step_ns(self) -> int:
        """Mean duration of the steps."""
        return round(self.partition.total_ns / max(1, self.partition.steps))

    @property
    def median_step_ns(self) -> int:
        """Median duration of the steps."""
        return round(float(np.median(self.steps["wall_ns"].to_numpy())))


def partition_host(trace: Trace, asked: tuple[int, ...] | None = None) -> HostPartition | None:
    """Divides the steps of a trace by what the main thread (`trace.main_lane`) did.

    A trace without steps counts as one step, number 0: from the thread's first operator, call or
    wait for input to its last.

    Args:
        asked: Numbers of the steps in question; default: all.

    Returns:
        The partition; None if the main thread did nothing, or none of the steps exists.
    """
    steps = trace.steps if len(trace.steps) else _whole_thread(trace)
    if asked is not None:
        steps = steps.filter(pl.col("step").is_in(asked))
    lane_id = trace.main_lane
    if steps.height == 0 or lane_id is None:
        return None
    part_of_names = _part_of_names(trace)
    has_part = part_of_names.is_not_null().to_numpy()
    events = events_with_names(trace, has_part, (lane_id,))
    host = trace.columns("name_id", "start_ns", "dur_ns")[events]
    is_step = pl.Series(
        "is_step", names_that(trace, pl.col("name").str.starts_with(OPTIMIZER_STEP))
    )
    host = host.hstack([part_of_names[host["name_id"]], is_step[host["name_id"]]]).with_columns(
        end_ns=pl.col("start_ns") + pl.col("dur_ns")
    )
    waits = {
        INPUT: input_waits(trace, (lane_id,))[lane_id],
        "communication": communication_waits(trace, (lane_id,))[lane_id],
    }
    starts, ends = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy().copy()
    ends[-1:] -= tail_of(trace, steps)
    columns: dict[str, pl.Series] = {}
    busy = np.zeros(steps.height, dtype=np.int64)
    for part, own in zip(PARTS, _parts_with_dispatch(_claims(host, waits)), strict=True):
        covered = intervals.covered(own, starts, ends)
        columns[f"{part}_ns"] = pl.Series(covered)
        busy += covered
    wall = ends - starts
    columns[f"{OTHER}_ns"] = pl.Series(wall - busy)
    table = steps.select("step").with_columns(wall_ns=pl.Series(wall), **columns)
    # The recorder opens one more step at the last boundary; where nothing ran in it, it is none.
    is_empty = (busy == 0) & (np.arange(steps.height) == steps.height - 1) & (steps.height > 1)
    kept = table.filter(pl.Series(~is_empty)) if is_empty.any() else table
    parts = tuple(Part(name, int(kept[f"{name}_ns"].sum())) for name in (*PARTS, OTHER))
    basis = BASIS if len(trace.steps) else BASIS + WHOLE_FILE
    return HostPartition(
        partition=Partition(parts, int(kept["wall_ns"].sum()), kept.height, basis),
        steps=kept,
        excluded_steps=tuple(table["step"].filter(pl.Series(is_empty)).to_list()),
    )


def _whole_thread(trace: Trace) -> pl.DataFrame:
    """The main thread's time as one step: step, start_ns, end_ns; no rows if it did nothing."""
    steps = {"step": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}
    if trace.main_lane is None:
        return pl.DataFrame(schema=steps)
    events = host_events(trace, (trace.main_lane,)).table
    known = events.filter(pl.col("is_work") | (pl.col("cause") == int(HostCause.INPUT)))
    if known.is_empty():
        return pl.DataFrame(schema=steps)
    row = (0, int(known["start_ns"].min()), int(known["end_ns"].max()))  # type: ignore[arg-type]
    return pl.DataFrame([row], schema=steps, orient="row")


def _part_of_names(trace: Trace) -> pl.Series:
    """The part that each name belongs to; null: none."""
    names = trace.name_rows
    compiles = pl.Series(cause_of_names(names) == HostCause.COMPILATION)
    name, group = pl.col("name"), pl.col("group")
    is_op = pl.col("category") == Category.CPU_OP.value
    is_of_program = is_one_of(
        (
            Category.CPU_OP,
            Category.USER_ANNOTATION,
            Category.OTHER,
            Category.PYTHON_FUNCTION,
        )
    )
    part = (
        pl.when(~is_of_program)
        .then(None)
        .when(compiles)
        .then(pl.lit("compilation"))
        .when(makes_batch())
        .then(pl.lit("input"))
        .when(pl.col("category") == Category.PYTHON_FUNCTION.value)
        .then(None)
        .when(is_input_wait())
        .then(pl.lit("input"))
        .when((is_op & name.str.contains(_COLLECTIVE_CALL)) | (name == _COMMUNICATION))
        .then(pl.lit("communication"))
        .when((group == "optimizer_step") | name.str.contains(_PHASES["optimizer"]))
        .then(pl.lit("optimizer"))
        .when((group == "backward") | name.str.contains(_PHASES["backward"]))
        .then(pl.lit("backward"))
        .when((group == "forward") | name.str.contains(_PHASES["forward"]) | is_op)
        .then(pl.lit("forward"))
    )
    return names.select(part=part)["part"]


def _claims(
    host: pl.DataFrame, waits: Mapping[str, intervals.Intervals]
) -> list[intervals.Intervals]:
    """The moments of each part: those of its events that no part before it has.

    Args:
        host: Events with their part, and whether they are torch's events of optimizer steps.
        waits: Further moments of some parts, in which the thread waits for another one.
    """
    sets = []
    for part in PARTS:
        mine = host.filter(pl.col("part") == part)
        if part == "optimizer":
            own = without_closures(mine, host.filter(pl.col("part") == "backward"))
        else:
            own = intervals.merge(*_bounds(mine))
        if part in waits:
            own = intervals.union(own, waits[part])
        sets.append(own)
    return by_precedence(sets)


def _parts_with_dispatch(claims: list[intervals.Intervals]) -> list[intervals.Intervals]:
    starts = np.concatenate([own.starts for own in claims])
    ends = np.concatenate([own.ends for own in claims])
    parts = np.repeat(np.arange(len(claims)), [len(own) for own in claims])
    order = np.argsort(starts)
    starts, ends, parts = starts[order], ends[order], parts[order]
    gap_starts, gap_ends = ends[:-1], starts[1:]
    is_dispatch = (parts[:-1] == parts[1:]) & (gap_ends - gap_starts <= BRIDGED_GAP_NS)
    result = []
    for part, own in enumerate(claims):
        chosen = is_dispatch & (parts[:-1] == part)
        gaps = intervals.merge(gap_starts[chosen], gap_ends[chosen])
        result.append(intervals.union(own, gaps))
    return result


def without_closures(optimizer: pl.DataFrame, backward: pl.DataFrame) -> Intervals:
    """The moments inside events of the optimizer, but for a closure's passes in its steps.

    Args:
        optimizer: start_ns, end_ns and is_step (whether it is torch's event of a step).
        backward: start_ns and end_ns of events of backward passes.
    """
    steps, others = optimizer.filter("is_step"), optimizer.filter(~pl.col("is_step"))
    within = closures_within(*_bounds(steps), *_bounds(backward))
    own = intervals.difference(intervals.merge(*_bounds(steps)), within)
    return intervals.union(own, intervals.merge(*_bounds(others)))


def _bounds(events: pl.DataFrame) -> tuple[Int64Array, Int64Array]:
    return events["start_ns"].to_numpy(), events["end_ns"].to_numpy()


def closures_within(
    starts: Int64Array, ends: Int64Array, backward_starts: Int64Array, backward_ends: Int64Array
) -> Intervals:
    """The moments of closures: of each step from its beginning to the end of its last backward.

    A step within a backward pass, as by hooks of parameters, has no closure: none begins in it.

    Args:
        starts: When optimizer steps begin.
        backward_starts: When events of backward passes begin, in any order.
    """
    if not len(starts) or not len(backward_starts):
        return intervals.empty()
    order = np.argsort(backward_starts, kind="stable")
    begun, ended = backward_starts[order], backward_ends[order]
    first = np.searchsorted(begun, starts, side="right")
    last = np.searchsorted(begun, ends, side="left")
    has_backward = last > first
    first, last = first[has_backward], last[has_backward]
    if not len(first):
        return intervals.empty()
    # Events nest, so the one that ends last need not be the one that begins last.
    bounds = np.stack([first, np.minimum(last, len(ended) - 1)], axis=1).ravel()
    latest = np.maximum.reduceat(ended, bounds)[::2]
    latest = np.maximum(latest, ended[last - 1])
    return intervals.merge(starts[has_backward], np.minimum(latest, ends[has_backward]))
