"""Modules: forward, backward and recomputation, from each source of module names."""

from __future__ import annotations

import contextlib

import pytest
from tests.support.gpu_trace import GpuTrace, us

import stepscope
from stepscope.analysis.flops import analyse_flops
from stepscope.analysis.modules import (
    BY_FRAMES,
    BY_FUNCTIONS,
    BY_HIERARCHY,
    BY_STACKS,
    MOST_NAMED,
    NONE,
    analyse_modules,
    hierarchy_segments,
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


def test_flops_belong_to_the_module_that_the_time_belongs_to():
    t = GpuTrace()
    products = {"shapes": [[8, 16], [16, 32]], "types": ["float", "float"]}
    one = 2 * 8 * 16 * 32
    for _ in range(2):
        with t.step():
            number = t.next_sequence()
            with t.frame(MODULE + "Model_0"):
                with t.frame(MODULE + "Linear_0"):
                    t.op("aten::mm", sequence=number, **products).launch("forward", us(10))
                t.op("aten::mm", **products).launch("direct", us(6))
            with (
                t.thread(),
                t.op("autograd::engine::evaluate_function: Mm", sequence=number, forward_thread=1),
                t.op("MmBackward0", sequence=number, forward_thread=1),
            ):
                again = "torch/utils/checkpoint.py(9): recompute_fn"
                with t.frame(again), t.frame(MODULE + "Linear_0"):
                    t.op("aten::mm", **products).launch("again", us(11))
                t.op("aten::mm", **products).launch("backward", us(40))
                t.op("aten::mm", **products).launch("backward", us(39))
            t.op("aten::mm", **products).launch("loss", us(5))
    trace = t.load()
    report = analyse_modules(trace)
    model, linear = rows(report)["Model_0"], rows(report)["Model_0/Linear_0"]
    assert (linear["flops"], linear["self_flops"]) == (2 * 4 * one, 2 * 4 * one)
    assert (model["flops"], model["self_flops"]) == (2 * 5 * one, 2 * one)
    assert linear["recomputed_flops"] == model["recomputed_flops"] == 2 * one
    assert (report.flops, report.unattributed_flops) == (2 * 6 * one, 2 * one)
    assert report.flops == analyse_flops(trace).flops
    assert linear["flops_share"] == pytest.approx(4 / 6)
    assert linear["teraflops_per_s"] == pytest.approx(4 * one / us(10 + 11 + 40 + 39) / 1e3)
    assert analyse_modules(trace, Scope(steps=(1,))).flops == 6 * one


def test_without_shapes_modules_have_no_flops_rather_than_none_to_do():
    report = analyse_modules(training().load())
    assert report.table["flops"].null_count() == len(report.table)
    assert report.table["teraflops_per_s"].null_count() == len(report.table)
    assert (report.flops, report.unattributed_flops) == (None, None)
    assert any("record_shapes=True" in note for note in report.notes)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reentrant", [None, True, False])
def test_flops_of_a_real_model_are_those_that_torch_counts(tmp_path, reentrant):
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.checkpoint import checkpoint
    from torch.utils.flop_counter import FlopCounterMode

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up = torch.nn.Linear(16, 96)
            self.conv = torch.nn.Conv1d(12, 20, 3)
            self.down = torch.nn.Linear(158, 10)

        def forward(self, x):
            wide = self.up(x).relu().view(-1, 12, 8 * 20)
            return self.down(self.conv(wide))

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()
            self.head = torch.nn.Linear(10, 7)

        def forward(self, x):
            if reentrant is None:
                return self.head(self.block(x))
            return self.head(checkpoint(self.block, x, use_reentrant=reentrant))

    model = Model()
    x = torch.randn(40, 16, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    counts = {name: sum(by.values()) for name, by in counter.get_flop_counts().items()}
    with profile(
        activities=[ProfilerActivity.CPU], with_stack=True, record_shapes=True
    ) as recorder:
        model(x).sum().backward()
    recorder.export_chrome_trace(str(tmp_path / "trace.json"))
    report = analyse_modules(stepscope.load(tmp_path / "trace.json"))
    found = {row["path"].split("/")[-1]: row for row in rows(report).values()}
    whole = counts["Global"]
    # A block that ends with a product is abandoned there, which a CPU's trace cannot tell.
    abandoned = 2 * 40 * 158 * 10 if reentrant is False else 0
    assert report.flops == whole + abandoned
    assert report.unattributed_flops == 0
    assert found["Model_0"]["flops"] == whole + abandoned
    # With reentrant checkpoints torch's counter does not know whose the backward is.
    known = {"Conv1d_0": "block.conv", "Linear_0": "block.up", "Linear_2": "head"}
    for ours, theirs in known.items() if not reentrant else ():
        assert found[ours]["flops"] == counts[f"Model.{theirs}"], ours
    products = {"Conv1d_0": 2 * 12 * 3 * 20 * 158, "Linear_0": 40 * 16 * 96}
    products["Linear_1"] = 40 * 158 * 10
    passes = 3 if reentrant is None else 4
    for name, count in products.items():
        assert found[name]["flops"] == passes * 2 * count, name
        assert found[name]["recomputed_flops"] == (passes - 3) * 2 * count, name


@pytest.mark.parametrize("launches", [True, False])
def test_what_a_checkpoint_begins_and_abandons_has_no_flops(launches):
    t = GpuTrace()
    products = {"shapes": [[8, 16], [16, 32]], "types": ["float", "float"]}
    one = 2 * 8 * 16 * 32
    with t.step():
        with t.frame(MODULE + "Block_0"):
            for _ in range(2):
                t.op("aten::mm", **products).launch("forward", us(10))
        with (
            t.thread(),
            t.op("autograd::engine::evaluate_function: Mm", sequence=5, forward_thread=1),
            t.frame("torch/utils/checkpoint.py(9): recompute_fn"),
            t.frame(MODULE + "Block_0"),
        ):
            t.op("aten::mm", **products).launch("again", us(11))
            with t.op("aten::linear", shapes=[[8, 16], [32, 16]], types=["float"] * 2):
                if launches:
                    t.op("aten::mm", **products).launch("again", us(12))
                else:
                    with t.op("aten::mm", **products):
                        pass
    trace = t.load()
    again = (2 if launches else 1) * one
    report = analyse_flops(trace)
    assert (report.flops, report.recomputed_flops) == (2 * one + again, again)
    assert not any("lower bound" in note for note in report.notes)
    (block,) = rows(analyse_modules(trace)).values()
    assert (block["flops"], block["recomputed_flops"]) == (2 * one + again, again)


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
