"""A comparison as CSV: every change, one per line."""

from __future__ import annotations

from stepscope.report.comparison.result import CheckedComparison
from stepscope.report.outputs import Layout, Sink
from stepscope.report.plain import frame_to_csv


def write(checked: CheckedComparison, sink: Sink, _layout: Layout) -> None:
    """Write the changes."""
    sink.write(frame_to_csv(checked.comparison.changes))
