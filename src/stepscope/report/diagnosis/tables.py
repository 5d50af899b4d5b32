"""The diagnosis as tables: all rows, integer nanoseconds."""

from __future__ import annotations

import polars as pl

from stepscope.advice.diagnosis import Diagnosis
from stepscope.report.findings import findings_table
from stepscope.skew.rank_skew import ARRIVALS

PARTS: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "basis": pl.String,  # what was divided
    "steps": pl.Int64,
    "part": pl.String,
    "total_ns": pl.Int64,  # over all steps; the parts of a rank add up
    "per_step_ns": pl.Int64,
    "share": pl.Float64,
}
"""One row per rank and part of its step."""

LADDER: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "rung": pl.String,  # what is fixed: a finding; else today, others, device, precision, host
    "fixed": pl.String,  # in words
    "step_ns": pl.Int64,  # with all of this and the rungs before
    "limit": pl.String,  # of the step then
    "limit_share": pl.Float64,  # of the step; null: not known, or the floor
    "basis": pl.String,  # how the step is known
}
"""One row per rank and rung of its ladder, from today's step down."""

RANKS: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "step_ns": pl.Int64,
    "steady_steps": pl.Int64,  # of the step record; null: there is none
    "input_wait_ns": pl.Int64,  # median of these
    "longest_ns": pl.Int64,
    "wait_ns": pl.Int64,  # per step, what waiting in collectives costs it; null: not known
    "own_ns": pl.Int64,  # mean step of the window less that
    "last": pl.Int64,  # collectives that it joined last
    "collectives": pl.Int64,  # matched between the ranks
    "record_wait_ns": pl.Int64,  # per step, for late ranks, from the step records
}
"""One row per rank."""


def diagnosis_tables(diagnosis: Diagnosis) -> dict[str, pl.DataFrame]:
    """The tables of a diagnosis by name: findings, parts, ladder, ranks, notes."""
    return {
        "findings": findings_table(diagnosis.findings),
        "parts": _parts(diagnosis),
        "ladder": _ladder(diagnosis),
        "ranks": ranks_table(diagnosis),
        "notes": _notes(diagnosis),
    }


def ranks_table(diagnosis: Diagnosis) -> pl.DataFrame:
    """Columns `RANKS`."""
    rows = []
    for rank in diagnosis.ranks:
        summary = rank.steps
        rows.append(
            (
                rank.rank,
                rank.step_ns,
                len(summary.steps) if summary else None,
                summary.median_wait_ns if summary else None,
                summary.worst_ns if summary else None,
            )
        )
    table = pl.DataFrame(rows, schema=dict(list(RANKS.items())[:5]), orient="row")
    if diagnosis.between is not None:
        table = table.join(diagnosis.between.table, on="rank", how="left", maintain_order="left")
    if diagnosis.skew is not None and diagnosis.skew.basis != ARRIVALS:
        waits = {wait.rank: wait.wait_ns for wait in diagnosis.skew.ranks}
        late = pl.DataFrame({"rank": list(waits), "record_wait_ns": list(waits.values())})
        table = table.join(late, on="rank", how="left", maintain_order="left")
    return table.select(
        (pl.col(name) if name in table.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in RANKS.items()
    )


def _parts(diagnosis: Diagnosis) -> pl.DataFrame:
    rows = [
        (
            rank.rank,
            partition.basis,
            partition.steps,
            part.name,
            part.total_ns,
            partition.per_step_ns(part),
            partition.share(part),
        )
        for rank in diagnosis.ranks
        if (partition := rank.partition) is not None
        for part in partition.parts
    ]
    return pl.DataFrame(rows, schema=PARTS, orient="row")


def _ladder(diagnosis: Diagnosis) -> pl.DataFrame:
    rows = [
        (rank.rank, one.id, one.fixed, one.step_ns, one.limit, one.limit_share, one.basis)
        for rank in diagnosis.ranks
        for one in rank.ladder.rungs
    ]
    return pl.DataFrame(rows, schema=LADDER, orient="row")


def _notes(diagnosis: Diagnosis) -> pl.DataFrame:
    rows: list[tuple[int | None, str]] = [
        (rank.rank, note) for rank in diagnosis.ranks for note in rank.notes
    ]
    rows += [(None, note) for note in diagnosis.run.problems]
    return pl.DataFrame(rows, schema={"rank": pl.Int64, "note": pl.String}, orient="row")
