"""Sections of the diagnosis's page about the ranks and what they ran on."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from stepscope.advice.diagnosis import Diagnosis
from stepscope.advice.rank_steps import rank_steps
from stepscope.report import units
from stepscope.report.answer.cells import headings
from stepscope.report.diagnosis.words import between_ranks, odd_ranks, ranks_in_order
from stepscope.report.page import blocks
from stepscope.report.text import sentence

_FORMAL = ("schemaVersion", "baseTimeNanoseconds", "displayTimeUnit")
"""Keys of a trace's header that say nothing of the training."""
_RANK_LABELS = {
    "rank": "rank",
    "step_ns": "step",
    "steady_steps": "steps",
    "input_wait_ns": "input wait",
    "longest_ns": "longest",
    "wait_ns": "waiting costs",
    "own_ns": "without it",
    "last": "arrives last",
    "collectives": "collectives",
    "record_wait_ns": "wait for others",
}


def ranks_section(diagnosis: Diagnosis, rows: int) -> dict[str, Any]:
    """What differs between the ranks, and each rank's steps."""
    if len(diagnosis.ranks) < 2:
        return blocks.section("ranks", "Ranks")
    told = between_ranks(diagnosis)
    return blocks.section(
        "ranks",
        "Ranks",
        blocks.text(sentence(told)) if told else None,
        blocks.items(odd_ranks(diagnosis)),
        *_rank_map(diagnosis),
        blocks.table("", ranks_in_order(diagnosis), rows, labels=lambda _: _RANK_LABELS, shown=32),
    )


def _rank_map(diagnosis: Diagnosis) -> list[blocks.Block]:
    """Every rank over its steps, bounded, and what is left out."""
    found = rank_steps(diagnosis.ranks)
    if found is None:
        return []
    left_out = [
        f"{number:,} {words if number == 1 else more}"
        for number, words, more in (
            (found.left_out_ranks, "rank with less", "ranks with less"),
            (found.left_out_steps, "earlier step", "earlier steps"),
        )
        if number
    ]
    rest = f" Left out: {' and '.join(left_out)}." if left_out else ""
    drawn = {
        "is": "rank_steps",
        "ranks": list(found.ranks),
        "steps": list(found.steps),
        "own_ns": [list(row) for row in found.own_ns],
    }
    known = [one for row in found.own_ns for one in row if one is not None]
    words = (
        "Each rank's steps in the recorded window without exposed communication: what it took by "
        f"itself, the most first, from {units.duration(min(known))} (palest) to "
        f"{units.duration(max(known))}.{rest} `stepscope view` maps other parts and all ranks."
    )
    return [drawn, blocks.text(words, "note")]


def metrics_section(diagnosis: Diagnosis, rows: int) -> dict[str, Any]:
    """What the monitor sampled beside the ranks: GPUs, then the host."""
    several = len(diagnosis.ranks) > 1
    sampled = [(rank.rank, rank.metrics) for rank in diagnosis.ranks if rank.metrics is not None]
    gpus = [_gpus(rank, found.gpus, several) for rank, found in sampled]
    hosts = [_host(rank, found.host, several) for rank, found in sampled]
    labels = {
        "gpu": "GPU", "power": "power (W)", "power_peak": "peak (W)", "energy": "energy (Wh)",
        "heat": "hottest (°C)", "cpus": "CPUs used",
    }  # fmt: skip

    def named(columns: Sequence[str]) -> Mapping[str, str]:
        return {**headings(columns), **labels}

    scope = [
        f"{units.count(found.samples)} samples"
        + (f" over {units.duration(found.span_ns)}" if found.span_ns else "")
        for _, found in sampled[:1]
    ]
    return blocks.section(
        "metrics",
        "Hardware",
        blocks.table("GPUs", pl.concat(gpus), rows, labels=named) if gpus else None,
        blocks.table("Host", pl.concat(hosts), rows, labels=named) if hosts else None,
        blocks.text(f"{scope[0]}{' of the first rank' if several else ''}.", "note")
        if scope
        else None,
    )


def _gpus(rank: int, gpus: pl.DataFrame, several: bool) -> pl.DataFrame:
    columns = {
        "gpu": pl.concat_str(
            pl.col("index").cast(pl.String), "name", separator=" ", ignore_nulls=True
        ),
        "busy_share": pl.col("utilization_percent") / 100,
        "tensor_share": pl.col("tensor_percent") / 100,
        "memory_peak_bytes": pl.col("memory_peak_bytes"),
        "memory_total_bytes": pl.col("memory_total_bytes"),
        "power": pl.col("power_watts"),
        "power_peak": pl.col("power_peak_watts"),
        "energy": pl.col("energy_joules") / 3600,
        "heat": pl.col("temperature_peak_celsius"),
        "throttled_share": pl.col("throttled_share"),
    }
    return _of_rank(rank, gpus.select(**_numbers(columns, ("gpu",))), several)


def _host(rank: int, host: pl.DataFrame, several: bool) -> pl.DataFrame:
    columns = {
        "cpu_busy_share": pl.col("cpu_percent") / 100,
        "cpus": pl.col("process_percent") / 100,
        "resident_memory_peak_bytes": pl.col("process_memory_peak_bytes"),
        "control_group_peak_bytes": pl.col("group_memory_peak_bytes"),
        "control_group_limit_bytes": pl.col("group_memory_limit_bytes"),
        "held_back_share": pl.col("throttled_percent") / 100,
    }
    return _of_rank(rank, host.select(**_numbers(columns)), several)


def _numbers(columns: Mapping[str, pl.Expr], texts: Sequence[str] = ()) -> dict[str, pl.Expr]:
    return {
        name: value.cast(pl.String if name in texts else pl.Float64)
        for name, value in columns.items()
    }


def _of_rank(rank: int, frame: pl.DataFrame, several: bool) -> pl.DataFrame:
    return frame.select(pl.lit(rank).alias("rank"), pl.all()) if several else frame


def environment_section(diagnosis: Diagnosis) -> dict[str, Any]:
    """The job, its versions, and the trace that is shown."""
    job, details = diagnosis.run.job, diagnosis.details
    pairs: list[tuple[str, str]] = []
    if job is not None:
        started = datetime.datetime.fromtimestamp(job.created_ns / 1e9, datetime.timezone.utc)
        pairs += [
            ("Run", job.name),
            ("Started", f"{started:%Y-%m-%d %H:%M:%S} UTC"),
            ("Command", " ".join(job.command)),
            ("Directory", job.working_directory),
            ("Machine", job.host),
            ("Platform", job.platform),
            ("CPUs", str(job.cpu_count or "")),
            ("GPUs", ", ".join(job.devices) or "none in use"),
            ("Ranks", str(job.world_size)),
            *(job.versions.items()),
        ]
    if details is not None:
        recording = details.recording
        pairs += [
            ("Trace", recording.path),
            ("Written by", recording.producer),
            ("Accelerator", recording.accelerator or ""),
            ("GPUs in it", ", ".join(recording.gpus)),
            ("Backend", recording.backend or ""),
            *((key, str(value)) for key, value in recording.header.items() if key not in _FORMAL),
        ]
    return blocks.section("environment", "Environment", blocks.facts(pairs))
