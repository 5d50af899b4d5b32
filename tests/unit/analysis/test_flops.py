"""FLOPs: formulas against torch's own counters, roofline and MFU with known answers."""

from __future__ import annotations

import json

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us

import stepscope
from stepscope.analysis.calls.flop_formulas import FORMULAS, work_of
from stepscope.analysis.calls.operands import parse_call
from stepscope.analysis.flops import NO_SHAPES, analyse_flops
from stepscope.analysis.hardware.devices import KNOWN, peaks_of_name
from stepscope.analysis.selection.scope import Scope


def call(name, dims, values=None, type_name="c10::BFloat16"):
    types = [type_name if shape else "Scalar" for shape in dims]
    return parse_call(
        name, json.dumps(dims), json.dumps(types), None if values is None else json.dumps(values)
    )


def flops(name, dims, values=None, type_name="c10::BFloat16"):
    work = work_of(call(name, dims, values, type_name))
    return None if work is None else work.flops


@pytest.mark.parametrize(
    ("name", "dims", "expected"),
    [
        ("aten::mm", [[3, 4], [4, 5]], 2 * 3 * 4 * 5),
        ("aten::addmm", [[5], [3, 4], [4, 5], [], []], 120),
        ("aten::bmm", [[7, 3, 4], [7, 4, 5]], 7 * 120),
        ("aten::baddbmm", [[7, 3, 5], [7, 3, 4], [7, 4, 5], [], []], 7 * 120),
        ("aten::addbmm", [[3, 5], [7, 3, 4], [7, 4, 5], [], []], 7 * 120),
        ("aten::linear", [[2, 3, 4], [5, 4], [5]], 2 * 120),
        ("aten::matmul", [[2, 1, 3, 4], [6, 4, 5]], 12 * 120),
        ("aten::mv", [[3, 4], [4]], 24),
        ("aten::dot", [[9], [9]], 18),
        ("aten::_scaled_mm", [[16, 32], [32, 64], [], []], 2 * 16 * 32 * 64),
        ("aten::_grouped_mm", [[100, 32], [4, 32, 64], [4]], 2 * 100 * 32 * 64),
        ("aten::_grouped_mm", [[4, 10, 32], [4, 32, 64]], 4 * 2 * 10 * 32 * 64),
        ("aten::_grouped_mm", [[16, 100], [100, 8], [4]], 2 * 16 * 100 * 8),
        ("aten::mm", [[3, 4], [5, 6]], None),
        ("aten::mm", [], None),
        ("aten::relu", [[3, 4]], None),
    ],
)
def test_matrix_products(name, dims, expected):
    assert flops(name, dims) == expected


def test_bytes_of_a_product():
    work = work_of(call("aten::mm", [[3, 4], [4, 5]]))
    assert work.bytes == 2 * (12 + 20 + 15)
    assert work_of(call("aten::mm", [[3, 4], [4, 5]], type_name="strange")).bytes is None


SHAPE = [2, 3, 64, 8]  # batch, heads, tokens, width
FULL = 2 * 2 * 3 * 64 * 64 * (8 + 8)


@pytest.mark.parametrize(
    ("name", "places", "length", "causal", "layout"),
    [
        ("aten::scaled_dot_product_attention", 0, 8, 5, "heads"),
        ("aten::_scaled_dot_product_flash_attention", 0, 7, 4, "heads"),
        ("aten::_scaled_dot_product_efficient_attention", 0, 8, 6, "heads"),
        ("aten::_flash_attention_forward", 0, 15, 8, "tokens"),
        ("aten::_scaled_dot_product_flash_attention_backward", 1, 15, 11, "heads"),
        ("aten::_scaled_dot_product_efficient_attention_backward", 1, 13, 11, "heads"),
        ("aten::_flash_attention_backward", 1, 17, 11, "tokens"),
    ],
)
@pytest.mark.parametrize("is_causal", [True, False])
def test_attention_is_halved_if_causal_and_two_and_a_half_times_backward(
    name, places, length, causal, layout, is_causal
):
    shape = SHAPE if layout == "heads" else [2, 64, 3, 8]
    dims = [[]] * length
    for place in range(places + 3):
        dims[place] = shape
    values = [""] * length
    values[causal] = str(is_causal)
    expected = FULL * (5 if places else 2) // 2 // (2 if is_causal else 1)
    assert flops(name, dims, values) == expected
    values[causal] = ""
    assert flops(name, dims, values) is None


def test_attention_over_packed_sequences_is_not_guessed():
    dims = [[1, 640, 3, 8]] * 3 + [[11], [11]] + [[]] * 10
    values = [""] * 15
    values[8] = "True"
    assert flops("aten::_flash_attention_forward", dims, values) is None


