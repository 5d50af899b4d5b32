"""Unequal ranks: by work that is unequal in each step, and by parts that take longer on one.

Definitions
    Work of a rank in a step: on GPUs what they compute in a recorded step, else the time that the
    training thread ran on a CPU by the step record, which does not count what a busy machine takes
    from it. Lateness of a rank in a step: what the others wait beyond what it waits itself; on GPUs
    in the collectives, or by what these waits cost, whichever follows the work more closely.
    Ranks are imbalanced if, over all steps and ranks, lateness follows work, both less their means
    in the step, with a correlation of a half or more beyond chance; if most of the differences in
    work are not those between the ranks' means, which would make it the same ranks every time; and
    if work differs by a tenth or more (standard deviation) in half of the steps.
    The saving: with equal work in each step, a step takes as much less as a rank waits on average.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.advice.evidence.subject import Imbalance, LongerPart
from stepscope.advice.job.compared import RankComparison, recorded_steps
from stepscope.advice.rank.summary import RankSummary
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.selection.partition import Partition
from stepscope.run.step_record import BACKWARD, COMMUNICATION
from stepscope.skew import equal_ranks
from stepscope.skew.rank_skew import steps_in_common

_FOLLOWS = 0.5
_MOSTLY = 0.5
_NOTABLY = 0.1
_CHANCE = 0.02
"""At most how likely lateness follows work as closely by chance: nobody is accused of it."""
_FEWEST_STEPS, _FEWEST_RECORDS = 3, 10

Times = npt.NDArray[np.float64]


def imbalance(ranks: Sequence[RankSummary], between: RankComparison | None) -> Imbalance | None:
    """The imbalance of the ranks of a run; None where nothing shows any."""
    if any(rank.exchanges for rank in ranks):
        return None
    if between is not None:
        return _in_windows(ranks, between)
    return _in_records(ranks)


def _in_windows(ranks: Sequence[RankSummary], between: RankComparison) -> Imbalance | None:
    costs = between.step_costs_ns
    waited = between.step_waits_ns
    work = {
        rank.rank: found for rank in ranks if (found := _computing(rank)) and rank.rank in costs
    }
    steps = sorted(set.intersection(*(set(one) for one in work.values()))) if work else []
    steps = [step for step in steps if all(step in costs[rank] for rank in work)]
    if len(work) < 2 or len(steps) < _FEWEST_STEPS:
        return None

    def of_steps(times_ns: Mapping[int, Mapping[int, int]]) -> Times:
        rows = [[times_ns.get(rank, {}).get(step, 0) for rank in work] for step in steps]
        return np.array(rows, np.float64)

    works, wait_ns = of_steps(work), float(of_steps(costs).mean())
    by_either = (_found(works, -of_steps(times_ns), wait_ns) for times_ns in (costs, waited))
    known = [one for one in by_either if one is not None]
    return max(known, key=lambda one: one.correlation, default=None)


def _computing(rank: RankSummary) -> dict[int, int]:
    if rank.device_steps is None:
        return {}
    found: dict[int, int] = {}
    rows = rank.device_steps
    for step, ns in zip(rows["step"], rows["compute_ns"], strict=True):
        found[step] = found.get(step, 0) + ns
    return found


def _in_records(ranks: Sequence[RankSummary]) -> Imbalance | None:
    recorded = [one.compared for one in ranks if one.compared.manifest is not None]
    if len(recorded) < 2 or any(rank.device is not None for rank in ranks):
        return None
    rows = steps_in_common(recorded_steps(recorded))
    name = next(
        (
            name
            for name in (COMMUNICATION, BACKWARD)
            if all(name in o.phases for r in rows for o in r)
        ),
        None,
    )
    if (
        len(rows) < _FEWEST_RECORDS
        or name is None
        or any(o.cpu_ns is None for r in rows for o in r)
    ):
        return None
    works = np.array([[one.cpu_ns or 0 for one in row] for row in rows], np.float64)
    waits = np.array([[one.phases[name] for one in row] for row in rows], np.float64)
    wait_ns = float((works.max(axis=1) - works.mean(axis=1)).mean())
    return _found(works, -waits, wait_ns)


def _found(works: Times, lateness: Times, wait_ns: float) -> Imbalance | None:
    steps, count = works.shape
    own = works - works.mean(axis=1, keepdims=True)
    if np.median(own.std(axis=1, ddof=1)) < _NOTABLY * works.mean():
        return None
    late = lateness - lateness.mean(axis=1, keepdims=True)
    whole = float((own**2).sum())
    lasting = float((own.mean(axis=0) ** 2).sum()) * steps
    if whole == 0 or not late.any():
        return None
    # By chance alone the means of few steps differ as well.
    if lasting > (_MOSTLY + 1 / steps) * whole:
        return None
    follows = float((own * late).sum() / math.sqrt(whole * float((late**2).sum())))
    if follows < _FOLLOWS:
        return None
    freedom = steps * (count - 1) - 1
    t = follows * math.sqrt(freedom / max(1e-12, 1 - follows**2))
    if freedom < 1 or equal_ranks.student_tail(t, freedom) > _CHANCE:
        return None
    return Imbalance(
        round(wait_ns),
        round(float(works.max(axis=1).mean())),
        round(float(works.mean())),
        follows,
        len(set(works.argmax(axis=1).tolist())),
        count,
        steps,
    )


ODD_PARTS: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "part": pl.String,  # of the step
    "per_step_ns": pl.Int64,
    "others_ns": pl.Int64,  # median of the other ranks' means per step
}
"""One row per part of a rank's step that sets it apart, the greatest difference first."""

