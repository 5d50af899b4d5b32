"""Slow phase: a named part of the step costs more than it should.

There are three cases, all measured from the phases of the step record over the steady steps. A
phase *dominates* if it is not the training's own work (forward, backward, optimizer,
communication) but takes a large share of the step; the fix removes its time. A phase is *rare* if
fewer than half of the steps have it, such as the saving of a checkpoint: what it takes in the steps
that it makes slow, or in all where it takes a large share of the time, is removed, or done beside
the training. A phase *spikes* if it takes more than
three times its median in some steps and is the reason why they are slow; the fix removes what they
took beyond the median. If several phases spike, the reason is elsewhere: see `uneven-steps`; if the
steps compile code, it is `recompilation`; and if they wait for a CPU that others have, whatever the
thread does then takes longer: see `busy-cpus` and `uneven-steps`.
"""

from __future__ import annotations

from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.recorded import recorded_finding
from stepscope.advice.rules.recompilation import compiling_steps
from stepscope.advice.subject import Subject
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.record.summary import PhaseTimes, StepSummary
from stepscope.run.figures import percent
from stepscope.run.step_record import SAVING, is_input_phase

ID = "slow-phase"

_OWN_WORK = frozenset(
    {
        "forward",
        "backward",
        "optimizer",
        "optimizer_step",
        "loss",
        "step",
        "train_step",
        "training_step",
        "forward_backward",
        "forward_pass",
        "backward_pass",
        "model",
        "compute",
        "communication",
    }
)
_OF_SAVING = (
    "Save less often, or beside the training: copy the state to the CPU and write it in another "
    "thread (torch.distributed.checkpoint.async_save does that), to a local disk first. Let one "
    "rank save what all ranks hold, or each rank its own part."
)
_ALONE = 0.7  # of what all phases' spikes cost: below it, no single phase is to blame


def find(subject: Subject) -> list[Finding]:
    """The findings, at most one per phase, outermost phases only."""
    if subject.steps is None:
        return []
    findings = []
    dominant = dominating(subject, subject.steps)
    total_excess_ns = sum(p.excess_ns for p in subject.steps.phases if "/" not in p.name)
    for phase in subject.steps.phases:
        if "/" in phase.name or is_input_phase(phase.name):
            continue
        is_alone = phase.excess_ns >= _ALONE * total_excess_ns
        finding = _spikes(subject, subject.steps, phase) if is_alone else None
        if finding is None and phase in dominant:
            finding = _dominates(subject, subject.steps, phase)
        if finding is not None:
            findings.append(finding)
    return findings


def dominating(subject: Subject, summary: StepSummary) -> list[PhaseTimes]:
    """The outermost phases that take a large share of the step and are not its own work."""
    return [
        phase
        for phase in summary.phases
        if "/" not in phase.name
        and not is_input_phase(phase.name)
        and phase.name.lower() not in _OWN_WORK
        and _share(phase, summary) >= subject.thresholds.slow_phase_share
    ]


def _share(phase: PhaseTimes, summary: StepSummary) -> float:
    return phase.total_ns / summary.partition.total_ns


def _dominates(subject: Subject, summary: StepSummary, phase: PhaseTimes) -> Finding:
    share = _share(phase, summary)
    saving_ns = round(phase.total_ns / len(summary.steps))
    if phase.is_rare:
        return _rare(subject, summary, phase, share, saving_ns)
    each = phase.steps == len(summary.steps)
    where = "every step" if each else f"the {phase.steps} steps that have it"
    return recorded_finding(
        subject,
        summary,
        rule=ID,
        title=f"the phase '{phase.name}' takes {percent(share)} of the step",
        severity=_severity(share, subject.thresholds),
        saving_ns=saving_ns,
        assumption="the phase is removed, or moved off the training thread",
        evidence=(
            Evidence("mean per step", saving_ns, "ns"),
            Evidence("share of the step", share, "share"),
            Evidence("steps that have it", phase.steps, "count"),
            Evidence("longest", phase.worst_ns, "ns"),
        ),
        advice=(
            f"Look at what '{phase.name}' does in {where}: do it less often, make it cheaper, "
            "or hand it to a thread or process beside the training."
        ),
    )


def _spikes(subject: Subject, summary: StepSummary, phase: PhaseTimes) -> Finding | None:
    share = phase.excess_ns / summary.partition.total_ns
    # A single slow step may be chance; `uneven-steps` and `stalled-step` report those.
    if len(phase.slow_steps) < 2 or share < subject.thresholds.slow_phase_excess:
        return None
    compiling = compiling_steps(subject).intersection(phase.slow_steps)
    if 2 * len(compiling) >= len(phase.slow_steps):
        return None
    if 2 * len(set(summary.queued_steps).intersection(phase.slow_steps)) >= len(phase.slow_steps):
        return None
    saving_ns = round(phase.excess_ns / len(summary.steps))
    if phase.is_rare:
        return _rare(subject, summary, phase, share, saving_ns)
    return recorded_finding(
        subject,
        summary,
        rule=ID,
        title=f"the phase '{phase.name}' is far slower in {len(phase.slow_steps)} "
        f"of {phase.steps} steps",
        severity=_severity(share, subject.thresholds),
        saving_ns=saving_ns,
        assumption="in the slow steps the phase takes its median time",
        evidence=(
            Evidence("median", phase.median_ns, "ns"),
            Evidence("longest", phase.worst_ns, "ns"),
            Evidence("beyond the median, per step", saving_ns, "ns"),
            Evidence("share of the step", share, "share"),
        ),
        steps=phase.slow_steps,
        advice=(
            f"Compare what '{phase.name}' does in steps {_some(phase.slow_steps)} with the others: "
            "periodic work (saving, logging, evaluation), changing shapes, or something else on "
            "the machine. Record a window over one of them."
        ),
    )


def _rare(
    subject: Subject, summary: StepSummary, phase: PhaseTimes, share: float, saving_ns: int
) -> Finding:
    """A phase that few steps have, and that takes much of the time."""
    is_saving = phase.name == SAVING
    what = "saving" if is_saving else f"the phase '{phase.name}'"
    return recorded_finding(
        subject,
        summary,
        rule=ID,
        title=f"{what} takes {percent(share)} of the time, in {phase.steps} of "
        f"{len(summary.steps)} steps",
        severity=_severity(share, subject.thresholds),
        saving_ns=saving_ns,
        assumption="it is left out, or done beside the training thread",
        evidence=(
            Evidence("median, where it comes", phase.median_ns, "ns"),
            Evidence("longest", phase.worst_ns, "ns"),
            Evidence("per step, over all steps", saving_ns, "ns"),
            Evidence("share of the time", share, "share"),
        ),
        steps=phase.slow_steps,
        advice=_OF_SAVING
        if is_saving
        else (
            f"Do '{phase.name}' less often, make it cheaper, or hand it to a thread or process "
            "beside the training."
        ),
    )


def _severity(share: float, limits: Thresholds) -> Severity:
    return Severity.HIGH if share >= limits.slow_phase_high else Severity.MEDIUM


def _some(steps: tuple[int, ...]) -> str:
    shown = ", ".join(str(step) for step in steps[:5])
    return f"{shown}, …" if len(steps) > 5 else shown