def test_grouped_query_attention_counts_the_heads_of_the_query():
    dims = [[2, 8, 64, 16], [2, 2, 64, 16], [2, 2, 64, 16], [], [], []]
    values = ["", "", "", "", "0.", "False"]
    assert flops("aten::scaled_dot_product_attention", dims, values) == 2 * 2 * 8 * 64 * 64 * 32


def test_a_convolution_without_its_stride_is_not_guessed():
    dims = [[1, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], []]
    assert flops("aten::conv2d", dims) is None
    values = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "1"]
    assert flops("aten::conv2d", dims, values) == 2 * 4 * 4 * 4 * 27


def capture(tmp_path, run, **options):
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    torch.manual_seed(0)
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, with_flops=True, **options
    ) as recorder:
        run()
    path = tmp_path / "trace.json"
    recorder.export_chrome_trace(str(path))
    return stepscope.load(path), recorder


@pytest.mark.filterwarnings("ignore")
def test_torchs_own_counts_per_operator(tmp_path):
    torch = pytest.importorskip("torch")

    def run():
        x = torch.randn(4, 3, 32, 30)
        y = torch.nn.Conv2d(3, 8, (3, 5), stride=(2, 1), padding=1, dilation=(1, 2))(x)
        torch.nn.Conv2d(8, 8, 3, groups=4)(y)
        torch.nn.Linear(30, 7)(x)
        torch.randn(17, 19) @ torch.randn(19, 23)
        torch.bmm(torch.randn(5, 6, 7), torch.randn(5, 7, 8))
        torch.baddbmm(torch.randn(5, 6, 8), torch.randn(5, 6, 7), torch.randn(5, 7, 8))

    trace, recorder = capture(tmp_path, run)
    theirs = {}
    for event in recorder.key_averages():
        if event.flops and event.key not in ("aten::mul", "aten::add"):
            theirs[event.key] = event.flops
    assert set(theirs) == {"aten::conv2d", "aten::addmm", "aten::mm", "aten::bmm", "aten::baddbmm"}
    table = analyse_flops(trace).operators
    ours = {}
    for row in table.to_dicts():
        name = "aten::conv2d" if "conv" in row["name"] else row["name"]
        ours[name] = ours.get(name, 0) + row["flops"]
    assert ours == theirs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "case",
    [
        "linear",
        "conv",
        "grouped_conv",
        "transposed_conv",
        "conv1d",
        "attention",
        "math_attention",
        "einsum",
    ],
)
def test_torchs_counter_over_forward_and_backward(tmp_path, case):
    torch = pytest.importorskip("torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
    from torch.utils.flop_counter import (
        FlopCounterMode,
        sdpa_backward_flop_count,
        sdpa_flop_count,
    )

    nn = torch.nn
    if case == "linear":
        model, shape = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 5)), (3, 7, 12)
    elif case == "conv":
        model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 6, (1, 3)))
        shape = (2, 3, 16, 18)
    elif case == "grouped_conv":
        model, shape = nn.Conv2d(8, 16, 3, groups=4, padding=1), (2, 8, 10, 10)
    elif case == "transposed_conv":
        model, shape = nn.ConvTranspose2d(6, 4, 3, stride=2, output_padding=1), (2, 6, 9, 9)
    elif case == "conv1d":
        model, shape = nn.Conv1d(4, 8, 5, dilation=2), (2, 4, 40)
    elif case == "einsum":
        weight = nn.Parameter(torch.randn(3, 8, 10))
        model, shape = (lambda x: torch.einsum("bhi,hij->bhj", x, weight)), (5, 3, 8)
    else:
        backend = SDPBackend.MATH if case == "math_attention" else SDPBackend.FLASH_ATTENTION

        def model(x):
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(x, x * 2, x * 3)

        shape = (2, 3, 64, 16)
    x = torch.randn(*shape, requires_grad=True)

    def run():
        model(x).sum().backward()

    with FlopCounterMode(display=False) as counter:
        run()
    trace, _ = capture(tmp_path, run)
    report = analyse_flops(trace)
    expected = counter.get_total_flops()
    if case == "attention":
        # The counter has no entry for the operator on CPUs; these are what it uses on GPUs.
        assert expected == 0
        expected = sdpa_flop_count(*[shape] * 3) + sdpa_backward_flop_count(*[shape] * 4)
    if case == "grouped_conv":
        # Torch's counter takes the weight's gradient as if there were no groups: 4 times too much.
        forward = 2 * (2 * 16 * 10 * 10) * (2 * 9)
        assert expected == 6 * forward
        assert report.flops == 3 * forward
        return
    assert report.flops == expected
    assert report.busy_ns > 0
    assert any("on the host" in note for note in report.notes)


