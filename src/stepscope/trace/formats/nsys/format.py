"""The two formats of Nsight Systems: SQLite exports, and reports, which need `nsys`."""

from __future__ import annotations

from stepscope.trace.formats.trace_format import Input, TraceFormat
from stepscope.trace.tables import Tables

_SQLITE = b"SQLite format 3\0"
_REPORT = b"NVIDIA Tegra Profiler Report"  # the original name of the tool


def _read_export(trace: Input) -> Tables:
    from stepscope.trace.formats.nsys.reader import read_export

    with trace.as_file(".sqlite") as path:
        return read_export(path, trace.name)


def _read_report(trace: Input) -> Tables:
    from stepscope.trace.formats.nsys.reader import read_report

    with trace.as_file(".nsys-rep") as path:
        return read_report(path, trace.name)


EXPORT = TraceFormat(
    name="nsys-sqlite",
    plural="exports of Nsight Systems",
    recognises=lambda beginning: beginning.startswith(_SQLITE),
    read=_read_export,
)
"""Files written by `nsys export --type sqlite`."""

REPORT = TraceFormat(
    name="nsys-report",
    plural="reports of Nsight Systems",
    recognises=lambda beginning: beginning.startswith(_REPORT),
    read=_read_report,
)
"""`.nsys-rep` files, and `.qdrep` files, which start with the same words."""
