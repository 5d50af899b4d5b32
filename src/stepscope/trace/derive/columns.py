"""Derives the columns of `schema.DERIVED` and the steps from a trace's tables.

The definitions are in the modules for each part: steps in `steps.py`, nesting in `nesting.py`,
links in `links.py`, kinds and groups in `classify.py`. This module combines them.

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

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.arrays.nullable import nullable
from stepscope.trace.categories import GPU_CATEGORIES, GPU_WORK, mask_of
from stepscope.trace.classify import COLLECTIVE_GROUPS, COLLECTIVE_NAME, classify_by_metadata
from stepscope.trace.derive.links import (
    SEQUENCE_NUMBER,
    Launches,
    enclosing_operator,
    forward_flows,
    link_forward,
    link_launches,
    link_operators,
)
from stepscope.trace.derive.nesting import Nesting, clock_resolution_ns, nest, outer_first
from stepscope.trace.derive.steps import device_steps, host_steps, step_at
from stepscope.trace.derive.unannotated import describe
from stepscope.trace.schema import DERIVED, KIND, PROBLEMS, Category, Kind
from stepscope.trace.tables import Tables

NO_STEPS = (
    "no step annotations (ProfilerStep#N), so results cover the whole file; torch writes them only"
    " if the profiler has a schedule and the loop calls profiler.step() once per step"
)
FOUND_STEPS = (
    "no step annotations (ProfilerStep#N): {}; torch annotates steps only if the profiler has a"
    " schedule and the loop calls profiler.step()"
)
_NOT_NESTED = (*GPU_CATEGORIES, Category.SPAN)


@dataclass(frozen=True)
class DerivedTables:
    """The tables derived from a trace.

    Attributes:
        columns: Row for row alongside `events`, with the columns of `schema.DERIVED`.
        host_steps: With the columns of `schema.HOST_STEPS`.
        device_steps: With the columns of `schema.DEVICE_STEPS`.
        problems: What looks wrong about the events, with the columns of `schema.PROBLEMS`.
        files: Parquet files of the first three, by their names in `schema.DERIVED_TABLES`; empty
            if the tables are not cached.
    """

    columns: pl.LazyFrame
    host_steps: pl.DataFrame
    device_steps: pl.DataFrame
    problems: pl.DataFrame
    files: Mapping[str, Path] = field(default_factory=dict)


def looks_into_args() -> pl.Expr:
    """Selects the rows of `args` that `derive` needs; the others do not change its result."""
    return pl.any_horizontal(
        pl.col("args").str.contains(word, literal=True)
        for word in (COLLECTIVE_NAME, SEQUENCE_NUMBER)
    )


def looks_into_flows(names: pl.DataFrame) -> pl.Expr:
    """Selects the rows of `flows` that `derive` needs; the others do not change its result."""
    return pl.col("name_id").is_in(forward_flows(names).implode())


def derive(tables: Tables, host: pl.DataFrame | None = None) -> DerivedTables:
    """Derives columns, steps and problems.

    Args:
        tables: The tables. Of `events`, `stream` and `bytes` are not needed.
        host: The host steps, if already known.
    """
    events = tables.events
    start = events["start_ns"].to_numpy()
    nesting = _nest(tables)
    launches = link_launches(events)
    around = enclosing_operator(tables, nesting.parent, _step_names(tables))
    operator = link_operators(tables, launches.launch, around)

    host = host_steps(tables) if host is None else host
    cause = np.where(launches.launch >= 0, launches.launch, operator)
    is_work = mask_of(events, GPU_WORK)
    host_index = step_at(host, start)
    launch_step = np.where(is_work & (cause >= 0), host_index[cause], -1)
    devices = device_steps(events, launch_step, host)
    index = _step_index(events, host_index, launch_step, is_work & (cause >= 0), devices)

    step_numbers = host["step"].to_numpy()
    step = np.where(index >= 0, step_numbers[index], -1) if len(host) else index
    kind_and_group = _kind_and_group(tables, around, launches.launch)
    columns = pl.DataFrame(
        {
            "event": events["event"],
            "step": _numbers(step, index >= 0),
            "parent": _numbers(nesting.parent),
            "depth": nesting.depth,
            "self_ns": nesting.self_ns,
            "launch": _numbers(launches.launch),
            "op": _numbers(operator),
            "forward": _numbers(link_forward(tables)),
            "kind": kind_and_group["kind"],
            "group": kind_and_group["group"],
        },
        schema=DERIVED,
    )
    problems = _problems(tables, nesting, launches, is_work=is_work, host=host)
    return DerivedTables(columns.lazy(), host, devices, problems)


def _numbers(values: Int64Array, present: npt.NDArray[np.bool_] | None = None) -> pl.Series:
    """A column with nulls in the rows that are not present (by default, negative values)."""
    return nullable(values, values >= 0 if present is None else present, "number")


def _step_names(tables: Tables) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = (
        (tables.names["group"] == "profiler_step").fill_null(value=False).to_numpy()
    )
    return found


def _nest(tables: Tables) -> Nesting:
    """Nests host events; all other events are roots."""
    events = tables.events
    number = len(events)
    rows = np.nonzero(~mask_of(events, _NOT_NESTED))[0]
    start = events["start_ns"].to_numpy()
    duration = events["dur_ns"].to_numpy()
    rank = outer_first()
    mine = nest(
        events["lane_id"].to_numpy()[rows],
        start[rows],
        duration[rows],
        rank=rank[events["category"].to_physical().to_numpy()[rows]],
        tolerance_ns=clock_resolution_ns(start[rows]),
    )
    parent = np.full(number, -1, np.int64)
    parent[rows] = np.where(mine.parent >= 0, rows[mine.parent], -1)
    depth = np.zeros(number, np.int32)
    depth[rows] = mine.depth
    self_ns = duration.copy()
    self_ns[rows] = mine.self_ns
    crossing = np.zeros(number, np.bool_)
    crossing[rows] = mine.crossing
    return Nesting(parent, depth, self_ns, crossing)


def _step_index(
    events: pl.DataFrame,
    host_index: Int64Array,
    launch_step: Int64Array,
    is_linked: npt.NDArray[np.bool_],
    devices: pl.DataFrame,
) -> Int64Array:
    """Returns the index of each event's host step; -1 for none."""
    on_device = mask_of(events, GPU_CATEGORIES)
    index = np.where(on_device, -1, host_index)
    index = np.where(is_linked, launch_step, index)
    loose = on_device & ~is_linked
    start = events["start_ns"].to_numpy()
    device = events["device"].fill_null(-1).to_numpy()
    for (number,), steps in devices.group_by(["device"], maintain_order=True):
        mine = np.nonzero(loose & (device == number))[0]
        index[mine] = step_at(steps, start[mine])
    return index


