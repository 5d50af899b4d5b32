"""The diagnosis of a run: verdict, partition of the step, findings by saving."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from stepscope.advice.finding import Finding, Severity
from stepscope.advice.ranks import ODD_PARTS, RankComparison, compare_ranks, odd_parts
from stepscope.advice.rules import RULES
from stepscope.advice.subject import Subject
from stepscope.advice.thresholds import Thresholds
from stepscope.advice.window_view import WindowView
from stepscope.analysis.breakdown import partition_device
from stepscope.analysis.host.partition import HostPartition, partition_host
from stepscope.analysis.metrics import MetricsSummary, summarise_metrics
from stepscope.analysis.record.summary import StepSummary, summarise_steps
from stepscope.analysis.selection.gpu_work import gpu_work
from stepscope.analysis.selection.partition import Partition
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.errors import StepscopeError, UnreadableInputError, UsageError
from stepscope.run.rank_skew import RankSkew, rank_skew, rank_steps
from stepscope.run.reader import RankRun, Run, Window
from stepscope.trace.load import load
from stepscope.trace.model import Trace

_NOTABLE = 0.1  # of the step: what a saving must reach to become the verdict
_USEFUL = ("compute", "forward", "backward", "optimizer")
"""Parts of a step in which it does what it is there for."""
_ORDER = {Severity.HIGH: 0, Severity.MEDIUM: 1, Severity.LOW: 2, Severity.INFO: 3}


@dataclass(frozen=True)
class RankDiagnosis:
    """One rank.

    Attributes:
        rank: The rank.
        steps: What its step record tells; None where there is none.
        host: The partition of a recorded window's main thread; None where there is none.
        device: The partition of the GPUs' steps in it; None without GPU work.
        view: The window's graph and tables; None where there is none.
        window: The window that was read for it.
        problems: What reader and links found wrong with it: problem, count, message.
        notes: What could not be read or was left out.
        metrics: What was sampled beside it; None where nothing was.
        windows: How many windows it has; the last that could be read is the one judged.
    """

    rank: int
    steps: StepSummary | None
    host: HostPartition | None
    device: Partition | None
    view: WindowView | None
    window: Window | None
    problems: tuple[tuple[str, int, str], ...]
    notes: tuple[str, ...]
    metrics: MetricsSummary | None = None
    windows: int = 0

    @property
    def partition(self) -> Partition | None:
        """The partition that a report shows: the trace's where there is one.

        The record's stands in for it where the trace is missing.
        """
        if self.device is not None:
            return self.device
        if self.host is not None:
            return self.host.partition
        return self.steps.partition if self.steps is not None else None

    @property
    def scope(self) -> AnsweredScope | None:
        """What the window's part is about; None where no window could be read."""
        if self.view is not None and self.device is not None:
            return self.view.timeline.scope
        if self.view is None or self.host is None:
            return None
        steps = tuple(self.host.steps["step"].to_list())
        empty = len(self.host.excluded_steps)
        return AnsweredScope(replace(self.view.asked, steps=steps), steps, (), 0).leaving_out(
            {"empty step" if empty == 1 else "empty steps": empty}
        )

    @property
    def step_ns(self) -> int | None:
        """The steady step: from the record where there is one, since recording slows steps."""
        if self.steps is not None:
            return self.steps.median_ns
        if self.device is not None and self.view is not None:
            return self.view.step_ns
        if self.host is not None:
            return self.host.median_step_ns
        return None


@dataclass(frozen=True)
class Diagnosis:
    """A run, judged.

    Attributes:
        run: The run.
        verdict: What limits the step, in one sentence.
        ranks: Each rank that left something, in order.
        findings: All findings, the greatest saving first; those without one follow by severity.
        between: What several ranks' traces tell together; None for one rank, and where they have
            no collectives in common.
        odd_parts: What takes far longer on one rank than on the others, columns `ranks.ODD_PARTS`;
            empty where nothing tells that the traces are of one run.
        shown: The rank whose step stands for the run: that of the verdict, else the slowest.
        skew: Which rank comes late, from the step records of all; None where they do not tell.
        notes: What limits the comparison of the ranks.
    """

    run: Run
    verdict: str
    ranks: tuple[RankDiagnosis, ...]
    findings: tuple[Finding, ...]
    between: RankComparison | None
    odd_parts: pl.DataFrame
    shown: RankDiagnosis
    skew: RankSkew | None = None
    notes: tuple[str, ...] = ()


