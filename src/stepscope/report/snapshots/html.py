"""The verdict on memory snapshots as a page in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepscope.advice.memory_report import MemoryReport
from stepscope.report.answer.cells import headings
from stepscope.report.diagnosis.html import finding_of_page
from stepscope.report.diagnosis.words import findings_alike, ranks_with
from stepscope.report.memory.html import over_time_section, tables_section
from stepscope.report.outputs import Layout, Sink
from stepscope.report.page import blocks
from stepscope.report.page.document import page
from stepscope.report.snapshots.words import header, notes, ranks_table
from stepscope.report.text import sentence


def write(report: MemoryReport, sink: Sink, _layout: Layout) -> None:
    """Write the page."""
    sink.write(page(lambda rows: _content(report, rows)))


def _content(report: MemoryReport, rows: int) -> dict[str, Any]:
    overview = report.shown.overview
    sections = [
        blocks.section("verdict", "Verdict", blocks.text(sentence(report.verdict), "verdict")),
        over_time_section(overview),
        _findings(report),
        tables_section(overview, rows, "Peak"),
        _ranks(report, rows),
        blocks.section("notes", "Notes", blocks.items(notes(report))),
    ]
    return {
        "title": Path(report.location).name or report.location,
        "kind": "Report",
        "subtitle": header(report),
        "path": report.location,
        "sections": [one for one in sections if one["blocks"]],
    }


def _findings(report: MemoryReport) -> dict[str, Any]:
    has_ranks = len(report.snapshots) > 1
    groups = findings_alike(report.findings, report.shown.rank)
    if not groups:
        none = blocks.text("No rule found anything above its threshold.")
        return blocks.section("findings", "Findings", none)
    found = [finding_of_page(group[0], ranks_with(group) if has_ranks else "") for group in groups]
    return blocks.section("findings", "Findings", blocks.findings(found))


def _ranks(report: MemoryReport, rows: int) -> dict[str, Any]:
    if len(report.snapshots) == 1:
        return blocks.section("ranks", "Ranks")
    table = blocks.table("", ranks_table(report), rows, labels=headings)
    return blocks.section("ranks", "Ranks", table)