def one_product(device="NVIDIA H100 80GB HBM3", *, kernel="nvjet_tst", type_name="c10::BFloat16"):
    t = GpuTrace(device_name=device)
    with t.step():
        op = t.op("aten::mm", shapes=[[4096, 4096]] * 2, types=[type_name] * 2)
        op.launch(kernel, us(200))
    return t


def test_roofline_of_a_known_device():
    report = analyse_flops(one_product().load())
    (row,) = report.operators.to_dicts()
    assert row["flops"] == 2 * 4096**3
    assert row["moved_bytes"] == 3 * 2 * 4096**2
    assert row["busy_ns"] == us(200)
    assert row["teraflops_per_s"] == pytest.approx(2 * 4096**3 / 200e-6 / 1e12)
    assert row["flops_per_byte"] == pytest.approx(4096 / 3)
    assert row["bound"] == "compute"
    assert row["bound_ns"] == pytest.approx(2 * 4096**3 / 989.4e12 * 1e9, abs=1)
    assert row["attained_share"] == pytest.approx(row["bound_ns"] / us(200))
    assert report.device_names == ("device 0: H100 SXM",)


def test_a_small_product_is_bound_by_memory():
    t = GpuTrace()
    with t.step():
        op = t.op("aten::mm", shapes=[[1, 4096], [4096, 4096]], types=["c10::Half"] * 2)
        op.launch("gemv", us(20))
    (row,) = analyse_flops(t.load()).operators.to_dicts()
    assert row["bound"] == "memory"
    assert row["bound_ns"] == pytest.approx(2 * (4096 * 4096 + 8192) / 3352, abs=1)


@pytest.mark.parametrize(
    ("kernel", "type_name"),
    [("ampere_sgemm_128x64_nn", "float32"), ("sm80_xmma_gemm_f32f32_tf32f32_f32", "tf32")],
)
def test_tf32_shows_in_the_kernels_name(kernel, type_name):
    report = analyse_flops(one_product(kernel=kernel, type_name="float").load())
    assert report.operators["type"].to_list() == [type_name]


@pytest.mark.parametrize("device", [None, "Some Accelerator 9000"])
def test_an_unknown_device_is_said_to_be_unknown(device):
    report = analyse_flops(one_product(device).load())
    (row,) = report.operators.to_dicts()
    assert row["teraflops_per_s"] > 0
    assert (row["bound"], row["bound_ns"], row["attained_share"]) == (None, None, None)
    assert report.mfu_share is None
    assert any("unknown" in note for note in report.notes)
    assert "unknown" in report.device_names[0]


def test_mfu_and_hfu_of_steps():
    t = GpuTrace()
    for _ in range(2):
        with t.step(dur_ns=ms(10)):
            number = t.next_sequence()
            shape = {"shapes": [[4096, 4096]] * 2, "types": ["c10::BFloat16"] * 2}
            t.op("aten::mm", sequence=number, **shape).launch("nvjet", us(500))
            engine = "autograd::engine::evaluate_function: MmBackward0"
            with t.thread(), t.op(engine, sequence=number, forward_thread=1):
                with t.frame("torch/utils/checkpoint.py(1): recompute_fn"):
                    t.op("aten::mm", **shape).launch("nvjet", us(500))
                t.op("aten::mm", **shape).launch("nvjet", us(500))
            t.sync()
    trace = t.load()
    report = analyse_flops(trace)
    one = 2 * 4096**3
    assert (report.flops, report.recomputed_flops) == (6 * one, 2 * one)
    spent = trace.device_steps
    whole_ns = int((spent["end_ns"] - spent["start_ns"]).sum())
    assert report.steps["step_ns"].sum() == whole_ns
    assert report.mfu_share == pytest.approx(4 * one / (whole_ns / 1e9 * 989.4e12), rel=1e-6)
    assert report.hfu_share == pytest.approx(1.5 * report.mfu_share)
    assert report.type == "bfloat16"
    single = analyse_flops(trace, Scope(steps=(1,)))
    assert single.flops == 3 * one
    assert single.steps["mfu_share"][0] == pytest.approx(report.steps["mfu_share"][1])


def test_too_much_that_is_not_counted_leaves_mfu_open():
    t = one_product()
    with t.step():
        t.op("CompiledFunction").launch("triton_tem_fused_mm_0", us(150))
    report = analyse_flops(t.load())
    assert report.uncounted_matrix_ns == us(150)
    assert report.mfu_share is None
    assert report.steps["mfu_share"].null_count() == 2
    assert any("too much is missing" in note for note in report.notes)


