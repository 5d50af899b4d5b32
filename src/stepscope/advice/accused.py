"""Who makes the other ranks wait in the recorded windows, by the comparison of `show stragglers`.

The same collectives are matched, the same usual work is taken off, and the same replay says what
that brings: `analysis.blame` has the definitions. With two ranks there is no usual, and nobody is
accused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from stepscope.advice.rank_summary import Meeting
from stepscope.analysis.blame.causes import FEWEST_RANKS, LATE_START, OTHER, SLOW_LINK, in_words
from stepscope.analysis.ranks.rank_arrivals import RankArrivals
from stepscope.errors import UsageError
from stepscope.run.figures import duration
from stepscope.run.rank_skew import ARRIVALS, RankSkew

if TYPE_CHECKING:
    from stepscope.analysis.blame.report import Blame

_FEWEST_STEPS = 3
"""Fewer recorded steps do not contradict the records of many."""
_MOSTLY = 0.5
_MOST_NAMED = 8
_PARTLY_RECORDED = ("compute", SLOW_LINK)
"""Causes that records see only before the phase in which the ranks wait."""


@dataclass(frozen=True)
class Accused:
    """Ranks that make the others wait in the recorded windows.

    Attributes:
        ranks: The rank; of a slow link all that it may be as well.
        cause: Why, as `analysis.blame` names it.
        wait_ns: What another rank waits for them in a step, on average.
        gain_ns: What a step is shorter by without that.
        steps: How many were compared.
        step_ns: The step, from collective to collective.
        is_of_host: Whether the collectives ran on CPUs.
    """

    ranks: tuple[int, ...]
    cause: str
    wait_ns: int
    gain_ns: int
    steps: int
    step_ns: int
    is_of_host: bool


@dataclass(frozen=True)
class InWindows:
    """What the recorded windows say of the ranks.

    Attributes:
        accused: The ranks whose fix brings most; None: nobody is accused.
        excess_ns: By rank and cause, what its work takes in a step beyond the usual.
        notes: Ranks that began late, which is no part of that.
    """

    accused: Accused | None = None
    excess_ns: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def compare_windows(meetings: Sequence[Meeting]) -> InWindows:
    """Who makes the others wait, over the steady steps that all windows have."""
    known = [one.arrivals for one in meetings if one.arrivals is not None]
    if len(known) < FEWEST_RANKS:
        return InWindows()
    # Reports of single ranks that are cached start without these.
    from stepscope.analysis.blame.compared import compare_ranks
    from stepscope.analysis.blame.report import find_blame

    with_window = [one for one in meetings if one.arrivals is not None]
    steps = sorted(set.intersection(*(set(one.window_steps) for one in with_window)))
    try:
        compared = compare_ranks(known, tuple(steps) or None)
    except UsageError:
        return InWindows()  # `match_ranks` says why.
    if not compared.report.fits or not len(compared.matched.rank):
        return InWindows()
    blame = find_blame(compared.matched, compared.offset_ns)
    accused = worst_accused(blame, len(known), is_of_host=known[0].of_host)
    return InWindows(accused, blame.excess_ns, tuple(late_starts_in_words(known, blame.step_ns)))


def worst_accused(blame: Blame, ranks: int, *, is_of_host: bool) -> Accused | None:
    """The rank, or ranks that are late together, whose fix brings most; None: nobody is accused.

    Args:
        blame: Who made whom wait.
        ranks: How many were compared.
        is_of_host: Whether their collectives ran on CPUs.
    """
    if (several := blame.together) is not None:
        ranks_late, cause = several.ranks, several.cause
        caused_wait_ns, gain_ns = several.caused_wait_ns, several.gain_ns
    else:
        worst = next(
            (
                (row, late)
                for row in blame.accused.iter_rows(named=True)
                # It may be any rank's, or is over: there is nobody to accuse.
                if len(late := (row["rank"], *(row["peers"] or ()))) < ranks
                and row["cause"] != LATE_START
            ),
            None,
        )
        if worst is None:
            return None
        row, late = worst
        ranks_late, cause = tuple(sorted(late)), row["cause"]
        caused_wait_ns, gain_ns = row["caused_wait_ns"], row["gain_ns"]
    wait_ns = caused_wait_ns / (ranks - len(ranks_late)) / blame.steps
    step_ns = round(blame.step_ns)
    return Accused(
        ranks_late, cause, min(round(wait_ns), step_ns), gain_ns, blame.steps, step_ns, is_of_host
    )


def late_starts_in_words(ranks: Sequence[RankArrivals], step_ns: float) -> list[str]:
    """Ranks that began the recording late by a step or more, over all recorded steps.

    It happens once: the steps that a report counts do not show it, and no step is shorter without.
    """
    from stepscope.analysis.blame.compared import match_arrivals
    from stepscope.analysis.blame.report import late_starts

    if len(ranks) < FEWEST_RANKS or not step_ns:
        return []
    late = {rank: ns for rank, ns in late_starts(match_arrivals(ranks)).items() if ns >= step_ns}
    return [
        f"rank {rank} began late: the others waited {duration(wait_ns)} for it once, which is no "
        "part of the steady state"
        for rank, wait_ns in list(late.items())[:_MOST_NAMED]
    ]


def without_inherited(recorded: RankSkew, excess_ns: Mapping[int, Mapping[str, float]]) -> RankSkew:
    """Late ranks without those that are late because they waited for one of the others.

    Records do not tell them apart: the members of a group that has waited for one of them come as
    late to the next group. In the windows, the one has more work than usual, and the others do not.

    Args:
        recorded: Late ranks by the step records.
        excess_ns: By rank and cause, what its work takes in a step of the windows beyond the usual.

    Returns:
        The same where the windows do not show as much work as the ranks are late by.
    """
    own = {rank: sum(excess_ns.get(rank, {}).values()) for rank in recorded.late}
    most_ns = max(own.values())
    if recorded.course is not None or most_ns < _MOSTLY * recorded.wait_ns:
        return recorded
    late = tuple(rank for rank in recorded.late if own[rank] >= _MOSTLY * most_ns)
    main = {max(excess_ns[rank], key=excess_ns[rank].__getitem__) for rank in late}
    cause = main.pop() if len(main) == 1 else OTHER
    is_main = all(excess_ns[rank].get(cause, 0) >= _MOSTLY * own[rank] for rank in late)
    why = in_words(cause, several=len(late) > 1) if is_main and cause != OTHER else ""
    return replace(recorded, late=late, cause=recorded.cause or why)


def with_accused(
    recorded: RankSkew | None,
    seen: RankSkew | None,
    accused: Accused | None,
    excess_ns: Mapping[int, Mapping[str, float]],
) -> RankSkew | None:
    """Which ranks come late, from the records and the windows together.

    On GPUs the windows show what all devices do, and records what they do before they wait: windows
    decide who it is. On CPUs records do, or the waits of the windows where there are none: a few
    steps of processes that share CPUs are no example of the others. Of the same ranks, the records'
    many steps say how much it costs, unless records do not see all of it.

    Args:
        recorded: Late ranks by the step records, or by how long threads wait in the windows; None:
            nobody.
        seen: The ranks by what waiting costs them in the windows.
        accused: Who makes the others wait there.
        excess_ns: By rank and cause, what its work takes in a step beyond the usual there.
    """
    if recorded is not None:
        recorded = without_inherited(recorded, excess_ns)
    if accused is None:
        return recorded
    why = in_words(accused.cause, several=len(accused.ranks) > 1)
    is_same = recorded is not None and set(recorded.late) == set(accused.ranks)
    is_partly_seen = accused.cause in _PARTLY_RECORDED and not accused.is_of_host
    if recorded is not None and is_same:
        if recorded.course is not None or not is_partly_seen:
            return replace(recorded, cause=why)
        if accused.gain_ns <= recorded.saving_ns:
            return replace(recorded, cause=why)
    if accused.is_of_host:
        return recorded
    if recorded is not None and accused.steps < _FEWEST_STEPS:
        return recorded
    return _skew(accused, seen, why)


def _skew(accused: Accused, seen: RankSkew | None, why: str) -> RankSkew:
    is_same = seen is not None and set(seen.late) == set(accused.ranks)
    return RankSkew(
        basis=ARRIVALS,
        is_device=not accused.is_of_host,
        steps=accused.steps,
        step_ns=accused.step_ns if seen is None else max(seen.step_ns, accused.step_ns),
        late=accused.ranks,
        wait_ns=accused.wait_ns,
        saving_ns=accused.gain_ns,
        last_share=1.0,
        error_ns=0,
        ranks=() if seen is None else seen.ranks,
        course=seen.course if seen is not None and is_same else None,
        chance=0.0,
        cause=why,
    )
