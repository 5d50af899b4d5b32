"""Every question of `stepscope show` on every real trace: it answers, and its parts add up."""

from __future__ import annotations

import polars as pl
import pytest
from tests.support.real_traces import EACH, real_trace

from stepscope.analysis.input_pipeline import input_pipeline
from stepscope.analysis.launches import launches
from stepscope.analysis.memory_timeline import memory_timeline
from stepscope.analysis.steps import step_table
from stepscope.analysis.timeline import timeline


@pytest.mark.parametrize("name", EACH)
def test_no_step_is_dropped_and_steps_add_up(name: str) -> None:
    trace = real_trace(name)
    table = step_table(trace).steps
    assert set(table["step"]) == set(trace.steps["step"])
    for device, rows in table.group_by("device"):
        assert rows["wall_ns"].sum() == trace.steps["end_ns"].max() - trace.steps["start_ns"].min()
        mine = trace.device_steps.filter(pl.col("device") == device[0])
        assert rows["device_ns"].sum() == mine["end_ns"].max() - mine["start_ns"].min()


@pytest.mark.parametrize("name", EACH)
def test_launches_cover_all_linked_work(name: str) -> None:
    trace = real_trace(name)
    answer = launches(trace)
    linked = trace.derived.filter(pl.col("kind") != "none").select("launch").collect()["launch"]
    assert answer.launched == linked.count()
    # A captured graph is one call, however much work it launches.
    assert answer.delays["count"].sum() == linked.drop_nulls().n_unique()
    assert answer.queues["launches"].sum() <= answer.launched
    assert (answer.queues["empty_share"].is_between(0, 1)).all()
    assert (answer.stretches["idle_ns"] <= answer.stretches["dur_ns"]).all()
    assert (answer.blocking["waited_ns"] <= answer.blocking["total_ns"]).all()
    assert answer.launch_bound_ns <= timeline(trace).total_ns


def test_roctracer_calls_are_launches_and_waits_too() -> None:
    answer = launches(real_trace("amd_resnet_ddp_4rank/rank0.pt.trace.json.gz"))
    assert answer.launched == 4095
    assert "hipExtModuleLaunchKernel" in answer.delays["call"].to_list()
    waits = dict(
        answer.blocking.filter(pl.col("operator") == "aten::item")
        .select("call", "count")
        .iter_rows()
    )
    assert waits == {"hipMemcpyWithStream": 9}


@pytest.mark.parametrize("name", EACH)
def test_waits_fit_into_their_steps(name: str) -> None:
    answer = input_pipeline(real_trace(name))
    assert (answer.steps["wait_ns"] <= answer.steps["wall_ns"]).all()
    assert answer.waits == answer.sources["count"].sum()


def test_the_loader_contrast() -> None:
    folder, end = "v100_dataloader_contrast", ".pt.trace.json.gz"
    alone = input_pipeline(real_trace(f"{folder}/num_workers_0_worker0.1623143089861{end}"))
    four = input_pipeline(real_trace(f"{folder}/num_workers_4_worker0.1623212756351{end}"))
    assert (alone.runs_in_process, four.runs_in_process) == (True, False)
    assert alone.wait_share is not None
    assert four.wait_share is not None
    assert alone.wait_share > 0.35
    assert four.wait_share < 0.05


@pytest.mark.parametrize("name", EACH)
def test_what_is_held_at_the_peak_is_the_peak(name: str) -> None:
    answer = memory_timeline(real_trace(name))
    for row in answer.devices.rows(named=True):
        held = answer.at_peak.filter(
            pl.col("kind") == row["kind"], pl.col("device") == row["device"]
        )
        assert held["live_bytes"].sum() == row["peak_allocated_bytes"]
        assert (held["live_bytes"] > 0).all()
        curve = answer.timeline.filter(
            pl.col("kind") == row["kind"], pl.col("device") == row["device"]
        )
        assert curve["allocated_bytes"].max() <= row["peak_allocated_bytes"]
