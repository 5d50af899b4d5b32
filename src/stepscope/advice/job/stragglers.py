"""Which ranks make the others wait: the one place that says so, for every verb.

Two things show it, and `find_late` puts them together:

* Step records: many unrecorded steps, of which they show what a rank does before it waits
  (`stepscope.skew.rank_skew`).
* Windows: a few steps, of which they show everything. On GPUs collectives are matched, unusual work
  is found, and one replay says what the step would be without it (`analysis.blame`). Without a GPU
  each training thread waits for the others in its collectives, and a trace shows for how long; the
  rank that waits least arrives last. That holds whatever else a rank does, while the phase
  `backward` of a record, in which DistributedDataParallel waits, is also longer on a rank with more
  to compute.

On GPUs windows decide who it is, as records do not see what devices do later. On CPUs records do,
where there are any: a few steps of processes that share CPUs are no example of the others. With two
ranks there is no usual: it is said which of them comes last, and neither is accused
(`RankSkew.accuses`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean, median
from typing import TYPE_CHECKING

import polars as pl

from stepscope.advice.rules.communication.ranks import is_late
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.ranks.local_time import COMPUTE, HOST
from stepscope.analysis.record.metrics import SlowClock
from stepscope.run.figures import duration
from stepscope.run.step_record import BACKWARD, FORWARD
from stepscope.skew.course import course_of, in_some_steps
from stepscope.skew.rank_causes import (
    FEWEST_RANKS,
    LATE_START,
    OTHER,
    SLOW_LINK,
    SLOW_STAGE,
    cause_clause,
)
from stepscope.skew.rank_skew import (
    ARRIVALS,
    OFF_CPU,
    RECORDED_WAITS,
    RankSkew,
    RankSteps,
    RankWait,
    rank_skew,
    saved_without,
    skew_of_positions,
    usual_step_ns,
)

if TYPE_CHECKING:
    from stepscope.analysis.blame.compared import Compared
    from stepscope.analysis.blame.lanes import JobLanes
    from stepscope.analysis.blame.report import Blame, Stragglers
    from stepscope.analysis.ranks.rank_arrivals import RankArrivals
    from stepscope.trace.arrays.packed_columns import PackedColumns

_FEWEST_STEPS = 3
"""Fewer recorded steps do not contradict the records of many."""
_MOSTLY = 0.5
_MOST_NAMED = 8
_MOST_OUTSIDE = 0.9
"""Of the step outside backward: what lies before the first collective of ranks that meet in it."""
_NOTABLE = 0.05
"""Of the step: by how much waits must change over the steps to be worth a word."""
_SLOWED = 0.02
"""Of an unrecorded step: from which on a recorded one is slowed down by its recording."""
INPUT = "input"
_NAMED_BY_RECORDS = {
    cause_clause(cause, several=several)
    for cause in (INPUT, "garbage_collection")
    for several in (False, True)
}
_PARTLY_RECORDED = ("compute", SLOW_LINK)
"""Causes that records see only before the phase in which the ranks wait."""

Waits = Mapping[int, Mapping[int, int]]


@dataclass(frozen=True)
class InWindows:
    """What the recorded windows show of the ranks.

    Attributes:
        step_ns: The mean of the recorded steps; 0 where traces have no steps.
        waits_ns: By rank and step, what waiting for the others costs it; with GPUs only of two
            ranks.
        unrecorded_ns: What an unrecorded step takes by the step records; 0: not known.
    """

    compared: Compared
    blame: Blame
    step_ns: int = 0
    waits_ns: Waits = field(default_factory=dict)
    unrecorded_ns: int = 0

    @property
    def of_host(self) -> bool:
        """Whether the collectives ran on CPUs."""
        return self.compared.of_host

    @property
    def is_comparable(self) -> bool:
        """Whether they show anything."""
        return self.compared.fits and len(self.compared.matched.rank) > 0

    @cached_property
    def stages(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each stage of a pipeline; none where it is none."""
        from stepscope.analysis.blame.stages import find_stages

        return find_stages(self.compared.matched) if self.is_comparable else ()

    @cached_property
    def stragglers(self) -> Stragglers | None:
        """The rank, or ranks that are late together, whose fix brings most; None: nobody is."""
        from stepscope.analysis.blame.report import Stragglers
        from stepscope.analysis.blame.stages import find_slow

        if len(self.compared.ranks) < FEWEST_RANKS:
            return None
        blame, ranks = self.blame, len(self.compared.ranks)
        slow = find_slow(self.compared.matched, blame.gains, self.stages) if self.stages else None
        if slow is not None:
            return replace(slow, wait_ns=min(slow.wait_ns, self.longest_step_ns))
        if (several := blame.together) is not None:
            late, cause = several.ranks, several.cause
            caused_wait_ns, gain_ns = several.caused_wait_ns, several.gain_ns
        else:
            worst = next(
                (
                    row
                    for row in blame.stragglers.iter_rows(named=True)
                    # It may be any rank's, or is over: there is nobody to accuse.
                    if 1 + len(row["peers"] or ()) < ranks
                    and row["cause"]
                    not in ((LATE_START, COMPUTE) if self.stages else (LATE_START,))
                ),
                None,
            )
            if worst is None:
                return None
            late, cause = tuple(sorted((worst["rank"], *(worst["peers"] or ())))), worst["cause"]
            caused_wait_ns, gain_ns = worst["caused_wait_ns"], worst["gain_ns"]
            whole = blame.whole.get(late[0])
            if whole is not None and len(late) == 1 and whole.gain_ns > gain_ns:
                caused_wait_ns, gain_ns = whole.caused_wait_ns, whole.gain_ns
        # With the cause goes what it makes the rank wait for: a host that runs ahead again hides
        # copies and launches that the others hide now.
        on_time = blame.gains.on_time(late) if cause != SLOW_LINK and not self.stages else None
        if on_time is not None:
            gain_ns = max(gain_ns, on_time.gain_ns)
        # What a slow link makes its own ranks lose is no wait: nobody waits longer than in all.
        waited = blame.ranks.filter(~pl.col("rank").is_in(late))["waited_ns"]
        wait_ns = round(min(caused_wait_ns, waited.sum()) / len(waited) / blame.steps)
        return Stragglers(late, cause, min(wait_ns, self.longest_step_ns), gain_ns)

    @property
    def gained_share(self) -> float:
        """How much of what the accused rank has beyond the usual a step is shorter by without it.

        Less than all of it: without it, the rank may still be the last one at times. A step that
        another rank holds up by chance does not count: records show how often that happens.
        """
        # Reports of single ranks that are cached start without these.
        import numpy as np

        stragglers, matched, blame = self.stragglers, self.compared.matched, self.blame
        if (
            stragglers is None
            or len(stragglers.ranks) > 1
            or stragglers.cause not in matched.causes
        ):
            return 1.0
        counts = [
            stragglers.ranks[0] in blame.whole or stragglers.cause == one for one in matched.causes
        ]
        less = blame.usual.less(matched, matched.rows_of(stragglers.ranks)[:, None] & counts)
        if less.work_ns is None or not less.work_ns.any():
            return 1.0
        gained_ns = blame.gains.by_step_ns(less)
        lost_ns = matched.by_step(less.work_ns).sum(axis=1)
        most = float(np.median((gained_ns / np.maximum(lost_ns, 1))[lost_ns > 0]))
        return min(1.0, max(most, stragglers.gain_ns * blame.steps / int(lost_ns.sum())))

    def backward_work(self, ranks: Sequence[RankSteps]) -> float:
        """How long a device works in backward before the ranks meet, per time of its forward.

        By the records of the recorded steps; what of backward is communication beside which
        nothing is computed is no work.

        Returns:
            0 where that is not known, and where ranks meet before backward: then a forward has
            waits in it.
        """
        import numpy as np  # which reports of single ranks that are cached start without

        if not ranks or self.of_host or not self.is_comparable:
            return 0.0
        matched, by_rank = self.compared.matched, {one.rank: one.records for one in ranks}
        exposed_ns = matched.end_ns - matched.start_ns - matched.beside_ns
        before_ns = matched.start_ns - matched.end_ns[matched.previous]
        is_first = (matched.previous >= 0) & (np.diff(matched.step, prepend=-1) > 0)
        # A smaller group may meet in forward, right before backward begins.
        in_part = (np.diff(matched.first_row) < len(matched.ranks))[matched.collective]
        found = []
        for place, rank in enumerate(matched.ranks.tolist()):
            own = matched.rank == place
            steps = set(matched.step[own].tolist())
            times_ns = np.array([
                (one.device_phases[FORWARD], one.device_phases[BACKWARD], one.dur_ns)
                for one in by_rank.get(rank, ())
                if one.step in steps and {FORWARD, BACKWARD} <= one.device_phases.keys()
            ])  # fmt: skip
            if not len(times_ns) or not (own & is_first).any():
                return 0.0
            if in_part[own & is_first].any():
                return 0.0
            forward_ns, backward_ns, step_ns = times_ns.mean(axis=0)
            outside_ns = _MOST_OUTSIDE * (step_ns - backward_ns)
            if not forward_ns or before_ns[own & is_first].mean() < outside_ns:
                return 0.0
            found.append((backward_ns - exposed_ns[own].sum() / len(steps)) / forward_ns)
        return max(0.0, float(np.median(found)))

    @property
    def longest_step_ns(self) -> int:
        """The step, or what lies between its first collective and its last where that is longer."""
        return max(round(self.blame.step_ns), self.step_ns)

    def unrecorded_share(self, late: Collection[int], gain_ns: float) -> float:
        """How much of what late ranks cost in recorded steps they cost in unrecorded ones.

        Recording slows hosts, neither devices nor links nor what batches take. The steps are as
        long as those of the late ranks, so what recorded steps take longer than unrecorded ones is
        part of what their hosts are seen to do.

        Args:
            gain_ns: What a recorded step is shorter by without their lateness.
        """
        slowed_ns = self.step_ns - self.unrecorded_ns
        is_slowed = self.unrecorded_ns and slowed_ns >= _SLOWED * self.unrecorded_ns
        if not is_slowed or not self.is_comparable:
            return 1.0
        import numpy as np  # which reports of single ranks that are cached start without

        from stepscope.analysis.blame.matched import OF_THE_GPU

        stragglers, matched = self.stragglers, self.compared.matched
        not_slowed = (*OF_THE_GPU, INPUT, OTHER, SLOW_LINK, SLOW_STAGE)
        spent_ns = {
            cause: np.bincount(matched.rank, matched.local_ns[:, place], len(matched.ranks))
            / self.blame.steps
            for place, cause in enumerate(matched.causes)
        }
        is_late = np.isin(matched.ranks, list(late))
        compute_ns = spent_ns.get(COMPUTE, np.zeros(len(matched.ranks)))
        if compute_ns.max() > self.unrecorded_ns:
            return 1.0  # the records are of hosts that ran ahead of their devices
        if stragglers is not None and set(stragglers.ranks) == set(late):
            if stragglers.cause in not_slowed:
                return 1.0
        else:
            # One that computed earlier is no measure of another.
            others_ns = compute_ns[~is_late & (compute_ns > 0)]
            if len(others_ns) and compute_ns[is_late].max() - others_ns.max() >= _MOSTLY * gain_ns:
                return 1.0
            input_ns = spent_ns.get(INPUT)
            if input_ns is not None and not is_late.all():
                more_ns = input_ns[is_late].min() - input_ns[~is_late].max()
                if more_ns >= _MOSTLY * gain_ns:
                    return 1.0
        of_host = [ns for cause, ns in spent_ns.items() if cause not in not_slowed]
        least_ns = float(np.sum(of_host, axis=0)[is_late].min()) if of_host else 0.0
        return max(0.0, 1 - slowed_ns / least_ns) if least_ns > 0 else 1.0

    def lanes(
        self, ranks: Sequence[tuple[RankArrivals, PackedColumns | None]], late: RankSkew | None
    ) -> JobLanes | None:
        """All ranks in the step with the most waiting: the late ones on top, else the most blamed.

        Args:
            ranks: Of each its collectives, and what its GPUs did (`analysis.blame.lanes`).
        """
        if not self.compared.fits:
            return None
        from stepscope.analysis.blame.lanes import job_lanes

        blamed = self.blame.ranks.filter(pl.col("caused_wait_ns") > 0)["rank"].head(1)
        first = late.late if late is not None and late.accuses else blamed.to_list()
        return job_lanes(ranks, self.compared, first)

    def skew(self) -> RankSkew | None:
        """The accused ranks in the form in which the step records give them."""
        stragglers, blame = self.stragglers, self.blame
        if stragglers is None:
            return None
        own = blame.by_step.filter(pl.col("rank").is_in(stragglers.ranks))
        others = len(blame.ranks) - len(stragglers.ranks)
        by_step = dict(own.group_by("step").agg(pl.col("caused_wait_ns").sum()).iter_rows())
        steps = sorted({int(step) for step in self.compared.matched.step if step >= 0})
        waits = [round(by_step.get(step, 0) / others) for step in steps]
        least_ns = _NOTABLE * self.longest_step_ns
        waited = blame.ranks.sort("waited_ns", "rank").select("rank", "waited_ns", "last_arrivals")
        return RankSkew(
            basis=ARRIVALS,
            is_device=not self.of_host,
            steps=blame.steps,
            step_ns=self.longest_step_ns,
            late=stragglers.ranks,
            wait_ns=stragglers.wait_ns,
            saving_ns=stragglers.gain_ns,
            last_share=1.0,
            error_ns=0,
            ranks=tuple(
                RankWait(rank, round(ns / blame.steps), last)
                for rank, ns, last in waited.iter_rows()
            ),
            course=course_of(steps, waits, least_ns) or in_some_steps(steps, waits),
            cause=cause_clause(stragglers.cause, several=len(stragglers.ranks) > 1),
        )

    def skew_of_waits(self, recorded: RankSkew | None) -> RankSkew | None:
        """How far apart the ranks come, from how long each waits.

        Args:
            recorded: By the step records, whose steps are not slowed down by recording.

        Returns:
            The skew; None where waits are not known, or with fewer than three steps in common.
        """
        shared = set.intersection(*(set(one) for one in self.waits_ns.values() or [()]))
        if len(shared) < _FEWEST_STEPS:
            return None
        factor = 1.0
        if recorded is not None and self.longest_step_ns:
            factor = min(1.0, recorded.step_ns / self.longest_step_ns)
        steps = sorted(shared)
        # Who waits least comes last.
        rows = [[-round(one[step] * factor) for one in self.waits_ns.values()] for step in steps]
        step_ns = round(self.longest_step_ns * factor)
        basis = RECORDED_WAITS if self.of_host else ARRIVALS
        skew = skew_of_positions(list(self.waits_ns), step_ns, rows, basis, steps)
        stragglers, places = (
            self.stragglers,
            {rank: place for place, rank in enumerate(self.waits_ns)},
        )
        if not self.of_host or stragglers is None or stragglers.cause in (OTHER, SLOW_LINK):
            return skew
        if set(skew.late) != set(stragglers.ranks) or skew.course is not None:
            return skew
        if len(set(self.compared.matched.group.tolist())) > 1:
            return skew  # others may come late only because they waited for it in a smaller group
        # What the others have less to wait for is what it has beyond the usual in each step.
        late = [places[rank] for rank in skew.late]
        others = [place for place in places.values() if place not in late]
        matched = self.compared.matched
        ranks = matched.ranks[matched.rank]
        excess_ns = self.blame.usual.excess_ns[:, matched.causes.index(stragglers.cause)]
        saved = []
        for step, row in zip(steps, rows, strict=True):
            spent_ns = [0] * len(row)
            for rank in skew.late:
                own = (matched.step == step) & (ranks == rank)
                spent_ns[places[rank]] = round(int(excess_ns[own].sum()) * factor)
            saved.append(saved_without(row, spent_ns, late, others))
        return replace(skew, saving_ns=min(skew.saving_ns, max(0, round(fmean(saved)))))


