"""Derived columns of real traces against what the files themselves say by other means."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tests.support.traces import KINETO, read_derived, read_tables

from stepscope.trace.arrays.grouped_intervals import merge_by_group
from stepscope.trace.derive import links
from stepscope.trace.derive.columns import derive, needed_args

WORK = ["kernel", "gpu_memcpy", "gpu_memset"]

LINKED = {
    "h100_qwen_inference/trace.json.gz": (1707, 1198),
    "hta_trace_diff/test.json.gz": (15632, 15018),
    "mi300x_resnet_train/trace.json.gz": (3653, 2685),
    "v100_train_5steps/trace.json.gz": (22290, 22290),
}
"""GPU work in all, and with a launch in the file (the rest was launched before the window)."""

CROSSING = ("h100_qwen_inference", "h100_timesformer_inference", "mi300x_resnet_train")
"""Files in which events of a thread overlap without nesting."""

pytestmark = pytest.mark.parametrize("name", KINETO)


def work_of(name):
    tables, derived = read_tables(name), read_derived(name)
    columns = tables.events.with_columns(derived.columns.collect().drop("event"))
    names = tables.names.select("name_id", "name")
    return columns.filter(pl.col("category").is_in(WORK)).join(names, on="name_id")


def test_launches_by_an_independent_join(name):
    tables = read_tables(name)
    calls = {}
    for event, category, correlation in tables.events.select(
        "event", "category", "correlation"
    ).iter_rows():
        if category in ("runtime", "driver") and correlation:
            assert correlation not in calls, "the simple join below would not do"
            calls[correlation] = event
    work = work_of(name)
    assert work["launch"].to_list() == [calls.get(c) for c in work["correlation"].to_list()]
    if name in LINKED:
        assert (len(work), len(work) - work["launch"].null_count()) == LINKED[name]
    starts = tables.events["start_ns"]
    linked = work.drop_nulls("launch")
    assert (linked["start_ns"] >= starts.gather(linked["launch"])).mean() > 0.999


def test_operators_agree_with_external_ids(name):
    """The profiler noted the operator at the launch; nesting must find the same one."""
    tables = read_tables(name)
    operators = tables.events.filter(pl.col("category") == "cpu_op", pl.col("external_id") > 0)
    work = (
        work_of(name)
        .filter(pl.col("op").is_not_null(), pl.col("external_id").ne_missing(pl.col("correlation")))
        .join(operators.select("external_id", noted="event"), on="external_id")
    )
    nesting = read_derived(name).columns.collect()
    differ = work.filter(pl.col("op") != pl.col("noted"))
    # Annotations inside operators (nccl:all_reduce in record_param_comms) are nearer to the launch.
    names = dict(tables.names.select("name_id", "name").iter_rows())
    inner = [names[i] for i in tables.events["name_id"].gather(differ["op"]).to_list()]
    assert all(text.startswith("nccl:") for text in inner)
    assert nesting["parent"].gather(differ["op"]).to_list() == differ["noted"].to_list()
    expected_ids = {
        "a100_nccl_train/trace.json.gz": 3774,
        "mi300x_resnet_train/trace.json.gz": 2685,
    }
    if name in expected_ids:
        assert len(work) == expected_ids[name]


def test_forward_links_agree_with_the_flows(name):
    tables = read_tables(name)
    by_sequence = np.full(len(tables.events), -1)
    by_flow = by_sequence.copy()
    links._forward_by_sequence(tables, by_sequence)
    links._forward_by_flows(tables, by_flow)
    both = (by_sequence >= 0) & (by_flow >= 0)
    assert np.array_equal(by_sequence[both], by_flow[both])
    assert not ((by_flow >= 0) & (by_sequence < 0)).any()
    if name.startswith("a100"):
        assert both.sum() == 543


def test_self_times_of_each_thread_add_up_to_its_covered_time(name):
    tables, derived = read_tables(name), read_derived(name)
    on_device = [*WORK, "gpu_user_annotation", "device_sync", "span"]
    host = tables.events.filter(~pl.col("category").is_in(on_device))
    starts = host["start_ns"].to_numpy()
    lane, first, last = merge_by_group(
        host["lane_id"].to_numpy(), starts, starts + host["dur_ns"].to_numpy()
    )
    covered = dict(zip(*np.unique(lane, return_counts=True), strict=True))
    covered = {int(key): int((last - first)[lane == key].sum()) for key in covered}
    self_ns = derived.columns.collect()["self_ns"].gather(host["event"])
    total = host.with_columns(self_ns).group_by("lane_id").agg(pl.col("self_ns").sum()).rows()
    crossing = derived.problems.filter(pl.col("problem") == "events_cross")
    assert crossing.is_empty()  # torch's own frames around annotations cross, which is not noted
    assert total
    beyond = [found - covered.get(lane_id, 0) for lane_id, found in total]
    assert min(beyond) >= 0
    assert name.startswith(CROSSING) is (max(beyond) > 0)


def test_steps_divide_both_clocks(name):
    derived = read_derived(name)
    host = derived.host_steps
    assert not host.is_empty()
    assert (host["end_ns"][:-1] == host["start_ns"][1:]).all()
    assert not host["is_empty"].any()
    for (_,), steps in derived.device_steps.group_by(["device"]):
        assert steps["step"].to_list() == host["step"].to_list()
        # The first step begins when the device has done what was launched before it.
        work = work_of(name)
        own = work.filter(pl.col("launch").is_not_null(), pl.col("step") == host["step"][0])
        first = dict(own.group_by("lane_id").agg(pl.col("start_ns").min()).rows())
        unlinked = work.filter(pl.col("launch").is_null())
        last = dict(unlinked.group_by("lane_id").agg(pl.col("start_ns").max()).rows())
        drained = [lane for lane in first if lane in last and last[lane] < first[lane]]
        backlog = unlinked.filter(
            (pl.col("start_ns") < own["start_ns"].min()) | pl.col("lane_id").is_in(drained),
            pl.col("start_ns") + pl.col("dur_ns") <= (own["start_ns"] + own["dur_ns"]).max(),
        )
        done = (backlog["start_ns"] + backlog["dur_ns"]).to_list()
        assert steps["start_ns"][0] == max([host["start_ns"][0], *done])
        assert (steps["end_ns"][:-1] == steps["start_ns"][1:]).all()
        assert (steps["end_ns"] >= steps["start_ns"]).all()
    work = work_of(name)
    step_of_launch = derived.columns.collect()["step"]
    linked = work.drop_nulls("launch")
    assert linked["step"].to_list() == step_of_launch.gather(linked["launch"]).to_list()


def test_nothing_that_matters_is_left_unclassified(name):
    # Generic kernels launched before the window have neither metadata nor an operator in the file.
    work = work_of(name).drop_nulls("launch")
    time = work.group_by("kind", "group").agg(pl.col("dur_ns").sum())
    other = time.filter(pl.col("group").is_in(["other", "collective", "copy"]))["dur_ns"].sum()
    assert other <= 0.001 * time["dur_ns"].sum()
    copies = work.filter(pl.col("category") == "gpu_memcpy")
    assert set(copies["kind"].to_list()) <= {"memcpy"}
    named = work["name"].str.contains("(?i)nccl")
    assert ((work["kind"] == "communication") == named).all()


def test_arguments_that_deriving_looks_into_are_all_it_needs(name):
    tables = read_tables(name)
    fewer = tables.args.filter(needed_args())
    assert len(fewer) < len(tables.args)
    alone = derive(replace(tables, args=fewer))
    assert_frame_equal(alone.columns.collect(), read_derived(name).columns.collect())
    assert_frame_equal(alone.device_steps, read_derived(name).device_steps)
    assert_frame_equal(alone.problems, read_derived(name).problems)
