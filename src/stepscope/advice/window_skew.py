"""Which rank comes late, from how long each training thread waits in the recorded steps.

A training without a GPU waits for its collectives on the training thread, and a trace shows for how
long. The rank that waits least in a step arrives last, as with the phase `communication` of a step
record. That holds whatever else a rank does, while the phase `backward` of a record, in which
DistributedDataParallel waits, is also longer on a rank with more to compute.

Only few steps are recorded, and each is longer than without recording: where a step record shows
the ranks of many steps, it counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from stepscope.advice.rank_summary import RankSummary
from stepscope.run.rank_skew import (
    RECORDED_WAITS,
    RankSkew,
    rank_steps,
    skew_of_positions,
    wait_by_design,
)

_LEAST_STEPS = 3
_WAIT = "communication_ns"


def skew_of_windows(ranks: Sequence[RankSummary]) -> RankSkew | None:
    """How far apart the ranks come in the steps that all their windows have.

    Times are those of a step without recording, where step records tell it.

    Returns:
        The skew; None with a GPU, in a pipeline, with fewer than three steps in common, or where
        equal ranks might come as late.
    """
    if len(ranks) < 2 or any(rank.device is not None or rank.exchanges for rank in ranks):
        return None
    manifests = [one for rank in ranks if (one := rank.meeting.manifest) is not None]
    if wait_by_design(rank_steps([(each, ()) for each in manifests])):
        return None
    waits: list[dict[int, int]] = []
    factors = []
    for rank in ranks:
        steps = None if rank.host is None else rank.host.steps
        if steps is None or _WAIT not in steps.columns or not rank.window_step_ns:
            return None
        mine = dict(zip(steps["step"], steps[_WAIT], strict=True))
        waits.append({step: mine[step] for step in rank.window_steps if step in mine})
        factors.append((rank.step_ns or rank.window_step_ns) / rank.window_step_ns)
    factor = min(1.0, statistics.median(factors))
    step_ns = round(statistics.median(rank.window_step_ns or 0 for rank in ranks) * factor)
    by_rank = dict(zip((rank.rank for rank in ranks), waits, strict=True))
    return skew_of_waits(by_rank, step_ns, factor)


def skew_of_waits(
    waits: Mapping[int, Mapping[int, int]], step_ns: int, factor: float = 1.0
) -> RankSkew | None:
    """How far apart the ranks come, from how long each waits in its collectives.

    Args:
        waits: By rank and step.
        step_ns: The step without recording.
        factor: Its share of the recorded one.

    Returns:
        The skew; None with fewer than three steps in common, or where equal ranks might come as
        late.
    """
    shared = sorted(set.intersection(*(set(of_rank) for of_rank in waits.values())))
    if len(shared) < _LEAST_STEPS:
        return None
    positions = [[-round(of_rank[step] * factor) for of_rank in waits.values()] for step in shared]
    skew = skew_of_positions(list(waits), step_ns, positions, RECORDED_WAITS, shared)
    return skew if skew.is_notable else None


def surest(recorded: RankSkew | None, seen: RankSkew | None) -> RankSkew | None:
    """The skew of the step records, or of the windows where these show what records do not.

    In the windows a rank is seen to be late by all that it does, in a record by what it does before
    the ranks wait. So if by both the same ranks are late in all steps, the longer wait counts.

    Args:
        recorded: By the step records, if a rank is late by them.
        seen: By the windows, likewise.
    """
    if recorded is None or seen is None:
        return recorded or seen
    is_same = set(seen.late) == set(recorded.late) and recorded.course is None
    return seen if is_same and seen.wait_ns > recorded.wait_ns else recorded