def compare_windows(
    compared: Compared,
    records: Sequence[RankSteps],
    step_ns: int = 0,
    waits_ns: Waits | None = None,
) -> InWindows:
    """What the recorded windows of several ranks show.

    Args:
        records: Their step records; none where these are not known, or are not to be used.
    """
    # Reports of single ranks that are cached start without it.
    from stepscope.analysis.blame.report import find_blame

    is_used = compared.of_host or len(compared.ranks) < FEWEST_RANKS
    waits = waits_ns if waits_ns is not None and is_used else {}
    return InWindows(
        compared,
        find_blame(compared.matched, compared.offset_ns),
        step_ns,
        waits,
        usual_step_ns(records),
    )


def find_late(
    windows: InWindows | None,
    recorded: RankSkew | None,
    limits: Thresholds,
    ranks: Sequence[RankSteps] = (),
) -> RankSkew | None:
    """The ranks that make the others wait, notably and beyond chance; None: nobody does."""
    if windows is not None and windows.compared.has_exchanges:
        recorded = None  # stages wait for each other by design
    work = 0.0 if windows is None or recorded is None else windows.backward_work(ranks)
    recorded = rank_skew(ranks, work) if work else recorded
    known = recorded if recorded is not None and is_late(recorded, limits) else None
    if windows is None or not windows.is_comparable:
        return known
    if known is not None or recorded is None:
        seen = windows.skew_of_waits(recorded)
        known = _surest(known, seen if seen is not None and is_late(seen, limits) else None)
    if known is None and recorded is None and windows.of_host:
        known = _agreed(windows, windows.skew_of_waits(None))
    late = _with_stragglers(known, windows, limits, is_whole=bool(work))
    if late is not None and late.basis == ARRIVALS:
        late = _in_all_steps(late, windows)
    return late if late is not None and is_late(late, limits) else None


