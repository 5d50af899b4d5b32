"""The outcome of the demo as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.report.outputs import Layout, Sink
from stepscope.report.plain import json_text

if TYPE_CHECKING:
    from stepscope.demo.runner import DemoOutcome


def write(outcome: DemoOutcome, sink: Sink, _layout: Layout) -> None:
    """Write prediction and measurement."""
    before, after, comparison = outcome.before, outcome.after, outcome.comparison
    document = {
        "before": {
            "run": str(before.diagnosis.run.path),
            "step_ns": comparison.before_ns,
            "had_busy_cpus": before.had_busy_cpus,
        },
        "after": {
            "run": str(after.diagnosis.run.path),
            "step_ns": comparison.measured_ns,
            "had_busy_cpus": after.had_busy_cpus,
        },
        "first_finding": before.diagnosis.findings[0].id,
        "predicted_step_ns": comparison.predicted_ns,
        "measured_step_ns": comparison.measured_ns,
        "prediction_error": comparison.error,
        "workers": comparison.workers,
        "same_loss": comparison.same_loss,
    }
    sink.write(json_text(document))
