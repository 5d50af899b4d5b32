"""The host's memory as a trace shows it, in the form of a snapshot.

A trace that was recorded with `profile_memory=True` has an instant for each allocation and each
free of tensor memory on the host. They are turned into the history of a snapshot, so that every
question about a snapshot has an answer. What the trace does not show of it:

* Memory from before the window has no event. What a census saw there and then is added: parameters,
  buffers and optimizer state.
* There is no caching allocator: what is reserved is what is allocated, in exact sizes.
* The line of a Python frame is that where its function begins. Of functions that were running when
  the recording began, it is the line that they were at, which says nothing: it is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.calls.allocations import memory_events
from stepscope.analysis.calls.operands import element_bytes, operands, parse_call
from stepscope.analysis.calls.parents import parents_of_events
from stepscope.errors import UnreadableInputError
from stepscope.memory.categories.census import Census
from stepscope.memory.categories.kinds import MemoryCategory
from stepscope.memory.schema import EXACT_SIZES, TABLES, Action, BlockState, Snapshot, filled
from stepscope.memory.view import OperatorCall, OperatorCalls
from stepscope.terminal.plain_text import quoted
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.derive.ancestors import nearest
from stepscope.trace.derive.nesting import innermost_at
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

HOST = -1
"""The host's number among devices, as in torch's traces."""
_DEEPEST = 64
_LARGE_ABOVE_BYTES = 1024 * 1024
_TOGETHER_NS = 50_000
_RECORDER = re.compile(r"(?:^|[/\\])stepscope[/\\]|torch[/\\](?:autograd[/\\])?profiler")
_MAKES = re.compile(r"^aten::empty(?!_like)")
_FRAME = re.compile(r"^(.*\.py)\((\d+)\): (.*)$")
_LASTING = [
    kind.value
    for kind in (MemoryCategory.PARAMETER, MemoryCategory.BUFFER, MemoryCategory.OPTIMIZER_STATE)
]


def history_of_trace(trace: Trace, census: Census | None = None) -> Snapshot:
    """The history of the host's memory.

    Raises:
        UnreadableInputError: The trace has no memory events of the host.
    """
    changes = _changes(trace).sort("time_ns", maintain_order=True)
    if changes.is_empty():
        if gpus_note := of_gpus(trace):
            raise UnreadableInputError(f"{trace.path}: no memory events of the host; {gpus_note}")
        raise UnreadableInputError(
            f"{trace.path}: no memory events of the host; record with profile_memory=True or "
            "memory_census=True, or with memory_history=True on a GPU"
        )
    base = trace.base_time_ns
    frames, stacks, stack = _stacks(trace, changes)
    is_alloc = changes["change_bytes"] > 0
    allocs = changes.select(
        "address",
        size_bytes=pl.col("change_bytes").abs(),
        time_ns=pl.col("time_ns") + base,
        stack=stack.cast(pl.UInt32),
        is_alloc=is_alloc,
        order=pl.int_range(pl.len()),
    )
    live = (
        allocs.group_by("address", maintain_order=True)
        .last()
        .filter("is_alloc")
        .select("address", "size_bytes", "stack")
    )
    before = _from_before(census, allocs["address"])
    there = pl.concat([before, live], how="diagonal").sort("address")
    return Snapshot(
        path=trace.path,
        events=_events(allocs).lazy(),
        segments=_segments(there),
        blocks=_blocks(there),
        frames=frames,
        stacks=stacks,
        pools=filled("pools", pl.DataFrame({"pool": [0], "first": [0], "second": [0]})),
        texts=pl.DataFrame(schema=TABLES["texts"]),
        annotations=_annotations(trace, base),
        problems=pl.DataFrame(schema=TABLES["problems"]),
        settings={EXACT_SIZES: True},
    )


def of_gpus(trace: Trace) -> str:
    """A note on where memory events of GPUs are shown; empty without any."""
    number = len(memory_events(trace).filter(pl.col("kind") == "gpu"))
    if not number:
        return ""
    return (
        f"the trace also has {number:,} memory events of GPUs, which are not part of this: "
        f"`stepscope show memory {quoted(trace.path)}` shows them; a snapshot "
        "(memory_history=True) shows what holds the GPU's memory"
    )


def has_host_memory(trace: Trace) -> bool:
    """Whether a trace has memory events of the host, with addresses."""
    return not _changes(trace).is_empty()


def _changes(trace: Trace) -> pl.DataFrame:
    found = memory_events(trace).filter(pl.col("kind") == "cpu").drop_nulls("change_bytes")
    return found.filter(pl.col("address").is_not_null() & (pl.col("change_bytes") != 0))


def _events(allocs: pl.DataFrame) -> pl.DataFrame:
    """Each allocation also gets its memory of the host, and each free gives it back."""
    is_alloc = pl.col("is_alloc")
    block = (
        pl.when(is_alloc)
        .then(pl.lit(Action.ALLOC.value))
        .otherwise(pl.lit(Action.FREE_COMPLETED.value))
    )
    segment = (
        pl.when(is_alloc)
        .then(pl.lit(Action.SEGMENT_ALLOC.value))
        .otherwise(pl.lit(Action.SEGMENT_FREE.value))
    )
    both = pl.concat(
        [
            allocs.with_columns(action=block, rank=pl.when(is_alloc).then(1).otherwise(0)),
            allocs.with_columns(action=segment, rank=pl.when(is_alloc).then(0).otherwise(1)),
        ]
    ).sort("order", "rank")
    return filled(
        "events",
        both.with_columns(
            event=pl.int_range(pl.len()), device=pl.lit(HOST), stream=pl.lit(0), pool=pl.lit(0)
        ),
    )


def _segments(there: pl.DataFrame) -> pl.DataFrame:
    size = pl.col("size_bytes")
    return filled(
        "segments",
        there.with_columns(
            segment=pl.int_range(pl.len()),
            device=pl.lit(HOST),
            stream=pl.lit(0),
            pool=pl.lit(0),
            is_large=size > _LARGE_ABOVE_BYTES,
            is_expandable=pl.lit(value=False),
        ),
    )


def _blocks(there: pl.DataFrame) -> pl.DataFrame:
    return filled(
        "blocks",
        there.with_columns(
            block=pl.int_range(pl.len()),
            segment=pl.int_range(pl.len()),
            requested_bytes="size_bytes",
            state=pl.lit(BlockState.ALLOCATED.value),
        ),
    )


def _from_before(census: Census | None, known: pl.Series) -> pl.DataFrame:
    """Storages that stay where they are, and of which the trace shows nothing."""
    columns = {"address": pl.Int64, "size_bytes": pl.Int64, "stack": pl.UInt32}
    if census is None:
        return pl.DataFrame(schema=columns)
    return (
        census.sightings.filter(
            (pl.col("device") == HOST)
            & pl.col("kind").cast(pl.String).is_in(_LASTING)
            & pl.col("bytes").is_not_null()
            & ~pl.col("address").is_in(known.implode())
        )
        .group_by("address")
        .agg(pl.col("bytes").last().alias("size_bytes"))
        .with_columns(stack=pl.lit(None, dtype=pl.UInt32))
    )


def _annotations(trace: Trace, base: int) -> pl.DataFrame:
    """The program's own ranges, as beginnings and ends in order of time."""
    ranges = (
        trace.events.filter(pl.col("category") == Category.USER_ANNOTATION.value)
        .join(trace.names.select("name_id", "name"), on="name_id", how="left")
        .select("name", start_ns=pl.col("start_ns") + base, dur_ns=pl.col("dur_ns"))
        .collect()
    )
    ends = ranges.select("name", time_ns=pl.col("start_ns") + pl.col("dur_ns"), is_start=False)
    starts = ranges.select("name", time_ns="start_ns", is_start=True)
    # A range that begins as another ends comes after it.
    both = pl.concat([starts, ends]).sort("time_ns", "is_start", maintain_order=True)
    return filled("annotations", both.with_columns(device=pl.lit(HOST)))


