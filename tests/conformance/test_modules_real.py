"""Modules and call trees of real traces: device time is conserved, whatever is recorded."""

from __future__ import annotations

import pytest
from tests.support.real_traces import EACH, real_trace

from stepscope.analysis.call_tree import build_call_tree
from stepscope.analysis.modules import PHASES, analyse_modules
from stepscope.analysis.operators import analyse_operators


@pytest.mark.parametrize("name", EACH)
def test_device_time_is_conserved(name):
    trace = real_trace(name)
    whole = analyse_operators(trace).device_ns
    tree = build_call_tree(trace)
    roots = tree.nodes.filter(tree.nodes["parent"].is_null())
    assert tree.device_ns == whole
    assert roots["device_total_ns"].sum() + tree.unattributed_ns == whole
    assert tree.nodes["device_self_ns"].sum() + tree.unattributed_ns == whole
    report = analyse_modules(trace)
    tops = report.table.filter(report.table["parent"].is_null())
    attributed = sum(int(tops[f"{phase}_device_total_ns"].sum()) for phase in PHASES)
    assert attributed + report.unattributed_ns == report.device_ns == whole
    own = sum(int(report.table[f"{phase}_device_self_ns"].sum()) for phase in PHASES)
    assert own == attributed


def test_a_checkpointed_resnet():
    """Recomputation of the modules is that of the operators; every layer has a backward."""
    trace = real_trace("mi300x_resnet_train/trace.json.gz")
    report = analyse_modules(trace)
    top = report.table.row(0, named=True)
    assert top["name"] == "DistributedDataParallel_0"
    assert top["recomputed_device_total_ns"] == analyse_operators(trace).recomputed_device_ns
    convolutions = report.table.filter(report.table["name"].str.starts_with("Conv2d"))
    assert len(convolutions) == 20
    assert (convolutions["backward_device_self_ns"] > 0).all()
    # All but the first convolution are inside checkpoints.
    assert (convolutions["recomputed_device_self_ns"] > 0).sum() == 19