def _kind_and_group(tables: Tables, around: Int64Array, launch: Int64Array) -> pl.DataFrame:
    """Returns kind and group of each event, by its metadata, then its name, then its operator."""
    events = tables.events
    kernels = events.lazy().filter(pl.col("category") == Category.KERNEL.value).select("event")
    by_metadata = classify_by_metadata(kernels.join(tables.args.lazy(), on="event").collect())
    # Texts as numbers until the end: there are few, for very many events. `name_id` and `event`
    # are row numbers, so gathering and placing replace joins.
    groups = pl.concat([tables.names["group"], by_metadata["group"]]).unique(maintain_order=True)
    kinds = pl.Series([*(kind.value for kind in Kind), None], dtype=KIND)
    name_id = events["name_id"].to_numpy()
    named = _places_in(groups, tables.names["group"])[name_id]
    group = named.copy()
    kind = _places_in(kinds, tables.names["kind"])[name_id]
    marked = by_metadata["event"].to_numpy()
    kind[marked] = _places_in(kinds, by_metadata["kind"])
    has_group = by_metadata["group"].is_not_null().to_numpy()
    group[marked[has_group]] = _places_in(groups, by_metadata["group"])[has_group]
    is_unnamed = (groups == "collective").fill_null(value=False).to_numpy()[group]
    is_unnamed &= (kinds == Kind.COMMUNICATION.value).fill_null(value=False).to_numpy()[kind]
    unnamed = np.flatnonzero(is_unnamed)
    if len(unnamed):
        # An outer operator may name what the kernel and inner ones do not (`nccl:all_reduce`).
        telling = [word for word in COLLECTIVE_GROUPS if word != "collective"]
        is_known = groups.is_in(telling).fill_null(value=False).to_numpy()[named]
        outer = np.where(launch[unnamed] >= 0, around[launch[unnamed]], -1)
        while True:
            searching = (outer >= 0) & ~is_known[outer]
            if not searching.any():
                break
            outer[searching] = around[outer[searching]]
        known = outer >= 0
        group[unnamed[known]] = named[outer[known]]
    return pl.DataFrame([kinds.gather(kind).alias("kind"), groups.gather(group).alias("group")])


def _places_in(words: pl.Series, values: pl.Series) -> npt.NDArray[np.int32]:
    """Returns the place of each value among distinct words, of which null may be one."""
    place = {word: number for number, word in enumerate(words)}
    return np.array([place[value] for value in values], np.int32)


def _problems(
    tables: Tables,
    nesting: Nesting,
    launches: Launches,
    *,
    is_work: npt.NDArray[np.bool_],
    host: pl.DataFrame,
) -> pl.DataFrame:
    """Reports what looks wrong about nesting, links and steps."""
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
    note(
        "events_cross",
        nesting.crossing,
        "events on one thread overlap without nesting; each got the innermost event that contains"
        " it as its parent",
    )
    note(
        "ambiguous_correlation",
        launches.ambiguous,
        "GPU events whose correlation matches several calls, as in files merged from several"
        " processes; the most likely call was used",
    )
    note(
        "unlinked_gpu_work",
        is_work & (launches.launch < 0),
        "GPU work without a launch call, assigned to steps by its time on the device",
    )
    if host.is_empty() and len(tables.events):
        rows.append(("no_steps", 1, None, NO_STEPS))
    source = describe(host, tables.names, events)
    if source:
        rows.append(("steps_not_annotated", 1, None, FOUND_STEPS.format(source)))
    note(
        "empty_step",
        int(host["is_empty"].sum()) if len(host) else 0,
        "steps without any work, such as one that started just before the profiler stopped",
    )
    return pl.DataFrame(rows, schema=PROBLEMS, orient="row")
