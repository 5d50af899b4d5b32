"""Links GPU work to launches and operators, and backward operators to forward operators.

Launch
    GPU work and the call that launched it have the same correlation. One launch of a CUDA graph has
    many kernels. If several calls share a correlation (in files merged from several processes), the
    call with the same External id as the work is preferred, then the last call that started before
    the work, then the earliest call. These events are counted as ambiguous.

Operator
    The innermost operator or annotation around the launch on its thread, except step annotations.
    Without one, or without a launch, the operator with the same External id as the work.

Forward
    Autograd numbers the nodes that it records on each thread. A backward operator carries this
    number and the recorder's own number of the forward thread. Among forward operators with the
    same number, the last to start created the node. Threads are matched one to one by the numbers
    they share. If the arguments are missing, `fwdbwd` flows are used instead.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.blockwise import gather
from stepscope.trace.arrays.intervals import BoolArray
from stepscope.trace.categories import GPU_WORK, HOST_CALLS, is_one_of, mask_of
from stepscope.trace.derive.nesting import RowNumbers
from stepscope.trace.schema import Category
from stepscope.trace.tables import Tables

SEQUENCE_NUMBER = 'equence number"'
"""Occurs in the arguments of operators numbered by autograd, in every version of the format."""

OPERATORS = (Category.CPU_OP, Category.USER_ANNOTATION)


def link_launches(events: pl.DataFrame) -> tuple[RowNumbers, int]:
    """Links GPU work and device-side synchronisation to the calls that they came from.

    Returns:
        The call that launched each event, -1 if unknown; and how many events have a correlation
        that matches several calls.
    """
    launch = np.full(len(events), -1, np.int32)
    wanted = ["event", "correlation", "external_id", "start_ns"]
    has_correlation = pl.col("correlation") > 0
    on_device = is_one_of((*GPU_WORK, Category.DEVICE_SYNC))
    is_call = is_one_of(HOST_CALLS)
    work = events.filter(has_correlation & on_device)[wanted]
    calls = events.filter(has_correlation & is_call)[wanted]
    if work.is_empty() or calls.is_empty():
        return launch, 0
    numbers = calls["correlation"].to_numpy()
    order = np.argsort(numbers, kind="stable")
    numbers = numbers[order]
    wanted_numbers = work["correlation"].to_numpy()
    first = np.searchsorted(numbers, wanted_numbers)
    is_known = numbers[np.minimum(first, len(numbers) - 1)] == wanted_numbers
    called = calls["event"].to_numpy()[order]
    launch[work["event"].to_numpy()[is_known]] = called[first[is_known]]
    repeated = np.unique(numbers[1:][numbers[1:] == numbers[:-1]])
    if not len(repeated):
        return launch, 0

    many = calls.filter(pl.col("correlation").is_in(pl.Series(repeated).implode()))
    unclear = work.join(many, on="correlation", how="semi")
    best = _best_calls(unclear, many)
    launch[best["event"].to_numpy()] = best["call"].to_numpy()
    return launch, len(unclear)


def _best_calls(work: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Returns the call of each event whose correlation several calls share: `event`, `call`.

    Linear in both, however many share one correlation.
    """
    same_id = ["correlation", "external_id"]
    found = [
        _nearest(work, calls, keys, strategy)
        for keys in (same_id, ["correlation"])
        for strategy in ("backward", "forward")
    ]
    return work.select("event", call=pl.coalesce(*found))


def _nearest(
    work: pl.DataFrame,
    calls: pl.DataFrame,
    keys: list[str],
    strategy: Literal["backward", "forward"],
) -> pl.Series:
    """Returns the last call that started before each event, or the first that did after it."""
    ahead = calls.drop_nulls(keys).group_by(*keys, "start_ns").agg(call=pl.col("event").min())
    behind = work.with_row_index("row").drop_nulls(keys).sort("start_ns")
    joined = behind.join_asof(
        ahead.sort("start_ns"), on="start_ns", by=keys, strategy=strategy, check_sortedness=False
    )
    rows = pl.DataFrame({"row": pl.int_range(len(work), dtype=pl.UInt32, eager=True)})
    return rows.join(joined.select("row", "call"), on="row", how="left", maintain_order="left")[
        "call"
    ].alias(f"{len(keys)} {strategy}")


def is_operator(tables: Tables, step_names: npt.NDArray[np.bool_]) -> BoolArray:
    """For each event whether it is an operator or an annotation other than of a step."""
    events = tables.events
    found = mask_of(events, OPERATORS)
    found &= gather(~step_names, events["name_id"].to_numpy())
    return found


