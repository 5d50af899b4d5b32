"""Slow first steps: the run begins with steps that take far longer than the later ones.

Measured from the step record: the unbroken run of steps at its beginning that took more than twice
the median of the later steps. Without a record the steps of the trace are judged in the same way,
and the evidence names what the slowest of them spent its extra time in. One-off calls in a recorded
window are named as well (`calls.one_off`). What these steps took
beyond the median was lost once: they are no part of the steady step, and there is no saving per
step. One that begins an epoch is compared with later ones that do.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.advice.evidence.odd_steps import extra_time, one_off_parts, one_offs_of_steps
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.analysis.host.epochs import epoch_starts
from stepscope.analysis.host.steady_steps import StepState
from stepscope.analysis.record.summary import StepSummary
from stepscope.analysis.selection.odd_steps import FIRST_FACTOR, START_UP_FACTOR
from stepscope.run.figures import duration, significant

ID = "slow-first-steps"


@dataclass(frozen=True)
class _Start:
    """The slow steps at the beginning.

    Attributes:
        steps: Their numbers.
        excess_ns: What they took beyond the median of the steady steps, together.
        worst_ns: The longest of them.
        median_ns: The median steady step.
        observed_ns: Duration of all steps.
        extra: What the extra time went into, where that is known.
    """

    steps: tuple[int, ...]
    excess_ns: int
    worst_ns: int
    median_ns: int
    observed_ns: int
    extra: tuple[Evidence, ...] = ()


def _from_record(summary: StepSummary) -> _Start | None:
    starts = summary.epoch_starts
    begins_epoch_ns = starts.others_ns + starts.longest_ns if starts.steps else 0
    if not summary.first_steps or summary.first_worst_ns <= FIRST_FACTOR * begins_epoch_ns:
        return None
    return _Start(
        summary.first_steps,
        summary.first_excess_ns,
        summary.first_worst_ns,
        summary.median_ns,
        summary.observed_ns,
        _compiled(summary),
    )


def _compiled(summary: StepSummary) -> tuple[Evidence, ...]:
    if not summary.first_compile_ns:
        return ()
    return (Evidence("compiling in them", summary.first_compile_ns, "ns"),)


def _from_trace(subject: Subject) -> _Start | None:
    window = subject.window
    slow = () if window is None else window.steady.of_state(StepState.START_UP)
    if window is None or not slow:
        return None
    steady = window.steady
    begin = set(epoch_starts(window.trace).steps)
    later = [step.dur_ns for step in steady.of_state(StepState.COMPLETE) if step.step in begin]

    def usual_ns(step: int) -> int:
        return max(later) if later and step in begin else steady.median_ns

    worst = max(slow, key=lambda step: step.dur_ns)
    return _Start(
        tuple(step.step for step in slow),
        sum(max(0, step.dur_ns - usual_ns(step.step)) for step in slow),
        worst.dur_ns,
        steady.median_ns,
        sum(step.dur_ns for step in steady.judged),
        extra_time(window, worst.step),
    )


def find(subject: Subject) -> list[Finding]:
    """The finding, if the beginning lost as much time as several steady steps take."""
    start = _from_record(subject.steps) if subject.steps is not None else _from_trace(subject)
    if start is None:
        return []
    limits = subject.thresholds
    lost_steps = start.excess_ns / max(1, start.median_ns)
    if lost_steps < limits.slow_first_steps_steps:
        return []
    share = start.excess_ns / max(1, start.observed_ns)
    count = len(start.steps)
    return [
        Finding(
            id=ID,
            title=_title(count, start),
            severity=Severity.MEDIUM if share >= limits.slow_first_steps_medium else Severity.LOW,
            rank=subject.rank,
            saving_ns=None,
            saving_reason="a cost at the start of the run, paid once and not in every step",
            assumption="",
            predicted_step_ns=None,
            evidence=(
                Evidence("time lost at the start", start.excess_ns, "ns"),
                Evidence("the same in steady steps", lost_steps, "factor"),
                Evidence("share of the observed time", share, "share"),
                Evidence("slowest of them", start.worst_ns, "ns"),
                Evidence("steady step", start.median_ns, "ns"),
                Evidence("slow means, times the median", START_UP_FACTOR, "factor"),
                *start.extra,
                *_one_offs(subject, start.steps),
            ),
            steps=start.steps,
            advice=(
                "Compilation, library start-up, first allocations and starting the loader's "
                "workers fall here. It matters for short or often restarted runs: keep the "
                "compile cache (TORCHINDUCTOR_CACHE_DIR) between runs, avoid changing shapes, and "
                "record windows after these steps."
            ),
        )
    ]


def _one_offs(subject: Subject, steps: tuple[int, ...]) -> tuple[Evidence, ...]:
    """The one-off calls in these steps, as far as a window recorded them."""
    if subject.window is None or not subject.window.has_gpu:
        return ()
    return one_off_parts(one_offs_of_steps(subject.window, steps))


def _title(count: int, start: _Start) -> str:
    if count > 1:
        return f"the first {count} steps are slow: up to {duration(start.worst_ns)}"
    times = significant(start.worst_ns / max(1, start.median_ns))
    return f"the first step takes {duration(start.worst_ns)}, {times} times the others"
