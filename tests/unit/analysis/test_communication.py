"""Collectives: sizes, bandwidths and exposure with known answers, and against brute force."""

from __future__ import annotations

import random

import numpy as np
import polars as pl
import pytest
from tests.support.gpu_trace import COMM_STREAM, GpuTrace, ms, us

from stepscope.analysis.calls.collectives import bus_factor, with_peers
from stepscope.analysis.communication import analyse_communication
from stepscope.analysis.selection.scope import Scope


def factor_of(kind, ranks):
    table = pl.DataFrame({"kind": [kind], "group_size": [ranks]})
    return table.select(bus_factor()).item()


@pytest.mark.parametrize(
    ("kind", "ranks", "factor"),
    [
        ("all_reduce", 8, 1.75),
        ("all_gather", 8, 0.875),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 2, 0.5),
        ("broadcast", 8, 1.0),
        ("send_recv", 2, 1.0),
        ("all_reduce", 1, 0.0),
        ("barrier", 8, None),
    ],
)
def test_bus_factors_of_nccl_tests(kind, ranks, factor):
    assert factor_of(kind, ranks) == factor


@pytest.mark.parametrize("metadata", [True, False])
@pytest.mark.parametrize(
    ("kind", "own_bytes", "message_bytes"),
    [
        ("all_reduce", 8_000_000, 8_000_000),
        ("all_gather", 1_000_000, 8_000_000),
        ("reduce_scatter", 8_000_000, 8_000_000),
        ("all_to_all", 8_000_000, 8_000_000),
        ("broadcast", 8_000_000, 8_000_000),
    ],
)
def test_size_and_bandwidth(kind, own_bytes, message_bytes, metadata):
    t = GpuTrace(world_size=8)
    with t.step():
        if metadata:
            t.collective(kind, own_bytes, ms(2))
        else:
            shape = {"shapes": [[own_bytes // 4]], "types": ["float"]}
            with t.op(f"nccl:{kind}", category="user_annotation", **shape):
                t.launch("ncclKernel_SendRecv", ms(2), stream=COMM_STREAM)
    report = analyse_communication(t.load())
    row = report.collectives.row(0, named=True)
    assert (row["kind"], row["group_size"]) == (kind, 8)
    assert row["group_size_is_assumed"] is not metadata
    assert row["message_bytes"] == message_bytes
    assert row["algorithm_bandwidth_gb_per_s"] == pytest.approx(message_bytes / ms(2))
    expected = message_bytes / ms(2) * factor_of(kind, 8)
    assert row["bus_bandwidth_gb_per_s"] == pytest.approx(expected)
    size = report.sizes.row(0, named=True)
    assert size["best_bus_bandwidth_gb_per_s"] == pytest.approx(expected)


def test_metadata_of_the_operator_serves_a_kernel_without():
    t = GpuTrace(world_size=4, vendor="amd")
    about = {
        "Collective name": "allreduce",
        "In msg nelems": 1000,
        "Out msg nelems": 1000,
        "Group size": 2,
        "dtype": "Half",
        "Process Group Name": "7",
        "Seq": 31,
    }
    with t.step(), t.op("record_param_comms", **about), t.annotate("nccl:all_reduce"):
        t.launch("ncclDevKernel_Generic(ncclDevComm*)", us(50), stream=4)
    row = analyse_communication(t.load()).collectives.row(0, named=True)
    assert (row["kind"], row["message_bytes"], row["group"]) == ("all_reduce", 2000, "7")
    assert (row["group_size"], row["group_size_is_assumed"]) == (2, False)
    assert row["sequence"] == 31


def test_kernels_that_share_one_message_have_no_size_of_their_own():
    t = GpuTrace(world_size=4)
    shape = {"shapes": [[1000]], "types": ["float"]}
    with t.step(), t.op("nccl:all_reduce", **shape):
        t.launch("ncclKernel_AllReduce", us(50), stream=COMM_STREAM)
        t.launch("ncclKernel_AllReduce", us(50), stream=COMM_STREAM)
    assert analyse_communication(t.load()).collectives["message_bytes"].to_list() == [None, None]


def test_unknown_group_leaves_the_bus_bandwidth_open():
    t = GpuTrace()
    with t.step(), t.op("nccl:all_reduce", shapes=[[1000]], types=["float"]):
        t.launch("ncclKernel_AllReduce", us(50), stream=COMM_STREAM)
    row = analyse_communication(t.load()).collectives.row(0, named=True)
    assert row["group_size"] is None
    assert row["bus_bandwidth_gb_per_s"] is None
    assert row["algorithm_bandwidth_gb_per_s"] == pytest.approx(4000 / us(50))


@pytest.mark.parametrize(
    "about",
    [
        {"In msg nelems": 10**17, "Out msg nelems": 10**19, "dtype": "Double"},
        {"In msg nelems": "many", "Group size": 0, "dtype": "Strange"},
        {"In msg nelems": -5, "Out msg nelems": None, "dtype": 3},
    ],
)
def test_damaged_metadata_gives_no_size(about):
    t = GpuTrace()
    with t.step():
        t.launch("ncclKernel", us(50), stream=20, **{"Collective name": "allreduce", **about})
    row = analyse_communication(t.load()).collectives.row(0, named=True)
    assert (row["kind"], row["message_bytes"]) == ("all_reduce", None)
    assert row["bus_bandwidth_gb_per_s"] is None


def test_without_communication():
    t = GpuTrace()
    with t.step():
        t.op("aten::mm").launch("gemm", us(10))
    report = analyse_communication(t.load())
    assert report.collectives.is_empty()
    assert report.devices.is_empty()
    assert any("no collective" in note for note in report.notes)


def test_tables_without_communication_are_those_with_it_but_for_the_rows():
    def report(*, collective):
        t = GpuTrace(world_size=2)
        for _ in range(2):
            with t.step():
                t.op("aten::mm").launch("gemm", us(10))
                if collective:
                    t.collective("all_reduce", 1 << 20, us(100))
        return analyse_communication(t.load())

    none, some = report(collective=False), report(collective=True)
    for table in ("collectives", "sizes", "devices"):
        assert getattr(none, table).schema == getattr(some, table).schema
    assert none.sizes.is_empty()
    assert none.devices.is_empty()
    assert with_peers(none.collectives).schema == with_peers(some.collectives).schema
    assert with_peers(none.collectives).is_empty()
    assert len(with_peers(some.collectives)) == 2
    # What is said of the scope does not depend on it, and what is said of collectives goes.
    assert none.scope.asked == some.scope.asked
    assert none.notes == ("no collective was recorded in this scope",)


def test_scope():
    t = GpuTrace(world_size=2)
    for _ in range(3):
        with t.step():
            t.collective("all_reduce", 1 << 20, us(100))
    report = analyse_communication(t.load(), Scope(steps=(1, 2)))
    assert report.collectives["step"].to_list() == [1, 2]
    assert report.scope.excluded == {"GPU events of other steps or of none": 1}


@pytest.mark.parametrize("seed", range(10))
def test_exposure_against_brute_force(seed):
    chance = random.Random(seed)
    t = GpuTrace(world_size=4, latency_ns=0, call_ns=1)
    with t.step():
        for _ in range(12):
            t.python(chance.randrange(40))
            if chance.random() < 0.5:
                t.launch("gemm", chance.randrange(1, 200), stream=chance.choice([7, 8]))
            else:
                t.collective(
                    "all_reduce",
                    1024,
                    chance.randrange(1, 300),
                    stream=chance.choice([20, 21]),
                    waits_for_compute=False,
                )
    report = analyse_communication(t.load())
    end = max(work.end_ns for work in t.work)
    origin = min(work.start_ns for work in t.work)
    compute = np.zeros(end - origin, bool)
    comm = np.zeros(end - origin, bool)
    for work in t.work:
        (compute if work.kind == "compute" else comm)[
            work.start_ns - origin : work.end_ns - origin
        ] = True
    device = report.devices.row(0, named=True)
    assert device["communication_ns"] == comm.sum()
    assert device["overlapped_ns"] == (comm & compute).sum()
    assert device["exposed_ns"] == (comm & ~compute).sum()
    assert report.collectives["exposed_ns"].sum() == device["exposed_ns"]
    assert report.collectives["overlapped_ns"].sum() == device["overlapped_ns"]
    assert report.sizes["exposed_ns"].sum() == device["exposed_ns"]
    collectives = [work for work in t.work if work.kind == "communication"]
    first = min(collectives, key=lambda work: (work.start_ns, work.end_ns))
    own = ~compute[first.start_ns - origin : first.end_ns - origin]
    assert int(own.sum()) in report.collectives["exposed_ns"].to_list()
