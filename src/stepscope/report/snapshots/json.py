"""The verdict on memory snapshots as JSON: integer nanoseconds and bytes."""

from __future__ import annotations

from stepscope.advice.memory_report import MemoryReport
from stepscope.report.answer.tables import numbers_of, tables_of
from stepscope.report.diagnosis.json import finding_to_dict
from stepscope.report.outputs import Layout, Sink
from stepscope.report.plain import json_text, plain

FORMAT_VERSION = 1


def write(report: MemoryReport, sink: Sink, _layout: Layout) -> None:
    """Write the report."""
    document = {
        "format": "stepscope-memory-report",
        "version": FORMAT_VERSION,
        "path": report.location,
        "verdict": report.verdict,
        "rank_shown": report.shown.rank,
        "findings": [finding_to_dict(finding) for finding in report.findings],
        "snapshots": [
            {
                "rank": one.rank,
                "path": one.path,
                "verdict": one.verdict,
                **{name: plain(value) for name, value in numbers_of(one.overview.result).items()},
                **{name: plain(table) for name, table in tables_of(one.overview.result).items()},
                "notes": list(one.overview.result.notes),
            }
            for one in report.snapshots
        ],
    }
    sink.write(json_text(document, default=str))
