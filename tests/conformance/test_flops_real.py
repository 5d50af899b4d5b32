"""FLOPs of real traces: plausible against the hardware, nothing counted twice."""

from __future__ import annotations

import pytest
from tests.support.real_traces import EACH, real_trace

from stepscope.analysis.flops import analyse_flops

WITHOUT_SHAPES = ("a100_nccl_train", "v100_train_5steps")
WITHOUT_PEAKS = ("amd_resnet_ddp_4rank",)
"""The file describes no device."""
UNCOUNTED = ("hta_trace_diff/test", "v100_dataloader_contrast")
"""Too many matrix kernels belong to no operator with a formula for MFU to be given."""


@pytest.mark.parametrize("name", EACH)
def test_nothing_is_faster_than_the_device(name):
    report = analyse_flops(real_trace(name))
    shares = report.operators["attained_share"].drop_nulls()
    assert (shares <= 1.0).all()
    assert shares.is_empty() is name.startswith((*WITHOUT_SHAPES, *WITHOUT_PEAKS))
    assert report.uncounted_matrix_ns <= report.matrix_ns
    assert report.operators["flops"].sum() == report.flops
    assert report.steps["flops"].sum() <= report.flops
    if name.startswith((*WITHOUT_SHAPES, *WITHOUT_PEAKS, *UNCOUNTED)):
        assert (report.mfu_share, report.hfu_share) == (None, None)
    else:
        assert 0 < report.mfu_share <= report.hfu_share < 1


def test_a_checkpointed_resnet18():
    """ResNet-18 on 224×224: 3.64 GFLOPs per image forward (2 × 1.82 G multiplications).

    Three steps of ten images: forward, backward twice that but for the first layer's input
    gradient, and all but the first convolution and the last layer once more.
    """
    report = analyse_flops(real_trace("mi300x_resnet_train/trace.json.gz"))
    forward = 3.628e9 * 30
    first_layer = 2 * 64 * 112 * 112 * 147 * 30
    needed = report.flops - report.recomputed_flops
    assert needed == pytest.approx(3 * forward - first_layer, rel=0.01)
    assert report.recomputed_flops == pytest.approx(forward - first_layer, rel=0.01)
    assert report.type == "bfloat16"
    assert report.device_names == ("device 2: MI300X",)


def test_a_transformer_by_hand():
    """24 layers, hidden size 1024, 16 sequences of 559 tokens, causal flash attention."""
    report = analyse_flops(real_trace("h100_qwen_inference/trace.json.gz"))
    rows = {row["name"]: row for row in report.operators.to_dicts()}
    attention = rows["aten::_flash_attention_forward"]
    assert attention["flops"] == 24 * 4 * 16 * 16 * 559 * 559 * 64 // 2
    products = 24 * 2 * 16 * 559 * (4 * 1024 * 1024 + 3 * 1024 * 2816)
    small = rows["aten::bmm"]["flops"]
    assert report.flops == attention["flops"] + products + small
    # A third of the matrix kernels' time has no launch in this file, and is in no step.
    assert report.uncounted_matrix_ns > report.matrix_ns / 4
    (step_ns,) = report.steps["step_ns"]
    assert report.mfu_share == pytest.approx(report.flops / (step_ns / 1e9 * 989.4e12), rel=1e-4)
