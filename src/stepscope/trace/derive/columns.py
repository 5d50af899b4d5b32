"""Derives the columns of `schema.DERIVED` and the steps from a trace's tables.

The definitions are in the modules for each part: steps in `steps.py`, nesting in `nesting.py`,
links in `links.py`, kinds and groups in `kinds.py` and `classify.py`. This module combines them.

Step of an event
    Host events belong to the step in which they start, on any thread. GPU work belongs to the step
    in which its launch started or, if only the operator is known, in which that started. GPU work
    with neither, and all other events on device lanes, belong to the device step in which they
    start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.run.figures import duration
from stepscope.trace.arrays.blockwise import gather
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.nullable import filled, nullable
from stepscope.trace.categories import (
    GPU_CATEGORIES,
    GPU_WORK,
    HOST_CALLS,
    code_of,
    is_one_of,
    mask_of,
)
from stepscope.trace.classify import COLLECTIVE_NAME
from stepscope.trace.derive.clock_resolution import clock_resolution_ns
from stepscope.trace.derive.kinds import kind_and_group
from stepscope.trace.derive.links import (
    SEQUENCE_NUMBER,
    forward_flows,
    is_operator,
    link_forward,
    link_launches,
    link_operators,
)
from stepscope.trace.derive.nesting import (
    Nesting,
    RowNumbers,
    nest,
    outer_first,
)
from stepscope.trace.derive.overruns import find_overruns
from stepscope.trace.derive.steps import device_steps, step_at, step_names, steps_and_places
from stepscope.trace.derive.unannotated_steps import describe
from stepscope.trace.derive.unrecorded_work import blocked_until
from stepscope.trace.problems import lacks_end
from stepscope.trace.schema import DERIVED, PROBLEMS, Category
from stepscope.trace.tables import Tables

NO_STEPS = (
    "no step annotations (ProfilerStep#N), so results cover the whole file; torch writes them only"
    " if the profiler has a schedule and the loop calls profiler.step() once per step"
)
FOUND_STEPS = (
    "no step annotations (ProfilerStep#N): {}; torch annotates steps only if the profiler has a"
    " schedule and the loop calls profiler.step()"
)
_OVERRUN = (
    "GPU work whose recorded end is impossible, such as after the end of later work on its stream;"
    " it is cut where it must have ended at the latest, by {} in all"
)
_NOT_NESTED = (*GPU_CATEGORIES, Category.SPAN)
_NEEDED_ARGS = f'{COLLECTIVE_NAME}|{SEQUENCE_NUMBER}|wd thread id"|fwd_thread_id"'
"""Occurs in the arguments that name a collective, a sequence number or a forward thread."""

_ANNOTATING = (
    r"torch/(autograd|profiler)/profiler\.py\(\d+\)|_record_function_(enter|exit)"
    r"|torch/_ops\.py\(\d+\): __call__|record_function.*__(enter|exit)__"
    r"|stepscope/capture/steps/"
)
"""Frames and operators in which torch and Stepscope begin and end annotations and steps."""


@dataclass(frozen=True)
class DerivedTables:
    """The tables derived from a trace.

    Attributes:
        columns: Row for row alongside `events`, with the columns of `schema.DERIVED`.
        narrow: The same without `event`, which is the number of the row, and with smaller types:
            numbers of events and, where they fit, times in 32 bits, groups numbered. The columns
            are the arrays themselves. None if they are in a file.
        parent: For each event the number of its parent, -1 for a root. Nearly all analyses look
            it up, so that it stays in memory when the columns are in a file; None if it was read
            from there.
        operator: For each event the number of its operator, null for none, for the same reason.
        problems: What looks wrong about the events, with the columns of `schema.PROBLEMS`.
        files: Parquet files of the tables, by their names in `schema.DERIVED_TABLES`; empty
            if the tables are not cached.
    """

    columns: pl.LazyFrame
    host_steps: pl.DataFrame
    device_steps: pl.DataFrame
    overruns: pl.DataFrame
    problems: pl.DataFrame
    narrow: pl.DataFrame | None = None
    parent: RowNumbers | None = None
    operator: pl.Series | None = None
    files: Mapping[str, Path] = field(default_factory=dict)


def needed_flows(names: pl.DataFrame) -> pl.Expr:
    """Selects the rows of `flows` that `derive` needs; the others do not change its result."""
    return pl.col("name_id").is_in(forward_flows(names).implode())


def needed_args() -> pl.Expr:
    """Selects the rows of `args` that `derive` needs; the others do not change its result."""
    return pl.col("args").str.contains(_NEEDED_ARGS)


def derive(tables: Tables, host: pl.DataFrame | None = None) -> DerivedTables:
    """Derives columns, steps and problems.

    Args:
        tables: Of `events`, `stream` and `bytes` are not needed.
    """
    events = tables.events
    nesting = _nest(tables)
    parent = nesting.parent
    launch, ambiguous = link_launches(events)
    operator = link_operators(tables, launch, nesting.around)
    steps, host_index = steps_and_places(tables, host)
    processes = tables.lanes.filter(~pl.col("is_gpu"))["pid"].n_unique()
    overruns = find_overruns(events, processes)
    is_work = mask_of(events, GPU_WORK)
    forward = link_forward(tables)
    group, kind = kind_and_group(tables, nesting.around, operator)

    work = np.flatnonzero(is_work)
    cause = np.where(launch[work] >= 0, launch[work], operator[work])
    linked, cause = work[cause >= 0], cause[cause >= 0]
    launch_step = host_index[cause]
    believable = _believable_work(events, overruns, work, launch[work], linked, launch_step)
    lost_in = _steps_of_lost_work(tables, launch[work], host_index)
    devices = device_steps(believable, steps, blocked_until(tables, work), lost_in)
    step = _step_of(events, steps, host_index, launch_step, linked, devices)
    is_unlinked = np.zeros(len(events), np.bool_)
    is_unlinked[work[launch[work] < 0]] = True
    problems = _problems(tables, nesting.crossing, ambiguous, is_unlinked, steps, overruns)
    narrow = pl.DataFrame(
        [
            step,
            _row_numbers("parent", parent),
            pl.Series("depth", nesting.depth),
            pl.Series("self_ns", _narrowed(nesting.self_ns)),
            _row_numbers("launch", launch),
            _row_numbers("op", operator),
            _row_numbers("forward", forward),
            kind.alias("kind"),
            group.alias("group"),
        ]
    )
    wide = (
        narrow.lazy()
        .with_row_index("event")
        .select(pl.col(name).cast(dtype) for name, dtype in DERIVED.items())
    )
    parent.flags.writeable = False
    return DerivedTables(wide, steps, devices, overruns, problems, narrow, parent, narrow["op"])


def _narrowed(values: Int64Array) -> npt.NDArray[np.signedinteger[Any]]:
    """The same numbers, in 32 bits if all of them fit."""
    narrow = np.iinfo(np.int32)
    fits = narrow.min <= values.min(initial=0) and values.max(initial=0) <= narrow.max
    return values.astype(np.int32) if fits else values


def _row_numbers(name: str, values: RowNumbers) -> pl.Series:
    """A column of numbers of events, with nulls where they are negative."""
    return nullable(values, values >= 0, name)


def _steps_of_lost_work(
    tables: Tables, launch: Int64Array, host_index: npt.NDArray[np.int32]
) -> Int64Array:
    """The steps in which launches have no GPU work, though others by the same name have.

    Args:
        launch: The launches of all GPU work; -1 for none.
    """
    name_id = tables.events["name_id"].to_numpy()
    linked = launch[launch >= 0]
    launches = tables.names.filter(is_one_of(HOST_CALLS), pl.col("group") == "launch")
    is_launch = np.zeros(len(tables.names), np.bool_)
    is_launch[np.intersect1d(launches["name_id"].to_numpy(), name_id[linked])] = True
    is_lost = gather(is_launch, name_id)
    is_lost[linked] = False
    found: Int64Array = np.unique(host_index[is_lost]).astype(np.int64)
    return found[found >= 0]


def _believable_work(
    events: pl.DataFrame,
    overruns: pl.DataFrame,
    work: Int64Array,
    launch: RowNumbers,
    linked: Int64Array,
    launch_step: npt.NDArray[np.int32],
) -> pl.DataFrame:
    """Returns what `device_steps` needs to know about the GPU work.

    Args:
        launch: The call that launched each piece of it; -1 for none.
        linked: The work whose launch or operator is known.
        launch_step: The index of the host step that launched each piece of `linked`; else -1.
    """
    start, dur = events["start_ns"].to_numpy(), events["dur_ns"].to_numpy()
    end = start[work] + dur[work]
    if len(overruns):
        row = np.searchsorted(work, overruns["event"].to_numpy())
        end[row] = start[work[row]] + overruns["dur_ns"].to_numpy()
    step = np.full(len(work), -1, np.int32)
    step[np.searchsorted(work, linked)] = launch_step
    call = np.maximum(launch, 0)
    returned = start[call] + dur[call]
    # A copy that blocks is handed over when its call begins: the call returns after the copy.
    category = events["category"].to_physical().to_numpy()[work]
    blocks = (category == code_of(Category.GPU_MEMCPY)) & (returned >= end)
    handed_over = np.where(blocks, start[call], returned)
    return events["device", "lane_id", "start_ns"][work].with_columns(
        end_ns=pl.Series(end),
        launch_step=pl.Series(step),
        handed_over_ns=nullable(handed_over, launch >= 0, "handed_over_ns"),
    )


def _nest(tables: Tables, *, is_for_calls: bool = False) -> Nesting:
    """Nests host events, and finds the innermost operator around each; others are roots.

    Args:
        is_for_calls: Nest calls only, without annotations, and look for no operators.
    """
    events = tables.events
    left_out = (*_NOT_NESTED, Category.USER_ANNOTATION) if is_for_calls else _NOT_NESTED
    rows = np.flatnonzero(~mask_of(events, left_out)).astype(np.int32)
    start = events["start_ns"].to_numpy()
    is_around = None if is_for_calls else is_operator(tables, step_names(tables))
    return nest(
        events["lane_id"].to_numpy(),
        start,
        events["dur_ns"].to_numpy(),
        rank=gather(outer_first(), events["category"].to_physical().to_numpy()),
        # Torch closes open frames at the end of its recording to within a nanosecond.
        tolerance_ns=max(1, clock_resolution_ns(start, rows)),
        rows=rows,
        chosen=is_around,
    )


def _step_of(
    events: pl.DataFrame,
    host: pl.DataFrame,
    host_index: npt.NDArray[np.int32],
    launch_step: npt.NDArray[np.int32],
    linked: Int64Array,
    devices: pl.DataFrame,
) -> pl.Series:
    """Returns the number of each event's step; null for none.

    Args:
        host_index: For each event the index of the host step in which it starts; -1 for none. It
            is used up.
        launch_step: As for `_believable_work`, and so is `linked`.
    """
    index = host_index
    on_device = mask_of(events, GPU_CATEGORIES)
    index[on_device] = -1
    index[linked] = launch_step
    on_device[linked] = False
    loose = np.flatnonzero(on_device)
    rows = events["device", "start_ns"][loose]
    device, start = filled(rows["device"], -1), rows["start_ns"].to_numpy()
    for (number,), steps in devices.partition_by("device", as_dict=True).items():
        mine = device == number
        index[loose[mine]] = step_at(steps, start[mine])
    numbers = host["step"].to_numpy().astype(np.int32) if len(host) else np.zeros(1, np.int32)
    is_in_step = index >= 0
    return nullable(gather(numbers, index), is_in_step, "step")


def _problems(
    tables: Tables,
    crossing: BoolArray,
    ambiguous: int,
    is_unlinked: BoolArray,
    host: pl.DataFrame,
    overruns: pl.DataFrame,
) -> pl.DataFrame:
    """Reports what looks wrong about nesting, links and steps.

    Args:
        crossing: Which events cross others, as `Nesting.crossing`.
        ambiguous: How many events have several possible launches.
        is_unlinked: Which events are GPU work without a launch.
    """
    rows: list[tuple[str, int, str | None, str]] = []

    def note(problem: str, which: npt.NDArray[np.bool_] | int, message: str) -> None:
        if isinstance(which, int):
            count, place = which, None
        else:
            count = int(which.sum())
            place = f"event {int(np.argmax(which))}" if count else None
        if count:
            rows.append((problem, count, place, message))

    events = tables.events
    # Marks may cross by design: a hook of the optimizer ends a step within the optimizer's range.
    calls = crossing
    if crossing.any():
        calls = crossing & ~mask_of(events, (Category.USER_ANNOTATION,))
        # Torch ends an annotation within the frame that leaves it, so that the two always cross.
        leaves = tables.names["name"].str.contains(_ANNOTATING).fill_null(value=False).to_numpy()
        crossed = np.flatnonzero(calls)
        calls[crossed[leaves[events["name_id"].to_numpy()[crossed]]]] = False
    if calls.any():
        # A frame in which an annotation begins or ends crosses that, and perhaps no other call.
        calls &= _nest(tables, is_for_calls=True).crossing
    note(
        "events_cross",
        calls,
        "calls on one thread overlap but are not nested; self times of these calls and their places"
        " in the call tree may be wrong, times of steps are not affected",
    )
    note(
        "ambiguous_correlation",
        ambiguous,
        "GPU events whose correlation matches several calls, as in files merged from several"
        " processes; the most likely call was used",
    )
    note(
        "unlinked_gpu_work",
        is_unlinked,
        "GPU work without a launch call, assigned to steps by its time on the device",
    )
    if len(overruns):
        recorded = events["dur_ns"].gather(overruns["event"]).to_numpy()
        excess = duration(float((recorded - overruns["dur_ns"].to_numpy()).sum(dtype=np.float64)))
        place = f"event {overruns['event'][0]}"
        rows.append(("overrun", len(overruns), place, _OVERRUN.format(excess)))
    if host.is_empty() and len(tables.events) and not lacks_end(tables.problems, tables.names):
        rows.append(("no_steps", 1, None, NO_STEPS))
    source = describe(host, tables.names, events)
    if source:
        rows.append(("steps_not_annotated", 1, None, FOUND_STEPS.format(source)))
    note(
        "empty_step",
        int(host["is_empty"].sum()) if len(host) else 0,
        "steps without any work, such as one that started just before the profiler stopped, are"
        " left out",
    )
    return pl.DataFrame(rows, schema=PROBLEMS, orient="row")
