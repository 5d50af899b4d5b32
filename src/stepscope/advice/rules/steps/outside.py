"""Work outside the steps: evaluations and checkpoints that take much of the job's time."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding, Severity, severity_of
from stepscope.advice.rules.steps.slow_phase import OF_SAVING
from stepscope.analysis.record.summary import StepSummary
from stepscope.run.figures import percent, plural
from stepscope.run.step_record import CHECKPOINT, EVALUATION

_LEAST_STEPS = 100
"""Work that came once in fewer steps is most often the end of a short trial, and a longer training
spends a smaller share on it."""
_NOT_OF_THE_STEP = "it is no part of the step, which stays as long"
_ONCE = "it came once in a short run: what share of a longer training it takes is not known"
_ADVICE = {
    EVALUATION: (
        "Evaluate less often, or on a part of the data, and only at the end on all of it. Give its "
        "loader workers and batches as large as memory without gradients allows, and call the "
        "model under torch.inference_mode()."
    ),
    CHECKPOINT: OF_SAVING,
}


@dataclass(frozen=True)
class _Work:
    """Work of one kind outside the steps."""

    kind: str
    times: int
    total_ns: int

    @property
    def name(self) -> str:
        """What takes the time."""
        return self.kind if self.kind == EVALUATION else "saving checkpoints"

    @property
    def assumption(self) -> str:
        """What halves it."""
        ways = ["half as often"] if self.times > 1 else []
        ways.append("on half of the data" if self.kind == EVALUATION else "in half the time")
        return f"it is done {', or '.join(ways)}"


def find_work_outside_steps(subject: Subject) -> list[Finding]:
    """Work outside steps: evaluations or checkpoints take a large part of the job's time.

    Measured from the step record: the time of evaluations and of checkpoints over that of all
    records, training steps and what lies outside them. A single step that is left out as a stall,
    because it saved, counts as a checkpoint: what saves in every Nth step is in the step, and
    `slow-phase` has it. Nothing of it is in the step that a report shows, so no saving per step is
    promised: the finding says what half of it saves of the job's time. The severity is that of the
    share that it takes.
    """
    summary = subject.steps
    if summary is None or summary.holds_few_steps:
        return []
    return [
        _finding(subject, summary, work)
        for work in _works(summary)
        if work.total_ns >= subject.thresholds.outside_steps * summary.observed_ns
    ]


def _works(summary: StepSummary) -> list[_Work]:
    found = []
    for kind in (EVALUATION, CHECKPOINT):
        mine = [one for one in summary.other_kinds if one.kind == kind]
        times, total_ns = sum(one.times for one in mine), sum(one.total_ns for one in mine)
        if kind == CHECKPOINT and summary.stalled_saving_ns:
            times, total_ns = times + 1, total_ns + summary.stalled_saving_ns
        if times:
            found.append(_Work(kind, times, total_ns))
    return sorted(found, key=lambda work: -work.total_ns)


def _finding(subject: Subject, summary: StepSummary, work: _Work) -> Finding:
    steps = summary.complete_steps
    share = work.total_ns / max(1, summary.observed_ns)
    is_of_trial = work.times == 1 and steps < _LEAST_STEPS
    times = "once" if work.times == 1 else plural(work.times, "time")
    return Finding(
        id="work-outside-steps",
        title=f"{work.name} takes {percent(share)} of the recorded time, {times} in "
        f"{plural(steps, 'step')}",
        severity=Severity.LOW if is_of_trial else severity_of(share, subject.thresholds),
        rank=subject.rank,
        saving_reason=_ONCE if is_of_trial else _NOT_OF_THE_STEP,
        saving_of_job=None if is_of_trial else share / 2,
        assumption="" if is_of_trial else work.assumption,
        outside_ns=None if is_of_trial else round(work.total_ns / steps),
        evidence=(
            Evidence("in all", work.total_ns, "ns"),
            Evidence("each time, on average", round(work.total_ns / work.times), "ns"),
            Evidence("the recorded time", summary.observed_ns, "ns"),
            Evidence("share of the recorded time", share, "share"),
        ),
        advice=_ADVICE[work.kind],
    )
