"""The diagnosis of a run: verdict, partition of the step, findings by saving."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

import polars as pl

from stepscope.advice.evidence.specific_causes import specific_first, stalls_in_order
from stepscope.advice.evidence.subject import Imbalance, LongerPart, SlowStage, Subject
from stepscope.advice.finding import Finding, raise_severity
from stepscope.advice.job.compared import (
    RankComparison,
    RankMatch,
    compare_summaries,
    match_ranks,
    recorded_steps,
)
from stepscope.advice.job.imbalance import ODD_PARTS, imbalance, longer_parts, odd_parts
from stepscope.advice.job.job_savings import limited_by_the_job, limited_to_transfers
from stepscope.advice.job.late_ranks import causes_first, imbalance_first, lateness
from stepscope.advice.job.pipeline import limited_by_the_stages, slow_stage, stage_first
from stepscope.advice.job.reading import (
    ComparedRankTask,
    EachRank,
    SummaryTask,
    answers,
    one_by_one,
)
from stepscope.advice.job.savings_of_waits import limited_by_the_next
from stepscope.advice.job.stragglers import (
    describe_late_starts,
    find_late,
    throttled_ranks,
    with_throttled,
)
from stepscope.advice.rank.summary import RankSummary, Request
from stepscope.advice.rules import OF_THE_RUN, RULES
from stepscope.advice.thresholds import Thresholds
from stepscope.advice.verdict import verdict_of
from stepscope.analysis.record.metrics import SlowClock, clock_of, slow_clocks
from stepscope.analysis.selection.gpu_work import gpu_work
from stepscope.analysis.selection.scope import Scope
from stepscope.errors import UnreadableInputError
from stepscope.opening.discover import TRACE_SUFFIXES
from stepscope.opening.reader import Run, one_job, open_run, open_window
from stepscope.skew.rank_skew import ARRIVALS, RECORDED_WAITS, RankSkew, rank_skew

if TYPE_CHECKING:
    from stepscope.advice.job.stragglers import InWindows
    from stepscope.advice.rank.window_details import WindowDetails
    from stepscope.analysis.blame.lanes import JobLanes
    from stepscope.analysis.record.step_strip import StepStrip
    from stepscope.trace.model import Trace

OUT_OF_MEMORY = "out-of-memory"
"""The finding that leads a report: the run ended of it."""


@dataclass(frozen=True)
class Diagnosis:
    """A run, judged.

    Attributes:
        verdict: What limits the step, in one sentence.
        ranks: Each rank that left something, in order.
        findings: All findings, the most severe first; of one severity `OUT_OF_MEMORY` first, then
            the largest saving (work outside the steps by its time for each step), then those
            without a saving. Of these, if a rank comes late, its causes come first, and their
            effects on the other ranks last (`late_ranks`). What most
            of `launch-bound` comes from stands above it (`specific_causes`).
        between: What the traces of several ranks show together; None for one rank, or if they have
            no collectives in common.
        odd_parts: What takes far longer on one rank than on the others, columns
            `job.imbalance.ODD_PARTS`; empty if the traces may be of different runs.
        shown: The rank whose step represents the run: that of the verdict, else the slowest.
        skew: Which rank comes late; where none does, how far apart the step records of all show the
            ranks to come, None if they do not say.
        notes: What limits the comparison of the ranks.
        windows: What the windows of several ranks show together; None where none were matched.
        details: Answers about the window of the rank shown, where an output asks for them.
        strips: The steps of the rank shown, then of others, likewise.
        lanes: All ranks in the step with the most waiting, likewise.
    """

    run: Run
    verdict: str
    ranks: tuple[RankSummary, ...]
    findings: tuple[Finding, ...]
    between: RankComparison | None
    odd_parts: pl.DataFrame
    shown: RankSummary
    skew: RankSkew | None = None
    notes: tuple[str, ...] = ()
    windows: InWindows | None = None
    details: WindowDetails | None = None
    strips: tuple[StepStrip, ...] = ()
    lanes: JobLanes | None = None


def diagnose(
    run: Run | str | os.PathLike[str],
    thresholds: Thresholds | None = None,
    scope: Scope | None = None,
    baseline: Trace | None = None,
    each: EachRank = one_by_one,
) -> Diagnosis:
    """Judge a run, rank by rank.

    Of unrelated traces (`Run.unrelated`), the newest is judged.

    Args:
        run: The run, or its path as `open_run` takes it. A trace file of a run stands for that
            window of its ranks.
        thresholds: Limits above which findings are reported.
        scope: Steps of the recorded windows, devices and GPU events that count. With steps, the
            step record is not used, because it covers other steps.
        baseline: The trace of a healthy run, to compare collectives with.
        each: Where ranks are read: in turn in this process, or in several
            (`fleet.each_rank.reader_for`).

    Raises:
        UnreadableInputError: Nothing in the run can be read.
        UsageError: The scope names what no trace of the run has.
    """
    limits, asked = thresholds or Thresholds(), scope or Scope()
    run = one_job(run if isinstance(run, Run) else open_window(run) or open_run(run))
    with each() as read:
        alone = [ComparedRankTask(rank, asked) for rank in run.ranks]
        compared_ranks = answers(read, alone) if len(alone) > 1 else []
        matched, notes = match_ranks(compared_ranks)
        skew = rank_skew(recorded_steps(compared_ranks)) if asked.steps is None else None
        late = skew.late if skew is not None and skew.is_notable else ()
        request = Request(asked, limits, skew is not None, baseline, late)
        waits = [None if matched is None else matched.waits_of(rank.rank) for rank in run.ranks]
        tasks = [
            SummaryTask(rank, request, waited, with_arrivals)
            for rank, waited, with_arrivals in zip_longest(run.ranks, waits, compared_ranks)
        ]
        if baseline is None:
            summaries = answers(read, tasks)
        else:
            # A baseline is a trace with its tables, which is not sent to another process.
            with one_by_one() as read_here:
                summaries = answers(read_here, tasks)
            notes = (*notes, *_notes_on_baseline(baseline, summaries))
    return diagnose_ranks(run, summaries, limits, matched, skew, notes)


def _notes_on_baseline(baseline: Trace, ranks: Sequence[RankSummary]) -> tuple[str, ...]:
    """Why nothing was compared with the baseline, if nothing was."""
    if gpu_work(baseline).members_of("communication", "kind").is_empty():
        lacking = "the baseline has"
    elif all(rank.device is None for rank in ranks):
        lacking = "the recorded steps have"
    else:
        return ()
    return (f"nothing was compared with the baseline: {lacking} no collectives on a GPU",)


def diagnose_ranks(
    run: Run,
    ranks: Sequence[RankSummary],
    limits: Thresholds,
    matched: RankMatch | None = None,
    skew: RankSkew | None = None,
    notes: tuple[str, ...] = (),
) -> Diagnosis:
    """Put the summaries of a run's ranks together.

    Args:
        matched: The ranks' collectives, see `match_ranks`.
        skew: How the ranks meet, see `rank_skew`.
        notes: Why the ranks were not compared.
    """
    if not any(rank.steps or rank.host or rank.device or rank.is_cut_off for rank in ranks):
        raise UnreadableInputError(f"{run.location}: nothing to judge: {_why_nothing(run, ranks)}")
    has_stages = any(rank.exchanges for rank in ranks)  # these wait for each other by design
    if has_stages:
        skew = None
    is_recorded = matched is not None and any(rank.steps is not None for rank in ranks)
    steps = recorded_steps([rank.compared for rank in ranks]) if is_recorded else ()
    windows = between = None
    if matched is not None:
        windows, between = compare_summaries(matched, ranks, steps)
        if windows.is_comparable:
            notes = (*notes, *describe_late_starts(windows.compared, windows.blame.step_ns))
    ranks = limited_by_the_next(ranks, between, limits)
    late_ranks = find_late(windows, skew, limits, steps)
    sampled = ((rank.rank, clock_of(rank.metrics)) for rank in ranks if rank.metrics is not None)
    slow = slow_clocks(
        {rank: clock for rank, clock in sampled if clock is not None}, limits.throttled_gpu
    )
    computing = {rank.rank: ns for rank in ranks if (ns := rank.compute_ns)}
    late_ranks = with_throttled(late_ranks, throttled_ranks(slow, computing))
    stage = slow_stage(ranks, windows, late_ranks)
    if stage is not None and stage.saving_ns is not None:
        late_ranks = None
    recorded = late_ranks if late_ranks is not None and late_ranks.basis != ARRIVALS else None
    late = lateness(late_ranks, limits, ranks, between)
    if not has_stages and windows is not None and windows.of_host and windows.is_comparable:
        ranks = limited_to_transfers(ranks, windows, limits)
    if has_stages:
        ranks = limited_by_the_stages(ranks, limits)
    else:
        ranks = limited_by_the_job(ranks, between, recorded, limits, late)
    unequal = imbalance(ranks, between) if late is None else None
    paced = {rank.rank for rank in ranks if rank.has_recorded_pace}
    findings = specific_first(_findings(ranks, limits, late_ranks, unequal, stage, slow), paced)
    if late is None:
        findings = imbalance_first(findings)
    findings = stage_first(stalls_in_order(causes_first(findings, late, ranks, limits)))
    findings = _severest_first(findings)
    verdict, shown = verdict_of(ranks, findings, limits, late)
    if findings and (failed := findings[0]).id == OUT_OF_MEMORY:
        why = next((one.value for one in failed.evidence if one.label == "why"), failed.title)
        verdict = f"{failed.id}: {why}. Until then: {verdict}"
    partitions = [(rank.rank, rank.partition) for rank in ranks if rank.partition is not None]
    odd = pl.DataFrame(schema=ODD_PARTS)
    if between is not None or any(rank.manifest is not None for rank in run.ranks):
        odd = odd_parts(partitions, limits)
    known = late_ranks or skew
    return Diagnosis(
        run, verdict, tuple(ranks), findings, between, odd, shown, known, notes, windows
    )


def _findings(
    ranks: Sequence[RankSummary],
    limits: Thresholds,
    skew: RankSkew | None,
    unequal: Imbalance | None,
    stage: SlowStage | None,
    slow: Mapping[int, SlowClock],
) -> tuple[Finding, ...]:
    """Those of the ranks and of the run; of equal ones by rank, then in the order of the rules."""
    order = {name: place for place, name in enumerate(RULES)}
    found = []
    longer: tuple[LongerPart, ...] = ()
    if skew is not None:
        longer = longer_parts(ranks, skew.late, recorded=skew.basis == RECORDED_WAITS)
    for place, rank in enumerate(ranks):
        subject = Subject(
            rank.rank,
            thresholds=limits,
            skew=skew,
            shown_step_ns=rank.step_ns,
            shown_compute_ns=rank.compute_ns,
            slow_clock=slow.get(rank.rank),
            slow_stage=stage,
            imbalance=unequal if place == 0 else None,
            longer_parts=longer,
        )
        of_the_run = [one for name in OF_THE_RUN for one in RULES[name](subject)]
        found += [(place, order[one.id], one) for one in (*rank.findings, *of_the_run)]
    found.sort(
        key=lambda one: (
            one[2].severity.place,
            one[2].id != OUT_OF_MEMORY,
            not one[2].is_estimated,
            -one[2].weight_ns,
            *one[:2],
        )
    )
    return tuple(finding for _, _, finding in found)


def _severest_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings by severity, otherwise in their order.

    One that was placed above others because they come from it is as severe as these.
    """
    ordered = list(findings)
    for place, one in enumerate(findings):
        if one.placed.startswith("above"):
            ordered[place] = raise_severity(
                one, [below.severity for below in findings[place + 1 :]]
            )
    return tuple(sorted(ordered, key=lambda one: one.severity.place))


def _why_nothing(run: Run, ranks: Sequence[RankSummary]) -> str:
    # Of a single file, the reasons name the same file.
    reasons = [note.removeprefix(f"{run.path}: ") for rank in ranks for note in rank.notes]
    reasons += run.problems
    for rank in run.ranks:
        if rank.manifest is not None and rank.manifest.ended:
            reasons.append(rank.manifest.ended)
    # A run that ends in its first step leaves a snapshot at most, which may say why.
    for finding in (one for rank in ranks for one in rank.findings):
        reasons.append(f"{finding.id}: {finding.title}. {finding.advice}")
    why = "; ".join(dict.fromkeys(reasons)) or "no step record and no trace"
    if not run.unrelated:
        return why
    endings = ", ".join(f"*{ending}" for ending in TRACE_SUFFIXES)
    return (
        f"{run.unrelated} files have names that a trace can have ({endings}); of files that are not"
        f" ranks of one run, only the newest is judged: {why}"
    )