def link_operators(tables: Tables, launch: RowNumbers, around: RowNumbers) -> RowNumbers:
    """Returns the operator of GPU work and of runtime calls; -1 for none.

    Args:
        launch: The call that launched each event; -1 for none.
        around: The innermost operator or annotation around each event, other than of a step; -1
            for none.
    """
    events = tables.events
    is_call = mask_of(events, HOST_CALLS)
    is_device = mask_of(events, (*GPU_WORK, Category.DEVICE_SYNC))
    operator = np.full(len(events), -1, np.int32)
    np.copyto(operator, around, where=is_call)
    linked = np.nonzero(is_device & (launch >= 0))[0]
    operator[linked] = around[launch[linked]]

    missing = np.nonzero((is_device | is_call) & (operator < 0))[0]
    if len(missing):
        # Files from 2022 repeat the correlation as External id, which then is not an operator.
        names_operator = pl.col("external_id").ne_missing(pl.col("correlation"))
        asking = events["event", "external_id", "correlation"][missing].filter(
            names_operator, pl.col("external_id") > 0
        )
        if asking.is_empty():
            return operator
        by_id = (
            events.lazy()
            .filter(pl.col("category") == Category.CPU_OP.value, pl.col("external_id") > 0)
            .select("external_id", operator="event")
            .join(asking.lazy().select("external_id"), on="external_id", how="semi")
            .unique("external_id", keep="first", maintain_order=True)
            .collect()
        )
        found = asking.join(by_id, on="external_id")
        operator[found["event"].to_numpy()] = found["operator"].to_numpy()
    return operator


def link_forward(tables: Tables) -> RowNumbers:
    """Returns the forward operator of each backward operator; -1 for other events."""
    forward = np.full(len(tables.events), -1, np.int32)
    _forward_by_flows(tables, forward)
    _forward_by_sequence(tables, forward)
    return forward


def _forward_by_sequence(tables: Tables, forward: RowNumbers) -> None:
    counted = tables.args.filter(pl.col("args").str.contains(SEQUENCE_NUMBER, literal=True))
    if counted.is_empty():
        return
    # `event` is the row number, so rows are gathered instead of joined.
    rows = tables.events["category", "lane_id", "start_ns"][counted["event"]]
    numbered = (
        pl.concat([counted["event", "args"], rows], how="horizontal")
        .lazy()
        .filter(pl.col("category") == Category.CPU_OP.value)
        .select(
            "event",
            "lane_id",
            "start_ns",
            pl.col("args")
            .str.extract(r'"[Ss]equence number"\s*:\s*"?(\d{1,18})')
            .cast(pl.Int64)
            .alias("sequence"),
            pl.col("args")
            .str.extract(r'"(?:Fwd thread id|fwd_thread_id)"\s*:\s*"?(\d{1,18})')
            .cast(pl.Int64)
            .fill_null(0)
            .alias("thread"),
        )
        .drop_nulls("sequence")
        .collect()
    )
    first = (
        numbered.filter(pl.col("thread") == 0)
        .sort("start_ns", "event")
        .unique(["lane_id", "sequence"], keep="last", maintain_order=True)
        .select("lane_id", "sequence", "start_ns", forward="event")
    )
    second = numbered.filter(pl.col("thread") > 0)["event", "sequence", "thread", "start_ns"]
    if first.is_empty() or second.is_empty():
        return
    pairs = second.join(first, on="sequence", suffix="_forward").filter(
        pl.col("start_ns_forward") <= pl.col("start_ns")
    )
    shared = (
        pairs.group_by("thread", "lane_id")
        .len()
        .sort("len", "lane_id", "thread", descending=[True, False, False])
    )
    lane_of: dict[int, int] = {}
    for thread, lane, _ in shared.rows():
        if thread not in lane_of and lane not in lane_of.values():
            lane_of[thread] = lane
    lanes = pl.DataFrame(list(lane_of.items()), schema=["thread", "lane_id"], orient="row").cast(
        {"thread": pl.Int64, "lane_id": pairs.schema["lane_id"]}
    )
    pairs = pairs.join(lanes, on=["thread", "lane_id"])
    forward[pairs["event"].to_numpy()] = pairs["forward"].to_numpy()


def forward_flows(names: pl.DataFrame) -> pl.Series:
    """Returns the `name_id` of the flows from forward to backward operators."""
    return names.filter(pl.col("name") == "fwdbwd")["name_id"]


def _forward_by_flows(tables: Tables, forward: RowNumbers) -> None:
    if tables.flows.is_empty():
        return
    ends = tables.flows.filter(pl.col("name_id").is_in(forward_flows(tables.names).implode()))
    if ends.is_empty():
        return
    keys = ["lane_id", "start_ns"]
    at = ends.rename({"time_ns": "start_ns"}).select("flow_id", "phase", *keys)
    operators = (
        tables.events.lazy()
        .filter(pl.col("category") == Category.CPU_OP.value)
        .select("event", *keys)
        # Few operators have an arrow: only those are sorted.
        .join(at.lazy().select(keys), on=keys, how="semi")
        # Of operators that start together, the outermost backward one belongs to the engine, and
        # the innermost forward one created the node. Outer ones come first in the file.
        .sort("start_ns", "event")
        .collect()
    )
    # Merged files may use a number twice: use the first arrow then.
    made = (
        at.filter(pl.col("phase") == "s")
        .join(operators.unique(keys, keep="last"), on=keys, maintain_order="left")
        .unique("flow_id", keep="first")
        .select("flow_id", forward="event")
    )
    used = at.filter(pl.col("phase") == "f").join(operators, on=keys, maintain_order="left_right")
    pairs = used.join(made, on="flow_id", maintain_order="left")
    forward[pairs["event"].to_numpy()] = pairs["forward"].to_numpy()
