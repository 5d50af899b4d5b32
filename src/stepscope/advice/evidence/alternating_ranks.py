"""Whether ranks are late in turn: each step waits for one of them, and not always for the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from stepscope.run.figures import first_of, rank_names

_FEWEST_STEPS = 3
_MOST_FOR_ONE = 0.5
_OF_A_STEP = 0.75
_MOST_NAMED = 8


@dataclass(frozen=True)
class AlternatingRanks:
    """Which ranks are late in turn.

    Attributes:
        steps_by_rank: In how many steps the others wait most for each rank, the most first.
    """

    steps_by_rank: tuple[tuple[int, int], ...]

    def text(self) -> str:
        """In how many steps each rank is late, as "rank 1 in 3, rank 0 in 2 of 5 steps"."""
        steps = sum(count for _, count in self.steps_by_rank)
        named = [f"rank {rank} in {count}" for rank, count in self.steps_by_rank]
        return f"{first_of(named, _MOST_NAMED)} of {steps} steps"


def find_alternating(waits: pl.DataFrame) -> AlternatingRanks | None:
    """The ranks that are late in turn, over at least three steps in which anybody waits.

    In each step at least three quarters of the waiting must be for one rank, taken over all steps,
    and over all steps no more than half for the same one.

    Args:
        waits: Columns `step`, `last_rank` and `wait_ns`: how long ranks waited in collectives that
            `last_rank` was the last to join.
    """
    of_each = (
        waits.group_by("step", "last_rank")
        .agg(pl.col("wait_ns").sum())
        .filter(pl.col("wait_ns") > 0)
        .sort("wait_ns", "last_rank", descending=[True, False])
    )
    latest = of_each.unique("step", keep="first", maintain_order=True)
    total_ns = int(of_each["wait_ns"].sum())
    if len(latest) < _FEWEST_STEPS or latest["wait_ns"].sum() < _OF_A_STEP * total_ns:
        return None
    for_one_ns = of_each.group_by("last_rank").agg(pl.col("wait_ns").sum())["wait_ns"].max()
    if not isinstance(for_one_ns, int) or for_one_ns > _MOST_FOR_ONE * total_ns:
        return None
    counts = latest.group_by("last_rank").len().sort("len", "last_rank", descending=[True, False])
    return AlternatingRanks(tuple(counts.iter_rows()))


class TitleAndAdvice(NamedTuple):
    """Title and advice of a finding."""

    title: str
    advice: str


ALTERNATING = TitleAndAdvice(
    "it waits for other ranks in its collectives, each step for another rank",
    "No one rank is slow, so see what a rank does in a step in which it is late that it does not "
    "do in others (`stepscope show idle --steps N` on its trace): batches of uneven size (group "
    "samples by length), slow reads, the garbage collector, logging, saving, other programs on the "
    "machine.",
)
"""Where ranks are late in turn, each in steps of its own."""
ALTERNATING_WITHIN_STEP = TitleAndAdvice(
    "it waits for other ranks in its collectives, each time for another rank",
    "No one rank is slow: between collectives, now one rank has more to do, now another, and all "
    "wait for it each time. Even that out: tokens over experts (a balancing loss, a capacity), "
    "sequence lengths over ranks (group or pack samples), layers and micro-batches over ranks. Or "
    "synchronise the ranks less often.",
)
"""Where ranks are late in turn within each step."""


def for_ranks(late: Sequence[int]) -> TitleAndAdvice:
    """Where it waits most for one rank, or for several that are late together."""
    ranks = rank_names(late)
    does, own, traces = ("does", "its own", "its trace")
    if len(late) > 1:
        does, own, traces = ("do", "their", "their traces")
    return TitleAndAdvice(
        f"it waits for other ranks in its collectives, mostly for {ranks}",
        f"See what {ranks} {does} before these collectives that others do not ({own} findings, "
        f"`stepscope show idle` on {traces}): input, uneven batches, Python, a slower machine.",
    )
