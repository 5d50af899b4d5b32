"""The outcome of the demo on a terminal: prediction and measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from stepscope.report import units
from stepscope.report.outputs import Layout, Sink

if TYPE_CHECKING:
    from stepscope.demo.runner import DemoOutcome


def write(outcome: DemoOutcome, sink: Sink, _layout: Layout) -> None:
    """Print prediction and measurement, and where to look next."""
    before, after, comparison = outcome.before, outcome.after, outcome.comparison
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 3))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    faster = comparison.before_ns / comparison.measured_ns
    table.add_row("step before", units.duration(comparison.before_ns), "")
    table.add_row(
        "predicted", units.duration(comparison.predicted_ns), f"by {comparison.finding.id}"
    )
    table.add_row(
        "measured",
        units.duration(comparison.measured_ns),
        f"the prediction is off by {comparison.error:+.1%}; {faster:.2f}× faster than before",
    )
    screen = sink.console(keeps_padding=True)
    screen.print()
    screen.print(table)
    loss = (
        f"both trainings end with the same loss, {before.loss:.6f}"
        if comparison.same_loss
        else f"loss {before.loss:.6f} before, {after.loss:.6f} after"
    )
    screen.print(f"   {loss}", style="dim")
    if busy := _when_busy(before.had_busy_cpus, after.had_busy_cpus):
        screen.print(
            f"   The training thread waited for busy CPUs {busy}: steps differ from one training "
            "to the next. Try again on a quiet machine."
        )
    screen.print(
        "\n[bold]3.[/] Look around:\n"
        f"   stepscope report {before.diagnosis.run.path}\n"
        f"   stepscope report {after.diagnosis.run.path}\n"
        "   Your own training: see docs/quickstart.md",
    )


def _when_busy(before: bool, after: bool) -> str:
    if before and after:
        return "in both trainings"
    if before:
        return "before the fix"
    return "after the fix" if after else ""
