"""The verdict on memory snapshots alone, with parts of the diagnosis and of answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.report import answer, memory, units
from stepscope.report.document import (
    Block,
    DataTable,
    Findings,
    Gap,
    Items,
    Labelled,
    Line,
    Note,
    Page,
    Section,
    Title,
)
from stepscope.report.findings import finding_to_dict, findings_table, picked, shown_findings
from stepscope.report.outputs import Layout
from stepscope.run.figures import sentence

if TYPE_CHECKING:
    from stepscope.advice.memory_report import MemoryReport, SnapshotSummary

_MOST_SHORT_NOTES = 2
_SHORT_ROWS = 5
_ROWS = 15
RANKS: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "file": pl.String,
    "peak_allocated_bytes": pl.Int64,
    "peak_reserved_bytes": pl.Int64,
    "failed_requests": pl.Int64,
    "verdict": pl.String,
}
"""One row per snapshot."""


def document(report: MemoryReport, layout: Layout) -> Iterator[Block]:
    """The report: on one screen, or in full."""
    yield Title(report.location)
    yield Line(_header(report), "dim")
    yield Gap()
    yield Labelled("Verdict", (Line(report.verdict, "bold"),))
    has_history = report.shown.overview.result.has_history
    yield Labelled("Peak" if has_history else "Held", (Line(_peak(report.shown)),))
    yield Gap()
    yield _findings(report, is_short=not layout.is_full)
    rows = _ROWS if layout.is_full else _SHORT_ROWS
    if len(report.snapshots) > 1:
        yield Gap()
        yield DataTable("Ranks", _ranks(report), most=rows)
    shown, asked = report.shown.overview, memory.question_of(report.shown.overview)
    for table in ("categories", "lines"):
        of_table = Layout(table, rows)
        yield from answer.table_blocks(shown.result, asked, of_table, shown.origin_ns)
    yield Gap()
    notes = _notes(report)
    if layout.is_full:
        yield from map(Note, notes)
        return
    for note in notes[:_MOST_SHORT_NOTES]:
        yield Note(note)
    yield Line("--full shows evidence, advice in full, and all notes", "dim")


def _findings(report: MemoryReport, *, is_short: bool = False) -> Findings:
    rank = report.shown.rank
    found = shown_findings(report.findings, rank, has_ranks=len(report.snapshots) > 1)
    return Findings(found, rank, is_short, of_steps=False)


def page(report: MemoryReport, _rows: int) -> Page:
    """The report."""
    has_ranks = len(report.snapshots) > 1
    sections = (
        Section("verdict", "Verdict", (Line(sentence(report.verdict), role="verdict"),)),
        memory.over_time_section(report.shown.overview),
        Section("findings", "Findings", (_findings(report),)),
        memory.tables_section(report.shown.overview, "Peak"),
        Section("ranks", "Ranks", (DataTable("", _ranks(report)) if has_ranks else None,)),
        Section("notes", "Notes", (Items(tuple(_notes(report))),)),
    )
    title = Path(report.location).name or report.location
    return Page(title, _header(report), report.location, sections)


def _header(report: MemoryReport) -> str:
    overview = report.shown.overview
    numbers = overview.result
    parts = [overview.kind]
    if len(report.snapshots) > 1:
        parts = [f"{len(report.snapshots)} memory snapshots", f"rank {report.shown.rank} is shown"]
    span = "" if numbers.span_ns is None else f" over {units.duration(numbers.span_ns)}"
    parts += [f"device {numbers.device}", f"{units.plural(numbers.events, 'event')}{span}"]
    if numbers.settings != "default":
        parts.append(numbers.settings)
    return "  ·  ".join(parts)


def _peak(summary: SnapshotSummary) -> str:
    numbers = summary.overview.result
    parts = [
        f"{units.size(numbers.peak_allocated_bytes)} allocated",
        f"{units.size(numbers.peak_reserved_bytes)} reserved",
    ]
    if numbers.out_of_memory:
        parts.append(f"{units.plural(numbers.out_of_memory, 'request')} failed")
    return "  ·  ".join(parts)


def _notes(report: MemoryReport) -> list[str]:
    return list(dict.fromkeys(n for one in report.snapshots for n in one.overview.result.notes))


def _ranks(report: MemoryReport) -> pl.DataFrame:
    """Columns `RANKS`."""
    rows = [
        (
            one.rank,
            Path(one.path).name,
            one.overview.result.peak_allocated_bytes,
            one.overview.result.peak_reserved_bytes,
            one.overview.result.out_of_memory,
            one.verdict,
        )
        for one in report.snapshots
    ]
    return pl.DataFrame(rows, schema=RANKS, orient="row")


def frames(report: MemoryReport, layout: Layout) -> Iterator[pl.DataFrame]:
    """The chosen table, by default the findings."""
    tables = {
        "findings": findings_table(report.findings),
        "ranks": _ranks(report),
        **answer.tables_of(report.shown.overview.result),
    }
    yield picked(tables, layout)


def to_json(report: MemoryReport) -> dict[str, Any]:
    """Every finding, and the numbers and tables of every snapshot."""
    return {
        "path": report.location,
        "verdict": report.verdict,
        "rank_shown": report.shown.rank,
        "findings": [finding_to_dict(finding) for finding in report.findings],
        "snapshots": [
            {
                "rank": one.rank,
                "path": one.path,
                "verdict": one.verdict,
                **answer.values_of(one.overview.result),
                "notes": list(one.overview.result.notes),
            }
            for one in report.snapshots
        ],
    }
