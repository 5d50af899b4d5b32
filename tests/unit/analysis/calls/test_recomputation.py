"""Recomputation in traces that torch records here, of both kinds of checkpointing."""

from __future__ import annotations

import pytest

import stepscope
from stepscope.analysis.calls import recomputation
from stepscope.analysis.calls.recomputation import NOT_DETERMINED
from stepscope.analysis.operators import analyse_operators

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")


def capture(tmp_path, *, reentrant=None, with_stack=False, twice=False):
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.checkpoint import checkpoint

    block = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
    head = torch.nn.Linear(16, 4)
    x = torch.randn(8, 16, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU], with_stack=with_stack) as recorder:
        hidden = block(x) if reentrant is None else checkpoint(block, x, use_reentrant=reentrant)
        loss = head(hidden).square().mean()
        if twice:
            (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
            loss = gradient.square().sum()
        loss.backward()
    path = tmp_path / "trace.json"
    recorder.export_chrome_trace(str(path))
    return stepscope.load(path)


@pytest.mark.parametrize("with_stack", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_block_runs_its_two_linears_again(tmp_path, reentrant, with_stack):
    report = analyse_operators(capture(tmp_path, reentrant=reentrant, with_stack=with_stack))
    rows = {row["name"]: row for row in report.table.to_dicts()}
    assert (rows["aten::addmm"]["count"], rows["aten::addmm"]["recomputed"]) == (5, 2)
    assert rows["aten::linear"]["recomputed"] == 2
    assert rows["aten::relu"]["recomputed"] == 1
    assert rows["aten::mm"]["recomputed"] == 0
    assert report.recomputed_host_ns > 0


@pytest.mark.parametrize("with_stack", [True, False])
def test_nothing_is_recomputed_without_checkpointing(tmp_path, with_stack):
    report = analyse_operators(capture(tmp_path, with_stack=with_stack))
    assert report.recomputed_host_ns == 0
    assert report.table["recomputed"].sum() == 0


def test_gradients_of_gradients_are_no_recomputation(tmp_path):
    report = analyse_operators(capture(tmp_path, twice=True))
    assert report.table["recomputed"].sum() == 0
    assert report.recomputed_basis == NOT_DETERMINED


def test_gradients_of_torch_func_are_no_recomputation(tmp_path):
    """They keep the graph of the backward, whether or not anybody asks for a second gradient."""
    from torch.func import functional_call, grad
    from torch.profiler import ProfilerActivity, profile

    block = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    weights = {name: weight.detach() for name, weight in block.named_parameters()}
    x = torch.randn(8, 16)

    def loss(weights):
        return functional_call(block, weights, (x,)).square().mean()

    with profile(activities=[ProfilerActivity.CPU]) as recorder:
        grad(loss)(weights)
    path = tmp_path / "trace.json"
    recorder.export_chrome_trace(str(path))
    report = analyse_operators(stepscope.load(path))
    assert report.table["recomputed"].sum() == 0
    assert report.recomputed_basis == NOT_DETERMINED


@pytest.mark.parametrize("reentrant", [None, True, False])
def test_frames_decide_without_arguments(tmp_path, monkeypatch, reentrant):
    asked = []
    texts = recomputation.argument_texts
    monkeypatch.setattr(
        recomputation,
        "argument_texts",
        lambda *given: asked.append(given) or texts(*given),
    )
    with_frames = capture(tmp_path, reentrant=reentrant, with_stack=True)
    recomputation.find_recomputed(with_frames)
    assert not asked
    without = capture(tmp_path, reentrant=False)
    recomputation.find_recomputed(without)
    assert asked
