"""Transfers and bandwidths as NCCL Inspector measured them, beside those of traces.

Definitions
    The same collective of several ranks has communicator, kind and number in common. Its transfer
    is the shortest duration of its ranks: the last one to arrive waits for nobody. That needs the
    records of all ranks of the communicator, each once and timed on the GPU; the others are counted
    and left out. Wait of a rank: its duration less the transfer.
    Bandwidths are of the transfer, in the convention of nccl-tests. The plugin's own are of each
    rank's duration, waiting included, so theirs are lower.
    Beside traces: medians of like collectives (kind, ranks and message size), because a trace names
    its process groups and NCCL its communicators, and they count collectives differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from stepscope.analysis.calls.bandwidth import algorithm_bandwidth, bus_factor
from stepscope.analysis.questions import Answer, Answers, Question
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.errors import UsageError
from stepscope.fleet.inspector.records import Inspected, read_inspector
from stepscope.fleet.link_speed import LinkSpeeds
from stepscope.run.figures import some_in_words

KINDS: dict[str, pl.DataType | type[pl.DataType]] = {
    "kind": pl.String,
    "ranks": pl.Int64,
    "message_bytes": pl.Int64,
    "count": pl.Int64,  # collectives with the records of all ranks
    "median_transfer_ns": pl.Int64,
    "wait_share": pl.Float64,
    "median_bus_bandwidth_gb_per_s": pl.Float64,
    "best_bus_bandwidth_gb_per_s": pl.Float64,
    "bandwidth_of_link_share": pl.Float64,  # median, of the stated link speed; null: unstated
    "records": pl.Int64,  # of single ranks
    "median_stated_bus_bandwidth_gb_per_s": pl.Float64,  # by the plugin, of single ranks
}
"""One row per like collectives, the most time first."""

MEMBERS: dict[str, pl.DataType | type[pl.DataType]] = {
    "communicator": pl.String,
    "rank": pl.Int64,  # in the communicator
    "host": pl.String,
    "process": pl.Int64,
    "collectives": pl.Int64,
    "last_arrivals": pl.Int64,  # collectives that it was the last to join
    "total_wait_ns": pl.Int64,
    "median_bus_bandwidth_gb_per_s": pl.Float64,  # of the transfers that it took part in
    "records": pl.Int64,
    "median_stated_bus_bandwidth_gb_per_s": pl.Float64,
}
"""One row per communicator and rank, the least wait of a communicator first."""

BESIDE: dict[str, pl.DataType | type[pl.DataType]] = {
    "kind": pl.String,
    "ranks": pl.Int64,
    "message_bytes": pl.Int64,
    "count": pl.Int64,  # in the traces
    "median_bus_bandwidth_gb_per_s": pl.Float64,
    "inspector_count": pl.Int64,
    "inspector_bus_bandwidth_gb_per_s": pl.Float64,  # median
    "ratio": pl.Float64,  # of the inspector's to the traces'
}
"""One row per like collectives that both have."""

INSPECTOR = Question(
    "collectives",
    "transfers and bandwidths that NCCL Inspector measured",
    "stepscope.fleet.inspector.bandwidths:bandwidths_of",
    {"kinds": "By kind and size", "members": "Communicators and their ranks"},
    over_ranks=True,
    takes_references=True,
)
_GPU = "kernel_gpu"
_LIKE = ("kind", "ranks", "message_bytes")
_MOST_NAMED = 4


@dataclass(frozen=True)
class InspectorBandwidths:
    """Collectives as NCCL Inspector measured them.

    Attributes:
        communicators: How many there are.
        processes: How many processes left records.
        records: How many records of single ranks.
        collectives: How many could be matched over all ranks of their communicator.
        kinds: Columns `KINDS`.
        members: Columns `MEMBERS`.
        scope: The records.
        notes: What a reader must know.
    """

    communicators: int
    processes: int
    records: int
    collectives: int
    kinds: pl.DataFrame
    members: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...]


def ask_inspector(files: Sequence[Path], links: LinkSpeeds | None = None) -> Answers:
    """Answers what NCCL Inspector measured.

    Raises:
        UnreadableInputError: A file cannot be read.
        UsageError: A link speed is stated for a dimension.
    """
    found = bandwidths_of(read_inspector(files), links)
    shown = some_in_words([str(path) for path in files], _MOST_NAMED)
    return Answers(INSPECTOR, len(files), [Answer(shown, 0, found)])


def bandwidths_of(inspected: Inspected, links: LinkSpeeds | None = None) -> InspectorBandwidths:
    """Finds the transfers of what NCCL Inspector recorded.

    Raises:
        UsageError: A link speed is stated for a dimension: NCCL does not know dimensions.
    """
    if links is not None and links.by_dimension_gb_per_s:
        raise UsageError(
            "NCCL Inspector does not record which dimension a communicator belongs to: state one "
            "link speed for all"
        )
    table = inspected.table
    rows = _matched(table)
    link = None if links is None else links.of_all_gb_per_s
    return InspectorBandwidths(
        communicators=table["communicator"].n_unique(),
        processes=table.select("host", "process").n_unique(),
        records=len(table),
        collectives=len(_sets(rows)),
        kinds=_kinds(table, rows, link),
        members=_members(table, rows),
        scope=AnsweredScope(Scope(), (), (), len(table)),
        notes=notes_on(inspected, rows),
    )


def beside_traces(kinds: pl.DataFrame, inspected: Inspected) -> pl.DataFrame:
    """Columns `BESIDE`.

    Args:
        kinds: Columns `collectives.LIKE`.
        inspected: What NCCL Inspector recorded.
    """
    theirs = _kinds(inspected.table, _matched(inspected.table), None)
    of_traces = kinds.group_by(_LIKE, maintain_order=True).agg(
        pl.col("count").sum(), pl.col("median_bus_bandwidth_gb_per_s").median()
    )
    return (
        of_traces.join(
            theirs.filter(pl.col("count") > 0).select(
                *_LIKE,
                inspector_count="count",
                inspector_bus_bandwidth_gb_per_s="median_bus_bandwidth_gb_per_s",
            ),
            on=_LIKE,
            maintain_order="left",
        )
        .with_columns(
            ratio=pl.col("inspector_bus_bandwidth_gb_per_s")
            / pl.col("median_bus_bandwidth_gb_per_s")
        )
        .select(pl.col(name).cast(dtype) for name, dtype in BESIDE.items())
    )


def _matched(table: pl.DataFrame) -> pl.DataFrame:
    """Records of the collectives that have all ranks, with transfer, wait and bandwidth."""
    same = ["communicator", "kind", "number"]
    on_gpu = pl.col("timing").is_null() | (pl.col("timing") == _GPU)
    is_whole = (
        (pl.len().over(same) == pl.col("ranks"))
        & (pl.col("rank").n_unique().over(same) == pl.col("ranks"))
        & (pl.col("message_bytes").n_unique().over(same) == 1)
        & on_gpu.all().over(same)
        & (pl.col("ranks") > 1)
    )
    transfer = pl.col("transfer_ns")
    return (
        table.filter(is_whole)
        .with_columns(transfer_ns=pl.col("dur_ns").min().over(same), group_size="ranks")
        .with_columns(
            wait_ns=pl.col("dur_ns") - transfer,
            bus=algorithm_bandwidth(transfer) * bus_factor(),
        )
        .with_columns(is_last=pl.col("rank") == pl.col("rank").sort_by("dur_ns").first().over(same))
    )


def _sets(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.unique(["communicator", "kind", "number"], maintain_order=True)


def _kinds(table: pl.DataFrame, rows: pl.DataFrame, link: float | None) -> pl.DataFrame:
    recorded = table.group_by(_LIKE).agg(
        records=pl.len(),
        median_stated_bus_bandwidth_gb_per_s=pl.col("bus_bandwidth_gb_per_s").median(),
        all_ns=pl.col("dur_ns").sum(),
    )
    waits = rows.group_by(_LIKE).agg(
        wait_share=pl.col("wait_ns").sum() / pl.col("dur_ns").sum(),
    )
    bus = pl.col("bus")
    transfers = (
        _sets(rows)
        .group_by(_LIKE)
        .agg(
            count=pl.len(),
            median_transfer_ns=pl.col("transfer_ns").median().round(),
            median_bus_bandwidth_gb_per_s=bus.median(),
            best_bus_bandwidth_gb_per_s=bus.max(),
            bandwidth_of_link_share=bus.median() / pl.lit(link, pl.Float64),
        )
    )
    return (
        recorded.join(transfers, on=_LIKE, how="left")
        .join(waits, on=_LIKE, how="left")
        .with_columns(pl.col("count").fill_null(0))
        .sort("all_ns", *_LIKE, descending=[True, False, False, False])
        .select(pl.col(name).cast(dtype) for name, dtype in KINDS.items())
    )


def _members(table: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    member = ["communicator", "rank"]
    recorded = table.group_by(member).agg(
        pl.col("host", "process").first(),
        records=pl.len(),
        median_stated_bus_bandwidth_gb_per_s=pl.col("bus_bandwidth_gb_per_s").median(),
    )
    met = rows.group_by(member).agg(
        collectives=pl.len(),
        last_arrivals=pl.col("is_last").sum(),
        total_wait_ns=pl.col("wait_ns").sum(),
        median_bus_bandwidth_gb_per_s=pl.col("bus").median(),
    )
    return (
        recorded.join(met, on=member, how="left")
        .with_columns(pl.col("collectives", "last_arrivals").fill_null(0))
        .sort("communicator", "total_wait_ns", "rank", nulls_last=True)
        .select(pl.col(name).cast(dtype) for name, dtype in MEMBERS.items())
    )


def notes_on(inspected: Inspected, rows: pl.DataFrame | None = None) -> tuple[str, ...]:
    """What a reader must know about these records.

    Args:
        inspected: The records.
        rows: Those of them that have a transfer, if they are known already.
    """
    table = inspected.table
    rows = _matched(table) if rows is None else rows
    versions = ", ".join(inspected.versions) or "without a version"
    notes = [f"format {versions}; files: {inspected.files}"]
    if apart := len(table) - len(rows):
        on_cpu = len(table.filter(pl.col("timing").is_not_null() & (pl.col("timing") != _GPU)))
        why = f", {on_cpu} of them timed on the CPU" if on_cpu else ""
        notes.append(
            f"{apart} of {len(table)} records have no transfer: other ranks of their communicator "
            f"left none, or a different one{why}"
        )
    if inspected.p2p:
        notes.append(f"{inspected.p2p} sends and receives are left out")
    if inspected.dropped:
        notes.append(
            f"the plugin lost {inspected.dropped} records because its ring was full: raise "
            "NCCL_INSPECTOR_DUMP_COLL_RING_SIZE, or dump more often"
        )
    if inspected.skipped:
        notes.append(f"{inspected.skipped} lines could not be used")
    if inspected.cut:
        notes.append(f"only the first {len(table)} records were read")
    notes.append(
        "the plugin leaves out messages below its least size (8 KiB unless it was changed)"
    )
    return tuple(notes)