_NOT_OWN = ("communication", "exposed communication", "idle: cause not recorded")
"""Parts that tell nothing of the rank itself: it suffers from others in them, or its recorder
missed something."""


def longer_parts(
    ranks: Sequence[RankSummary], late: Collection[int], *, recorded: bool = False
) -> tuple[LongerPart, ...]:
    """The parts that take longer on all late ranks than on the others, the most longer first.

    Only steps that were divided alike are compared.

    Args:
        recorded: Whether to compare recorded steps where others are shown: without a GPU, only a
            trace divides the waiting for others from what a rank does itself.
    """
    divided = [
        (rank.rank in late, rank.recorded_partition if recorded else rank.partition)
        for rank in ranks
    ]
    known = [(is_late, one) for is_late, one in divided if one is not None and one.parts]
    basis = next((one.basis for is_late, one in known if is_late), None)
    own = [one for is_late, one in known if is_late and one.basis == basis]
    others = [one for is_late, one in known if not is_late and one.basis == basis]
    if not own or not others:
        return ()
    names = dict.fromkeys(part.name for one in own for part in one.parts)
    found = [
        LongerPart(
            name,
            round(min(_mean_ns(one, name) for one in own)),
            round(statistics.median(_mean_ns(one, name) for one in others)),
        )
        for name in names
        if name not in _NOT_OWN
    ]
    longer = [part for part in found if part.more_ns > 0]
    return tuple(sorted(longer, key=lambda part: (-part.more_ns, part.name)))


def _mean_ns(partition: Partition, name: str) -> float:
    return partition.of(name) / max(1, partition.steps)


def odd_parts(partitions: Sequence[tuple[int, Partition]], limits: Thresholds) -> pl.DataFrame:
    """What takes far longer on one rank than on the others.

    Returns:
        Columns `ODD_PARTS`.
    """
    means: dict[tuple[str, str], list[float]] = {}
    for basis in {partition.basis for _, partition in partitions}:
        alike = [partition for _, partition in partitions if partition.basis == basis]
        for name in {part.name for one in alike for part in one.parts}.difference(_NOT_OWN):
            means[basis, name] = sorted(_mean_ns(one, name) for one in alike)
    rows = []
    for rank, mine in partitions:
        step_ns = mine.total_ns / max(1, mine.steps)
        for part in mine.parts:
            means_of_part = means.get((mine.basis, part.name), [])
            if len(means_of_part) < 2:
                continue
            taken = mine.per_step_ns(part)
            usual = round(_median_without(means_of_part, _mean_ns(mine, part.name)))
            is_long = taken >= limits.odd_rank_factor * usual
            if is_long and taken - usual >= max(1, limits.odd_rank_share * step_ns):
                rows.append((rank, part.name, taken, usual))
    table = pl.DataFrame(rows, schema=ODD_PARTS, orient="row")
    return table.sort(
        pl.col("per_step_ns") - pl.col("others_ns"), "rank", "part", descending=[True, False, False]
    )


def _median_without(ordered: Sequence[float], value: float) -> float:
    """The median of values in order, without one that is equal to `value`.

    Of an even number the upper one: of three ranks, two that wait in backward for the third are
    alike, and neither takes longer than "the others".
    """
    left_out = bisect.bisect_left(ordered, value)
    place = (len(ordered) - 1) // 2
    return ordered[place if place < left_out else place + 1]
