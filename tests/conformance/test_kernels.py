"""Kernel sums against TraceLens's tables on real traces, and their conservation on all of them."""

from __future__ import annotations

import csv
from collections import defaultdict

import polars as pl
import pytest
from tests.support.real_traces import EACH, real_trace
from tests.support.traces import trace_path

from stepscope.analysis.kernels import kernels
from stepscope.analysis.selection.gpu_work import gpu_work
from stepscope.analysis.timeline import timeline


@pytest.mark.parametrize("folder", ["h100_qwen_inference", "h100_timesformer_inference"])
def test_tracelens_kernel_summary(folder: str) -> None:
    """Every kernel of its table: number, sum, mean, least and greatest, per name and stream."""
    trace = real_trace(f"{folder}/trace.json.gz")
    expected = defaultdict(list)
    with trace_path(f"{folder}/expected_kernel_summary.csv").open() as file:
        for row in csv.DictReader(file):
            expected[row["Kernel name"], int(row["Kernel stream"])].append(row)
    work = gpu_work(trace).table.join(trace.names.select("name_id", "name").collect(), on="name_id")
    ours = {
        (row["name"], row["stream"]): row
        for row in work.group_by("name", "stream")
        .agg(
            pl.len(),
            pl.col("dur_ns").sum().alias("sum"),
            pl.col("dur_ns").min().alias("min"),
            pl.col("dur_ns").max().alias("max"),
        )
        .rows(named=True)
    }
    column = "Kernel duration (µs)_"
    for key, rows in expected.items():
        mine = ours[key]
        assert sum(int(float(row[f"{column}count"])) for row in rows) == mine["len"], key
        total = sum(float(row[f"{column}sum"]) for row in rows)
        assert mine["sum"] == pytest.approx(total * 1000, rel=1e-4)
        assert mine["min"] == pytest.approx(
            1000 * min(float(row[f"{column}min"]) for row in rows), rel=1e-4
        )
        assert mine["max"] == pytest.approx(
            1000 * max(float(row[f"{column}max"]) for row in rows), rel=1e-4
        )
    # Its table is of kernels: what it lacks are the copies and the fills.
    missing = {name for name, stream in ours.keys() - expected.keys()}
    assert all(name.startswith(("Memcpy", "Memset")) for name in missing)


@pytest.mark.parametrize("name", EACH)
def test_kernels_add_up_to_the_timeline(name: str) -> None:
    trace = real_trace(name)
    answer = kernels(trace)
    whole = timeline(trace)
    assert answer.work_ns == whole.devices["work_ns"].sum()
    assert answer.kernels["total_ns"].sum() == answer.groups["total_ns"].sum() == answer.work_ns
    assert answer.kernels["count"].sum() == answer.events == whole.scope.events
    assert answer.work_ns >= whole.busy_ns
    assert answer.tensor_core_ns <= answer.matrix_ns <= answer.work_ns