def diagnose(
    run: Run,
    thresholds: Thresholds | None = None,
    scope: Scope | None = None,
    baseline: Trace | None = None,
) -> Diagnosis:
    """Judge a run.

    Args:
        run: The run.
        thresholds: From where on something is worth a finding.
        scope: Steps of the recorded windows, devices and GPU events that count. With steps, the
            step record is left aside: it is about other steps.
        baseline: The trace of a run that was as it should be, to hold collectives against.

    Raises:
        UnreadableInputError: Nothing in the run can be read.
        UsageError: The scope names what no trace of the run has.
    """
    limits = thresholds or Thresholds()
    asked = scope or Scope()
    ranks = tuple(_with_metrics(_diagnose_rank(rank, asked, baseline), rank) for rank in run.ranks)
    if not any(rank.steps or rank.host or rank.device for rank in ranks):
        raise UnreadableInputError(f"{run.path}: nothing to judge: {_why_nothing(run, ranks)}")
    between = None
    notes: tuple[str, ...] = ()
    if len(ranks) > 1:
        views = [(rank.rank, rank.view) for rank in ranks if rank.view is not None]
        between, notes = compare_ranks(views, asked)
    skew = None
    if asked.steps is None:
        skew = rank_skew(rank_steps([(r.manifest, r.steps) for r in run.ranks if r.manifest]))
    findings: list[Finding] = []
    for rank in ranks:
        waits = None if between is None else between.waits_of(rank.rank)
        subject = Subject(
            rank.rank, rank.steps, rank.host, rank.view, waits, rank.problems, limits, skew
        )
        for find in RULES.values():
            findings.extend(find(subject))
    findings.sort(key=lambda f: (f.saving_ns is None, -(f.saving_ns or 0), _ORDER[f.severity]))
    verdict, shown = _verdict(ranks, findings, limits)
    partitions = [(rank.rank, rank.partition) for rank in ranks if rank.partition is not None]
    odd = pl.DataFrame(schema=ODD_PARTS)
    if between is not None or any(rank.manifest is not None for rank in run.ranks):
        odd = odd_parts(partitions, limits)
    return Diagnosis(run, verdict, ranks, tuple(findings), between, odd, shown, skew, notes)


def _diagnose_rank(rank: RankRun, asked: Scope, baseline: Trace | None) -> RankDiagnosis:
    notes = list(rank.step_problems)
    summary = None if asked.steps is not None else summarise_steps(rank.steps)
    not_there: UsageError | None = None
    # The last window is the one farthest from the start, where nothing is warming up any more.
    for window in reversed(rank.windows):
        if window.trace_path is None:
            continue
        try:
            trace = load(window.trace_path)
        except StepscopeError as error:
            notes.append(str(error))
            continue
        try:
            gpu_work(trace, asked)
        except UsageError as error:
            # Another window may have these steps.
            not_there = not_there or error
            continue
        try:
            host = partition_host(trace, asked.steps)
            view = WindowView(trace, asked, baseline)
            device = None
            if view.has_gpu:
                device = partition_device(view.timeline, view.idle, len(view.graph.steps))
        except StepscopeError as error:
            if asked.steps is not None and isinstance(error, UsageError):
                raise
            notes.append(str(error))
            continue
        wrong = trace.all_problems
        notes.extend(f"{row['message']} ({row['count']}×)" for row in wrong.to_dicts())
        notes.extend(view.graph.notes)
        if host is None and device is None:
            notes.append(f"{window.trace_path}: no ProfilerStep ranges, so it shows no steps")
            continue
        problems = tuple(wrong.select("problem", "count", "message").iter_rows())
        return RankDiagnosis(
            rank.rank,
            summary,
            host,
            device,
            view,
            window,
            problems,
            tuple(notes),
            windows=len(rank.windows),
        )
    if not_there is not None:
        raise not_there
    return RankDiagnosis(rank.rank, summary, None, None, None, None, (), tuple(notes))


def _with_metrics(diagnosis: RankDiagnosis, rank: RankRun) -> RankDiagnosis:
    if rank.metrics_path is None:
        return diagnosis
    try:
        return replace(diagnosis, metrics=summarise_metrics(rank.metrics_path))
    except StepscopeError as error:
        return replace(diagnosis, notes=(*diagnosis.notes, str(error)))


def _why_nothing(run: Run, ranks: tuple[RankDiagnosis, ...]) -> str:
    reasons = [note for rank in ranks for note in rank.notes] + list(run.problems)
    for rank in run.ranks:
        if rank.manifest is not None and rank.manifest.ended:
            reasons.append(rank.manifest.ended)
    return "; ".join(reasons) or "no step record and no trace"


def _verdict(
    ranks: tuple[RankDiagnosis, ...], findings: list[Finding], limits: Thresholds
) -> tuple[str, RankDiagnosis]:
    """What limits the step, and the rank that it is said of.

    A finding in steps that recording made much longer is no verdict, unless it is of a severity
    that does not rest on them.
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
            return f"{best.id}: {best.title}; mending it saves {share:.0%} of {step}", whose
    judged = [rank for rank in ranks if rank.partition is not None]
    slowest = max(judged, key=lambda rank: rank.step_ns or 0)
    partition = slowest.partition
    if partition is None or not partition.parts:
        return "no finding with a saving of a tenth of the step or more", slowest
    largest = max(partition.parts, key=lambda part: part.total_ns)
    share_of_largest = f"{partition.share(largest):.0%}"
    if slowest.rank in slowed and slowest.host is not None:
        words = (
            f"uncertain: recording made the steps {slowed[slowest.rank]:.1f}× as long; "
            f"{share_of_largest} of a recorded step is {largest.name}"
        )
    elif largest.name in _USEFUL:
        words = f"nothing stands out: {share_of_largest} of the step is {largest.name}"
    else:
        words = (
            f"{share_of_largest} of the step is {largest.name}, and no single finding promises a "
            "tenth of it"
        )
    return words, slowest
