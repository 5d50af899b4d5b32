"""What a late rank does to the findings of the others: causes go above symptoms.

Ranks that train together wait for the last one, so whatever keeps one rank makes communication long
on all others. Findings about communication on ranks that wait are symptoms then; what keeps the
late rank is the cause, and comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stepscope.advice.evidence.specific_causes import PHASES_WITH_WAITS
from stepscope.advice.finding import (
    NO_BATCH_PACE,
    Finding,
    Severity,
    with_saving,
    without_batch_pace,
)
from stepscope.advice.job.compared import RankComparison
from stepscope.advice.rank.summary import RankSummary
from stepscope.advice.rules import OF_COMMUNICATION, OF_COMPUTE
from stepscope.advice.rules.communication.ranks import is_late
from stepscope.advice.thresholds import Thresholds
from stepscope.run.figures import duration, rank_names, significant
from stepscope.skew.course import (
    EveryNth,
    Rising,
)
from stepscope.skew.rank_causes import means_slow_link
from stepscope.skew.rank_skew import RankSkew

_LINK = (
    "Look at the links of {0} first: communication takes far longer there than on the other ranks, "
    "and these wait for it (`stepscope show collectives` on all ranks' traces compares the "
    "bandwidths of the groups). Then: {1}"
)
_MAKES_LATE = "above larger savings, because {} would not come late without it"
_COMES_FROM = "below smaller savings, because it comes from {} being late"
_OF_SINGLE_COLLECTIVES = "abnormal-collective"
_RANK_WAITING = "rank-waiting"
_FOLLOWS = "below smaller savings, because it comes from unequal work"
_UNEQUAL = "the ranks wait for the one with the most work in the step"
_MOSTLY = 0.5


@dataclass(frozen=True)
class Lateness:
    """Which ranks come late, and how much longer they take than others by themselves.

    Attributes:
        more_compute_ns: By late rank: how much longer its GPU computes in a step than that of any
            other rank, where that is known.
        more_communication_ns: The same for how long its GPU communicates, waits for other ranks
            apart.
    """

    skew: RankSkew
    more_compute_ns: Mapping[int, int]
    more_communication_ns: Mapping[int, int]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that come late."""
        return self.skew.late

    @property
    def named_ranks(self) -> str:
        """The names of the ranks, as in "ranks 1 and 3"."""
        return rank_names(self.ranks)

    @property
    def with_usual_links(self) -> tuple[int, ...]:
        """Those that do not come late because they communicate longer, where that is known."""
        least_ns = _MOSTLY * self.skew.wait_ns
        return tuple(rank for rank, ns in self.more_communication_ns.items() if ns < least_ns)

    def text(self) -> str:
        """One clause for a verdict."""
        several = len(self.ranks) > 1
        when = growing = ""
        if isinstance(self.skew.course, Rising) or (
            isinstance(self.skew.course, EveryNth) and not self.skew.course.only
        ):
            growing = f", {self.skew.course.text}"
        elif self.skew.course is not None:
            when = f" {self.skew.course.text}"
        others = [one.rank for one in self.skew.ranks if one.rank not in self.ranks]
        wait = f"rank {others[0]} waits" if len(others) == 1 else "the others wait"
        return (
            f"{self.named_ranks} come{'' if several else 's'} late{when}, and "
            f"{wait} {significant(self.skew.wait_ns / 1e6)} ms per step for "
            f"{'them' if several else 'it'}{growing}"
        )


def lateness(
    skew: RankSkew | None,
    limits: Thresholds,
    ranks: Sequence[RankSummary] = (),
    between: RankComparison | None = None,
) -> Lateness | None:
    """The late ranks, if the others wait for them notably.

    Args:
        ranks: The ranks, for how long each computes and communicates.
        between: Their collectives, matched, for how long each waits in them.
    """
    if skew is None or not is_late(skew, limits):
        return None
    computing = {rank.rank: ns for rank in ranks if (ns := rank.compute_ns) is not None}
    waits = {} if between is None else between.waits_in_collectives_ns
    communicating = {
        rank.rank: rank.communication[0] - waits[rank.rank]
        for rank in ranks
        if rank.communication is not None and rank.rank in waits
    }
    more_compute_ns = beyond_others(computing, skew.late)
    return Lateness(skew, more_compute_ns, beyond_others(communicating, skew.late))