def _in_all_steps(late: RankSkew, windows: InWindows) -> RankSkew:
    """Ranks that come late in the windows, with what that costs in steps that are not recorded.

    Nothing where batches set the pace of another rank: arrivals at collectives do not show that.
    Nor do they show all that its host does, such as at the start of an epoch: no step gets shorter
    than that. What recording adds to both the step and the host cancels out.
    """
    others = [one for one in windows.compared.read if one.rank not in late.late]
    if any(one.waits_for_batches for one in others):
        return replace(late, saving_ns=0)
    share = windows.unrecorded_share(late.late, late.saving_ns)
    saving_ns = round(share * late.saving_ns)
    # Steps of a host that runs ahead are shorter than those of its device, or begin earlier.
    left_ns = [
        max(windows.step_ns, one.host_step_ns) - one.host_ns for one in others if one.host_ns
    ]
    return replace(late, saving_ns=max(0, min([saving_ns, *left_ns])))


def _agreed(windows: InWindows, seen: RankSkew | None) -> RankSkew | None:
    """A rank that comes last in a few steps on CPUs, for a cause that it has beyond chance.

    Waits of few steps are not beyond chance by themselves, and work takes longer on a busy machine.
    But what else keeps a rank, and no other, is its own.
    """
    stragglers, late = windows.stragglers, windows.skew()
    if stragglers is None or late is None or seen is None or len(stragglers.ranks) > 1:
        return None
    is_own = stragglers.cause not in (COMPUTE, HOST, OTHER, SLOW_LINK)
    if not is_own or seen.ranks[0].rank != stragglers.ranks[0]:
        return None
    is_same = set(seen.late) == set(late.late)
    return replace(late, saving_ns=min(late.saving_ns, seen.saving_ns)) if is_same else late


