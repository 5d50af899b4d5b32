"""The stages of a pipeline, and which of them, or which rank within one, computes longest.

Definitions
    Stages: ranks that meet in a group which is neither all ranks nor called one of the pipeline,
    and in which nobody sends to another member. Ranks that meet in no such group are stages of
    their own. There are stages only where ranks send to each other.
    Usual of a rank: what the median other rank of its stage computes in a step. Of two ranks of a
    stage, the one that computes as the other stages do is the usual one.
    Usual of a stage: what the median other stage computes. What a stage computes is what the median
    of its ranks does, the lower one of two.
    A rank or stage is slow if it computes longer than that beyond chance (`beyond_chance.py`), and
    a step is notably shorter without that. A rank that is slow goes before a stage.
    Gain: the replay, with all that the slow ones compute shortened alike, to the usual.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import numpy.typing as npt

from stepscope.analysis.blame.beyond_chance import is_beyond_chance
from stepscope.analysis.blame.gains import Gains
from stepscope.analysis.blame.groups import TO_HIGHER, TO_LOWER, WORLD
from stepscope.analysis.blame.matched import Matched
from stepscope.analysis.blame.replay import Less
from stepscope.analysis.blame.report import Stragglers
from stepscope.skew.rank_causes import SLOW_STAGE

_COMPUTE, _PIPELINE = "compute", "pipeline"
_NEARER = 0.5
_NOTABLE = 0.02
"""Of a step: what must be gained."""
_TWO = 2

Times = npt.NDArray[np.float64]


def find_stages(matched: Matched) -> tuple[tuple[int, ...], ...]:
    """The ranks of each stage, in order of their first rank; none where it is no pipeline."""
    ranks = matched.ranks.tolist()
    stage = {rank: {rank} for rank in ranks}
    listed = list(matched.groups.select("dimension", "ranks").iter_rows())
    is_pair = [dimension.endswith((TO_HIGHER, TO_LOWER)) for dimension, _ in listed]
    pairs = _pairs(matched, np.array(is_pair, np.bool_))
    if not pairs:
        return ()
    matched_groups = set(matched.group.tolist())
    for number, (dimension, members) in enumerate(listed):
        known = [rank for rank in members if rank in stage]
        is_inside = not is_pair[number] and dimension not in (WORLD, _PIPELINE)
        if number not in matched_groups or not is_inside or len(known) == len(ranks):
            continue
        if any((one, other) in pairs for one in known for other in known):
            continue
        together = set().union(*(stage[rank] for rank in known))
        for rank in together:
            stage[rank] = together
    return tuple(sorted({tuple(sorted(one)) for one in stage.values()}))


def _pairs(matched: Matched, is_pair: npt.NDArray[np.bool_]) -> set[tuple[int, int]]:
    """The ranks that send to each other in some of the groups, in both orders."""
    exchanges = np.flatnonzero(is_pair[matched.group])
    first, members = matched.first_row[exchanges], np.diff(matched.first_row)[exchanges]
    found: set[tuple[int, int]] = set()
    for count in np.unique(members).tolist():
        rows = matched.rows[first[members == count][:, None] + np.arange(count)]
        for together in np.unique(matched.ranks[matched.rank[rows]], axis=0).tolist():
            found.update(permutations(together, 2))
    return found


def find_slow(
    matched: Matched, gains: Gains, stages: tuple[tuple[int, ...], ...]
) -> Stragglers | None:
    """The rank or stage that computes notably longer than others beyond chance; None: none does."""
    if len(stages) < _TWO or _COMPUTE not in matched.causes:
        return None
    compute_ns, places = _computing(matched), {r: at for at, r in enumerate(matched.ranks.tolist())}
    columns = [[places[rank] for rank in stage] for stage in stages]
    of_stages = np.stack(
        [np.quantile(compute_ns[:, own], 0.5, axis=1, method="lower") for own in columns], axis=1
    )
    elsewhere_ns = np.stack(
        [np.median(np.delete(of_stages, at, axis=1), axis=1) for at in range(len(stages))], axis=1
    )
    usual_ns = np.zeros_like(compute_ns)
    for number, own in enumerate(columns):
        for at in own:
            usual_ns[:, at] = _usual(compute_ns, own, at, elsewhere_ns[:, number])
    excess_ns = np.maximum(compute_ns - usual_ns, 0)
    worst = int(excess_ns.sum(axis=0).argmax())
    if is_beyond_chance(excess_ns, worst):
        found = _slow(matched, gains, (worst,), compute_ns, usual_ns[:, worst], is_stage=False)
        if found is not None:
            return found
    beyond_ns = of_stages - elsewhere_ns
    worst = int(beyond_ns.sum(axis=0).argmax())
    if not is_beyond_chance(np.maximum(beyond_ns, 0), worst):
        return None
    usual = elsewhere_ns[:, worst]
    return _slow(matched, gains, tuple(columns[worst]), compute_ns, usual, is_stage=True)


def _computing(matched: Matched) -> Times:
    """What each rank computes between its collectives and beside them, by step.

    Several at once follow the same one: the time before them counts once, and so does that beside
    them.
    """
    start_ns, end_ns = matched.start_ns, matched.end_ns
    until_ns = np.zeros_like(end_ns)
    counts = np.zeros(len(end_ns), np.int64)
    for rank in range(len(matched.ranks)):
        own = np.flatnonzero(matched.rank == rank)
        until_ns[own[1:]] = np.maximum.accumulate(end_ns[own])[:-1]
        row = int(own[-1])
        while row >= 0:
            counts[row] = 1
            row = int(matched.previous[row])
    alone_ns = np.maximum(end_ns - np.maximum(start_ns, until_ns), 0)
    beside_ns = matched.beside_ns * (alone_ns / np.maximum(end_ns - start_ns, 1))
    return matched.by_step(matched.local_ns[:, matched.causes.index(_COMPUTE)] * counts + beside_ns)


def _usual(compute_ns: Times, stage: list[int], rank: int, elsewhere_ns: Times) -> Times:
    """What is usual for a rank; all of it where nothing tells."""
    others = [at for at in stage if at != rank]
    if len(stage) > _TWO:
        found: Times = np.median(compute_ns[:, others], axis=1)
        return found
    own = compute_ns[:, rank]
    if not others:
        return own
    other = compute_ns[:, others[0]]
    is_other_usual = abs(other - elsewhere_ns).mean() < _NEARER * abs(own - elsewhere_ns).mean()
    return other if is_other_usual else own


def _slow(
    matched: Matched,
    gains: Gains,
    places: tuple[int, ...],
    compute_ns: Times,
    usual_ns: Times,
    *,
    is_stage: bool,
) -> Stragglers | None:
    mean_ns, usual = float(compute_ns[:, places].mean()), float(usual_ns.mean())
    if mean_ns <= usual:
        return None
    own = np.isin(matched.rank, places)
    local_ns = matched.local_ns[:, matched.causes.index(_COMPUTE)]
    less = np.where(own, local_ns * (1 - usual / mean_ns), 0).astype(np.int64)
    gain_ns = gains.of(Less(less, host_ns=np.zeros_like(less))).sure_ns
    if gain_ns < _NOTABLE * gains.whole_ns / gains.steps:
        return None
    ranks = tuple(int(matched.ranks[at]) for at in places)
    cause = SLOW_STAGE if is_stage else _COMPUTE
    return Stragglers(ranks, cause, round(mean_ns) - round(usual), round(gain_ns))