# -- stacks


def _stacks(trace: Trace, changes: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, pl.Series]:
    """Frames, stacks, and for each change its stack; null where no Python frame was recorded."""
    around = _innermost(trace, changes["lane_id"].to_numpy(), changes["time_ns"].to_numpy())
    names = trace.name_rows["name", "category"]
    is_frame = (names["category"].cast(pl.String) == Category.PYTHON_FUNCTION.value) & names[
        "name"
    ].str.contains(_FRAME.pattern)
    name_id = trace.columns("name_id")["name_id"].to_numpy()
    parent = parents_of_events(trace)
    distinct, which = np.unique(around, return_inverse=True)
    chains = _chains(distinct, parent, name_id, is_frame.to_numpy())
    rows, stack_of_distinct = np.unique(chains, axis=0, return_inverse=True)
    used = np.unique(rows[rows >= 0])
    running = _running_at_start(trace, names["name"], is_frame.to_numpy()[name_id], name_id)
    frames = _frames(names["name"].gather(used).to_list(), [int(one) in running for one in used])
    lists = [np.searchsorted(used, row[row >= 0]).tolist() for row in rows]
    stacks = pl.DataFrame(
        {"stack": range(len(lists)), "frames": lists}, schema=TABLES["stacks"], strict=False
    )
    stack = pl.Series(stack_of_distinct.reshape(-1)[which], dtype=pl.Int64)
    is_empty = np.array([not row for row in lists], np.bool_)
    return frames, stacks, stack.set(pl.Series(is_empty[stack.to_numpy()]), None)


def _innermost(trace: Trace, lanes: Any, times: Int64Array) -> Int64Array:
    """The innermost event of the thread around each moment; -1: none."""
    columns = trace.columns("lane_id", "start_ns", "dur_ns")
    start, lane = columns["start_ns"].to_numpy(), columns["lane_id"].to_numpy()
    end = start + columns["dur_ns"].to_numpy()
    mine = np.flatnonzero(np.isin(lane, np.unique(lanes)))
    row = innermost_at(lane[mine], start[mine], end[mine], lanes, times)
    return np.where(row >= 0, np.append(mine, -1)[row], -1)