def _surest(recorded: RankSkew | None, seen: RankSkew | None) -> RankSkew | None:
    """The skew of the step records, or of the windows where these show what records do not.

    In the windows a rank is seen to be late by all that it does, in a phase of a record by what it
    does before the ranks wait. So if by both the same ranks are late in all steps, the longer wait
    counts.
    """
    if recorded is None or seen is None:
        return recorded or seen
    is_partly_seen = recorded.course is None and recorded.basis != OFF_CPU
    is_same = set(seen.late) == set(recorded.late) and is_partly_seen
    return seen if is_same and seen.wait_ns > recorded.wait_ns else recorded


def _with_stragglers(
    recorded: RankSkew | None, windows: InWindows, limits: Thresholds, *, is_whole: bool
) -> RankSkew | None:
    """The late ranks by the records or by waiting threads, and those accused in the windows.

    Of the same ranks, the records' many steps say how late they are, unless records do not see all
    of it; and the windows say how much of that a step is shorter by without it, because they show
    all that the ranks do later.
    """
    if recorded is not None:
        recorded = without_inherited(recorded, windows.blame.excess_ns)
    stragglers, seen = windows.stragglers, windows.skew()
    if stragglers is None or seen is None:
        return recorded
    if recorded is not None and set(recorded.late) == set(stragglers.ranks):
        # What records name is known of many steps; on a CPU it is part of what computes, too.
        if stragglers.cause != OTHER and recorded.cause not in _NAMED_BY_RECORDS:
            recorded = replace(recorded, cause=seen.cause)
        if windows.of_host or recorded.course is not None:
            return recorded
        if is_whole and stragglers.cause != SLOW_LINK:
            return recorded
        if stragglers.cause not in _PARTLY_RECORDED:
            saving_ns = min(recorded.saving_ns, round(recorded.wait_ns * windows.gained_share))
            return replace(recorded, saving_ns=saving_ns)
        if stragglers.gain_ns <= recorded.saving_ns:
            return recorded
    if windows.of_host or not is_late(seen, limits):
        return recorded
    if recorded is None and is_whole and stragglers.cause == COMPUTE:
        return None  # the records of many steps see all of it, and do not show it
    if recorded is not None and windows.blame.steps < _FEWEST_STEPS:
        return recorded
    return seen


