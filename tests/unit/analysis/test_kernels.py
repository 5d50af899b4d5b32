"""Kernels: sums against plain Python, launch shapes, sequences, tensor cores."""

from __future__ import annotations

import random
import statistics
from collections import defaultdict

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us

from stepscope.analysis.hardware.tensor_cores import matrix_products
from stepscope.analysis.kernels import kernels
from stepscope.analysis.selection.gpu_work import gpu_work
from stepscope.analysis.selection.scope import Scope
from stepscope.analysis.timeline import timeline


def _random_training(seed: int) -> GpuTrace:
    chance = random.Random(seed)
    t = GpuTrace(world_size=2)
    for _ in range(3):
        with t.step():
            for _ in range(chance.randint(1, 30)):
                what = chance.randrange(5)
                if what == 0:
                    t.op("aten::mm").launch(
                        f"sgemm_{chance.randrange(3)}",
                        chance.randint(1, us(40)),
                        grid=(chance.randint(1, 3), 1, 1),
                        occupancy=chance.randint(0, 100),
                        stream=chance.choice([7, 9]),
                    )
                elif what == 1:
                    t.copy("HtoD", 100, chance.randint(1, us(9)))
                elif what == 2:
                    t.fill(100, chance.randint(1, us(9)))
                elif what == 3:
                    t.collective("all_reduce", 1 << 20, chance.randint(1, us(90)))
                else:
                    t.launch("relu", chance.randint(1, us(3)), linked=False)
    return t


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(15))
def test_sums_are_those_of_plain_python(seed: int) -> None:
    t = _random_training(seed)
    trace = t.load()
    answer = kernels(trace)
    by_name = defaultdict(list)
    for work in t.work:
        by_name[work.name].append(work)
    assert answer.work_ns == sum(w.end_ns - w.start_ns for w in t.work)
    assert answer.work_ns == timeline(trace).devices["work_ns"].sum()
    assert answer.kernels["total_ns"].sum() == answer.work_ns
    assert answer.groups["total_ns"].sum() == answer.work_ns
    assert answer.groups["count"].sum() == answer.events == len(t.work)
    assert len(answer.kernels) == len(by_name)
    for row in answer.kernels.rows(named=True):
        durations = sorted(w.end_ns - w.start_ns for w in by_name[row["name"]])
        assert row["kind"] == by_name[row["name"]][0].kind
        assert row["count"] == len(durations)
        assert row["total_ns"] == sum(durations)
        assert row["mean_ns"] == pytest.approx(statistics.mean(durations), abs=1)
        assert (row["min_ns"], row["max_ns"]) == (durations[0], durations[-1])
        assert row["p50_ns"] in durations
        assert sum(d <= row["p50_ns"] for d in durations) * 2 >= len(durations)
        assert row["streams"] == sorted({w.stream for w in by_name[row["name"]]})
        assert row["work_share"] == pytest.approx(sum(durations) / answer.work_ns)
        if row["kind"] in ("compute", "communication"):
            assert row["short"] == sum(d < 10_000 for d in durations)
        else:
            assert row["short"] == 0
    by_step = sum(kernels(trace, Scope(steps=(s,))).work_ns for s in range(3))
    assert by_step <= answer.work_ns
    linked = sum(w.end_ns - w.start_ns for w in t.work if w.is_linked)
    assert by_step >= linked


def test_launch_shapes_and_occupancy() -> None:
    t = GpuTrace()
    with t.step():
        t.launch("k", us(30), grid=(10, 2, 1), block=(64, 1, 1), occupancy=20, registers=40)
        t.launch("k", us(10), grid=(10, 2, 1), block=(64, 1, 1), occupancy=60, registers=40)
        t.launch("k", us(20), grid=(3, 1, 1), block=(32, 4, 1), occupancy=None, registers=44)
    row = kernels(t.load()).kernels.row(0, named=True)
    assert row["occupancy"] == pytest.approx((20 * 30 + 60 * 10) / 40)
    assert (row["grid"], row["grids"], row["block"], row["blocks"]) == ("10×2×1", 2, "64×1×1", 2)
    assert row["registers"] == 44


def test_amd_kernels_have_no_registers_but_shapes() -> None:
    t = GpuTrace(vendor="amd")
    with t.step():
        t.launch("Cijk_Ailk_MI16x16x16", us(30))
    answer = kernels(t.load())
    row = answer.kernels.row(0, named=True)
    assert row["registers"] is None
    assert row["occupancy"] is None
    assert row["grid"] == "128×1×1"
    assert answer.tensor_core_ns == us(30)


def test_short_kernels_are_those_below_ten_microseconds_or_their_launch() -> None:
    t = GpuTrace()
    with t.step():
        t.launch("short", 9_999)
        t.launch("long", 10_000)
        t.launch("slow_call", us(50), call_ns=us(80))
    answer = kernels(t.load())
    rows = {row["name"]: row for row in answer.kernels.rows(named=True)}
    assert {name: row["short"] for name, row in rows.items()} == {
        "short": 1,
        "long": 0,
        "slow_call": 0,
    }
    assert rows["slow_call"]["faster_than_launch"] == 1
    assert rows["long"]["faster_than_launch"] == 0
    assert (answer.short_events, answer.short_ns) == (1, 9_999)
    assert answer.short_share == pytest.approx(1 / 3)


