"""What the compute is made of: kinds that add up, operators, places, and shares of the peak."""

from __future__ import annotations

import pytest
from tests.support.gpu_trace import GpuTrace, us
from tests.support.planted import GEMM, HALF, MM, MUL, SCENARIOS

from stepscope.analysis.compute import compute
from stepscope.analysis.selection.scope import Scope


def test_kinds_operators_and_places_of_a_step_are_those_of_its_programme():
    t = GpuTrace()
    with t.step():
        with t.frame("nn.Module: Linear_1"):
            t.op("aten::mm", **MM).launch(GEMM, us(900))
        with t.frame("nn.Module: RMSNorm_7"), t.frame("model.py(12): forward"):
            t.op("aten::mul").launch(MUL, us(60))
        with t.frame("model.py(40): rotate_half"):
            t.op("aten::neg").launch(MUL, us(40))
        t.fill(1024, us(5))
        t.copy("DtoD", 1 << 20, us(7))
    found = compute(t.load())
    assert found.compute_ns == us(1000)
    assert found.kernels_count == 3
    kinds = dict(found.kinds.select("kind", "total_ns").iter_rows())
    assert kinds == {"matrix products": us(900), "elementwise": us(100)}
    operators = dict(found.operators.select("operator", "total_ns").iter_rows())
    assert operators == {"aten::mm": us(900), "aten::mul": us(60), "aten::neg": us(40)}
    places = dict(found.places.select("place", "total_ns").iter_rows())
    assert places == {"Linear": us(900), "RMSNorm": us(60), "rotate_half (model.py:40)": us(40)}
    assert found.scope.events == 3
    assert found.scope.excluded == {"communication, copies and fills": 2}


def test_the_backward_belongs_to_the_module_of_its_forward():
    t = GpuTrace()
    with t.step():
        sequence = t.next_sequence()
        with t.frame("nn.Module: Linear_1"):
            t.op("aten::mm", sequence=sequence, **MM).launch(GEMM, us(100))
        with (
            t.thread(),
            t.op(
                "autograd::engine::evaluate_function: MmBackward0",
                sequence=sequence,
                forward_thread=1,
            ),
            t.op("MmBackward0", sequence=sequence, forward_thread=1),
        ):
            t.op("aten::mm", **MM).launch(GEMM, us(200))
    places = dict(compute(t.load()).places.select("place", "total_ns").iter_rows())
    assert places == {"Linear": us(300)}


def test_a_product_attains_what_its_flops_and_the_peak_say():
    t = GpuTrace()
    with t.step():
        t.op("aten::mm", **MM).launch(GEMM, us(1000))
    found = compute(t.load())
    # 2 · 8192 · 4096 · 8192 FLOPs in 1 ms, of 989.4 TFLOP/s.
    expected = 2 * 8192 * 4096 * 8192 / 1e-3 / 989.4e12
    assert found.product_attained_share == pytest.approx(expected, rel=1e-3)


def test_elementwise_bandwidth_counts_operands_and_result_once():
    t = GpuTrace()
    shape = [1 << 13, 1 << 13]
    with t.step():
        t.op("aten::mul", shapes=[shape, shape], types=HALF).launch(MUL, us(300))
        with t.op("aten::to"):
            t.op("aten::copy_", shapes=[shape, shape], types=HALF).launch(MUL, us(100))
    elements = 1 << 26
    moved = (3 + 2) * elements * 2
    assert compute(t.load()).bandwidth_share == pytest.approx(moved / (3352 * us(400)), rel=1e-6)


def test_an_unknown_device_has_no_shares_of_a_peak():
    t = GpuTrace(device_name="Some Accelerator 3000")
    with t.step():
        t.op("aten::mm", **MM).launch(GEMM, us(1000))
    found = compute(t.load())
    assert found.product_attained_share is None
    assert found.bandwidth_share is None
    assert found.mfu_share is None


@pytest.mark.sampled(8)
@pytest.mark.parametrize("scenario", SCENARIOS[::5], ids=lambda one: one.name)
def test_kinds_and_operators_add_up_to_the_compute_of_every_scope(scenario):
    trace = scenario.build().load()
    numbers = tuple(trace.steps["step"].to_list())
    for scope in (None, Scope(steps=numbers[1:2])):
        found = compute(trace, scope)
        assert found.kinds["total_ns"].sum() == found.compute_ns
        assert found.kinds["count"].sum() == found.kernels_count
        assert found.operators["total_ns"].sum() == found.compute_ns
        assert found.kinds["compute_share"].sum() == pytest.approx(float(found.compute_ns > 0))


def test_a_trace_without_gpu_work_has_no_compute():
    t = GpuTrace()
    with t.step():
        t.op("aten::mm").python(us(10))
    found = compute(t.load())
    assert found.compute_ns == 0
    assert found.kinds.is_empty()


def test_compiled_kernels_are_told_by_what_they_fuse():
    t = GpuTrace()
    with t.step():
        t.op("aten::mul").launch("triton_per_fused_native_layer_norm_3", us(30))
        t.op("aten::mul").launch("triton_poi_fused_add_silu_1", us(20))
        t.op("aten::mul").launch("triton__0d1d2d", us(10))
    kinds = dict(compute(t.load()).kinds.select("kind", "total_ns").iter_rows())
    assert kinds == {
        "compiled normalisation": us(30),
        "compiled elementwise": us(20),
        "compiled (Triton)": us(10),
    }