def without_inherited(recorded: RankSkew, excess_ns: Mapping[int, Mapping[str, float]]) -> RankSkew:
    """Late ranks without those that are late because they waited for one of the others.

    Records do not tell them apart: the members of a group that has waited for one of them come as
    late to the next group. In the windows, the one has more work than usual, and the others do not.

    Args:
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
    why = cause_clause(cause, several=len(late) > 1) if is_main and cause != OTHER else ""
    return replace(recorded, late=late, cause=recorded.cause or why)


def with_throttled(late: RankSkew | None, throttled: Mapping[int, SlowClock]) -> RankSkew | None:
    """Late ranks, with their GPU's clock as the cause where it explains why they compute longer.

    Args:
        throttled: The ranks of whose computation it does (`throttled_ranks`).
    """
    if late is None or late.cause not in (
        cause_clause(COMPUTE),
        cause_clause(COMPUTE, several=True),
    ):
        return late
    clocks = [throttled[rank] for rank in late.late if rank in throttled]
    whose = "its GPU is" if len(late.late) == 1 else "their GPUs are"
    return replace(late, cause=f"{whose} throttled ({clocks[0].text()})") if clocks else late


def throttled_ranks(
    slow: Mapping[int, SlowClock], compute_ns: Mapping[int, float]
) -> dict[int, SlowClock]:
    """The ranks whose GPU's clock explains most of what they compute longer than the median rank.

    At its peers' clock, a GPU would compute in that share of the time which its clock is of theirs.
    Work that memory limits gains less, so this is the most that the clock explains.
    """
    usual_ns = median(compute_ns.values()) if compute_ns else 0.0
    return {
        rank: one
        for rank, one in slow.items()
        if rank in compute_ns
        and compute_ns[rank] * (1 - one.share) >= _MOSTLY * max(0.0, compute_ns[rank] - usual_ns)
    }


def describe_late_starts(compared: Compared, step_ns: float) -> list[str]:
    """Ranks that began the recording late by a step or more, over all recorded steps.

    It happens once: the steps that a report counts do not show it, and no step is shorter without.
    """
    from stepscope.analysis.blame.compared import match_arrivals
    from stepscope.analysis.blame.report import late_starts

    if len(compared.read) < FEWEST_RANKS or not step_ns:
        return []
    late = late_starts(match_arrivals(compared.read))
    return [
        f"rank {rank} began late: the others waited {duration(wait_ns)} for it once, "
        "which is not part of the steady state"
        for rank, wait_ns in list(late.items())[:_MOST_NAMED]
        if wait_ns >= step_ns
    ]
