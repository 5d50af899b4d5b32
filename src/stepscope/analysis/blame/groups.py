"""Process groups of a job, and the dimension of parallelism that each belongs to.

The dimension is taken from what the job calls the group (`pg_desc`: "mesh_tp",
"DATA_PARALLEL_GROUP"), where it says so in one of the usual words. Otherwise groups count as one
dimension that have size and spacing of their ranks in common: "4 ranks, 8 apart". A group of all
ranks is "world". Sends between two ranks are a dimension of their own each way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

import polars as pl

from stepscope.analysis.blame.matched import GROUPS

WORLD = "world"
TO_HIGHER, TO_LOWER = ", to higher ranks", ", to lower ranks"
"""Ends of the dimensions of sends, by the ranks that they go to."""

_PATTERNS = (
    ("pipeline", r"pipe|(^|[^a-z])pp($|[^a-z])|embedding"),
    ("expert", r"expert|(^|[^a-z])(ep|moe|etp|edp)($|[^a-z])"),
    ("context", r"context|sequence|ulysses|(^|[^a-z])(cp|sp)($|[^a-z])"),
    ("tensor", r"tensor|(^|[^a-z])(tp|mp)($|[^a-z])"),
    ("data", r"data|fsdp|shard|replicat|zero|(^|[^a-z])(dp|ddp|hsdp)($|[^a-z])"),
)
_PAIR = re.compile(r" (\d+) to (\d+)$")
_RANKS = re.compile(r"\[([\d,\s]*)\]$")


def find_groups(
    seen: pl.DataFrame,
    described: Mapping[str, str],
    world_size: int | None,
) -> pl.DataFrame:
    """The process groups of some collectives.

    Args:
        seen: Columns `rank` and `group` of the collectives.
        world_size: How many ranks the job has; None where nobody knows.

    Returns:
        Columns `GROUPS`, with `group` in order of the groups' names, and `key`: the group as it
        stands in `seen`.
    """
    members = seen.group_by("group").agg(pl.col("rank").unique().sort()).sort("group")
    rows = []
    for number, (key, ranks) in enumerate(members.iter_rows()):
        text = key or ""
        listed = _listed(text) or ranks
        name = text.partition(" ")[0]
        called = described.get(text, "")
        rows.append(
            {
                "group": number,
                "key": key,
                "name": called or (f"group {name}" if name else "the only group"),
                "dimension": _dimension(called, listed, world_size) + _direction(text),
                "ranks": listed,
            }
        )
    return pl.DataFrame(rows, schema={**GROUPS, "key": pl.String})


def _listed(text: str) -> list[int]:
    """The ranks that a group's name ends with; none where they are missing or cut short."""
    found = _RANKS.search(text)
    return [int(rank) for rank in found.group(1).split(",") if rank.strip()] if found else []


def _direction(text: str) -> str:
    """Which way sends of a pair of ranks go: what a stage does before differs."""
    found = _PAIR.search(text)
    if found is None:
        return ""
    return TO_HIGHER if int(found[1]) < int(found[2]) else TO_LOWER


def _dimension(called: str, ranks: Sequence[int], world_size: int | None) -> str:
    for dimension, pattern in _PATTERNS:
        if re.search(pattern, called.lower()):
            return dimension
    if len(ranks) == world_size:
        return WORLD
    apart = {after - before for before, after in pairwise(ranks)}
    if len(apart) == 1:
        return f"{len(ranks)} ranks, {apart.pop()} apart"
    return f"{len(ranks)} ranks"
