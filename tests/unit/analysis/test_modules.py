"""Modules: forward, backward and recomputation, from each source of module names."""

from __future__ import annotations

import contextlib

import pytest
from tests.support.gpu_trace import GpuTrace, us

import stepscope
from stepscope.analysis.calls.module_places import hierarchy_segments
from stepscope.analysis.modules import (
    BY_FRAMES,
    BY_FUNCTIONS,
    BY_HIERARCHY,
    BY_STACKS,
    MOST_NAMED,
    NONE,
    analyse_modules,
)
from stepscope.analysis.selection.scope import Scope

MODULE = "nn.Module: "


def rows(report):
    return {row["path"]: row for row in report.table.to_dicts()}


def training(prefix=MODULE, *, names=("Model_0", "Linear_0"), recompute=False, steps=1):
    """A model with one linear layer, its backward and an optimizer, step by step."""
    outer, inner = names
    t = GpuTrace()
    for _ in range(steps):
        with t.step():
            number = t.next_sequence()
            with t.frame(prefix + outer):
                t.launch("embed", us(3))
                with t.frame(prefix + inner):
                    t.op("aten::addmm", sequence=number).launch("forward", us(10))
            with (
                t.thread(),
                t.op(
                    "autograd::engine::evaluate_function: AddmmBackward0",
                    sequence=number,
                    forward_thread=1,
                ),
                t.op("AddmmBackward0", sequence=number, forward_thread=1),
            ):
                if recompute:
                    again = "torch/utils/checkpoint.py(9): recompute_fn"
                    with t.frame(again), t.frame(prefix + inner):
                        t.op("aten::addmm").launch("again", us(11))
                t.op("aten::mm").launch("backward", us(40))
            t.op("optimizer").launch("adam", us(5))
    return t


@pytest.mark.parametrize(
    ("prefix", "names", "source"),
    [
        (MODULE, ("Model_0", "Linear_0"), BY_FRAMES),
        ("", ("model.py(3): forward", "linear.py(7): forward"), BY_FUNCTIONS),
    ],
)
def test_forward_and_backward_of_frames(prefix, names, source):
    report = analyse_modules(training(prefix, names=names).load())
    assert report.source == source
    outer, inner = names
    model, linear = rows(report)[outer], rows(report)[f"{outer}/{inner}"]
    assert (model["forward_device_total_ns"], model["forward_device_self_ns"]) == (us(13), us(3))
    assert (linear["forward_device_total_ns"], linear["calls"]) == (us(10), 1)
    assert linear["backward_device_self_ns"] == model["backward_device_total_ns"] == us(40)
    assert model["backward_device_self_ns"] == 0
    assert linear["backward_host_total_ns"] > 0
    assert report.unattributed_ns == us(5)
    assert report.device_ns == us(58)
    assert report.scope.excluded == {"GPU events of no module": 1}


def test_recomputation_goes_to_the_place_in_the_forward():
    report = analyse_modules(training(recompute=True).load())
    assert list(rows(report)) == ["Model_0", "Model_0/Linear_0"]
    linear = rows(report)["Model_0/Linear_0"]
    assert linear["recomputed_device_total_ns"] == us(11)
    assert linear["forward_device_total_ns"] == us(10)
    assert linear["backward_device_total_ns"] == us(40)
    assert linear["calls"] == 1


def test_host_times_divide_the_frames():
    trace = training(recompute=True, steps=2).load()
    report = analyse_modules(trace)
    events = trace.events.collect().join(trace.names.collect(), on="name_id")
    whole = events.filter(events["name"] == MODULE + "Model_0")["dur_ns"].sum()
    model = rows(report)["Model_0"]
    assert model["forward_host_total_ns"] == whole
    engine = events.filter(events["name"].str.starts_with("autograd::engine"))["dur_ns"].sum()
    assert model["backward_host_total_ns"] + model["recomputed_host_total_ns"] == engine


def test_steps_of_the_scope_only():
    trace = training(steps=3).load()
    one = analyse_modules(trace, Scope(steps=(1,)))
    assert rows(one)["Model_0"]["calls"] == 1
    assert rows(one)["Model_0"]["forward_device_total_ns"] == us(13)