def beyond_others(times_ns: Mapping[int, int], late: Sequence[int]) -> dict[int, int]:
    """By late rank: how much more time it takes than any other rank."""
    others = [ns for rank, ns in times_ns.items() if rank not in late]
    known = [rank for rank in late if others and rank in times_ns]
    return {rank: times_ns[rank] - max(others) for rank in known}


def causes_first(
    findings: Sequence[Finding],
    late: Lateness | None,
    ranks: Sequence[RankSummary],
    limits: Thresholds,
) -> tuple[Finding, ...]:
    """Findings in their order, with those that explain a wait above it and its symptoms below.

    A finding that saves more than the others wait for the late ranks stays above both: it is the
    larger problem. Communication over a slow link is not, if half of it goes with the link. What
    ranks wait for late ones saves no more than they do. It is no symptom where no finding says who
    is late, or why: of two ranks, neither is accused. Where the windows do not show at what pace
    batches come, these may keep the step as long without the late ranks.

    Args:
        findings: The findings of all ranks, in the order in which they would be shown otherwise.
    """
    if late is None:
        return tuple(findings)
    waits = {rank.rank: late.skew.wait_ns for rank in ranks if rank.rank not in late.ranks}
    is_explained = any(
        one.id == "late-rank" or is_cause(one, late, findings) or is_slow_link(one, late, findings)
        for one in findings
    )
    has_pace = all(one.saving_reason != NO_BATCH_PACE for one in findings)
    causes, rank_findings, larger, others, symptoms = [], [], [], [], []
    for one in findings:
        if one.id == "late-rank":
            rank_findings.append(one if has_pace else without_batch_pace(one))
        elif is_cause(one, late, findings):
            causes.append(one)
        elif is_slow_link(one, late, findings):
            causes.append(_of_slow_link(one, late, limits))
        elif _waits_for(one, late) and not is_explained:
            rank_findings.append(_no_more_than(late.skew.saving_ns, one))
        elif _is_symptom(one, late, waits) or _waits_for(one, late):
            text = late.text()
            assumption = "; ".join(part for part in (one.assumption, text) if part)
            lower = replace(one, severity=Severity.LOW, assumption=assumption)
            symptoms.append(
                _no_more_than(late.skew.saving_ns, lower) if _waits_for(one, late) else lower
            )
        elif one.weight_ns > late.skew.wait_ns and not _is_of_slow_link(one, late):
            larger.append(one)
        else:
            others.append(one)
    below = max((one.saving_ns or 0 for one in others), default=0)
    causes = [
        one
        if (one.saving_ns or 0) >= below
        else replace(one, placed=_MAKES_LATE.format(late.named_ranks))
        for one in causes
    ]
    above = min((one.saving_ns or 0 for one in (*causes, *rank_findings, *others)), default=0)
    symptoms = [
        one
        if (one.saving_ns or 0) <= above
        else replace(one, placed=_COMES_FROM.format(late.named_ranks))
        for one in symptoms
    ]
    return (*larger, *causes, *rank_findings, *others, *symptoms)


def _waits_for(one: Finding, late: Lateness) -> bool:
    return one.id == _RANK_WAITING and (one.waits_for is None or one.waits_for in late.ranks)


def _no_more_than(saving_ns: int, one: Finding) -> Finding:
    if not saving_ns or one.saving_ns is None or one.saving_ns <= saving_ns:
        return one
    return replace(one, saving_ns=saving_ns, predicted_step_ns=one.step_ns - saving_ns)


