"""Input-bound: the step waits for its batch.

Measured as the time in which the training thread waited for the next batch: from the step record
(`watch`, or a phase named data or input), which the profiler does not slow down, else from the
DataLoader's ranges in a trace. The saving supposes that batches are prepared beside the step: each
step then lasts as long as it does now without its wait.
"""

from __future__ import annotations

import math

from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.subject import Subject
from stepscope.analysis.step_record import INPUT

ID = "input-bound"
WORKERS_LABEL = "loader workers to begin with"


def find(subject: Subject) -> list[Finding]:
    """The finding, if the wait's share of the step is above the threshold."""
    measured = _from_record(subject) or _from_trace(subject)
    if measured is None:
        return []
    step_ns, saved_ns, share, source, steps = measured
    limits = subject.thresholds
    if share < limits.input_bound_low:
        return []
    severity = Severity.LOW
    if share >= limits.input_bound_medium:
        severity = Severity.MEDIUM
    if share >= limits.input_bound_high:
        severity = Severity.HIGH
    predicted_ns = step_ns - saved_ns
    # A loader that works only while the step waits needs this many hands to keep up with the step.
    # One more absorbs what varies between batches.
    workers = 1 + math.ceil(saved_ns / max(1, predicted_ns))
    return [
        Finding(
            id=ID,
            title="the step waits for its input",
            severity=severity,
            rank=subject.rank,
            saving_ns=saved_ns,
            saving_reason="",
            assumption=(
                f"{workers} workers prepare batches beside the step and take no CPU time "
                "away from it"
            ),
            predicted_step_ns=predicted_ns,
            evidence=(
                Evidence("step now", step_ns, "ns"),
                Evidence("wait for input per step", saved_ns, "ns"),
                Evidence("share of waiting in the step", share, "share"),
                Evidence("steps measured", steps, "count"),
                Evidence(WORKERS_LABEL, workers, "count"),
                Evidence("measured by", source, "text"),
            ),
            steps=(),
            advice=(
                f"Prepare batches in the background: DataLoader(num_workers={workers}, "
                "persistent_workers=True, pin_memory=True on a GPU). If workers run already, "
                "raise their number or prefetch_factor, or make the work per sample cheaper "
                "(decode and tokenise ahead of time, store larger records, read from local disk)."
            ),
        )
    ]


_Measured = tuple[int, int, float, str, int]


def _from_record(subject: Subject) -> _Measured | None:
    """(step, saving, share, source, number of steps) from the step record."""
    summary = subject.steps
    if summary is None or summary.partition.of(INPUT) == 0:
        return None
    share = summary.partition.of(INPUT) / summary.partition.total_ns
    saved_ns = summary.median_ns - summary.median_without_wait_ns
    return summary.median_ns, saved_ns, share, "step record", len(summary.steps)


def _from_trace(subject: Subject) -> _Measured | None:
    """The same from the ranges of a trace."""
    if subject.host is None or subject.host.partition.of(INPUT) == 0:
        return None
    partition = subject.host.partition
    wall_ns = subject.host.median_step_ns
    saved_ns = wall_ns - subject.host.median_without_input_ns
    share = partition.of(INPUT) / partition.total_ns
    return wall_ns, saved_ns, share, "trace", partition.steps
