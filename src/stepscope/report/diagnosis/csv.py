"""One table of the diagnosis as CSV: all rows, integer nanoseconds."""

from __future__ import annotations

from stepscope.advice.diagnosis import Diagnosis
from stepscope.errors import UsageError
from stepscope.report.diagnosis.tables import diagnosis_tables
from stepscope.report.outputs import Layout, Sink
from stepscope.report.plain import frame_to_csv


def write(diagnosis: Diagnosis, sink: Sink, layout: Layout) -> None:
    """Write the chosen table, by default the findings.

    Raises:
        UsageError: There is no such table.
    """
    tables = diagnosis_tables(diagnosis)
    table = layout.table or "findings"
    if table not in tables:
        raise UsageError(f"the report has no table '{table}': it has {', '.join(tables)}")
    sink.write(frame_to_csv(tables[table]))
