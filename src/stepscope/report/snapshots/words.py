"""What every output for people says of judged snapshots."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepscope.advice.memory_report import MemoryReport, SnapshotSummary, name_of
from stepscope.memory.questions.names import NamedQuestion
from stepscope.report import units

RANKS: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "file": pl.String,
    "peak_allocated_bytes": pl.Int64,
    "peak_reserved_bytes": pl.Int64,
    "failed_requests": pl.Int64,
    "verdict": pl.String,
}
"""One row per snapshot."""

RANKS_ASKED = NamedQuestion("snapshots", "", {"ranks": "Ranks"})
"""How the table of ranks is called."""


@dataclass(frozen=True)
class RanksTable:
    """The snapshots of several ranks, side by side.

    Attributes:
        ranks: Columns `RANKS`.
        notes: Nothing.
    """

    ranks: pl.DataFrame
    notes: tuple[str, ...] = ()


def header(report: MemoryReport) -> str:
    """What was read."""
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


def peak(summary: SnapshotSummary) -> str:
    """The peak, in figures."""
    numbers = summary.overview.result
    words = [
        f"{units.size(numbers.peak_allocated_bytes)} allocated",
        f"{units.size(numbers.peak_reserved_bytes)} reserved",
    ]
    if numbers.out_of_memory:
        words.append(f"{units.plural(numbers.out_of_memory, 'request')} failed")
    return "  ·  ".join(words)


def notes(report: MemoryReport) -> list[str]:
    """What a reader must know, of all snapshots; each once."""
    return list(dict.fromkeys(n for one in report.snapshots for n in one.overview.result.notes))


def ranks_table(report: MemoryReport) -> pl.DataFrame:
    """Columns `RANKS`."""
    rows = [
        (
            one.rank,
            name_of(one),
            one.overview.result.peak_allocated_bytes,
            one.overview.result.peak_reserved_bytes,
            one.overview.result.out_of_memory,
            one.verdict,
        )
        for one in report.snapshots
    ]
    return pl.DataFrame(rows, schema=RANKS, orient="row")
