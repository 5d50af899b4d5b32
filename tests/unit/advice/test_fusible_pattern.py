"""Fusible patterns as findings: what they promise, and that no cause is promised twice."""

from __future__ import annotations

import pytest
from tests.support.gpu_trace import GpuTrace, us
from tests.support.planted import GEMM, MM, MUL, SMALL, adam, dump, job, products, rms_norm

from stepscope.advice.diagnosis import diagnose
from stepscope.analysis.hardware.devices import peaks_of_name
from stepscope.opening.reader import open_run

MULTI_TENSOR = "void at::native::multi_tensor_apply_kernel<TensorListMetadata<3>>"
H100 = "NVIDIA H100 80GB HBM3"
ROWS, SIDE = 8192, 4096


@pytest.fixture
def found(tmp_path):
    def judged(t: GpuTrace):
        (tmp_path / "rank0.pt.trace.json").write_bytes(dump(t))
        return {one.id: one for one in diagnose(open_run(str(tmp_path))).findings}

    return judged


def normalising(count: int, **options) -> GpuTrace:
    def body(t: GpuTrace, _step: int) -> None:
        for _ in range(count):
            t.op("aten::mm", **MM).launch(GEMM, us(900))
            rms_norm(t, ROWS, SIDE)

    return job(body, **options)


def test_the_saving_is_the_bytes_over_the_bandwidth_and_the_kernels_that_go(found):
    judged = found(normalising(8, device_name=H100))
    assert set(judged) == {"fusible-pattern"}
    peak = peaks_of_name(H100)
    assert peak is not None
    n = ROWS * SIDE
    moved = (6 + 8 + 4 + 8 + 6 + 4) * n
    saved_ns = (moved - 4 * n) / peak.memory_gb_per_s
    # Seven of eight kernels go; those on rows show that a kernel takes 2 µs for next to nothing.
    expected = 8 * (saved_ns + 7 * us(2))
    assert judged["fusible-pattern"].saving_ns == pytest.approx(expected, rel=0.01)


def test_of_an_unknown_device_the_share_of_the_bytes_is_promised(found):
    judged = found(normalising(8, device_name="Some GPU"))
    length = us(80 + 100 + 50 + 2 + 2 + 100 + 80 + 60)
    assert judged["fusible-pattern"].saving_ns == pytest.approx(8 * length * 32 / 36, rel=0.01)
    assert "the device are not known" in judged["fusible-pattern"].assumption


def test_other_elementwise_kernels_are_promised_once(found):
    def body(t: GpuTrace, _step: int) -> None:
        for _ in range(4):
            t.op("aten::mm", **MM).launch(GEMM, us(900))
            rms_norm(t, ROWS, SIDE)
            t.op("aten::mm", **MM).launch(GEMM, us(900))
            for _ in range(4):
                t.op("aten::sin").launch(MUL, us(100))

    judged = found(job(body))
    assert set(judged) == {"fusible-pattern", "unfused-elementwise"}
    rest = judged["unfused-elementwise"]
    assert "other elementwise kernels" in rest.title
    assert {one.label: one.value for one in rest.evidence}["kernels per step"] == 16
    assert rest.saving_ns == pytest.approx(4 * us(200), rel=0.02)  # without shapes, half


def test_chains_keep_what_their_kernels_do_not_hand_to_each_other(found):
    """Additions of a new tensor each: the new one is still read, the sum between is not moved."""
    shape = [ROWS, SIDE]

    def body(t: GpuTrace, _step: int) -> None:
        for _ in range(8):
            t.op("aten::mm", **MM).launch(GEMM, us(900))
            for _ in range(4):
                operands = {"shapes": [shape, shape, []], "types": ["float", "float", "Scalar"]}
                t.op("aten::maximum", **operands).launch(MUL, us(200))

    judged = found(job(body, device_name=H100))
    finding = judged["unfused-elementwise"]
    peak = peaks_of_name(H100)
    assert peak is not None
    assert not finding.is_upper_bound
    saved = 8 * 3 * 2 * 4 * ROWS * SIDE
    assert finding.saving_ns == pytest.approx(saved / peak.memory_gb_per_s, rel=0.02)


def test_an_optimizer_with_many_launches_has_one_finding(found):
    def body(t: GpuTrace, _step: int) -> None:
        products(t, 6)
        with t.annotate("Optimizer.step#AdamW.step"):
            adam(t, 40)
        with t.annotate("Optimizer.zero_grad#AdamW.zero_grad"):
            for _ in range(40):
                t.op("aten::zero_").launch(SMALL, us(8))

    judged = found(job(body))
    assert "fusible-pattern" not in judged
    assert "nothing writes zeros" in judged["unfused-optimizer"].assumption
    assert "one pass over parameters" in judged["unfused-optimizer"].assumption


def test_foreach_adam_is_a_pattern(found):
    operands = {"shapes": [[[4096, 4096]] * 8, []], "types": ["TensorList", "Scalar"]}

    def body(t: GpuTrace, _step: int) -> None:
        products(t, 6)
        with t.annotate("Optimizer.step#AdamW.step"):
            adam(t, 8, "aten::_foreach_", MULTI_TENSOR, **operands)

    judged = found(job(body))
    assert "unfused-optimizer" not in judged
    assert "Adam, operator by operator" in judged["fusible-pattern"].title
    assert "fused=True" in judged["fusible-pattern"].advice
