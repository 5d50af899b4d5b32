"""Whether ranks have unequal work in each step, now one more and now another: nobody is late.

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

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from stepscope.advice.evidence.other_ranks import Imbalance
from stepscope.advice.job.compared import RankComparison, recorded_steps
from stepscope.advice.rank.summary import RankSummary
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
    met = [one.meeting for one in ranks if one.meeting.manifest is not None]
    if len(met) < 2 or any(rank.device is not None for rank in ranks):
        return None
    rows = steps_in_common(recorded_steps(met))
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
