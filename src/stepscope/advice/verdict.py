"""The verdict on a run: what limits the step, in one sentence.

Where evaluations or checkpoints take more of the job's time than any fix saves in the steps, that
sentence is about them, and what limits the step follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepscope.advice.finding import NO_BATCH_PACE, Finding, Severity
from stepscope.advice.job.late_ranks import Lateness, is_cause, is_slow_link
from stepscope.advice.rank.compute_summary import ComputeSummary
from stepscope.advice.rank.summary import RankSummary
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.calls.one_off import AUTOTUNING
from stepscope.analysis.record.summary import BY_RECORD, StepSummary
from stepscope.analysis.selection.partition import INPUT, OTHER
from stepscope.run.figures import duration, percent, plural, rank_names, sentence, shortened_list
from stepscope.run.step_record import CHECKPOINT, EVALUATION

_NOTABLE = 0.1
"""Of the step: what a saving must reach to become the verdict. Where the GPU computes for all but
so much of it, nothing but less or faster computation can: the step is GPU-bound."""
_MOSTLY = 0.5
_MUCH = 0.25
"""Of the recorded time: what work outside the steps must take to be named. Of the step: what a
finding of low severity must save to become the verdict."""
_USEFUL = ("compute", "forward", "backward", "optimizer")
"""Parts of a step in which it does what it is there for."""
_CUT_OFF = (
    "trace-incomplete: the file is cut off and may lack work of any step, so where the step goes "
    "is unknown"
)
_MISSING = "uncertain: {}, so what limits the step is unknown"
_ON_ANOTHER_CLOCK = (
    "uncertain: by the GPU's clock, all work of the steps ended before they began, so the clocks "
    "of GPU and host disagree, and the step cannot be judged"
)
_OF_FIRST_STEPS = (
    "uncertain: only the first {} of the training {} recorded, which may be start-up; record more"
)
_OF_FEW_STEPS = "Uncertain: only {} {} recorded, which may not be typical"
_OF_FIRST_STEP = (
    "Uncertain: the only step in the trace is the first that was profiled, which may be start-up"
)
_GPU_UNUSED = "gpu-unused"
_BUSY_CPUS, _LATE_RANK, _RECOMPILATION = "busy-cpus", "late-rank", "recompilation"
_NOTHING = "nothing stands out: "
_LAGGING = (
    "Uncertain: work began before its launch, so the GPU's clock is behind the host's by {} or "
    "more, and idle time is not where it seems"
)
_OF_ODD_STEPS = ("slow-first-steps", "recompilation", "abnormal-collective", "stalled-step")
"""Findings that may be about start-up steps and stalls, which the step shown excludes."""


def verdict_of(
    ranks: Sequence[RankSummary],
    findings: Sequence[Finding],
    limits: Thresholds,
    late: Lateness | None,
) -> tuple[str, RankSummary]:
    """What limits the step, how far that can be relied on, and the rank that this applies to.

    Args:
        ranks: The ranks, at least one.
        findings: Their findings, in the order of a report.
    """
    text, whose, named = _limit_of(ranks, findings, limits, late)
    if late is not None:
        text = _with_unaccused(text, whose, named, findings, late)
    odd = _outside_steady_steps(findings, whose)
    if odd is not None and odd.id == _RECOMPILATION and odd.title not in text:
        text += f". Outside the steady steps: {odd.title} ({odd.id})"
    steps = whose.steps
    if steps is not None and steps.holds_few_steps and not steps.holds_only_first_steps:
        count = len(steps.steps)
        were = "was" if count == 1 else "were"
        text += f". {_OF_FEW_STEPS.format(plural(count, 'step'), were)}"
    if whose.is_first_step_alone:
        text += f". {_OF_FIRST_STEP}"
    if (once := _once(findings, whose)) is not None:
        if text.startswith(_NOTHING):
            text = f"{once.id}: {once.title}. Apart from that, {text.removeprefix(_NOTHING)}"
        else:
            # What autotuning times is work of the GPU like any other.
            is_part = AUTOTUNING in once.title
            text += f". {'Part' if is_part else 'Left out'} of this: {once.title}"
    outside = _outside(findings, text)
    if outside is None and steps is not None and (beside := _beside(steps)):
        text += f". {beside}"
    if whose.clock_lag_ns and text != _ON_ANOTHER_CLOCK:
        text += f". {_LAGGING.format(duration(whose.clock_lag_ns))}"
    if outside is not None:
        text = f"{_first(outside, ranks)}. In the steps, {text}"
    return text, whose


def _with_unaccused(
    text: str,
    shown: RankSummary,
    named: Finding | None,
    findings: Sequence[Finding],
    late: Lateness,
) -> str:
    """With a late rank that no finding is about: of two ranks, neither is accused.

    It leads where the job gains more without it than by what the rest is about.

    Args:
        named: The finding that the text is about, if it is about one.
    """
    lateness = late.text()
    if sentence(lateness) in text or any(one.id == _LATE_RANK for one in findings):
        return text
    if late.skew.cause:
        lateness += f": {late.skew.cause}"
    saving_ns, step_ns = late.skew.saving_ns, late.skew.step_ns
    if named is not None and (named.saving_ns or 0) >= saving_ns:
        return f"{text}. {sentence(lateness)}"
    if step_ns:
        lateness += f"; without that the step takes {percent(saving_ns / step_ns)} less"
    lateness += f" ({_LATE_RANK})"
    if text.startswith(_NOTHING):
        return lateness  # what the rank shown spends most time in may be this wait
    return f"{lateness}. On rank {shown.rank}, {text}"


def _limit_of(
    ranks: Sequence[RankSummary],
    findings: Sequence[Finding],
    limits: Thresholds,
    late: Lateness | None,
) -> tuple[str, RankSummary, Finding | None]:
    """What limits the step, the rank that this applies to, and the finding that it is about.

    If recording made steps much longer, findings of low severity rest on those steps and cannot be
    the verdict. There is no verdict on the first steps of a training alone, nor on a window that
    lacks too much of the GPU's work.
    """
    slowed = {
        rank.rank: factor
        for rank in ranks
        if rank.steps is not None
        and not rank.has_recorded_pace
        and (factor := rank.steps.recording_factor or 1.0) >= limits.profiler_factor
    }
    lacking = {rank.rank for rank in ranks if rank.missing}
    sure = (
        f
        for f in findings
        if f.rank not in lacking and (f.rank not in slowed or f.severity is not Severity.LOW)
    )
    first = [r for r in ranks if r.steps is not None and r.steps.holds_only_first_steps]
    if len(first) == len(ranks):
        slowest = max(first, key=lambda rank: rank.step_ns or 0)
        count = max(len(rank.steps.steps) for rank in first if rank.steps is not None)
        those = ("step", "was") if count == 1 else (f"{count} steps", "were")
        return _OF_FIRST_STEPS.format(*those), slowest, None
    for finding in findings:
        # Nothing else matters as much as that the GPU is not used at all.
        if finding.id == _GPU_UNUSED and finding.severity is Severity.HIGH:
            return f"{_GPU_UNUSED}: {finding.title}", _rank_of(ranks, finding), finding
    best = next((finding for finding in sure if finding.saving_ns), None)
    if best is not None:
        share = best.saving_share
        if share >= (_MUCH if best.severity is Severity.LOW else _NOTABLE):
            whose = _rank_of(ranks, best)
            step = "the step" if len(ranks) == 1 else f"rank {best.rank}'s step"
            if best.is_of_whole_file:
                step = "the whole file" if len(ranks) == 1 else f"rank {best.rank}'s file"
            fixing = "fixing it" if late is None else _fixing(best, late, findings)
            text = f"{best.id}: {best.title}; {fixing} saves {best.up_to}{percent(share)} of {step}"
            if best.next_rank is not None:
                text += f", until rank {best.next_rank} limits the step"
            if best.id == _BUSY_CPUS and (own := _own_cause(best, sure)) is not None:
                text += f". Apart from that, {own}"
            if late is not None and is_cause(best, late, findings):
                text += f". {sentence(late.text())}"
            elif late is not None and is_slow_link(best, late, findings):
                whose_own = "its" if len(late.ranks) == 1 else "their"
                text += f". {sentence(late.text())}: {whose_own} communication takes longer"
            return text, whose, best
    judged = [rank for rank in ranks if rank.partition is not None]
    if not judged:
        return _CUT_OFF, max(ranks, key=lambda rank: (rank.is_cut_off, rank.step_ns or 0)), None
    slowest = max(judged, key=lambda rank: rank.step_ns or 0)
    partition = slowest.shown_partition
    if slowest.missing:
        return _MISSING.format(slowest.missing), slowest, None
    if partition is None or not partition.parts:
        return "no finding with a saving of a tenth of the step or more", slowest, None
    if partition.total_ns == 0:
        return _ON_ANOTHER_CLOCK, slowest, None
    largest = max(partition.parts, key=lambda part: part.total_ns)
    share_of_largest = percent(partition.share(largest))
    whole = "the whole file" if slowest.is_whole_file else "the step"
    named: Finding | None = None
    if slowest.rank in slowed and slowest.host is not None:
        recorded = slowest.host.partition
        longest = max(recorded.parts, key=lambda part: part.total_ns)
        text = (
            f"uncertain: recording made the steps {slowed[slowest.rank]:.1f}× as long; "
            f"{percent(recorded.share(longest))} of a recorded step is {longest.name}"
        )
    elif (named := _mostly_compiling(findings, slowest)) is not None:
        text = f"{named.id}: {named.title}; record later to see steady steps"
    elif (named := _of_pipeline(findings, slowest)) is not None:
        text = f"{named.id}: {named.title}"
    elif (named := _unknown(findings)) is not None:
        text = f"{named.id}: {named.title}; not estimated: {NO_BATCH_PACE}"
        slowest = _rank_of(ranks, named)
    elif (named := _uneven(findings, slowest)) is not None:
        beyond = next(item.value for item in named.evidence if item.unit == "share")
        text = (
            f"{named.id}: {named.title}; what they take beyond it is {percent(float(beyond))} "
            "of the time"
        )
    elif (named := _held_up(findings, slowest)) is not None:
        text = f"{named.id}: {named.title}; {named.saving_reason}"
    elif largest.name in _USEFUL:
        is_bound = largest.name == "compute" and partition.share(largest) >= 1 - _NOTABLE
        text = "GPU-bound: " if is_bound else _NOTHING
        text += f"{share_of_largest} of {whole} is {largest.name}"
        if largest.name == "compute" and slowest.compute is not None:
            text += f" ({slowest.compute.describe()})"
        elif slowest.compute is not None and slowest.compute.is_on_cpu:
            text += f". Of what the CPU computes, {slowest.compute.describe()}"
            text += _overhead(slowest.compute)
        if (odd := _outside_steady_steps(findings, slowest)) is not None:
            where = odd.id if odd.rank == slowest.rank else f"{odd.id} on rank {odd.rank}"
            text += f". Outside the steady steps: {odd.title} ({where})"
    else:
        name = largest.name
        if name == OTHER and partition.basis == BY_RECORD:
            phases = [part.name for part in partition.parts if part.name not in (INPUT, OTHER)]
            name = f"outside {shortened_list(phases, 4)}" if phases else name
        text = f"{share_of_largest} of {whole} is {name}, and no single finding saves a tenth of it"
        text += _overhead(slowest.compute)
    return text, slowest, named


def _overhead(compute: ComputeSummary | None) -> str:
    text = "" if compute is None else compute.describe_overhead()
    return text and f". {text}"


def _own_cause(busy: Finding, others: Iterable[Finding]) -> str | None:
    """The first notable finding about the training itself, where others have its CPUs."""
    for one in others:
        share = one.saving_share
        if one.rank == busy.rank and one.severity.is_weighty and share >= _NOTABLE:
            return f"{one.id}: {one.title}; fixing it saves {one.up_to}{percent(share)}"
    return None


def _rank_of(ranks: Sequence[RankSummary], finding: Finding) -> RankSummary:
    return next(rank for rank in ranks if rank.rank == finding.rank)


def _once(findings: Sequence[Finding], shown: RankSummary) -> Finding | None:
    """The finding that one-off costs of a rank are a large part of the recorded time."""
    mine = (one for one in findings if one.id == "one-off-costs" and one.rank == shown.rank)
    return next((one for one in mine if one.severity is not Severity.INFO), None)


def _outside(findings: Sequence[Finding], of_step: str) -> Finding | None:
    """The finding about work outside the steps that leads: no other one saves as much of the job.

    That the GPU is not used at all matters more.

    Args:
        of_step: What limits the step.
    """
    if of_step.startswith(_GPU_UNUSED):
        return None
    first = next((one for one in findings if one.weight_ns), None)
    if first is None or first.saving_of_job is None or first.saving_of_job < _NOTABLE:
        return None
    return first


def _first(outside: Finding, ranks: Sequence[RankSummary]) -> str:
    """What leads the verdict, with what its fix saves."""
    whose = "" if len(ranks) == 1 else f" of rank {outside.rank}'s time"
    share = percent(outside.saving_of_job or 0.0)
    return f"{outside.id}: {outside.title}; halving it saves {share}{whose}"


def _beside(steps: StepSummary) -> str:
    """What takes a large part of the run outside the steps, which no finding is about."""
    parts = [
        (other.kind, other.total_ns / max(1, steps.observed_ns))
        for other in steps.other_kinds
        if other.kind in (EVALUATION, CHECKPOINT)
    ]
    kind, share = max(parts, key=lambda part: part[1], default=("", 0.0))
    if share < _MUCH:
        return ""
    return f"Outside the steps, {kind} takes {percent(share)} of the recorded time"


def _fixing(best: Finding, late: Lateness, findings: Sequence[Finding]) -> str:
    """What to fix, and on which ranks, where several are late by the same."""
    if is_slow_link(best, late, findings) and not best.is_upper_bound:
        return "a link as fast as the others'"
    if not is_cause(best, late, findings):
        return "fixing it"
    having = {one.rank for one in findings if one.id == best.id and one.rank in late.ranks}
    return f"fixing it on {rank_names(having)}" if len(having) > 1 else "fixing it"


def _of_pipeline(findings: Sequence[Finding], shown: RankSummary) -> Finding | None:
    """What a pipeline loses most by: a slow stage, else the bubble of the rank shown."""
    uneven = next((one for one in findings if one.id == "uneven-stages"), None)
    mine = (one for one in findings if one.id == "pipeline-bubble" and one.rank == shown.rank)
    bubble = next(mine, None)
    return next((o for o in (uneven, bubble) if o is not None and o.severity.is_weighty), None)


def _unknown(findings: Sequence[Finding]) -> Finding | None:
    """The first notable finding that batches may hide, which came late at an unknown pace."""
    unknown = (one for one in findings if one.saving_reason == NO_BATCH_PACE)
    return next((one for one in unknown if one.severity.is_weighty), None)


def _uneven(findings: Sequence[Finding], shown: RankSummary) -> Finding | None:
    """The finding that a rank loses much time in some of its steps, for a reason nobody knows."""
    mine = (one for one in findings if one.id == "uneven-steps" and one.rank == shown.rank)
    return next((one for one in mine if one.saving_ns is None and one.severity.is_weighty), None)


def _held_up(findings: Sequence[Finding], shown: RankSummary) -> Finding | None:
    """The first finding that brings nothing alone, because another rank sets the pace.

    None where the rank shown does little else than what a step is there for.
    """
    partition = shown.partition
    if partition is None:
        return None
    useful = sum(partition.share(part) for part in partition.parts if part.name in _USEFUL)
    mine = (one for one in findings if one.rank == shown.rank and one.next_rank is not None)
    found = next((one for one in mine if one.saving_ns is None), None)
    return found if useful <= 1 - _MUCH else None


def _outside_steady_steps(findings: Sequence[Finding], shown: RankSummary) -> Finding | None:
    """The first notable finding about steps that the step shown excludes.

    It may be another rank's, where the rank shown only waited for that.
    """
    for finding in findings:
        is_its_own = finding.rank == shown.rank or bool(finding.placed)
        if finding.id in _OF_ODD_STEPS and is_its_own and finding.severity.is_weighty:
            return finding if finding.saving_ns is None else None
    return None


def _mostly_compiling(findings: Sequence[Finding], shown: RankSummary) -> Finding | None:
    """The finding that a rank's window is mostly compilation, if it is."""
    for finding in findings:
        if finding.id == "compilation-in-window" and finding.rank == shown.rank:
            from stepscope.advice.rules.steps.compilation import share_of

            return finding if share_of(finding) >= _MOSTLY else None
    return None