def test_sequences_that_an_operator_repeats() -> None:
    t = GpuTrace()
    with t.step():
        for _ in range(4):
            with t.op("aten::layer_norm"), t.op("aten::native_layer_norm"):
                t.launch("mean", us(2))
                t.launch("scale", us(3))
                t.launch("add", us(4))
        for _ in range(3):
            t.op("aten::mm").launch("sgemm", us(20))
        with t.op("aten::once"):
            t.launch("mean", us(2))
            t.launch("add", us(2))
    table = kernels(t.load()).sequences
    assert table.height == 1  # one kernel is no sequence, and once is not again and again
    row = table.row(0, named=True)
    assert row["operator"] == "aten::layer_norm"
    assert row["kernels"] == ["mean", "scale", "add"]
    assert (row["length"], row["count"], row["total_ns"]) == (3, 4, 4 * us(9))
    assert row["calls_ns"] == 4 * 2 * t.call_ns


MM = "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"
SGEMM = "ampere_sgemm_128x64_nn"


@pytest.mark.parametrize(
    ("kernel", "operator", "types", "shapes", "uses", "eligible"),
    [
        (MM, "aten::mm", ["c10::BFloat16"] * 2, [[64, 128], [128, 256]], "yes", "yes"),
        (SGEMM, "aten::mm", ["c10::Half"] * 2, [[64, 127], [127, 256]], "no", "no"),
        (SGEMM, "aten::mm", ["c10::Half"] * 2, [[64, 128], [128, 256]], "no", "yes"),
        (SGEMM, "aten::mm", ["float"] * 2, [[64, 4], [4, 256]], "no", "yes"),
        (SGEMM, "aten::mm", ["float"] * 2, [[64, 3], [3, 256]], "no", "no"),
        (
            "cutlass_80_tensorop_s16816gemm_bf16_64x64",
            "aten::addmm",
            ["c10::BFloat16"] * 3,
            [[12], [64, 128], [128, 256]],
            "yes",
            "yes",
        ),
        (
            "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32",
            "aten::cudnn_convolution",
            ["c10::BFloat16"] * 2,
            [[8, 3, 224, 224], [64, 3, 7, 7]],
            "yes",
            "no",
        ),
        (SGEMM, "aten::mm", ["double"] * 2, [[64, 64], [64, 64]], "no", "unknown"),
        ("some_new_gemm", "aten::mm", None, None, "unknown", "unknown"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_ffma", "aten::mm", None, None, "no", "unknown"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT64x64x64_MI16x16x16x1", "aten::mm", None, None, "yes", "unknown"),
        ("miopenSp3AsmConv_v30_gfx9_fp16_dot2_gemm", "aten::mm", None, None, "no", "unknown"),
    ],
)
def test_tensor_cores(kernel, operator, types, shapes, uses, eligible) -> None:
    t = GpuTrace()
    with t.step():
        t.op(operator, shapes=shapes, types=types).launch(kernel, ms(1))
    answer = kernels(t.load())
    row = answer.tensor_cores.row(0, named=True)
    assert (row["uses"], row["eligible"]) == (uses, eligible)
    assert answer.matrix_ns == ms(1)
    assert answer.tensor_core_ns == (ms(1) if uses == "yes" else 0)


FP32_CONVOLUTIONS = [
    "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int)",
    "void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int, int, int)",
    "_ZN5cudnn6detail12dgrad_engineIfLi512ELi6ELi5ELi3ELi3ELi3ELb0EEEviiiPKT_",
    "void cudnn::cnn::wgrad2d_grouped_direct_kernel<float, float, 3>(int)",
    "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(int)",
    "void explicit_convolve_sgemm<float, int, 1024, 5, 5, 3, 3, 3, 0, false>(int)",
    "convolve_common_engine_float_NHWC<float, 128>",
    "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>(x)",
]


def products_of(*names: str) -> list[tuple[str, str | None]]:
    """Use of tensor cores and type of kernels whose operands were not recorded."""
    t = GpuTrace()
    with t.step():
        for name in names:
            t.op("aten::convolution_backward").launch(name, ms(1))
    trace = t.load()
    work = gpu_work(trace).members
    found = matrix_products(trace, work.hstack([trace.name_rows["name"][work["name_id"]]]))
    return list(found.select("uses", "type").iter_rows())


@pytest.mark.parametrize("name", FP32_CONVOLUTIONS)
def test_convolutions_in_fp32_are_known_by_their_names(name) -> None:
    assert products_of(name) == [("no", "float")]


def test_convolutions_in_half_precision_are_not_taken_for_fp32() -> None:
    names = [
        "void cudnn::detail::dgrad_engine<__half, 512, 6, 5, 3, 3, 3, false>(int, int, int)",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<__half, __half>(int)",
        "sm80_xmma_dgrad_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32",
    ]
    assert products_of(*names) == [("no", "half"), ("unknown", "half"), ("yes", None)]


def test_floats_need_a_device_that_is_known_to_take_them() -> None:
    for name, eligible in (
        (None, "unknown"),
        ("NVIDIA H100", "yes"),
        ("AMD Instinct MI300X", "yes"),
    ):
        t = GpuTrace(device_name=name)
        with t.step():
            t.op("aten::mm", shapes=[[64, 64], [64, 64]]).launch(SGEMM, ms(1))
        assert kernels(t.load()).tensor_cores["eligible"].to_list() == [eligible]


def test_hardware_counters_are_listed_where_there_are_any() -> None:
    t = GpuTrace()
    with t.step():
        t.launch("k", us(3))
        t.events.append(
            {
                "ph": "X",
                "cat": "cuda_profiler_range",
                "name": "k",
                "pid": 100,
                "tid": 1000,
                "ts": t.now,
                "dur": 10,
                "args": {"smsp__cycles_active.avg": 12.5, "note": "x"},
            }
        )
    table = kernels(t.load()).counters
    assert table.select("range", "metric", "value").rows() == [
        ("k", "smsp__cycles_active.avg", 12.5)
    ]
