"""The diagnosis of a run: verdict, partition of the step, findings by saving."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

import polars as pl

from stepscope.advice.finding import Finding, Severity
from stepscope.advice.late_parts import LongerPart, longer_parts
from stepscope.advice.late_ranks import (
    Lateness,
    causes_first,
    is_cause,
    is_slow_link,
    lateness,
    skew_of_arrivals,
)
from stepscope.advice.rank_summary import RankSummary, Request
from stepscope.advice.ranks import (
    ODD_PARTS,
    RankComparison,
    RankMatch,
    match_ranks,
    odd_parts,
    skew_of,
)
from stepscope.advice.read_ranks import EachRank, MeetingTask, SummaryTask, answers, in_turn
from stepscope.advice.rules import OF_THE_RUN, RULES
from stepscope.advice.specific_causes import specific_first
from stepscope.advice.stages import slow_stage
from stepscope.advice.subject import Subject
from stepscope.advice.thresholds import Thresholds
from stepscope.advice.window_skew import skew_of_windows, surest
from stepscope.advice.worth_of_waits import limited_by_the_next
from stepscope.advice.worth_to_job import limited_by_the_job
from stepscope.analysis.record.gpu_clocks import clock_of, slow_clocks
from stepscope.analysis.selection.scope import Scope
from stepscope.errors import UnreadableInputError
from stepscope.run.discover import TRACE_SUFFIXES
from stepscope.run.figures import percent, ranks_in_words
from stepscope.run.rank_skew import RECORDED_WAITS, RankSkew
from stepscope.run.reader import Run, one_job, open_run

if TYPE_CHECKING:
    from stepscope.advice.window_details import WindowDetails
    from stepscope.trace.model import Trace

_NOTABLE = 0.1  # of the step: what a saving must reach to become the verdict
_MOSTLY = 0.5
_USEFUL = ("compute", "forward", "backward", "optimizer")
"""Parts of a step in which it does what it is there for."""
_CUT_OFF = (
    "trace-incomplete: the file is cut off and may lack work of any step, so where the step goes "
    "cannot be told"
)
_OF_ODD_STEPS = ("slow-first-steps", "abnormal-collective", "stalled-step")
"""Findings that may be about start-up steps and stalls, which the step shown excludes."""
_ORDER = {Severity.HIGH: 0, Severity.MEDIUM: 1, Severity.LOW: 2, Severity.INFO: 3}


@dataclass(frozen=True)
class Diagnosis:
    """A run, judged.

    Attributes:
        run: The run.
        verdict: What limits the step, in one sentence.
        ranks: Each rank that left something, in order.
        findings: All findings, the largest saving first, then those without a saving, by severity.
            If a rank comes late, its causes come first, and their effects on the other ranks last
            (`late_ranks`). What most of `launch-bound` comes from stands above it
            (`specific_causes`).
        between: What the traces of several ranks show together; None for one rank, or if they have
            no collectives in common.
        odd_parts: What takes far longer on one rank than on the others, columns `ranks.ODD_PARTS`;
            empty if the traces may be of different runs.
        shown: The rank whose step represents the run: that of the verdict, else the slowest.
        skew: Which rank comes late, from the step records of all; None if they do not say.
        notes: What limits the comparison of the ranks.
        details: Answers about the window of the rank shown, where an output asks for them.
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
    details: WindowDetails | None = None