def test_products_before_the_first_step_leave_mfu_as_it_is():
    """Half of the matrix kernels' time is work that was launched before the recording began."""
    t = GpuTrace()
    t.launch("nvjet", us(500), linked=False)
    with t.step(dur_ns=ms(10)):
        t.op("aten::mm", shapes=[[4096, 4096]] * 2, types=["c10::BFloat16"] * 2).launch(
            "nvjet", us(500)
        )
        t.sync()
    report = analyse_flops(t.load())
    assert report.matrix_ns == 2 * us(500)
    assert report.uncounted_matrix_ns == us(500)
    assert report.mfu_share is not None
    assert report.mfu_share == report.steps["mfu_share"][0]
    assert any("none of them is in a step" in note for note in report.notes)


def test_without_shapes():
    t = GpuTrace()
    with t.step(), t.op("aten::linear"):
        t.op("aten::addmm").launch("nvjet", us(10))
    report = analyse_flops(t.load())
    assert report.flops == 0
    assert NO_SHAPES in report.notes
    assert report.scope.excluded == {"matrix operators whose shapes do not suffice": 1}


@pytest.mark.parametrize(
    ("name", "known", "type_name", "teraflops"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM", "bfloat16", 312),
        ("NVIDIA A100-PG509-200", "A100 40GB", "tf32", 156),
        ("NVIDIA H100 80GB HBM3", "H100 SXM", "bfloat16", 989.4),
        ("NVIDIA H100 PCIe", "H100 PCIe", "bfloat16", 756),
        ("NVIDIA H200", "H200", "float8", 1978.9),
        ("NVIDIA B200", "B200", "bfloat16", 2250),
        ("NVIDIA L40S", "L40S", "bfloat16", 362),
        ("NVIDIA L40", "L40", "bfloat16", 181),
        ("NVIDIA L4", "L4", "bfloat16", 121),
        ("Tesla V100-SXM2-32GB", "V100 SXM", "float16", 125),
        ("Tesla V100-DGXS-32GB", "V100 SXM", "float16", 125),
        ("Tesla V100-PCIE-16GB", "V100 PCIe", "float16", 112),
        ("AMD Instinct MI250X/MI250", "MI250X, one die", "bfloat16", 191.5),
        ("AMD Instinct MI300X", "MI300X", "bfloat16", 1307.4),
        ("AMD Instinct MI355X", "MI355X", "bfloat16", 2516.6),
        ("AMD Instinct MI325X", "MI325X", "float8", 2614.9),
        ("NVIDIA H800", "H800 SXM", "bfloat16", 989.4),
        ("NVIDIA H800 PCIe", "H800 PCIe", "bfloat16", 756),
        ("NVIDIA H20", "H20", "bfloat16", 148),
        ("NVIDIA A800-SXM4-80GB", "A800 80GB SXM", "bfloat16", 312),
        ("NVIDIA GB200", "GB200", "bfloat16", 2500),
        ("NVIDIA L20", "L20", "bfloat16", 119.5),
        ("NVIDIA GeForce RTX 3090", "RTX 3090", "float32", 35.6),
        ("NVIDIA GeForce RTX 3090 Ti", "RTX 3090 Ti", "tf32", 40),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", "float32", 82.6),
        ("NVIDIA GeForce RTX 5090", "RTX 5090", "bfloat16", 209.5),
        ("NVIDIA RTX A6000", "RTX A6000", "bfloat16", 154.8),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", "bfloat16", 364.2),
    ],
)
def test_known_devices(name, known, type_name, teraflops):
    peaks = peaks_of_name(name)
    assert peaks.name == known
    assert peaks.peak(type_name) == pytest.approx(teraflops * 1e12)


@pytest.mark.parametrize(("gib", "known"), [(40, "A100 40GB"), (80, "A100 80GB SXM")])
def test_an_a100_is_told_apart_by_its_memory(gib, known):
    t = one_product("NVIDIA A100-PG509-200")
    t.memory_bytes = gib << 30
    assert analyse_flops(t.load()).device_names == (f"device 0: {known}",)


def test_no_device_is_taken_for_another():
    assert peaks_of_name("NVIDIA H100X") is None
    assert peaks_of_name("NVIDIA GeForce RTX 4090 Laptop GPU") is None
    assert peaks_of_name("NVIDIA GeForce RTX 4090 D") is None
    assert peaks_of_name(None) is None
    assert peaks_of_name("Tesla V100-SXM2-32GB").peak("bfloat16") is None
    assert len({peaks.name for peaks in KNOWN}) == len(KNOWN)


def test_every_formula_survives_any_shapes():
    odd = [
        [[2**31, 2**31, 2**31, 2**31]] * 9,
        [[-1, 4], [4, -1]],
        [],
        [[]],
        [[0]],
        [[1]],
        [[1, 2]],
        [[1, 2, 3, 4]] * 12,
        [[[2, 3], [4]]] * 3,
        [None] * 9,
    ]
    for name in FORMULAS:
        for dims in odd:
            for values in (None, [""] * 14, ["[1]"] * 14, ["True"] * 14, ["[0, 0, 0]"] * 14):
                flops(name, dims, values)
