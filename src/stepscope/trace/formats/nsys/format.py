"""Nsight Systems as a format: SQLite exports (`nsys export --type sqlite`), and reports."""

from __future__ import annotations

from stepscope.trace.formats.trace_format import Input, TraceFormat
from stepscope.trace.tables import Tables

_SQLITE = b"SQLite format 3\0"
_REPORT = b"NVIDIA Tegra Profiler Report"  # the original name of the tool; older ones are .qdrep


def _read(trace: Input) -> Tables:
    from stepscope.trace.formats.nsys.reader import read_export, read_report

    if trace.content.peek().startswith(_REPORT):
        with trace.as_file(".nsys-rep") as path:
            return read_report(path, trace.name)
    with trace.as_file(".sqlite") as path:
        return read_export(path, trace.name)


FORMAT = TraceFormat(
    name="nsys",
    recognises=lambda beginning: beginning.startswith((_SQLITE, _REPORT)),
    read=_read,
)
