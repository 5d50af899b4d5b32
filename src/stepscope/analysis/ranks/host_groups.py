"""Process groups of collectives that threads of the CPU carry out: gloo, MPI and UCC.

Such a backend records a collective on the thread that did it, without its process group. Which
group it belongs to follows from the threads: every process group has a pool of two, created with
the group. Where the file lists one group only, all collectives are its own. Otherwise pools and
groups are paired in the order in which they were created. Where that does not come out even, the
group stays unknown (null). Where the file lists no group at all, there is nothing to tell apart.
"""

from __future__ import annotations

import re

import polars as pl

from stepscope.trace.model import Trace

_POOL = 2
"""Threads of a process group's pool."""


def with_host_groups(trace: Trace, collectives: pl.DataFrame) -> pl.DataFrame:
    """Adds the process groups of collectives of the host.

    Args:
        collectives: What `calls.collectives.read_host_collectives` read.

    Returns:
        The same with `group`, `group_ranks` and `group_size` where they are known.
    """
    if collectives.is_empty():
        return collectives
    lanes = trace.columns("lane_id")["lane_id"].gather(collectives["event"])
    rows = collectives.with_columns(lane_id=lanes)
    known = _groups(trace, rows)
    size = pl.col("group_ranks").str.count_matches(r"\d+").cast(pl.Int64)
    gathers = (pl.col("kind") == "all_gather") & size.is_not_null()
    return (
        rows.drop("group", "group_ranks")
        .join(known, on="lane_id", how="left", maintain_order="left")
        .with_columns(
            group_size=pl.coalesce(size, "group_size"),
            group_size_is_assumed=size.is_null() & pl.col("group_size_is_assumed"),
            # What is gathered is the group's inputs together.
            message_bytes=pl.when(gathers)
            .then(pl.col("in_bytes") * size)
            .otherwise("message_bytes"),
        )
        .select(collectives.columns)
    )


def lists_groups(trace: Trace) -> bool:
    """Whether the file lists process groups of its rank."""
    return bool(_described_groups(trace))


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
