"""Stalled step: one step took far longer than all others.

Measured from the step record, and from the steps of the recorded window: the only step, after the
slow ones at the beginning, that takes more than three times the median, for another reason than its
input (`stepscope.analysis.selection.odd_steps`). One accident says nothing about the other steps,
so it is no part of the steady step, and no saving per step is promised. Nor is a step an accident
if the record shows that such steps come at one distance. Where the window holds the
step, or the record has the garbage collector's pauses in it, title and evidence name what it spent
the time in.
"""

from __future__ import annotations

from stepscope.advice.evidence.odd_steps import extra_time
from stepscope.advice.evidence.replayed import finding_without_saving
from stepscope.advice.evidence.stalls import GREW_BY, GREW_MOST
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.rules.host.garbage_collector import ADVICE as OF_COLLECTOR
from stepscope.advice.rules.steps.recompilation import compiling
from stepscope.analysis.host.causes import HostCause
from stepscope.analysis.host.steady_steps import StepState
from stepscope.analysis.record.summary import StepSummary, is_in_cycle
from stepscope.analysis.selection.partition import IDLE_PREFIX
from stepscope.run.figures import significant
from stepscope.trace.arrays import intervals

ID = "stalled-step"
_RECORD, _TRACE = "step record", "trace"
_MOSTLY = 0.5
_ADVICE = (
    "If it happens once, ignore it. If it comes back, find out what it goes with: saving, "
    "evaluation, a new shape, the garbage collector, the file system, other work on the machine. "
    "Record a longer window to see it again."
)


def find(subject: Subject) -> list[Finding]:
    """The findings: at most one from the record and one, of another step, from the window."""
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
                (*_pauses(summary), _source(_RECORD)),
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
    return int(spent[graph.steps.index(step)]) >= _MOSTLY * lost_ns


def _pauses(summary: StepSummary) -> tuple[Evidence, ...]:
    """The garbage collector's pauses in the stalled step of a record, if they explain most of it.

    What else a step spent its time in, the record does not say in comparable parts.
    """
    if summary.stalled_gc_ns < _MOSTLY * (summary.stalled_ns - summary.median_ns):
        return ()
    return (
        Evidence(GREW_MOST, HostCause.GARBAGE_COLLECTION.word, "text"),
        Evidence(GREW_BY, summary.stalled_gc_ns, "ns"),
    )


def _main_part(lost_ns: int, evidence: tuple[Evidence, ...]) -> str | None:
    """The part of the step that explains most of what was lost; None where none does."""
    seen = {item.label: item.value for item in evidence}
    part, grown_ns = seen.get(GREW_MOST), seen.get(GREW_BY)
    if not isinstance(part, str) or not isinstance(grown_ns, int) or grown_ns < _MOSTLY * lost_ns:
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
    return finding_without_saving(
        subject,
        rule=ID,
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
