"""What fixing a finding is worth to the whole job, whose ranks meet in every step.

A replay of one rank says how much shorter its own step would be. But the ranks meet in every step,
so the job's step gets shorter only until it is another rank that sets the pace. How far each rank
is from that is known by what its waits for others cost it. A finding is taken to be fixed on all
ranks that have it: what each of these gains without both, its finding and its waits, is known from
a replay, and the job gains what the rank does that gains least. So it is on ranks that have the
same cause behind their waits: it makes nobody wait now, but does once the others are quicker.

A finding about communication assumes that late ranks are fixed first, on these as well, unless they
come late because their own communication takes longer. So of the ranks that are not late, the one
counts that gains least. What those gain that have no such finding is known too: no more than if
their collectives took no time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from stepscope.advice.finding import Finding, with_saving, without_saving
from stepscope.advice.job.compared import RankComparison
from stepscope.advice.job.late_ranks import Lateness
from stepscope.advice.job.stragglers import InWindows
from stepscope.advice.rank.summary import RankSummary
from stepscope.advice.rules import OF_COMMUNICATION
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.blame.matched import NOT_SYNCHRONISING
from stepscope.analysis.blame.replay import Less
from stepscope.run.figures import duration, percent, rank_names
from stepscope.skew.rank_skew import RankSkew

_WITHIN = 0.05
"""Of the step: how much more than the job gains a finding may save. Ranks without the finding may
have as much of its cause, below the limit from which it is one."""
_WITHIN_KNOWN = 0.01
"""The same where it is known what all ranks gain, with or without the finding; and where all that
have it wait longer for others than it saves."""
_APART = frozenset(
    {"slow-first-steps", "abnormal-collective", "stalled-step", "uneven-steps", "rank-waiting"}
)
"""Rules about steps that waits are not known of, or about the waits themselves."""


@dataclass(frozen=True)
class Slack:
    """How far the ranks of a job are from setting its pace.

    Attributes:
        shares: By rank: what waiting for others costs it, as a share of the step.
        least: What it costs in each step the rank that it costs least, on average; likewise.
    """

    shares: Mapping[int, float]
    least: float

    @classmethod
    def of_comparison(cls, between: RankComparison) -> Slack:
        """By the collectives of all ranks, matched."""
        rows = between.table.select("rank", "wait_ns", "own_ns").iter_rows()
        times = {rank: (wait_ns, max(1, wait_ns + own_ns)) for rank, wait_ns, own_ns in rows}
        shares = {rank: wait_ns / step_ns for rank, (wait_ns, step_ns) in times.items()}
        longest_ns = max((step_ns for _, step_ns in times.values()), default=1)
        least = between.least_cost_ns / longest_ns
        return cls(shares, min(least, min(shares.values(), default=0.0)))

    @classmethod
    def of_skew(cls, skew: RankSkew) -> Slack:
        """By the step records of all ranks, whose clocks may be wrong by as much as they say."""
        step_ns = max(1, skew.step_ns)
        return cls({r.rank: (r.wait_ns + skew.error_ns) / step_ns for r in skew.ranks}, 0.0)


@dataclass(frozen=True)
class JobGain:
    """What the job gains if something is fixed on all ranks that have it.

    Attributes:
        share: Of the step.
        next_rank: The rank that sets the pace then.
    """

    share: float
    next_rank: int


def limited_by_the_job(
    ranks: Sequence[RankSummary],
    between: RankComparison | None,
    skew: RankSkew | None,
    limits: Thresholds,
    late: Lateness | None = None,
) -> tuple[RankSummary, ...]:
    """The ranks, with no finding that saves notably more than the job gains by fixing it.

    That is not known of the stages of a pipeline: `advice.job.pipeline` is about them.

    Args:
        skew: How far apart they come by their step records, if a rank is late by these.
    """
    if skew is not None:
        slack = Slack.of_skew(skew)
    elif between is not None:
        slack = Slack.of_comparison(between)
    else:
        return tuple(ranks)
    found: dict[str, dict[int, float]] = {}
    behind: dict[str, set[int]] = {}
    largest: dict[str, float] = {}
    waits: dict[str, float] = {}  # the least that a rank waits which has a finding
    for rank in ranks:
        for one in rank.findings:
            share = _share(one)
            if share is None or rank.rank not in slack.shares:
                continue
            of_rule = found.setdefault(one.id, {})
            before = of_rule.get(rank.rank, slack.shares[rank.rank])
            if rank.device is None and one.id in OF_COMMUNICATION:
                of_rule[rank.rank] = max(before, share)  # waits for others are part of it
            else:
                of_rule[rank.rank] = max(before, _with_waits(one, before + share))
            largest[one.id] = max(share, largest.get(one.id, 0.0))
            waits[one.id] = min(before, waits.get(one.id, before))
        if rank.rank in slack.shares:
            for rule, with_waits_ns in rank.behind_waits_ns:
                of_rule = found.setdefault(rule, {})
                of_rule[rank.rank] = max(
                    slack.shares[rank.rank], with_waits_ns / max(1, rank.step_ns or 1)
                )
                behind.setdefault(rule, set()).add(rank.rank)
    matched = between if skew is None else None
    # Without a GPU, what a thread waits in collectives is known of each rank.
    on_hosts = all(rank.device is None for rank in ranks)
    late_ranks = () if late is None else late.ranks
    others, most = _after_fixing(late_ranks, slack, ranks)
    gains: dict[str, JobGain] = {}
    gains_of_others: dict[str, JobGain] = {}
    for rule, shares in found.items():
        if rule not in largest:
            continue
        is_known = on_hosts or rule not in OF_COMMUNICATION
        gain = _gain(shares, slack, is_known=is_known)
        if gain is not None and is_known and matched is not None:
            gain = _as_others_arrive(gain, shares, matched)
        within = _WITHIN_KNOWN if waits[rule] > largest[rule] else _WITHIN
        if gain is not None and largest[rule] - gain.share >= within:
            gains[rule] = gain
        gain_of_others = gain
        if not on_hosts and rule in OF_COMMUNICATION:
            gain_of_others = _gain({**most, **shares}, others, is_known=False)
            within = _WITHIN_KNOWN if most.keys() == others.shares.keys() else _WITHIN
        if gain_of_others is not None and largest[rule] - gain_of_others.share >= within:
            gains_of_others[rule] = gain_of_others
    together = _gain(
        {
            rank.rank: _together_with_waits(rank, slack.shares[rank.rank])
            for rank in ranks
            if rank.rank in slack.shares
        },
        slack,
    )
    on_time = () if on_hosts or late is None else late.with_usual_links
    return tuple(
        _limited(
            rank,
            gains if rank.rank in late_ranks and rank.rank not in on_time else gains_of_others,
            together,
            slack,
            limits,
            on_time,
            behind,
        )
        for rank in ranks
    )


def _share(one: Finding) -> float | None:
    return None if one.waits_for is not None else share_of(one, _APART)


def share_of(one: Finding, apart: Collection[str]) -> float | None:
    """What a finding saves as a share of its rank's step; None where it says nothing of that.

    Args:
        apart: Rules about other steps than those that are compared.
    """
    return None if one.saving_ns is None or one.id in apart else one.saving_share


def _with_waits(one: Finding, otherwise: float) -> float:
    """What its rank gains without it and without its waits, as a share of its step.

    Without a replay of both it is `otherwise`.
    """
    if one.with_waits_ns is None:
        return otherwise
    return one.with_waits_ns / max(1, one.step_ns)


def limited_to_transfers(
    ranks: Sequence[RankSummary], windows: InWindows, limits: Thresholds
) -> tuple[RankSummary, ...]:
    """The ranks, with no finding about communication that saves more than its transfers take.

    A thread that waits in a collective on CPUs waits for the other ranks as well. That is a late
    rank's to save, or nobody's: of all ranks replayed at once, a step is shorter by what transfers
    hold them up.
    """
    matched = windows.compared.matched
    if NOT_SYNCHRONISING in matched.left_out:
        return tuple(ranks)
    gain = windows.blame.gains.of(Less(transfer_ns=matched.transfer_ns)).sure_ns
    share = max(0.0, gain) / max(1, windows.longest_step_ns)
    return tuple(
        with_findings(rank, tuple(_of_transfers(one, share, limits) for one in rank.findings))
        for rank in ranks
    )


def _of_transfers(one: Finding, share: float, limits: Thresholds) -> Finding:
    saving_ns = one.saving_ns or 0
    if one.id not in OF_COMMUNICATION or saving_ns <= share * one.step_ns:
        return one
    of_ranks = f"of {duration(saving_ns)} that rank {one.rank} waits, the rest is for other ranks"
    if share < limits.saving_low:
        return without_saving(one, f"transfers take little: {of_ranks}")
    return replace(
        with_saving(one, round(share * one.step_ns), limits),
        title=f"{percent(share)} of the step is waiting for transfers between the ranks",
        assumption=f"computation hides all transfers; {of_ranks}",
        own_saving_ns=saving_ns,
    )


def _together_with_waits(rank: RankSummary, waits: float) -> float:
    """The same without all its findings; `waits` is what its waits cost it."""
    step_ns = max(1, rank.step_ns or 1)
    if rank.together_with_waits_ns is None:
        return waits + (rank.together_own_ns or 0) / step_ns
    return max(waits, rank.together_with_waits_ns / step_ns)


def _after_fixing(
    late: Sequence[int], slack: Slack, ranks: Sequence[RankSummary]
) -> tuple[Slack, dict[int, float]]:
    """A job whose late ranks come no later than the others.

    Returns:
        How far each of the other ranks is from setting its pace, and what each of them would gain
        without collectives and waits, where that is known.
    """
    others = {rank: share for rank, share in slack.shares.items() if rank not in late}
    least = min(others.values(), default=0.0) if late else slack.least
    most = {
        rank.rank: max(others[rank.rank], rank.without_collectives_ns / max(1, rank.step_ns or 1))
        for rank in ranks
        if rank.rank in others and rank.without_collectives_ns is not None
    }
    return Slack(others, least), most


def _gain(shares: Mapping[int, float], slack: Slack, *, is_known: bool = True) -> JobGain | None:
    """The gain, from what each rank saves of its own step.

    Args:
        shares: By rank: what it gains of its step without the finding and without waits.
        is_known: Whether other ranks save nothing by it. Communication is there on every rank.
    """
    after = {
        rank: shares.get(rank, share)
        for rank, share in slack.shares.items()
        if is_known or rank in shares
    }
    if not after:
        return None
    next_rank = min(after, key=lambda rank: (after[rank], rank))
    return JobGain(max(0.0, after[next_rank] - slack.least), next_rank)


def _as_others_arrive(
    gain: JobGain, fixed: Mapping[int, float], between: RankComparison
) -> JobGain:
    """The gain, no more than the ranks allow that have no such finding."""
    after = between.gain_of_fixing(fixed)
    if after is None:
        return gain
    step_ns = int((between.table["wait_ns"] + between.table["own_ns"]).max() or 1)  # type: ignore[arg-type]
    share = after.gain_ns / step_ns
    return gain if share >= gain.share else JobGain(share, after.next_rank)


def _limited(
    rank: RankSummary,
    gains: Mapping[str, JobGain],
    together: JobGain | None,
    slack: Slack,
    limits: Thresholds,
    on_time: Sequence[int],
    behind: Mapping[str, set[int]],
) -> RankSummary:
    if rank.rank not in slack.shares:
        return rank
    findings = tuple(
        _with_limit(_fixed_there_too(one, behind, slack), gains.get(one.id), limits, on_time)
        for one in rank.findings
    )
    most_ns = None if together is None else round(together.share * (rank.step_ns or 0))
    return with_findings(rank, findings, most_ns)


def with_findings(
    rank: RankSummary, findings: tuple[Finding, ...], most_ns: int | None = None
) -> RankSummary:
    """A rank whose findings save less than was thought; together they save `most_ns` at most."""
    if findings == rank.findings:
        return rank
    savings = [one.saving_ns for one in findings if one.saving_ns is not None]
    if not savings or rank.together_ns is None:
        return replace(rank, findings=findings, together_ns=None, together_own_ns=None)
    limits_ns = (rank.together_ns, sum(savings), *([] if most_ns is None else [most_ns]))
    return replace(rank, findings=findings, together_ns=max(*savings, 0, min(limits_ns)))


def _fixed_there_too(one: Finding, behind: Mapping[str, set[int]], slack: Slack) -> Finding:
    """The finding, with the ranks that have it behind their waits where these would limit it."""
    share = _share(one)
    too = [] if share is None else sorted(behind.get(one.id, ()))
    too = [rank for rank in too if slack.shares[rank] - slack.least < (share or 0)]
    if not too:
        return one
    text = f"; it is fixed on {rank_names(too)} too, where waits for other ranks hide it"
    return replace(one, assumption=one.assumption + text)


def _with_limit(
    one: Finding, gain: JobGain | None, limits: Thresholds, on_time: Sequence[int]
) -> Finding:
    share = _share(one)
    if gain is None or share is None or share <= gain.share:
        return one
    saving_ns = one.saving_ns or 0
    if gain.share < limits.saving_low:
        less = without_saving(
            one,
            f"rank {one.rank}'s own step is {duration(saving_ns)} shorter without it, but rank "
            f"{gain.next_rank}'s is not, and that limits all ranks",
        )
        return replace(less, next_rank=gain.next_rank)
    assumption, next_rank = one.assumption, None
    if gain.next_rank != one.rank:
        if one.id in OF_COMMUNICATION and one.rank in on_time:
            assumption += f"; rank {one.rank} no longer comes late"
        assumption += (
            f"; then rank {gain.next_rank} limits the step: rank {one.rank} alone has "
            f"{duration(saving_ns)} less to do"
        )
        next_rank = gain.next_rank
    return replace(
        with_saving(one, round(gain.share * one.step_ns), limits),
        assumption=assumption,
        own_saving_ns=saving_ns,
        next_rank=next_rank,
    )
