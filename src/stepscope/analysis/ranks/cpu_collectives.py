"""Collectives that threads of the CPU carry out: gloo, MPI and UCC.

Such a backend lets a thread of its own do each collective and records it there, as
`gloo:all_reduce`, without its process group. Which group it belongs to follows from the threads:
every process group has a pool of two, created with the group. Where the file lists one group only,
all collectives are its own. Otherwise pools and groups are paired in the order in which they were
created. Where that does not come out even, the group stays unknown (null).
"""

from __future__ import annotations

import re

import polars as pl

from stepscope.analysis.calls.collectives import COLLECTIVES, operand_size, world_size
from stepscope.analysis.calls.operands import (
    argument_texts,
    compact_operands,
    element_bytes,
    operand_columns,
)
from stepscope.trace.model import Trace

_NAME = r"^(gloo|mpi|ucc):"
_POOL = 2
"""Threads of a process group's pool."""


def read_cpu_collectives(trace: Trace) -> pl.DataFrame:
    """Reads the collectives that the CPU carried out.

    Args:
        trace: The trace.

    Returns:
        Columns `COLLECTIVES`, in order of start. `device`, `stream` and `launch` are null.
    """
    names = trace.names.filter(pl.col("name").str.contains(_NAME)).collect()
    if names.is_empty():
        return pl.DataFrame(schema=COLLECTIVES)
    found = (
        trace.events.filter(pl.col("name_id").is_in(names["name_id"].implode()))
        .select("event", "name_id", "lane_id", "start_ns", "dur_ns")
        .collect()
        .join(names.select("name_id", "name", "group"), on="name_id", maintain_order="left")
        .sort("start_ns", "event")
        .rename({"name": "kernel", "group": "kind"})
    )
    step = trace.derived.select("step").collect()["step"].gather(found["event"])
    found = _with_sizes(trace, found.with_columns(step=step))
    found = found.join(_groups(trace, found), on="lane_id", how="left", maintain_order="left")
    size = pl.col("group_ranks").str.count_matches(r"\d+").cast(pl.Int64)
    gathers = pl.col("kind") == "all_gather"
    found = found.with_columns(
        group_size=pl.coalesce(size, pl.lit(world_size(trace), pl.Int64)),
        group_size_is_assumed=size.is_null(),
    ).with_columns(
        message_bytes=pl.when(gathers)
        .then(pl.col("in_bytes") * pl.col("group_size"))
        .otherwise(pl.col("in_bytes")),
    )
    absent = {name: kind for name, kind in COLLECTIVES.items() if name not in found.columns}
    return found.with_columns(
        pl.lit(None, kind).alias(name) for name, kind in absent.items()
    ).select(pl.col(name).cast(dtype) for name, dtype in COLLECTIVES.items())


def _with_sizes(trace: Trace, found: pl.DataFrame) -> pl.DataFrame:
    """The rows with `dtype` and `in_bytes`, from the shapes that were recorded."""
    texts = argument_texts(trace, found["event"])
    operands = compact_operands(
        pl.DataFrame({"args": texts}).select(*operand_columns(pl.col("args")))
    )
    distinct = operands.select("dims", "types").unique(maintain_order=True)
    sizes = [operand_size(dims, types) for dims, types in distinct.iter_rows()]
    known = distinct.with_columns(
        dtype=pl.Series([size[1] if size else None for size in sizes], dtype=pl.String),
        in_bytes=pl.Series(
            [size[0] * (element_bytes(size[1]) or 0) or None if size else None for size in sizes],
            dtype=pl.Int64,
        ),
    )
    joined = operands.select("dims", "types").join(
        known, on=["dims", "types"], how="left", nulls_equal=True, maintain_order="left"
    )
    return found.with_columns(joined["dtype"], joined["in_bytes"])


def _groups(trace: Trace, found: pl.DataFrame) -> pl.DataFrame:
    """lane_id, group and group_ranks of the threads whose process group is known."""
    described = _described_groups(trace)
    threads = (
        trace.lanes.filter(pl.col("lane_id").is_in(found["lane_id"].unique().implode()))
        .select("lane_id", number=pl.col("tid").cast(pl.Int64, strict=False))
        .sort("number", "lane_id")
    )
    lanes = threads["lane_id"].to_list()
    place_of: dict[int, int] = {}
    if len(described) == 1:
        place_of = dict.fromkeys(lanes, 0)
    elif described and len(lanes) == _POOL * len(described):
        place_of = {lane: place // _POOL for place, lane in enumerate(lanes)}
    elif not threads["number"].has_nulls():
        pools = _pools(threads["number"].to_list())
        if len(described) == max(pools, default=-1) + 1:
            place_of = dict(zip(lanes, pools, strict=True))
    rows = [(lane, *described[place]) for lane, place in place_of.items()]
    schema = {"lane_id": pl.UInt32, "group": pl.String, "group_ranks": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _pools(numbers: list[int]) -> list[int]:
    """The pool of each thread, told from numbers that follow one another."""
    pools: list[int] = []
    for place, number in enumerate(numbers):
        follows = place > 0 and number == numbers[place - 1] + 1
        has_room = pools.count(pools[-1]) < _POOL if pools else False
        pools.append(pools[-1] + (0 if follows and has_room else 1) if pools else 0)
    return pools


def _described_groups(trace: Trace) -> list[tuple[str, str]]:
    """Name and ranks of the process groups that the file lists for its rank, in its order."""
    about = trace.header.get("distributedInfo")
    listed = about.get("pg_config") if isinstance(about, dict) else None
    found = []
    for entry in listed if isinstance(listed, list) else []:
        if not isinstance(entry, dict) or "gloo" not in str(entry.get("backend_config", "gloo")):
            continue
        ranks = [int(text) for text in re.findall(r"\d{1,9}", str(entry.get("ranks", "")))]
        # Torch writes "[0, 1]" into the arguments of NCCL's kernels: the same form serves here.
        found.append((str(entry.get("pg_name", "")), str(ranks)))
    return found
