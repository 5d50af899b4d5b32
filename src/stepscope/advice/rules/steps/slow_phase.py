"""Slow phase: a named part of the step costs more than it should.

There are three cases, all measured from the phases of the step record over the steady steps. A
phase *dominates* if it is not the training's own work but takes a large share of the step, or if it
is saving, which nothing in the step waits for, and takes a notable one; the fix removes its time.
What a phase contains decides, not its name: a backward pass or an optimizer's step in it makes it
the training's own work (`is_own_work`). A phase is *rare* if
fewer than half of the steps have it, such as the saving of a checkpoint: what it takes in the steps
that it makes slow, or in all where it takes a large share of the time, is removed, or done beside
the training. A phase *spikes* if it takes more than
three times its median in some steps and is the reason why they are slow; the fix removes what they
took beyond the median. If several phases spike, the reason is elsewhere: see `uneven-steps`; if the
steps compile code, it is `recompilation`; and if they wait for a CPU that others have, whatever the
thread does then takes longer: see `busy-cpus` and `uneven-steps`. Where each step is a micro-batch,
and the slow ones are those in which the optimizer updates, nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from stepscope.advice.evidence.specific_causes import SPIKES_LABEL
from stepscope.advice.evidence.subject import Subject, plain_finding
from stepscope.advice.finding import Evidence, Finding, Severity, severity_of
from stepscope.advice.rules.steps.compilation import compiling_steps
from stepscope.analysis.host.partition import OPTIMIZER_STEP
from stepscope.analysis.record.step_patterns import StepCycle
from stepscope.analysis.record.summary import PhaseTimes, StepSummary
from stepscope.run.figures import first_of, percent
from stepscope.run.step_record import (
    BACKWARD,
    COMMUNICATION,
    FORWARD,
    OF_OPTION,
    OPTIMIZER,
    SAVING,
    is_input_phase,
)
from stepscope.trace.arrays import intervals
from stepscope.trace.derive.steps import step_at

_OWN_WORK = frozenset({FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION})
OF_SAVING = (
    "Save less often, or beside the training: copy the state to the CPU and write it in another "
    "thread (torch.distributed.checkpoint.async_save does that), to a local disk first. Let one "
    "rank save what all ranks hold, or each rank its own part."
)
_TRAINING = r"^autograd::engine::evaluate_function|^Optimizer\.step#|Backward0$"
_MOSTLY_UPDATES = 0.8
"""Share of the slow steps that must update, where accumulation is why they are slow."""
_WAITS = "the training thread sleeps there, as it does while it waits for other ranks"
_ALONE = 0.7  # of what all phases' spikes cost: below it, no single phase is to blame


def find_slow_phase(subject: Subject) -> list[Finding]:
    """The findings, at most one per phase, outermost phases only."""
    if subject.steps is None:
        return []
    findings: list[Finding] = []
    dominant = dominating(subject, subject.steps)
    total_excess_ns = sum(p.excess_ns for p in subject.steps.phases if "/" not in p.name)
    for phase in subject.steps.phases:
        if "/" in phase.name or is_input_phase(phase.name):
            continue
        is_alone = phase.excess_ns >= _ALONE * total_excess_ns
        found = _spikes(subject, subject.steps, phase) if is_alone else []
        if not found and phase in dominant:
            found = _dominates(subject, subject.steps, phase)
        findings += found
    return findings


def dominating(subject: Subject, summary: StepSummary) -> list[PhaseTimes]:
    """The outermost phases that take a large share of the step and are not its own work."""
    limits = subject.thresholds
    return [
        phase
        for phase in summary.phases
        if "/" not in phase.name
        and not is_input_phase(phase.name)
        and _share(phase, summary)
        >= (limits.slow_phase_excess if phase.name == SAVING else limits.slow_phase_share)
        and is_own_work(subject, summary, phase) is not True
    ]


def is_own_work(subject: Subject, summary: StepSummary, phase: PhaseTimes) -> bool | None:
    """Whether a phase is work of the training itself: it contains backward or an optimizer's step.

    That is known from the record, or from a window that has the phase. A phase around others of
    the training's work is such work as well. None if nobody looked, and every step has the phase:
    steps without it are training all the same.
    """
    name = phase.name
    if name.startswith(OF_OPTION):
        return False
    if name.lower() in _OWN_WORK or name in subject.training_phases:
        return True
    inner = (one.name for one in summary.phases if one.name.startswith(f"{name}/"))
    if any(path.rpartition("/")[2].lower() in _OWN_WORK for path in inner):
        return True
    in_window = _contains_training(subject, name)
    if in_window is not None:
        return in_window
    is_in_all = phase.steps == len(summary.steps)
    return None if is_in_all and not _is_elsewhere(subject, summary) else False


def _is_elsewhere(subject: Subject, summary: StepSummary) -> bool:
    """Whether the training's own work is known to lie in other phases."""
    return bool(subject.training_phases) or any(
        "/" not in phase.name and phase.name.lower() in _OWN_WORK - {COMMUNICATION}
        for phase in summary.phases
    )