def test_without_modules_the_report_says_what_to_record():
    t = GpuTrace()
    with t.step():
        t.op("aten::mm").launch("k", us(5))
    report = analyse_modules(t.load())
    assert report.source == NONE
    assert "no module was recorded: record with_stack=True to see them" in report.notes
    assert report.table.is_empty()
    assert report.unattributed_ns == report.device_ns == us(5)


def test_hierarchy_of_scripted_models():
    t = GpuTrace()
    inner = {"Module Hierarchy": "TOP(Net)::forward.0(Linear)::forward."}
    fused = {"Module Hierarchy": "TOP()::<backward op>."}
    with t.step():
        number = t.next_sequence()
        with t.op("forward", **{"Module Hierarchy": "TOP(Net)::forward."}):
            t.launch("own", us(2))
            t.op("aten::linear", sequence=number, **inner).launch("gemm", us(10))
        t.op("Backward", sequence=number, forward_thread=1, **fused).launch("grad", us(20))
    report = analyse_modules(t.load())
    assert report.source == BY_HIERARCHY
    top, linear = rows(report)["TOP"], rows(report)["TOP/0(Linear)"]
    assert (top["forward_device_self_ns"], top["forward_device_total_ns"]) == (us(2), us(12))
    assert linear["backward_device_self_ns"] == us(20)
    assert linear["calls"] is None


def test_call_stacks_of_old_recorders():
    t = GpuTrace()
    outer = "/home/x/site-packages/net/model.py(9): forward;torch/nn/module.py(5): _call_impl;"
    inner = "torch/nn/conv.py(3): _conv;torch/nn/conv.py(4): forward;" + outer
    with t.step():
        number = t.next_sequence()
        t.op("aten::add", **{"Call stack": outer}).launch("add", us(2))
        with t.op("aten::conv2d", sequence=number, **{"Call stack": inner}):
            t.op("aten::convolution", **{"Call stack": inner}).launch("conv", us(10))
        t.op("ConvBackward", sequence=number, forward_thread=1, **{"Call stack": ""}).launch(
            "grad", us(20)
        )
        t.op("adam", **{"Call stack": "train.py(3): <module>"}).launch("adam", us(4))
    report = analyse_modules(t.load())
    assert report.source == BY_STACKS
    model = rows(report)["net/model.py(9): forward"]
    conv = rows(report)["net/model.py(9): forward/torch/nn/conv.py(4): forward"]
    assert (model["forward_device_self_ns"], model["forward_device_total_ns"]) == (us(2), us(12))
    assert conv["backward_device_self_ns"] == us(20)
    assert report.unattributed_ns == us(4)


def test_hierarchy_text():
    assert hierarchy_segments("TOP(M)::forward.a(A)::forward.0(Linear)::forward.") == [
        "TOP",
        "a(A)",
        "0(Linear)",
    ]
    assert hierarchy_segments("TOP()::<forward op>.b(B)::forward.::relu.") == ["TOP", "b(B)"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_real_checkpointed_model(tmp_path, reentrant):
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.checkpoint import checkpoint

    block = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU())
    head = torch.nn.Linear(32, 4)
    x = torch.randn(8, 16, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as recorder:
        head(checkpoint(block, x, use_reentrant=reentrant)).sum().backward()
    recorder.export_chrome_trace(str(tmp_path / "trace.json"))
    found = rows(analyse_modules(stepscope.load(tmp_path / "trace.json")))
    assert sorted(path.split("_")[0] for path in found) == [
        "Linear",
        "Sequential",
        "Sequential",
        "Sequential",
    ]
    inside = [row for path, row in found.items() if path.startswith("Sequential")]
    alone = [row for path, row in found.items() if path.startswith("Linear")]
    assert all(row["recomputed_host_total_ns"] > 0 for row in inside)
    assert all(row["recomputed_host_total_ns"] == 0 for row in alone)
    assert all(row["backward_host_total_ns"] > 0 for row in inside + alone)
    assert all(row["calls"] == 1 for row in inside + alone)


def test_the_path_of_a_deep_module_has_its_last_names():
    t = GpuTrace()
    names = [f"Block_{number}" for number in range(MOST_NAMED + 2)]
    with t.step(), contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(t.frame(MODULE + name))
            t.python(us(1))
        t.launch("forward", us(10))
    paths = analyse_modules(t.load()).table["path"].to_list()
    assert paths[MOST_NAMED - 1] == "/".join(names[:MOST_NAMED])
    assert paths[MOST_NAMED + 1] == "/".join(["…", *names[2:]])
