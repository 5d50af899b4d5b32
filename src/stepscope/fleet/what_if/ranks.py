"""How long a job's step would take if ranks were like the others, or collectives faster.

Definitions
    All ranks are replayed at once, collective by collective (`analysis.blame.replay`); each change
    is made alone. Step: from the first arrival of any rank at a collective to the end of the last
    collective, divided by the number of steps. A step of the table ends with the last of its
    collectives; the first one begins with the first arrival.
    A change saves what it shortens a step by, but no more than in the steady state, where that is
    known (`analysis.blame.gains`): of few steps, some save more than each of those that follow
    would.
    As fast as usual: a rank's work between collectives, or a transfer, without what exceeds the
    usual (`analysis.blame.usual`), whatever the cause. What is less than usual stays unchanged, and
    so does what a rank was late by at its first collective.
    Ranks that make the others wait beyond chance are those of `fleet.stragglers`, with its gain:
    they come no later than the others.
    Transfers are what collectives take once the last rank has come; waits are no part of them. In
    half the time: as over links twice as fast, if only the links limit them. In no time: as if
    they were free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stepscope.analysis.blame.compared import Compared
from stepscope.analysis.blame.matched import SYNCHRONISING, Matched, Numbers
from stepscope.analysis.blame.replay import Less, Replay
from stepscope.analysis.blame.usual import Usual
from stepscope.analysis.selection.scope import AnsweredScope
from stepscope.fleet.job import Job
from stepscope.fleet.stragglers import NOBODY_LATE, ComparedJob
from stepscope.fleet.what_if.changes import (
    AS_USUAL,
    CHANGES,
    FREE,
    HALF,
    Change,
    changes_table,
    describe_change,
)
from stepscope.run.figures import duration, percent, rank_names
from stepscope.skew.rank_causes import FEWEST_RANKS
from stepscope.skew.rank_skew import RankSkew

STEPS: dict[str, pl.DataType | type[pl.DataType]] = {
    "step": pl.Int64,
    "recorded_ns": pl.Int64,
    "replayed_ns": pl.Int64,  # with no change
    "error_ns": pl.Int64,  # replayed less recorded
}
"""One row per step: how well the replay, with no change, reproduces the recording."""

ALL_RANKS, ALL_TRANSFERS = "all ranks", "all transfers"

ON_TIME = "no later than the others"
_MOST_RANKS = 32
_WORTH_SAYING = 0.9
_TOO_FAR_OFF = 0.05


@dataclass(frozen=True)
class WhatIfOverRanks:
    """The step of a job with ranks or collectives changed.

    Attributes:
        verdict: What the largest changes save, in one sentence.
        step_ns: Mean step as replayed, with no change. Savings are taken from it.
    """

    verdict: str
    recorded_ns: int | None = field(metadata={"label": "step, as recorded"})
    step_ns: int | None = field(metadata={"label": "step, as replayed"})
    changes: pl.DataFrame
    steps: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...]


def what_if_over_ranks(job: Job) -> WhatIfOverRanks:
    """Replays the ranks of a job with one thing changed at a time."""
    found = ComparedJob.of(job)
    compared = found.windows.compared
    matched = compared.matched
    scope = compared.scope.leaving_out(matched.left_out)
    if not compared.fits or not len(matched.rank):
        why = (
            "no collective could be matched"
            if compared.fits
            else "the waits do not fit the collectives"
        )
        return WhatIfOverRanks(
            f"{why}, so nothing is replayed",
            None,
            None,
            pl.DataFrame(schema=CHANGES),
            pl.DataFrame(schema=STEPS),
            scope,
            found.notes,
        )
    return _answer(found, scope)


def _answer(found: ComparedJob, scope: AnsweredScope) -> WhatIfOverRanks:
    compared, blame, late = found.windows.compared, found.windows.blame, found.late
    matched, gains, usual = compared.matched, blame.gains, blame.usual
    whole_ns, steps = gains.whole_ns, gains.steps
    stragglers = () if late is None else late.late
    changes = [
        Change(subject, how, whole_ns / steps - gains.of(less).sure_ns)
        for subject, how, less in (
            *_with_work_as_usual(matched, usual, stragglers),
            *_with_transfers(matched, usual),
        )
    ]
    if late is not None:
        saving_ns = min(late.saving_ns, whole_ns / steps)
        changes.append(Change(rank_names(stragglers), ON_TIME, whole_ns / steps - saving_ns))
    table = changes_table(changes, whole_ns / steps)
    ends, first = _recorded_ends(compared)
    recorded_ns = int(ends.max()) - first
    more = [*found.notes, *_unlike(usual, matched)]
    covered = _covered_share(found.job, recorded_ns)
    if covered is not None and covered < _WORTH_SAYING:
        more.append(
            "from the first arrival at a collective to the end of the last one it is "
            f"{duration(recorded_ns)}, {percent(covered)} of the recorded steps; what comes before "
            "and after stays as it is"
        )
    if abs(whole_ns - recorded_ns) > _TOO_FAR_OFF * recorded_ns:
        more.append(
            f"the replay takes {percent(whole_ns / recorded_ns)} of the recorded time: savings are "
            "no more exact than that"
        )
    return WhatIfOverRanks(
        _verdict(table, late, len(matched.ranks)),
        round(recorded_ns / steps),
        round(whole_ns / steps),
        table,
        _steps(compared, gains.replay),
        scope,
        tuple(more),
    )


def _with_work_as_usual(
    matched: Matched, usual: Usual, stragglers: Collection[int]
) -> Iterator[tuple[str, str, Less]]:
    """The work of all ranks, and of each but the accused ones, as fast as usual."""
    yield ALL_RANKS, AS_USUAL, usual.less(matched, np.ones((1, 1), np.bool_))
    in_all = np.bincount(matched.rank, usual.excess_ns.sum(axis=1), len(matched.ranks))
    for place in np.argsort(-in_all, kind="stable")[:_MOST_RANKS]:
        if in_all[place] > 0 and int(matched.ranks[place]) not in stragglers:
            own = (matched.rank == place)[:, None]
            yield f"rank {matched.ranks[place]}", AS_USUAL, usual.less(matched, own)


def _with_transfers(matched: Matched, usual: Usual) -> Iterator[tuple[str, str, Less]]:
    """Faster transfers: of all, and of each dimension and kind."""
    transfer = matched.transfer_ns
    less = {HALF: transfer - transfer // 2, FREE: transfer}
    excess = usual.transfer_excess_ns
    if excess.any():
        yield ALL_TRANSFERS, AS_USUAL, Less(transfer_ns=excess)
    for how, shorter in less.items():
        yield ALL_TRANSFERS, how, Less(transfer_ns=shorter)
    kinds = zip(matched.dimension, matched.kind.tolist(), strict=True)
    names = pl.Series([f"{one} {SYNCHRONISING[kind]}" for one, kind in kinds], dtype=pl.String)
    if names.n_unique() < 2:
        return
    for name in names.unique().sort():
        these = (names == name).to_numpy()
        for how, shorter in less.items():
            yield str(name), how, Less(transfer_ns=np.where(these, shorter, 0))


def _recorded_ends(compared: Compared) -> tuple[Numbers, int]:
    """The last end of each collective and the first arrival, on the common clock."""
    matched = compared.matched
    ends = np.full(len(matched.group), np.iinfo(np.int64).min, np.int64)
    np.maximum.at(ends, matched.collective, matched.end_ns - compared.offset_ns)
    return ends, int((matched.start_ns - compared.offset_ns).min())


def _steps(compared: Compared, replay: Replay) -> pl.DataFrame:
    matched = compared.matched
    step = np.full(len(matched.group), -1, np.int64)
    step[matched.collective] = matched.step
    numbers = np.unique(step[step >= 0])
    lasted = []
    for ends, first in (_recorded_ends(compared), replay.ends_ns()):
        last = np.array([ends[step == number].max() for number in numbers], np.int64)
        lasted.append(np.diff(np.maximum.accumulate(last), prepend=np.int64(first)))
    recorded, replayed = lasted
    return pl.DataFrame(
        {
            "step": numbers,
            "recorded_ns": recorded,
            "replayed_ns": replayed,
            "error_ns": replayed - recorded,
        },
        schema=STEPS,
    )


def _covered_share(job: Job, recorded_ns: int) -> float | None:
    """The part of the longest rank's steps that lies between the first and the last collective."""
    lasted = job.steps().group_by("rank").agg(pl.col("wall_ns").sum())["wall_ns"].max()
    return recorded_ns / lasted if isinstance(lasted, int) and lasted > 0 else None


def _unlike(usual: Usual, matched: Matched) -> Iterator[str]:
    if len(matched.ranks) < FEWEST_RANKS:
        yield (
            "with two ranks there is no usual to compare with, so neither is replayed as fast as "
            "the other"
        )
    elif not usual.excess_ns.any():
        yield (
            "no rank's work exceeds the usual, which needs at least three ranks "
            "or steps with the same collectives"
        )
    left = len(np.unique(matched.rank[usual.excess_ns.any(axis=1)])) - _MOST_RANKS
    if left > 0:
        yield f"{left} more ranks, with less beyond the usual, are not replayed one by one"


def _verdict(changes: pl.DataFrame, late: RankSkew | None, ranks: int) -> str:
    links = changes.filter((pl.col("subject") == ALL_TRANSFERS) & (pl.col("change") == HALF))
    texts = [describe_change(row) for row in links.iter_rows(named=True)]
    if ranks >= FEWEST_RANKS:
        texts.insert(0, NOBODY_LATE if late is None else late.accusation())
    return "; ".join(texts)