def _contains_training(subject: Subject, name: str) -> bool | None:
    """Whether ranges of a phase in the window contain backward or an optimizer's step.

    None if the window does not show it: no such range, or neither of the two anywhere.
    """
    window = subject.window
    if window is None:
        return None
    phase = (pl.col("category") == "user_annotation") & (pl.col("name") == name)
    ranges = window.spans(window.main_spans(phase))
    if not len(ranges):
        return None
    work = pl.col("name").str.contains(_TRAINING)
    starts = window.host_events(work)["start_ns"].to_numpy()
    if not len(starts):
        return None
    return bool(intervals.contains(ranges, starts).any())


def _share(phase: PhaseTimes, summary: StepSummary) -> float:
    return phase.total_ns / summary.partition.total_ns


def _finding(
    subject: Subject, step_ns: int, saving_ns: int | None, share: float, **further: Any
) -> list[Finding]:
    severity = severity_of(share, subject.thresholds)
    return plain_finding(
        subject,
        rule="slow-phase",
        severity=Severity.LOW if saving_ns is None else severity,
        step_ns=step_ns,
        saving_ns=saving_ns,
        **further,
    )


def _dominates(subject: Subject, summary: StepSummary, phase: PhaseTimes) -> list[Finding]:
    share = _share(phase, summary)
    saving_ns: int | None = round(phase.total_ns / len(summary.steps))
    each = phase.steps == len(summary.steps)
    where = "every step" if each else f"the {phase.steps} steps that have it"
    title = f"the phase '{phase.name}' takes {percent(share)} of the step"
    assumption = "the phase is removed, or moved off the training thread"
    advice = (
        f"Look at what '{phase.name}' does in {where}: do it less often, make it cheaper, "
        "or hand it to a thread or process beside the training."
    )
    if phase.name.startswith(OF_OPTION):
        option = phase.name.removeprefix(OF_OPTION)
        title = f"Stepscope's option {option} takes {percent(share)} of the step"
        assumption = "the option is off"
        advice = f"Switch {option} off, except to look for a problem of memory."
    elif is_own_work(subject, summary, phase) is None:
        saving_ns = None
        advice = (
            f"Record with auto_phases to see what '{phase.name}' contains. If it "
            "is not part of the training itself, do it less often or beside the training."
        )
    elif phase.is_rare or phase.name == SAVING:
        return _rare(subject, summary, phase, share, round(phase.total_ns / len(summary.steps)))
    return _finding(
        subject,
        summary.mean_ns,
        saving_ns,
        share,
        title=title,
        assumption=assumption,
        reason="it was not recorded whether the phase is the training's own work",
        evidence=(
            Evidence("mean per step", round(phase.total_ns / len(summary.steps)), "ns"),
            Evidence("share of the step", share, "share"),
            Evidence("steps that have it", phase.steps, "count"),
            Evidence("longest", phase.worst_ns, "ns"),
        ),
        advice=advice,
    )


