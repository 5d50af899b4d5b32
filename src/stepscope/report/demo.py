"""The outcome of the demo: prediction and measurement, and where to look next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepscope.report import units
from stepscope.report.document import Block, Column, Document, Gap, Line, Span, Table

if TYPE_CHECKING:
    from stepscope.demo.runner import DemoOutcome
    from stepscope.report.outputs import Layout


def document(outcome: DemoOutcome, _layout: Layout) -> Document:
    """Prediction and measurement, and where to look next."""
    return Document(_blocks(outcome))


def _blocks(outcome: DemoOutcome) -> Iterator[Block]:
    before, after, comparison = outcome.before, outcome.after, outcome.comparison
    faster = comparison.before_ns / comparison.measured_ns
    measured = f"the prediction is off by {comparison.error:+.1%}; {faster:.2f}× faster than before"
    rows = (
        ("   step before", comparison.before_ns, ""),
        ("   predicted", comparison.predicted_ns, f"by {comparison.finding.id}"),
        ("   measured", comparison.measured_ns, measured),
    )
    yield Gap()
    yield Table(
        (Column("", wraps=False), Column("", is_amount=True, wraps=False), Column("")),
        tuple((name, units.duration(ns), (Span(about, "dim"),)) for name, ns, about in rows),
        has_heading=False,
    )
    loss = (
        f"both trainings end with the same loss, {before.loss:.6f}"
        if comparison.same_loss
        else f"loss {before.loss:.6f} before, {after.loss:.6f} after"
    )
    yield Line(f"   {loss}", "dim")
    if busy := _when_busy(before.had_busy_cpus, after.had_busy_cpus):
        yield Line(
            f"   The training thread waited for busy CPUs {busy}: steps differ from one training "
            "to the next. Try again on a quiet machine."
        )
    yield Gap()
    yield Line((Span("3.", "bold"), Span(" Look around:")))
    yield Line(f"   stepscope report {before.diagnosis.run.path}")
    yield Line(f"   stepscope report {after.diagnosis.run.path}")
    yield Line("   stepscope run -- python train.py    your own training")
    yield Line("   stepscope explain quickstart        the next steps")


def _when_busy(before: bool, after: bool) -> str:
    if before and after:
        return "in both trainings"
    if before:
        return "before the fix"
    return "after the fix" if after else ""


def to_json(outcome: DemoOutcome) -> dict[str, Any]:
    """Prediction and measurement."""
    before, after, comparison = outcome.before, outcome.after, outcome.comparison
    return {
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
