"""Rules about steps that differ."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.advice.evidence.outlier_steps import extra_time
from stepscope.advice.evidence.specific_causes import GREW_BY, GREW_MOST
from stepscope.advice.evidence.subject import Subject, plain_finding
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding, Severity, severity_of
from stepscope.advice.rules.host.interruptions import ADVICE as OF_COLLECTOR
from stepscope.advice.rules.host.interruptions import ON_DEVICE, find_busy_cpus
from stepscope.advice.rules.steps.compilation import compiling, compiling_steps
from stepscope.advice.rules.steps.slow_phase import OF_SAVING, find_slow_phase, hold_updates
from stepscope.analysis.host.causes import HostCause
from stepscope.analysis.host.steady_steps import StepState
from stepscope.analysis.record.step_patterns import LevelShift, StepCycle, find_cycle
from stepscope.analysis.record.summary import StepSummary, is_in_cycle
from stepscope.analysis.selection.names import is_operator
from stepscope.analysis.selection.partition import IDLE_PREFIX
from stepscope.run.figures import significant
from stepscope.run.step_record import SAVING
from stepscope.trace.arrays import intervals

_MOSTLY = 0.8
_BUSY = 0.9
_LONGER = 1.1
_MANY_CALLS, _FAR_MORE = 1000, 5
"""Operators that a slow step calls at least, and times what the others call, if that is why."""
_UNKNOWN = "the step record does not show what slows these steps"


def find_uneven_steps(subject: Subject) -> list[Finding]:
    """Uneven steps: some steps take more than twice the median, and no single phase is the reason.

    Nor is the wait for the input: that is `input-bound`. Nor are busy CPUs, if `busy-cpus` reports
    them; if few steps wait for a CPU, so that it does not, this finding says what slows them.

    Nor is a host that runs ahead of the GPU and waits for it now and then, as where the loss is
    printed every tenth step: its steps are short and long in turn, while the GPU's are alike.

    Nor is an accumulation of gradients, where each step is a micro-batch and those that update take
    longer.

    Steps that are slow from one on, or up to one, have the step named where that changes.

    Measured from the step record over the steady steps. The record does not show the cause, so no
    saving is promised: it says how much time the slow steps cost and which they are. Steps that are
    slow at regular distances do something that the others do not: the saving assumes that they no
    longer do it, and is the most that a change can bring. Where the window holds such a step and
    others, and it calls far more operators on the training thread, the finding says so.
    """
    summary = subject.steps
    if summary is None or not summary.slow_steps:
        return []
    if _host_runs_ahead(subject, summary):
        return []
    limits = subject.thresholds
    explained = {step for finding in find_slow_phase(subject) for step in finding.steps}
    explained |= compiling_steps(subject) | set(summary.waiting_steps)
    if find_busy_cpus(subject):
        explained |= set(summary.queued_steps)
    slow = {
        step: excess_ns
        for step, excess_ns in zip(summary.slow_steps, summary.slow_excess_ns, strict=True)
        if step not in explained
    }
    excess_ns = sum(slow.values())
    share = excess_ns / max(1, summary.partition.total_ns)
    if share < limits.uneven_steps_share or not slow:
        return []
    if 2 * sum(slow[step] for step in slow.keys() & set(summary.queued_steps)) >= excess_ns:
        return _of_busy_cpus(subject, summary, slow)
    if summary.shift is not None and (found := _of_shift(subject, summary, summary.shift, slow)):
        return found
    if hold_updates(subject, summary, tuple(slow)):
        return []
    regular = find_cycle(summary.steps, slow)
    if regular is not None:
        return _regular(subject, summary, regular)
    return plain_finding(
        subject,
        rule="uneven-steps",
        reason=_UNKNOWN,
        title=(
            f"{len(slow)} of {len(summary.steps)} steps "
            f"{'take' if len(slow) > 1 else 'takes'} more than twice the median"
        ),
        severity=Severity.MEDIUM if share >= limits.uneven_steps_medium else Severity.LOW,
        evidence=(
            Evidence("beyond the median, together", excess_ns, "ns"),
            *_lengths(summary, share, summary.worst_ns),
        ),
        steps=tuple(slow),
        advice=(
            "See whether they come at regular distances (saving, evaluation, logging, garbage "
            "collection), with certain batches (long samples, new shapes), or at random "
            "(other work on the machine, a shared file system). Record a window over one."
        ),
    )


def _host_runs_ahead(subject: Subject, summary: StepSummary) -> bool:
    """Whether the GPU has more to do in a recorded step than the median step of the record takes.

    A GPU that works all the time cannot keep up with such steps: the slow ones let it catch up.
    """
    window = subject.window
    if window is None or not window.has_gpu or not window.graph.steps:
        return False
    device_steps_ns = np.diff(window.graph.step_ends_ns, prepend=window.graph.begin_ns)
    busy_ns = window.idle.total_ns - window.idle.idle_ns
    is_busy = busy_ns >= _BUSY * window.idle.total_ns
    return is_busy and float(np.median(device_steps_ns)) > _LONGER * summary.median_ns


def _of_busy_cpus(subject: Subject, summary: StepSummary, slow: dict[int, int]) -> list[Finding]:
    excess_ns = sum(slow.values())
    share = excess_ns / max(1, summary.partition.total_ns)
    saving_ns = round(min(excess_ns, summary.queued_excess_ns) / len(summary.steps))
    return plain_finding(
        subject,
        rule="uneven-steps",
        title=f"{len(slow)} of {len(summary.steps)} steps wait for a CPU that others have",
        severity=severity_of(share, subject.thresholds),
        step_ns=summary.mean_ns,
        saving_ns=None if summary.host.is_on_device else saving_ns,
        reason=ON_DEVICE,
        assumption="a CPU is free whenever the training thread can run in them",
        evidence=(
            Evidence("beyond the median, together", excess_ns, "ns"),
            Evidence("waiting for a CPU beyond the median", summary.queued_excess_ns, "ns"),
            *_lengths(summary, share, summary.worst_ns),
        ),
        steps=tuple(slow),
        advice=(
            "See what takes the CPUs then (top, `stepscope monitor`): another program, or threads "
            "and workers of this one that begin together, as at the start of an epoch. Give the "
            "training CPUs of its own (taskset, --cpus-per-task)."
        ),
    )


def _lengths(summary: StepSummary, share: float, longest_ns: int) -> Iterator[Evidence]:
    yield Evidence("share of the time", share, "share")
    yield Evidence("longest", longest_ns, "ns")
    yield Evidence("median step", summary.median_ns, "ns")


def _of_shift(
    subject: Subject, summary: StepSummary, shift: LevelShift, slow: dict[int, int]
) -> list[Finding]:
    is_later = shift.after_ns > shift.before_ns
    if sum((step >= shift.step) is is_later for step in slow) < _MOSTLY * len(slow):
        return []
    excess_ns = sum(slow.values())
    share = excess_ns / max(1, summary.partition.total_ns)
    ratio = shift.ratio if is_later else 1 / shift.ratio
    when = f"from step {shift.step} on" if is_later else f"until step {shift.step}"
    return plain_finding(
        subject,
        rule="uneven-steps",
        reason=_UNKNOWN,
        title=f"steps take {significant(ratio)} times as long {when}",
        severity=severity_of(share, subject.thresholds),
        evidence=(
            Evidence(f"median before step {shift.step}", shift.before_ns, "ns"),
            Evidence("median from then on", shift.after_ns, "ns"),
            Evidence("beyond the median of all, together", excess_ns, "ns"),
            Evidence("share of the time", share, "share"),
        ),
        steps=tuple(slow),
        advice=(
            f"Find what changed at step {shift.step}: the length of sequences or the size of "
            "batches, what is trained, another program on the machine, a slower clock. If the "
            "program means to do that, judge its parts one by one."
        ),
    )


def _regular(subject: Subject, summary: StepSummary, cycle: StepCycle) -> list[Finding]:
    distance, slow = cycle.distance, cycle.excess_ns
    excess_ns = sum(slow.values())
    share = excess_ns / max(1, summary.partition.total_ns)
    times = 1 + excess_ns / len(slow) / max(1, summary.median_ns)
    saving_ns = round(excess_ns / len(summary.steps))
    title = f"1 step in {distance} takes {significant(times)} times as long as the others"
    advice = (
        f"Find what the program does every {distance} steps: a rollout, evaluation, saving, "
        "logging, garbage collection. Do it less often or beside the training (an asynchronous "
        "checkpoint, another thread), or give it a phase, so that it is counted apart."
    )
    seen: tuple[Evidence, ...] = ()
    if (calls := _operators_called(subject.window, cycle)) is not None:
        many, few = calls
        title += f", and calls {many:,} operators where they call {few:,}"
        advice = (
            f"Find what the program does every {distance} steps: its time goes into {many:,} calls "
            "of operators, mostly short ones. Make a few large calls of them: all environments of "
            "a rollout, all samples of an evaluation, all tensors of a log in one batch. What "
            "remains, do less often."
        )
        seen = (
            Evidence("operators in such a recorded step", many, "count"),
            Evidence("in one of the others", few, "count"),
        )
    return plain_finding(
        subject,
        rule="uneven-steps",
        title=title,
        severity=severity_of(share, subject.thresholds),
        step_ns=summary.mean_ns,
        saving_ns=saving_ns,
        assumption="these steps take as long as the others",
        evidence=(
            Evidence("a slow step every", f"{distance} steps", "text"),
            Evidence("beyond the median, per step", saving_ns, "ns"),
            *_lengths(summary, share, summary.median_ns + max(slow.values())),
            *seen,
        ),
        steps=tuple(slow),
        advice=advice,
        is_upper_bound=True,
    )


def _operators_called(window: WindowView | None, cycle: StepCycle) -> tuple[int, int] | None:
    """How many operators a slow recorded step calls, and another; None unless it is far more."""
    if window is None or not window.graph.steps:
        return None
    graph = window.graph
    is_slow = np.array([cycle.is_slow(step) for step in graph.steps])
    if is_slow.all() or not is_slow.any():
        return None
    starts = np.sort(window.main_spans(is_operator())["start_ns"].to_numpy())
    counts = np.searchsorted(starts, graph.step_ends_ns) - np.searchsorted(
        starts, graph.step_starts_ns
    )
    many, few = (int(np.median(counts[which])) for which in (is_slow, ~is_slow))
    return (many, few) if many >= max(_MANY_CALLS, _FAR_MORE * few) else None


_RECORD, _TRACE = "step record", "trace"
_MAIN_SHARE = 0.5
_ADVICE = (
    "If it happens once, ignore it. If it recurs, find out what it coincides with: saving, "
    "evaluation, a new shape, the garbage collector, the file system, other work on the machine. "
    "Record a longer window to see it again."
)


def find_stalled_step(subject: Subject) -> list[Finding]:
    """Stalled step: one step took far longer than all others.

    Measured from the step record, and from the steps of the recorded window: the only step, after
    the slow ones at the beginning, that takes more than three times the median, for another reason
    than its input (`stepscope.analysis.selection.outlier_steps`). One accident says nothing about
    the other steps, so it is no part of the steady step, and no saving per step is promised. Nor is
    a step an accident if the record shows that such steps come at one distance. Where the window
    holds the step, or the record has the garbage collector's pauses in it, title and evidence name
    what it spent the time in.
    """
    found: dict[int, list[Finding]] = {}
    window = subject.window
    if window is not None:
        for step in window.steady.of_state(StepState.STALL):
            if subject.steps is not None and is_in_cycle(subject.steps, step.step):
                continue  # `uneven-steps` says at which distance such steps come
            if _mostly_compiles(window, step.step, step.dur_ns - window.steady.median_ns):
                continue  # the findings about compilation say so
            evidence = extra_time(window, step.step)
            usual_ns = window.steady.median_ns
            found[step.step] = _finding(
                subject, step.step, step.dur_ns, usual_ns, (*evidence, _source(_TRACE))
            )
    summary = subject.steps
    if summary is not None and summary.stalled_step is not None:
        found.setdefault(
            summary.stalled_step,
            _finding(
                subject,
                summary.stalled_step,
                summary.stalled_ns,
                summary.median_ns,
                (*_parts(summary), _source(_RECORD)),
            ),
        )
    return [finding for findings in found.values() for finding in findings]


def _mostly_compiles(window: WindowView, step: int, lost_ns: int) -> bool:
    """Whether compiling explains most of the time that a step takes beyond the others."""
    whole = window.whole
    graph = whole.graph
    if step not in graph.steps:
        return False
    spent = intervals.covered(compiling(whole), graph.step_starts_ns, graph.step_ends_ns)
    return int(spent[graph.steps.index(step)]) >= _MAIN_SHARE * lost_ns


def _parts(summary: StepSummary) -> tuple[Evidence, ...]:
    """What explains most of the stalled step of a record: saving, or the collector's pauses.

    What else a step spent its time in, the record does not say in comparable parts.
    """
    if summary.stalled_saving_ns:
        return (
            Evidence(GREW_MOST, SAVING, "text"),
            Evidence(GREW_BY, summary.stalled_saving_ns, "ns"),
        )
    if summary.stalled_gc_ns < _MAIN_SHARE * (summary.stalled_ns - summary.median_ns):
        return ()
    return (
        Evidence(GREW_MOST, HostCause.GARBAGE_COLLECTION.word, "text"),
        Evidence(GREW_BY, summary.stalled_gc_ns, "ns"),
    )


def _main_part(lost_ns: int, evidence: tuple[Evidence, ...]) -> str | None:
    """The part of the step that explains most of what was lost; None where none does."""
    seen = {item.label: item.value for item in evidence}
    part, grown_ns = seen.get(GREW_MOST), seen.get(GREW_BY)
    if (
        not isinstance(part, str)
        or not isinstance(grown_ns, int)
        or grown_ns < _MAIN_SHARE * lost_ns
    ):
        return None
    return part.removeprefix(IDLE_PREFIX)


def _source(name: str) -> Evidence:
    return Evidence("measured by", name, "text")


def _finding(
    subject: Subject, step: int, dur_ns: int, usual_ns: int, more: tuple[Evidence, ...]
) -> list[Finding]:
    lost_ns = dur_ns - usual_ns
    if lost_ns < subject.thresholds.slow_first_steps_steps * usual_ns:
        return []
    times = significant(dur_ns / max(1, usual_ns))
    part = _main_part(lost_ns, more)
    mostly = "" if part is None else f", mostly in {part}"
    advice = _ADVICE
    if part == HostCause.GARBAGE_COLLECTION.word:
        advice = OF_COLLECTOR
    elif part == SAVING:
        advice = OF_SAVING
    return plain_finding(
        subject,
        rule="stalled-step",
        title=f"step {step} took {times} times as long as the others{mostly}",
        severity=Severity.LOW,
        reason="one stall is not a cost of every step, and the step shown does not include it",
        evidence=(
            Evidence("it took", dur_ns, "ns"),
            Evidence("the others, their median", usual_ns, "ns"),
            Evidence("lost in it", lost_ns, "ns"),
            *more,
        ),
        steps=(step,),
        advice=advice,
    )
