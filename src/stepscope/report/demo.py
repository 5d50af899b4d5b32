"""The outcome of the demo: prediction and measurement, and where to look next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepscope.report import units
from stepscope.report.document import Block, Column, Gap, Line, Span, Table
from stepscope.run.figures import percent
from stepscope.terminal.plain_text import quoted

if TYPE_CHECKING:
    from stepscope.demo.runner import DemoOutcome
    from stepscope.report.outputs import Layout


def document(outcome: DemoOutcome, _layout: Layout) -> Iterator[Block]:
    """Prediction and measurement, and where to look next."""
    before, after, share = outcome.before, outcome.after, outcome.share
    predicted = f"{percent(outcome.predicted_share)} of the step before, by {outcome.finding.id}"
    rows = [
        ("   step before", units.duration(outcome.before_ns), ""),
        ("   predicted", units.duration(outcome.predicted_ns), predicted),
    ]
    if share is not None and outcome.error is not None:
        measured = (
            f"{percent(share.value)} of the step before ({percent(share.low)} to "
            f"{percent(share.high)}, 95%): the prediction is off by {outcome.error:+.1%}"
        )
        took = units.duration(round(share.value * outcome.before_ns))
        rows.append(("   measured", took, measured))
    yield Gap()
    yield Table(
        (Column("", wraps=False), Column("", is_amount=True, wraps=False), Column("")),
        tuple((name, took, (Span(about, "dim"),)) for name, took, about in rows),
        has_heading=False,
    )
    if outcome.error is None:
        yield Line(f"   This machine cannot tell now how good the prediction was: {_why(outcome)}")
    loss = (
        f"both trainings end with the same loss, {before.loss:.6f}"
        if before.loss == after.loss
        else f"loss {before.loss:.6f} before, {after.loss:.6f} after"
    )
    yield Line(f"   {loss}", "dim")
    yield Gap()
    yield Line((Span("4.", "bold"), Span(" Look around:")))
    yield Line(f"   stepscope report {quoted(before.diagnosis.run.path)}")
    yield Line(f"   stepscope report {quoted(after.diagnosis.run.path)}")
    yield Line("   stepscope run -- python train.py    your own training")
    yield Line("   stepscope explain quickstart        the next steps")


def _why(outcome: DemoOutcome) -> str:
    share = outcome.share
    if outcome.had_busy_cpus:
        return (
            "the trainings waited for CPUs that other programs used. Try again on a quiet machine."
        )
    if share is None:
        return "too few steps were steady. Try again with more --steps."
    return (
        f"its steps differ so much from one training to the next that the fixed step is "
        f"{percent(share.low)} to {percent(share.high)} of the slow one (95%)."
    )


def to_json(outcome: DemoOutcome) -> dict[str, Any]:
    """Prediction and measurement."""
    before, after, share = outcome.before, outcome.after, outcome.share
    return {
        "before": {
            "run": str(before.diagnosis.run.path),
            "step_ns": outcome.before_ns,
            "had_busy_cpus": before.had_busy_cpus,
        },
        "after": {
            "run": str(after.diagnosis.run.path),
            "step_ns": after.diagnosis.ranks[0].step_ns or 0,
            "had_busy_cpus": after.had_busy_cpus,
        },
        "first_finding": before.diagnosis.findings[0].id,
        "predicted_step_ns": outcome.predicted_ns,
        "predicted_share": outcome.predicted_share,
        "measured_share": None if share is None else share.value,
        "measured_share_low": None if share is None else share.low,
        "measured_share_high": None if share is None else share.high,
        "prediction_error": outcome.error,
        "workers": outcome.workers,
        "same_loss": before.loss == after.loss,
    }