def imbalance_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings with unequal work above the waits that come from it."""
    unequal = next((one for one in findings if one.id == "imbalance"), None)
    if unequal is None or not unequal.saving_ns:
        return tuple(findings)
    others, symptoms = [], []
    for one in findings:
        saving_ns = one.saving_ns or 0
        is_of_waits = one.id in OF_COMMUNICATION or one.id == _OF_SINGLE_COLLECTIVES
        if is_of_waits and (one.id == _RANK_WAITING or unequal.saving_ns >= _MOSTLY * saving_ns):
            text = "; ".join(part for part in (one.assumption, _UNEQUAL) if part)
            placed = _FOLLOWS if saving_ns > unequal.saving_ns else one.placed
            lower = replace(one, severity=Severity.LOW, assumption=text, placed=placed)
            symptoms.append(lower)
        else:
            others.append(one)
    return (*others, *symptoms)


def is_cause(one: Finding, late: Lateness, findings: Sequence[Finding]) -> bool:
    """Whether a finding explains why its rank comes late.

    It does if its rank would save at least half of the others' wait by it, beyond what any other
    rank saves by the same.
    """
    if one.id in OF_COMMUNICATION or one.id == "late-rank":
        return False
    if one.id in OF_COMPUTE:
        # Others may save less by the same only because they wait for the late rank anyway.
        more_ns = late.more_compute_ns.get(one.rank, late.skew.wait_ns)
        if more_ns < _MOSTLY * late.skew.wait_ns:
            return False
    return _sets_apart(one, late, findings)


def is_slow_link(one: Finding, late: Lateness, findings: Sequence[Finding]) -> bool:
    """Whether late ranks communicate so much longer than all others that it makes them late.

    Known waits for other ranks are no part of what `exposed-communication` saves. Where the
    comparison of all ranks says why they come late, that is the cause.
    """
    if late.skew.cause or one.id != "exposed-communication" or one.rank in late.with_usual_links:
        return False
    return _sets_apart(one, late, findings)


def _of_slow_link(one: Finding, late: Lateness, limits: Thresholds) -> Finding:
    """A slow link's finding, with what the job gains if the link is as fast as the others."""
    one = replace(one, advice=_LINK.format(late.named_ranks, one.advice))
    hidden_ns = one.saving_ns or 0
    if not 0 < late.skew.saving_ns < hidden_ns:
        return one
    return replace(
        with_saving(one, late.skew.saving_ns, limits),
        is_upper_bound=False,
        assumption=f"communication takes no longer on {late.named_ranks} than on the next rank; "
        f"hiding all of it as well saves up to {duration(hidden_ns)}",
        own_saving_ns=_own_saving_ns(one),
        next_rank=None,
    )


def _sets_apart(one: Finding, late: Lateness, findings: Sequence[Finding]) -> bool:
    if one.rank not in late.ranks or one.saving_ns is None:
        return False
    elsewhere = [
        _own_saving_ns(other)
        for other in findings
        if other.id == one.id
        and other.rank not in late.ranks
        and not _is_slow_by_waiting(other, late)
    ]
    return _own_saving_ns(one) - max(elsewhere, default=0) >= _MOSTLY * late.skew.wait_ns


def _own_saving_ns(one: Finding) -> int:
    """What its rank has less to do without it, whatever the job gains by that."""
    return one.own_saving_ns or one.saving_ns or 0


def _is_symptom(one: Finding, late: Lateness, waits: dict[int, int]) -> bool:
    """Whether a finding of another rank comes from the late ranks."""
    if one.id in OF_COMMUNICATION or _is_slow_by_waiting(one, late):
        return _is_wait(one, waits)
    return one.id == _OF_SINGLE_COLLECTIVES and one.waits_for in late.ranks


def _is_of_slow_link(one: Finding, late: Lateness) -> bool:
    """Whether it is about communication that is mostly long because of the late ranks' link."""
    if one.id not in OF_COMMUNICATION or one.rank not in late.ranks:
        return False
    return means_slow_link(late.skew.cause) and late.skew.saving_ns >= _MOSTLY * (
        one.saving_ns or 0
    )


def _is_slow_by_waiting(one: Finding, late: Lateness) -> bool:
    """Whether steps are long on a rank that waits, those in which others come late."""
    if not isinstance(late.skew.course, EveryNth) or one.rank in late.ranks or not one.steps:
        return False
    is_of_all = one.id == "uneven-steps"
    is_of_waits = one.id == "slow-phase" and any(name in one.title for name in PHASES_WITH_WAITS)
    if not is_of_all and not is_of_waits:
        return False
    at = late.skew.course.steps[0] % late.skew.course.every
    due = sum(step % late.skew.course.every == at for step in one.steps)
    return due >= _MOSTLY * len(one.steps)


def _is_wait(one: Finding, waits: dict[int, int]) -> bool:
    """Whether what a finding about communication saves is mostly waiting for a late rank."""
    if one.rank not in waits:
        return False
    return one.saving_ns is None or waits[one.rank] >= _MOSTLY * one.saving_ns
