"""One table of the verdict on memory snapshots as CSV: all rows, integer bytes."""

from __future__ import annotations

from stepscope.advice.memory_report import MemoryReport
from stepscope.errors import UsageError
from stepscope.report.answer.tables import tables_of
from stepscope.report.diagnosis.tables import findings_table
from stepscope.report.outputs import Layout, Sink
from stepscope.report.plain import frame_to_csv
from stepscope.report.snapshots.words import ranks_table


def write(report: MemoryReport, sink: Sink, layout: Layout) -> None:
    """Write the chosen table, by default the findings.

    Raises:
        UsageError: There is no such table.
    """
    tables = {
        "findings": findings_table(report.findings),
        "ranks": ranks_table(report),
        **tables_of(report.shown.overview.result),
    }
    table = layout.table or "findings"
    if table not in tables:
        raise UsageError(f"the report has no table '{table}': it has {', '.join(tables)}")
    sink.write(frame_to_csv(tables[table]))