def diagnose(
    run: Run | str | os.PathLike[str],
    thresholds: Thresholds | None = None,
    scope: Scope | None = None,
    baseline: Trace | None = None,
    each: EachRank = in_turn,
) -> Diagnosis:
    """Judge a run, rank by rank.

    Of unrelated traces (`Run.unrelated`), the newest is judged.

    Args:
        run: The run, or its path as `open_run` takes it.
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
    run = one_job(run if isinstance(run, Run) else open_run(run))
    with each() as read, in_turn() as read_here:
        alone = [MeetingTask(rank, asked) for rank in run.ranks]
        meetings = answers(read, alone) if len(alone) > 1 else []
        matched, notes = match_ranks(meetings)
        skew = skew_of(meetings) if asked.steps is None else None
        request = Request(asked, limits, skew is not None, baseline)
        waits = [None if matched is None else matched.waits_of(rank.rank) for rank in run.ranks]
        tasks = [
            SummaryTask(rank, request, waited, met)
            for rank, waited, met in zip_longest(run.ranks, waits, meetings)
        ]
        # A baseline is a trace with its tables, which is not sent to another process.
        summaries = answers(read if baseline is None else read_here, tasks)
    return judge(run, summaries, limits, matched, skew, notes)


def judge(
    run: Run,
    ranks: Sequence[RankSummary],
    limits: Thresholds,
    matched: RankMatch | None = None,
    skew: RankSkew | None = None,
    notes: tuple[str, ...] = (),
) -> Diagnosis:
    """Put the summaries of a run's ranks together.

    Args:
        run: The run.
        ranks: The summary of each rank that left something.
        limits: Limits above which findings are reported.
        matched: The ranks' collectives, see `match_ranks`.
        skew: How the ranks meet, see `skew_of`.
        notes: Why the ranks were not compared.

    Raises:
        UnreadableInputError: Nothing in the run could be read.
    """
    if not any(rank.steps or rank.host or rank.device or rank.is_cut_off for rank in ranks):
        raise UnreadableInputError(f"{run.location}: nothing to judge: {_why_nothing(run, ranks)}")
    between = None
    if matched is not None:
        means = {r.rank: r.window_step_ns for r in ranks if r.window_step_ns is not None}
        costs = {r.rank: r.cost_of_waits_ns for r in ranks if r.cost_of_waits_ns is not None}
        by_step = {
            r.rank: dict(zip(r.window_steps or (0,), r.costs_of_waits_ns, strict=True))
            for r in ranks
            if r.costs_of_waits_ns is not None
        }
        between = RankComparison.of(matched, means, costs, by_step)
        ranks = limited_by_the_next(ranks, between, limits)
    recorded = skew if lateness(skew, limits) is not None else None
    recorded = surest(recorded, skew_of_windows(ranks))
    seen = recorded or skew_of_arrivals(between) or skew
    ranks = limited_by_the_job(ranks, between, recorded, limits)
    late = lateness(seen, limits, ranks)
    findings = specific_first(_findings(ranks, limits, seen))
    findings = causes_first(findings, late, ranks, limits)
    verdict, shown = _verdict(ranks, findings, limits, late)
    partitions = [(rank.rank, rank.partition) for rank in ranks if rank.partition is not None]
    odd = pl.DataFrame(schema=ODD_PARTS)
    if between is not None or any(rank.manifest is not None for rank in run.ranks):
        odd = odd_parts(partitions, limits)
    told = recorded or skew
    return Diagnosis(run, verdict, tuple(ranks), findings, between, odd, shown, told, notes)


def _findings(
    ranks: Sequence[RankSummary], limits: Thresholds, skew: RankSkew | None
) -> tuple[Finding, ...]:
    """Those of the ranks and of the run; of equal ones by rank, then in the order of the rules."""
    order = {name: place for place, name in enumerate(RULES)}
    found = []
    sampled = ((rank.rank, clock_of(rank.metrics)) for rank in ranks if rank.metrics is not None)
    clocks = {rank: clock for rank, clock in sampled if clock is not None}
    slow = slow_clocks(clocks, limits.throttled_gpu)
    stage = slow_stage(ranks)
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
            longer_parts=longer,
        )
        of_the_run = [one for name in OF_THE_RUN for one in RULES[name](subject)]
        found += [(place, order[one.id], one) for one in (*rank.findings, *of_the_run)]
    found.sort(
        key=lambda one: (
            one[2].saving_ns is None,
            -(one[2].saving_ns or 0),
            _ORDER[one[2].severity],
            *one[:2],
        )
    )
    return tuple(finding for _, _, finding in found)


def _fixing(best: Finding, late: Lateness, findings: Sequence[Finding]) -> str:
    """What to fix, and on which ranks, where several are late by the same."""
    if is_slow_link(best, late, findings) and not best.is_upper_bound:
        return "a link as fast as the others'"
    if not is_cause(best, late, findings):
        return "fixing it"
    having = {one.rank for one in findings if one.id == best.id and one.rank in late.ranks}
    return f"fixing it on {ranks_in_words(having)}" if len(having) > 1 else "fixing it"


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


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
    why = "; ".join(reasons) or "no step record and no trace"
    if not run.unrelated:
        return why
    endings = ", ".join(f"*{ending}" for ending in TRACE_SUFFIXES)
    return (
        f"{run.unrelated} files have names that a trace can have ({endings}); of files that are not"
        f" ranks of one run, only the newest is judged: {why}"
    )


def _verdict(
    ranks: Sequence[RankSummary],
    findings: Sequence[Finding],
    limits: Thresholds,
    late: Lateness | None,
) -> tuple[str, RankSummary]:
    """What limits the step, and the rank that this applies to.

    If recording made steps much longer, findings of low severity rest on those steps and cannot be
    the verdict.
    """
    slowed = {
        rank.rank: factor
        for rank in ranks
        if rank.steps is not None
        and (factor := rank.steps.recording_factor or 1.0) >= limits.profiler_factor
    }
    sure = (f for f in findings if f.rank not in slowed or f.severity is not Severity.LOW)
    best = next(sure, None)
    if best is not None and best.saving_ns and best.predicted_step_ns is not None:
        share = best.saving_ns / (best.saving_ns + best.predicted_step_ns)
        if share >= _NOTABLE:
            whose = next(rank for rank in ranks if rank.rank == best.rank)
            step = "the step" if len(ranks) == 1 else f"rank {best.rank}'s step"
            if best.is_of_whole_file:
                step = "the whole file" if len(ranks) == 1 else f"rank {best.rank}'s file"
            fixing = "fixing it" if late is None else _fixing(best, late, findings)
            words = (
                f"{best.id}: {best.title}; {fixing} saves {best.up_to}{percent(share)} of {step}"
            )
            if best.next_rank is not None:
                words += f", until rank {best.next_rank} sets the pace"
            if late is not None and is_cause(best, late, findings):
                words += f". {_sentence(late.words())}"
            elif late is not None and is_slow_link(best, late, findings):
                whose_own = "its" if len(late.ranks) == 1 else "their"
                words += f". {_sentence(late.words())}: {whose_own} communication takes longer"
            return words, whose
    judged = [rank for rank in ranks if rank.partition is not None]
    if not judged:
        return _CUT_OFF, max(ranks, key=lambda rank: (rank.is_cut_off, rank.step_ns or 0))
    slowest = max(judged, key=lambda rank: rank.step_ns or 0)
    partition = slowest.partition
    if partition is None or not partition.parts:
        return "no finding with a saving of a tenth of the step or more", slowest
    largest = max(partition.parts, key=lambda part: part.total_ns)
    share_of_largest = percent(partition.share(largest))
    whole = "the whole file" if slowest.is_whole_file else "the step"
    if slowest.rank in slowed and slowest.host is not None:
        words = (
            f"uncertain: recording made the steps {slowed[slowest.rank]:.1f}× as long; "
            f"{share_of_largest} of a recorded step is {largest.name}"
        )
    elif (compiles := _mostly_compiling(findings, slowest)) is not None:
        words = f"{compiles.id}: {compiles.title}; record later to see steady steps"
    elif (lacks := _without_the_gpu(findings, slowest)) is not None:
        words = f"{lacks.id}: {lacks.title}, so the step cannot be judged"
    elif (bubble := _of_pipeline(findings, slowest)) is not None:
        words = f"{bubble.id}: {bubble.title}"
    elif largest.name in _USEFUL:
        words = f"nothing stands out: {share_of_largest} of {whole} is {largest.name}"
        if largest.name == "compute" and slowest.compute is not None:
            words += f" ({slowest.compute.in_words()})"
        if (odd := _outside_steady_steps(findings, slowest)) is not None:
            words += f". Outside the steady steps: {odd.title} ({odd.id})"
    else:
        words = (
            f"{share_of_largest} of {whole} is {largest.name}, and no single finding promises a "
            "tenth of it"
        )
    return words, slowest


def _without_the_gpu(findings: Sequence[Finding], shown: RankSummary) -> Finding | None:
    """The finding that a rank's trace lacks the GPU's side, if it does."""
    for finding in findings:
        if finding.id == "trace-incomplete" and finding.rank == shown.rank:
            from stepscope.advice.rules import trace_incomplete

            return finding if trace_incomplete.lacks_gpu_work(finding) else None
    return None


def _of_pipeline(findings: Sequence[Finding], shown: RankSummary) -> Finding | None:
    """What a pipeline loses most by: a slow stage, else the bubble of the rank shown."""
    uneven = next((one for one in findings if one.id == "uneven-stages"), None)
    mine = (one for one in findings if one.id == "pipeline-bubble" and one.rank == shown.rank)
    bubble = next(mine, None)
    weighty = (Severity.HIGH, Severity.MEDIUM)
    return next((o for o in (uneven, bubble) if o is not None and o.severity in weighty), None)


def _outside_steady_steps(findings: Sequence[Finding], shown: RankSummary) -> Finding | None:
    """The first notable finding about steps that the step shown excludes."""
    for finding in findings:
        is_notable = finding.severity in (Severity.HIGH, Severity.MEDIUM)
        if finding.id in _OF_ODD_STEPS and finding.rank == shown.rank and is_notable:
            return finding if finding.saving_ns is None else None
    return None


def _mostly_compiling(findings: Sequence[Finding], shown: RankSummary) -> Finding | None:
    """The finding that a rank's window is mostly compilation, if it is."""
    for finding in findings:
        if finding.id == "compilation-in-window" and finding.rank == shown.rank:
            from stepscope.advice.rules import compilation_in_window

            return finding if compilation_in_window.share_of(finding) >= _MOSTLY else None
    return None