def _chains(events: Int64Array, parent: Int64Array, name_id: Any, is_frame: Any) -> Int64Array:
    """For each event the names of the Python frames around it, the innermost first, then -1."""
    chains = np.full((len(events), _DEEPEST), -1, np.int64)
    frame = np.append(nearest(parent, is_frame[name_id]), -1)
    at = frame[events]
    for level in range(_DEEPEST):
        pending = np.flatnonzero(at >= 0)
        chains[pending, level] = name_id[at[pending]]
        at[pending] = frame[parent[at[pending]]]
    return chains


def _running_at_start(trace: Trace, names: pl.Series, is_frame: Any, name_id: Any) -> set[int]:
    """The names of the functions that were running when the recording began.

    They are the first frames of the thread that began it, down to the recorder's own; they begin
    together.
    """
    columns = trace.columns("lane_id", "start_ns", "dur_ns")
    lane, start = (columns[name].to_numpy() for name in ("lane_id", "start_ns"))
    end = start + columns["dur_ns"].to_numpy()
    rows = np.flatnonzero(is_frame)
    order = rows[np.lexsort((-end[rows], start[rows], lane[rows]))]
    _, first = np.unique(lane[order], return_index=True)
    found: set[int] = set()
    for begin in first.tolist():
        running: list[int] = []
        chain = order[begin : begin + _DEEPEST]
        for place, row in enumerate(chain.tolist()):
            before = chain[max(0, place - 1)]
            is_inside = lane[row] == lane[before] and end[row] <= end[before]
            if not is_inside or start[row] - start[before] > _TOGETHER_NS:
                break
            if _RECORDER.search(names[int(name_id[row])]):
                found.update(running)
                break
            running.append(int(name_id[row]))
    return found


def _frames(names: Sequence[str], is_running: Sequence[bool]) -> pl.DataFrame:
    matches = [_FRAME.match(name) for name in names]
    rows = [
        (number, found[3], found[1], None if is_running[number] else int(found[2][:18]))
        for number, found in enumerate(matches)
        if found is not None
    ]
    table = pl.DataFrame(
        rows, schema=["frame", "name", "filename", "line"], orient="row", infer_schema_length=None
    )
    if not rows:
        return pl.DataFrame(schema=TABLES["frames"])
    return filled("frames", table)


# -- what operators were called with


def calls_of_requests(trace: Trace) -> OperatorCalls:
    """What the operator around each request was called with, by the events of `history_of_trace`.

    It is the innermost operator: a result is allocated by `aten::empty` and its like, which are
    given its shape, or within the operator that makes it.
    """
    changes = _changes(trace).sort("time_ns", maintain_order=True).with_row_index("order")
    made = changes.filter(pl.col("change_bytes") > 0)
    around = _innermost(trace, made["lane_id"].to_numpy(), made["time_ns"].to_numpy())
    names = trace.name_rows["name", "category"]
    is_operator = (names["category"] == Category.CPU_OP.value).to_numpy()
    name_id = trace.columns("name_id")["name_id"].to_numpy()
    operator = np.append(nearest(parents_of_events(trace), is_operator[name_id]), -1)[around]
    # A request has two events: its memory of the host, and the block (`_events`).
    rows = made.select(start_event=2 * pl.col("order").cast(pl.Int64) + 1).with_columns(
        event=pl.Series(operator)
    )
    rows = rows.filter(pl.col("event") >= 0)
    distinct = rows["event"].unique(maintain_order=True)
    texts = operands(trace, distinct, concrete=True).select("dims", "types", "concrete")
    texts = texts.with_columns(name=names["name"].gather(name_id[distinct.to_numpy()]))
    kinds = texts.unique(maintain_order=True).with_row_index("call")
    key = ["name", "dims", "types", "concrete"]
    numbered = texts.with_columns(event=distinct).join(kinds, on=key, nulls_equal=True)
    return OperatorCalls(
        rows.join(numbered, on="event").select("start_event", pl.col("call").cast(pl.Int64)),
        tuple(_call(*row) for row in kinds.select(key).iter_rows()),
    )


def _call(name: str, dims: str | None, types: str | None, concrete: str | None) -> OperatorCall:
    call = parse_call(name, dims, types, concrete)
    if call is None:
        return OperatorCall(name, (), 1, None)
    sizes = (element_bytes(one) for one in call.types)
    asked = call.integers(0) if _MAKES.match(name) else None
    return OperatorCall(name, tuple(_shapes(call.dims)), next(filter(None, sizes), 4), asked)


def _shapes(dims: Sequence[Any]) -> Iterator[tuple[int, ...]]:
    for part in dims:
        if isinstance(part, list) and part:
            if all(isinstance(size, int) for size in part):
                yield tuple(part)
            else:
                yield from _shapes(part)
