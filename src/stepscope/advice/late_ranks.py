"""What a late rank does to the findings of the others: causes go above symptoms.

Ranks that train together wait for the last one, so whatever keeps one rank makes communication long
on all others. Findings about communication on ranks that wait are symptoms then; what keeps the
late rank is the cause, and comes first.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stepscope.advice.finding import Finding, Severity
from stepscope.advice.rank_summary import RankSummary
from stepscope.advice.ranks import RankComparison
from stepscope.advice.rules import OF_COMMUNICATION, OF_COMPUTE, late_rank
from stepscope.advice.thresholds import Thresholds
from stepscope.run.figures import ranks_in_words, significant
from stepscope.run.rank_skew import ARRIVALS, RankSkew, RankWait

_LINK = (
    "Look at the links of {0} first: communication takes far longer there than on the other ranks, "
    "and these wait for it (`stepscope show collectives` on all ranks' traces compares the "
    "bandwidths of the groups). Then: {1}"
)
_MAKES_LATE = "above larger savings, because {} would not come late without it"
_COMES_FROM = "below smaller savings, because it comes from {} being late"
_MOSTLY = 0.5


@dataclass(frozen=True)
class Lateness:
    """Which ranks come late, and what the others wait for them.

    Attributes:
        ranks: The late ranks.
        wait_ns: What another rank waits for them in a step.
        more_compute_ns: By late rank: how much longer its GPU computes in a step than that of any
            other rank, where that is known.
    """

    ranks: tuple[int, ...]
    wait_ns: int
    more_compute_ns: Mapping[int, int] = field(default_factory=dict)

    @property
    def who(self) -> str:
        """The ranks in words."""
        return ranks_in_words(self.ranks)

    def words(self) -> str:
        """One clause for a verdict."""
        several = len(self.ranks) > 1
        return (
            f"{self.who} come{'' if several else 's'} late, and the "
            f"others wait {significant(self.wait_ns / 1e6)} ms per step for "
            f"{'them' if several else 'it'}"
        )


def skew_of_arrivals(between: RankComparison | None) -> RankSkew | None:
    """How far apart the ranks come to their collectives in the recorded windows.

    Args:
        between: The ranks' collectives, matched.

    Returns:
        The skew, in the form in which the step records give it; None where nobody waits.
    """
    if between is None or between.straggler is None or len(between.table) < 2:
        return None
    rows = {row["rank"]: row for row in between.table.iter_rows(named=True)}
    costs = {rank: row["wait_ns"] for rank, row in rows.items()}
    late = between.late
    others = [cost for rank, cost in costs.items() if rank not in late]
    return RankSkew(
        basis=ARRIVALS,
        is_device=True,
        steps=between.steps,
        step_ns=round(sum(row["wait_ns"] + row["own_ns"] for row in rows.values()) / len(rows)),
        late=late,
        wait_ns=round(statistics.mean(others)),
        saving_ns=between.gain_of_fixing(late),
        last_share=between.share_through_late,
        error_ns=0,
        ranks=tuple(
            RankWait(rank, row["wait_ns"], row["last"])
            for rank, row in sorted(rows.items(), key=lambda one: one[1]["wait_ns"])
        ),
    )


def lateness(
    skew: RankSkew | None, limits: Thresholds, ranks: Sequence[RankSummary] = ()
) -> Lateness | None:
    """The late ranks, if the others wait for them notably.

    Args:
        skew: How far apart the ranks come.
        limits: What is notable.
        ranks: The ranks, for how long each computes.
    """
    if skew is None or not late_rank.is_late(skew, limits):
        return None
    computing = {rank.rank: ns for rank in ranks if (ns := rank.compute_ns) is not None}
    others = [ns for rank, ns in computing.items() if rank not in skew.late]
    more = {
        rank: computing[rank] - max(others) for rank in skew.late if others and rank in computing
    }
    return Lateness(skew.late, skew.wait_ns, more)


def causes_first(
    findings: Sequence[Finding], late: Lateness | None, ranks: Sequence[RankSummary]
) -> tuple[Finding, ...]:
    """Findings in their order, with those that explain a wait above it and its symptoms below.

    A finding that saves more than the others wait for the late ranks stays above both: it is the
    larger problem.

    Args:
        findings: The findings of all ranks, in the order in which they would be shown otherwise.
        late: The late ranks; None where nobody is late.
        ranks: The ranks.
    """
    if late is None:
        return tuple(findings)
    waits = {rank.rank: late.wait_ns for rank in ranks if rank.rank not in late.ranks}
    causes, rank_findings, larger, others, symptoms = [], [], [], [], []
    for one in findings:
        if one.id == late_rank.ID:
            rank_findings.append(one)
        elif is_cause(one, late, findings):
            causes.append(one)
        elif is_slow_link(one, late, findings):
            causes.append(replace(one, advice=_LINK.format(late.who, one.advice)))
        elif one.id in OF_COMMUNICATION and _is_wait(one, waits):
            words = late.words()
            assumption = "; ".join(part for part in (one.assumption, words) if part)
            symptoms.append(replace(one, severity=Severity.LOW, assumption=assumption))
        elif (one.saving_ns or 0) > late.wait_ns:
            larger.append(one)
        else:
            others.append(one)
    below = max((one.saving_ns or 0 for one in others), default=0)
    causes = [
        one if (one.saving_ns or 0) >= below else replace(one, placed=_MAKES_LATE.format(late.who))
        for one in causes
    ]
    above = min((one.saving_ns or 0 for one in (*causes, *rank_findings, *others)), default=0)
    symptoms = [
        one if (one.saving_ns or 0) <= above else replace(one, placed=_COMES_FROM.format(late.who))
        for one in symptoms
    ]
    return (*larger, *causes, *rank_findings, *others, *symptoms)


def is_cause(one: Finding, late: Lateness, findings: Sequence[Finding]) -> bool:
    """Whether a finding explains why its rank comes late.

    It does if its rank would save at least half of the others' wait by it, beyond what any other
    rank saves by the same.
    """
    if one.id in OF_COMMUNICATION or one.id == late_rank.ID:
        return False
    if one.id in OF_COMPUTE:
        # Others may save less by the same only because they wait for the late rank anyway.
        more_ns = late.more_compute_ns.get(one.rank, late.wait_ns)
        if more_ns < _MOSTLY * late.wait_ns:
            return False
    return _sets_apart(one, late, findings)


def is_slow_link(one: Finding, late: Lateness, findings: Sequence[Finding]) -> bool:
    """Whether late ranks communicate so much longer than all others that it makes them late.

    Known waits for other ranks are no part of what `exposed-communication` saves.
    """
    return one.id == "exposed-communication" and _sets_apart(one, late, findings)


def _sets_apart(one: Finding, late: Lateness, findings: Sequence[Finding]) -> bool:
    if one.rank not in late.ranks or one.saving_ns is None:
        return False
    elsewhere = [
        _own_saving_ns(other)
        for other in findings
        if other.id == one.id and other.rank not in late.ranks
    ]
    return _own_saving_ns(one) - max(elsewhere, default=0) >= _MOSTLY * late.wait_ns


def _own_saving_ns(one: Finding) -> int:
    """What its rank has less to do without it, whatever the job gains by that."""
    return one.own_saving_ns or one.saving_ns or 0


def _is_wait(one: Finding, waits: dict[int, int]) -> bool:
    """Whether what a finding about communication saves is mostly waiting for a late rank."""
    if one.rank not in waits:
        return False
    return one.saving_ns is None or waits[one.rank] >= _MOSTLY * one.saving_ns
