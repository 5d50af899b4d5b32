"""What `rank-waiting` says: the rule about one rank, and once all ranks have been compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stepscope.run.figures import ranks_in_words


class Words(NamedTuple):
    """Title and advice of a finding."""

    title: str
    advice: str


IN_TURN = Words(
    "it waits for other ranks in its collectives, each step for another rank",
    "No one rank is slow, so see what a rank does in a step in which it is late that it does not "
    "do in others (`stepscope show idle --steps N` on its trace): batches of uneven size (group "
    "samples by length), slow reads, the garbage collector, logging, saving, other programs on the "
    "machine.",
)
"""Where ranks are late in turn, each in steps of its own."""
IN_TURN_WITHIN = Words(
    "it waits for other ranks in its collectives, each time for another rank",
    "No one rank is slow: between collectives, now one rank has more to do, now another, and all "
    "wait for it each time. Even that out: tokens over experts (a balancing loss, a capacity), "
    "sequence lengths over ranks (group or pack samples), layers and micro-batches over ranks. Or "
    "synchronise the ranks less often.",
)
"""Where ranks are late in turn within each step."""


def for_ranks(late: Sequence[int]) -> Words:
    """Where it waits most for one rank, or for several that are late together."""
    ranks = ranks_in_words(late)
    does, own, traces = ("does", "its own", "its trace")
    if len(late) > 1:
        does, own, traces = ("do", "their", "their traces")
    return Words(
        f"it waits for other ranks in its collectives, mostly for {ranks}",
        f"See what {ranks} {does} before these collectives that others do not ({own} findings, "
        f"`stepscope show idle` on {traces}): input, uneven batches, Python, a slower machine.",
    )