def _spikes(subject: Subject, summary: StepSummary, phase: PhaseTimes) -> list[Finding]:
    share = phase.excess_ns / summary.partition.total_ns
    # A single slow step may be chance; `uneven-steps` and `stalled-step` report those.
    if len(phase.slow_steps) < 2 or share < subject.thresholds.slow_phase_excess:
        return []
    compiling = compiling_steps(subject).intersection(phase.slow_steps)
    if 2 * len(compiling) >= len(phase.slow_steps):
        return []
    if 2 * len(set(summary.queued_steps).intersection(phase.slow_steps)) >= len(phase.slow_steps):
        return []
    if is_own_work(subject, summary, phase) and hold_updates(subject, summary, phase.slow_steps):
        return []
    saving_ns = round(phase.excess_ns / len(summary.steps))
    if phase.is_rare:
        return _rare(subject, summary, phase, share, saving_ns)
    waits = _waits_for_ranks(subject, summary, phase)
    slow = first_of(phase.slow_steps, 5)
    advice = (
        f"Compare what '{phase.name}' does in steps {slow} with the others: periodic work (saving, "
        "logging, evaluation), changing shapes, or something else on the machine. Record a window "
        "over one of them."
    )
    if waits:
        advice = (
            f"Compare what the other ranks do before and in steps {slow}: this one most likely "
            "waits there for the slowest of them."
        )
    return _finding(
        subject,
        summary.mean_ns,
        None if waits else saving_ns,
        share,
        reason=_WAITS if waits else "",
        title=f"the phase '{phase.name}' is far slower in {len(phase.slow_steps)} "
        f"of {phase.steps} steps",
        assumption="in the slow steps the phase takes its median time",
        evidence=(
            Evidence("median", phase.median_ns, "ns"),
            Evidence("longest", phase.worst_ns, "ns"),
            Evidence(SPIKES_LABEL, saving_ns, "ns"),
            Evidence("share of the step", share, "share"),
        ),
        steps=phase.slow_steps,
        advice=advice,
    )


def _waits_for_ranks(subject: Subject, summary: StepSummary, phase: PhaseTimes) -> bool:
    """Whether a phase is slow where its thread sleeps, in which ranks wait for each other.

    Where the records of all show how they meet, waits for late ranks are known as such.
    """
    if subject.world_size == 1 or subject.has_peers:
        return False
    if phase.name not in {BACKWARD, COMMUNICATION}:
        return False
    asleep = set(summary.sleeping_steps).intersection(phase.slow_steps)
    return 2 * len(asleep) >= len(phase.slow_steps)


def hold_updates(subject: Subject, summary: StepSummary, slow: Sequence[int]) -> bool:
    """Whether slow steps are those that end an accumulation: only they update the parameters.

    The optimizer's phases tell, or a window in which steps of the record's cycle alone update. A
    window in which others update as well shows the contrary.
    """
    cycle = summary.updates or summary.cycle
    if cycle is None:
        return False
    in_window = _only_these_update(subject, cycle)
    if in_window is False or (in_window is None and summary.updates is None):
        return False
    return sum(map(cycle.is_slow, slow)) >= _MOSTLY_UPDATES * len(slow)


def _only_these_update(subject: Subject, cycle: StepCycle) -> bool | None:
    """Whether, of a window's steps, those of a cycle alone update; None if it does not show it."""
    window = subject.window
    if window is None:
        return None
    updates = window.host_events(pl.col("name").str.starts_with(OPTIMIZER_STEP))
    steps = window.trace.steps
    places = step_at(steps, updates["start_ns"].to_numpy())
    updating = set(steps["step"].to_numpy()[places[places >= 0]].tolist())
    if not all(map(cycle.is_slow, updating)):
        return False
    others = set(steps["step"].to_list()) - updating
    return True if updating and others and not any(map(cycle.is_slow, others)) else None


def _rare(
    subject: Subject, summary: StepSummary, phase: PhaseTimes, share: float, saving_ns: int
) -> list[Finding]:
    """A phase that few steps have, or saving, and that takes much of the time."""
    is_saving = phase.name == SAVING
    what = "saving" if is_saving else f"the phase '{phase.name}'"
    return _finding(
        subject,
        summary.mean_ns,
        saving_ns,
        share,
        title=f"{what} takes {percent(share)} of the time, in {phase.steps} of "
        f"{len(summary.steps)} steps",
        assumption="it is left out, or done beside the training thread",
        evidence=(
            Evidence("median, where it comes", phase.median_ns, "ns"),
            Evidence("longest", phase.worst_ns, "ns"),
            Evidence("per step, over all steps", saving_ns, "ns"),
            Evidence("share of the time", share, "share"),
        ),
        steps=phase.slow_steps,
        advice=OF_SAVING
        if is_saving
        else (
            f"Do '{phase.name}' less often, make it cheaper, or hand it to a thread or process "
            "beside the training."
        ),
    )
