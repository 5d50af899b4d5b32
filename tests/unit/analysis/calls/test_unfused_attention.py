"""Unfused attention: which kernels are its products, which work on its scores, and what is none."""

from __future__ import annotations

from tests.support.gpu_trace import COMM_STREAM, GpuTrace, us
from tests.support.planted import CUTLASS, GEMM, HALF, MM, MUL, SOFTMAX, attention_by_hand

from stepscope.advice.rules.compute.work import unfused_attention
from stepscope.analysis.fusion import fusible_of
from stepscope.analysis.selection.gpu_work import recorded_work


def found_in(t: GpuTrace):
    trace = t.load()
    work = recorded_work(trace)
    found = unfused_attention(trace, work, fusible_of(trace, work))
    names = trace.names.select("name").collect()["name"].gather(work["name_id"])
    return (
        [name for name, chosen in zip(names, found.products, strict=True) if chosen],
        [name for name, chosen in zip(names, found.between, strict=True) if chosen],
        found,
    )


def test_products_and_the_kernels_between_them_are_found():
    t = GpuTrace()
    with t.step():
        t.op("aten::mm", **MM).launch(GEMM, us(100))
        attention_by_hand(t)
        t.op("aten::mm", **MM).launch(GEMM, us(100))
    products, between, found = found_in(t)
    assert products == [CUTLASS, CUTLASS]
    assert between == [MUL, SOFTMAX]
    assert found.scores == (8, 12, 3137, 3137)
    assert not found.is_math_fallback


def test_the_fallback_of_sdpa_is_recognised():
    t = GpuTrace()
    with t.step():
        attention_by_hand(t, "aten::_scaled_dot_product_attention_math")
    assert found_in(t)[2].is_math_fallback


def test_copies_of_small_operands_between_the_products_stay():
    """The values are copied between the softmax and the product: a fused kernel needs that too."""
    t = GpuTrace()
    scores, values = [2, 512, 512], [2, 512, 64]
    with t.step():
        t.op("aten::bmm", shapes=[values, [2, 64, 512]], types=HALF).launch(CUTLASS, us(50))
        t.op("aten::_softmax", shapes=[scores, [], []], types=HALF).launch(SOFTMAX, us(80))
        t.op("aten::copy_", shapes=[values, values], types=HALF).launch(MUL, us(20))
        t.op("aten::bmm", shapes=[scores, values], types=HALF).launch(CUTLASS, us(50))
    assert found_in(t)[1] == [SOFTMAX]


def test_without_shapes_everything_between_the_products_counts():
    t = GpuTrace()
    with t.step():
        t.op("aten::bmm").launch(CUTLASS, us(50))
        t.op("aten::masked_fill_").launch(MUL, us(20))
        t.op("aten::_softmax").launch(SOFTMAX, us(80))
        t.op("aten::bmm").launch(CUTLASS, us(50))
    _, between, found = found_in(t)
    assert between == [MUL, SOFTMAX]
    assert found.scores is None


def test_a_softmax_beside_ordinary_products_a_collective_or_another_stream_is_no_attention():
    t = GpuTrace(world_size=2)
    with t.step():
        t.op("aten::mm", **MM).launch(GEMM, us(50))
        t.op("aten::_softmax").launch(SOFTMAX, us(80))
        t.op("aten::bmm").launch(CUTLASS, us(50))
        t.op("aten::_softmax").launch(SOFTMAX, us(80), stream=COMM_STREAM)
        t.collective("all_reduce", 1024, us(20), stream=7)
        t.op("aten::_softmax").launch(SOFTMAX, us(80))
        t.op("aten::bmm").launch(CUTLASS, us(50))
    products, between, _ = found_in(t)
    assert products == []
    assert between == []
