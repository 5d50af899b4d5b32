"""Hardware metrics as JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from stepscope.analysis.record.metrics import MetricsSummary
from stepscope.report.outputs import Layout, Sink


def write(summary: MetricsSummary, sink: Sink, _layout: Layout) -> None:
    """Write one summary."""
    sink.write(json.dumps(metrics_to_dict(summary), ensure_ascii=False, indent=2) + "\n")


def metrics_to_dict(summary: MetricsSummary) -> dict[str, Any]:
    """The summary as plain values."""
    return {
        "path": str(summary.path),
        "samples": summary.samples,
        "span_ns": summary.span_ns,
        "gpus": summary.gpus.to_dicts(),
        "host": summary.host.to_dicts()[0],
        "skipped_lines": summary.skipped_lines,
        "record": None if summary.record is None else dataclasses.asdict(summary.record),
    }
