"""When one rank came to each of its collectives: all that comparing ranks needs of its trace.

A rank is read where its trace lies, and its arrivals travel to where the ranks are compared: a few
bytes per collective, without the trace.

Backends of the CPU (gloo, MPI, UCC) record a collective on the thread that did it, without its
process group. Which group it belongs to follows from the threads: every process group has a pool of
two, created with the group. Where the file lists one group only, all collectives are its own.
Otherwise pools and groups are paired in the order in which they were created. Where that does not
come out even, the group stays unknown (null), unless all groups have the same ranks: then these are
known, and the collectives of all groups count as those of one (DeepSpeed makes a second group of
all ranks). Where the file lists no group at all, there is nothing to tell apart.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import polars as pl

from stepscope.analysis.calls.collectives import (
    POINT_TO_POINT,
    read_collectives,
    read_host_collectives,
    world_size,
)
from stepscope.analysis.graph.batch_arrivals import find_arrivals
from stepscope.analysis.graph.work import choose_steps
from stepscope.analysis.host.causes import HostCause
from stepscope.analysis.host.events import host_events
from stepscope.analysis.host.steady_steps import tail_of
from stepscope.analysis.ranks.local_time import BESIDE, LOCAL_CAUSES, blocked, local_time
from stepscope.analysis.ranks.rank_arrivals import OF_LAUNCHES, TEXTS, RankArrivals, packed
from stepscope.analysis.selection.gpu_work import GpuWork, gpu_work
from stepscope.analysis.selection.scope import OTHER_STEPS, Scope
from stepscope.trace.arrays import intervals
from stepscope.trace.model import Trace

MOST_PER_STEP = 4096
"""Collectives of one process group that are kept of a step; further ones are counted."""
UNKNOWN_GROUP = "collectives whose process group, or other rank, the trace does not name"
NO_PAIR = "between unknown ranks"
_TOO_MANY = "collectives beyond the first of a process group in a step"


def read_arrivals(
    rank: int,
    trace: Trace,
    scope: Scope | None = None,
    *,
    with_causes: bool = False,
) -> RankArrivals:
    """Read a rank's collectives: those of its GPU or, where it has none, of its CPU.

    Args:
        with_causes: Whether to divide the time between collectives by cause.
    """
    work = gpu_work(trace, scope)
    collectives = _collectives(trace, work)
    # Groups of different ranks may go by one name: name and ranks together tell them apart.
    found = collectives.with_columns(
        pl.lit(rank, pl.Int64).alias("rank"),
        start_ns=pl.col("start_ns") + trace.base_time_ns,
        group=pl.concat_str("group", "group_ranks", separator=" ", ignore_nulls=True),
    )
    found = _between_two(found, rank)
    if with_causes:
        found = found.join(_local(trace, scope), on="event", how="left", maintain_order="left")
    of_causes = (f"local_{cause}_ns" for cause in LOCAL_CAUSES)
    local = tuple(name for name in (*of_causes, BESIDE, *OF_LAUNCHES) if name in found.columns)
    of_host = _is_of_host(collectives)
    has_groups = of_host and bool(_described_groups(trace))
    is_known = pl.col("group") != "" if has_groups else pl.lit(value=True)
    is_known &= pl.col("group").ne_missing(NO_PAIR)
    place = pl.int_range(pl.len()).over("group", "step")
    grouped = found.filter(is_known)
    kept = grouped.filter(place < MOST_PER_STEP)
    events = collectives["step"] if of_host and work.table.is_empty() else work.table["step"]
    counts = events.value_counts(name="events").sort("step", nulls_last=True).iter_rows()
    excluded = {reason: n for reason, n in work.answered.excluded.items() if reason != OTHER_STEPS}
    excluded[_TOO_MANY] = len(grouped) - len(kept)
    excluded[UNKNOWN_GROUP] = len(found) - len(grouped)
    steps = dict.fromkeys(work.answered.steps, 0) | dict(counts)
    return RankArrivals(
        rank=rank,
        world_size=world_size(trace),
        asked=work.answered.asked,
        devices=work.answered.devices,
        events=tuple(steps.items()),
        excluded=tuple((reason, count) for reason, count in excluded.items() if count),
        texts=tuple(tuple(dict.fromkeys(kept[name].to_list())) for name in TEXTS),
        packed=packed(kept, local),
        described=_described(trace, kept),
        of_host=of_host,
        **(_of_steady_steps(trace, work) if with_causes else {}),
    )


def _of_steady_steps(trace: Trace, work: GpuWork) -> dict[str, Any]:
    """`waits_for_batches` and times of the host, by the steady steps, whichever are asked for."""
    lane = trace.main_lane
    if lane is None or trace.steps.is_empty():
        return {}
    chosen, window = choose_steps(trace, None)
    if chosen.is_empty():
        return {}
    window = (window[0], window[1] - tail_of(trace, chosen))
    host = host_events(trace, (lane,))
    batches = find_arrivals(trace, host, lane, window, len(chosen))
    if len(batches) or work.table.is_empty():
        return {"waits_for_batches": len(batches) > 0}
    waits = intervals.union(blocked(trace), batches.rare)
    others = host.of(HostCause.COMMUNICATION, HostCause.ONE_OFF, lanes=(lane,))
    apart = intervals.clip(intervals.union(waits, others), *window)
    whole_ns, steps = window[1] - window[0], len(chosen)
    return {
        "host_ns": (whole_ns - apart.total_ns) // steps,
        "host_step_ns": whole_ns // steps,
    }


def _between_two(found: pl.DataFrame, rank: int) -> pl.DataFrame:
    """Sends and receives with the pair of ranks as their group.

    Within the group of a pipeline's ranks, the n-th of one is not the n-th of another, and each
    rank numbers its own. Where the pair is not known, they get no group of others (`NO_PAIR`).
    """
    is_p2p = pl.col("kind") == POINT_TO_POINT
    pair = pl.format(
        "{} {} to {}",
        pl.col("group").fill_null(""),
        pl.coalesce(pl.col("from_rank"), pl.lit(rank)),
        pl.coalesce(pl.col("to_rank"), pl.lit(rank)),
    )
    is_known = pl.any_horizontal(pl.col("from_rank", "to_rank").is_not_null())
    of_two = (pl.col("group_size") == 2) & ~pl.col("group_size_is_assumed")
    return found.with_columns(
        group=pl.when(~is_p2p | (~is_known & of_two))
        .then("group")
        .when(is_known)
        .then(pair)
        .otherwise(pl.lit(NO_PAIR)),
        group_size=pl.when(is_p2p).then(2).otherwise("group_size"),
        sequence=pl.when(~is_p2p).then("sequence"),
    )


def _collectives(trace: Trace, work: GpuWork) -> pl.DataFrame:
    found = read_collectives(trace, work.members_of("communication"))
    if found.is_empty():
        found = with_host_groups(trace, read_host_collectives(trace, work.answered.asked))
    return found


def _is_of_host(collectives: pl.DataFrame) -> bool:
    return len(collectives) > 0 and collectives["device"].null_count() == len(collectives)


def _local(trace: Trace, scope: Scope | None) -> pl.DataFrame:
    """Local time of all collectives by event: what precedes a step is not cut off by its choice."""
    work = gpu_work(trace, Scope() if scope is None else replace(scope, steps=None))
    collectives = _collectives(trace, work)
    local = local_time(trace, collectives, None if _is_of_host(collectives) else work)
    return pl.concat([collectives.select("event"), local], how="horizontal")


def _described(trace: Trace, kept: pl.DataFrame) -> tuple[tuple[str, str], ...]:
    descriptions = {
        str(entry.get("pg_name")): str(entry.get("pg_desc"))
        for entry in _listed_groups(trace)
        if entry.get("pg_desc") not in {None, "", "undefined"}
    }
    groups = dict.fromkeys(kept["group"].drop_nulls().to_list())
    found = ((group, descriptions.get(group.partition(" ")[0], "")) for group in groups)
    return tuple((group, word) for group, word in found if word)


def _listed_groups(trace: Trace) -> list[dict[str, Any]]:
    """What the file says of the process groups of its rank, in its order."""
    about = trace.header.get("distributedInfo")
    listed = about.get("pg_config") if isinstance(about, dict) else None
    return [one for one in (listed if isinstance(listed, list) else []) if isinstance(one, dict)]


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
    elif len({ranks for _, ranks in described}) == 1:
        described = [("/".join(name for name, _ in described), described[0][1])]
        place_of = dict.fromkeys(lanes, 0)
    elif not threads["number"].has_nulls():
        pools = _pools(threads["number"].to_list())
        if len(described) == max(pools, default=-1) + 1:
            place_of = dict(zip(lanes, pools, strict=True))
    rows = [(lane, *described[place]) for lane, place in place_of.items()]
    schema = {"lane_id": pl.UInt32, "group": pl.String, "group_ranks": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _pools(numbers: list[int]) -> list[int]:
    """The pool of each thread, inferred from consecutive numbers."""
    pools: list[int] = []
    for place, number in enumerate(numbers):
        follows = place > 0 and number == numbers[place - 1] + 1
        is_open = pools.count(pools[-1]) < _POOL if pools else False
        pools.append(pools[-1] + (0 if follows and is_open else 1) if pools else 0)
    return pools


def _described_groups(trace: Trace) -> list[tuple[str, str]]:
    """Name and ranks of the process groups that gloo may be the backend of."""
    found = []
    for entry in _listed_groups(trace):
        if "gloo" not in str(entry.get("backend_config", "gloo")):
            continue
        ranks = [int(text) for text in re.findall(r"\d{1,9}", str(entry.get("ranks", "")))]
        # Torch writes "[0, 1]" into the arguments of NCCL's kernels: the same form serves here.
        found.append((str(entry.get("pg_name", "")), str(ranks)))
    return found
