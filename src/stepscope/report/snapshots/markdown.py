"""The verdict on memory snapshots as GitHub Markdown."""

from __future__ import annotations

from stepscope.advice.memory_report import MemoryReport
from stepscope.report.answer.markdown import tables_to_markdown
from stepscope.report.diagnosis.markdown import finding_lines
from stepscope.report.diagnosis.words import findings_alike, ranks_with
from stepscope.report.outputs import Layout, Sink
from stepscope.report.snapshots.words import (
    RANKS_ASKED,
    RanksTable,
    header,
    notes,
    peak,
    ranks_table,
)
from stepscope.report.text import markdown_text

_ROWS = 15


def write(report: MemoryReport, sink: Sink, _layout: Layout) -> None:
    """Write the report."""
    shown = report.shown
    has_ranks = len(report.snapshots) > 1
    lines = [
        f"# {markdown_text(report.location)}",
        "",
        markdown_text(header(report)),
        "",
        f"**Verdict**: {markdown_text(report.verdict)}",
        "",
        f"**Peak**: {markdown_text(peak(shown))}",
        "",
        "## Findings",
        "",
    ]
    groups = findings_alike(report.findings, shown.rank)
    if not groups:
        lines += ["None above the thresholds.", ""]
    for number, group in enumerate(groups, start=1):
        lines += finding_lines(number, group[0], ranks_with(group) if has_ranks else "")
    if has_ranks:
        found = tables_to_markdown(RanksTable(ranks_table(report)), RANKS_ASKED, rows=_ROWS)
        lines += _without_heading(found)
    overview = shown.overview
    for table in ("categories", "lines"):
        found = tables_to_markdown(
            overview.result,
            overview.question,
            origin_ns=overview.origin_ns,
            rows=_ROWS,
            table=table,
        )
        lines += _without_heading(found)
    told = notes(report)
    if told:
        lines += ["", "## Notes", "", *(f"- {markdown_text(note)}" for note in told)]
    sink.write("\n".join(lines).rstrip() + "\n")


def _without_heading(lines: list[str]) -> list[str]:
    """Tables without the name of the question above them."""
    begin = next((k for k, line in enumerate(lines) if line.startswith("### ")), len(lines))
    return ["", *lines[begin:]]
