"""What slow products and convolutions are told about: by hand, from shapes and planted lengths."""

from __future__ import annotations

import json

import pytest
from tests.support.gpu_trace import GpuTrace, us
from tests.support.planted import HALF, dump, job, products

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.finding import Finding
from stepscope.advice.rules.compute.slow_matmuls import REACHABLE, ShapeCause, shape_cause
from stepscope.analysis.hardware.devices import peaks_of_name
from stepscope.opening.reader import open_run

CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32"
PROCESSORS = 132
SMALL = "too small to fill the device"
UNKNOWN = "not told by its shape"


def words(operator: str, shapes: list, type_: str = "bfloat16", flops: float = 0) -> str:
    return shape_cause(operator, json.dumps(shapes), type_, flops, PROCESSORS).text()


@pytest.mark.parametrize(
    ("operator", "shapes", "type_", "expected"),
    [
        ("aten::mm", [[8192, 1600], [1600, 50257]], "bfloat16", "50257: no multiple of 8"),
        ("aten::mm", [[8192, 1600], [1600, 50264]], "bfloat16", UNKNOWN),
        ("aten::_scaled_mm", [[8192, 4096], [4096, 8200]], "float8", "8200: no multiple of 16"),
        # Scales of rows and columns are matrices, too.
        ("aten::_scaled_mm", [[8192, 4096], [4096, 8192], [8192, 1], [1, 8192]], "float8", UNKNOWN),
        ("aten::mm", [[8192, 1601], [1601, 4096]], "tf32", UNKNOWN),
        # 11 × 12 tiles are exactly as many as multiprocessors, 11 × 11 are not.
        ("aten::mm", [[11 * 128, 4096], [4096, 12 * 128]], "bfloat16", UNKNOWN),
        ("aten::mm", [[11 * 128, 4096], [4096, 11 * 128]], "bfloat16", SMALL),
        # A summand of the size of the result is no factor.
        ("aten::addmm", [[512, 512], [512, 4096], [4096, 512], [], []], "bfloat16", SMALL),
        ("aten::baddbmm", [[9, 7, 8], [96, 512, 64], [96, 64, 512]], "bfloat16", UNKNOWN),
        ("aten::bmm", [[132, 128, 64], [132, 64, 128]], "bfloat16", UNKNOWN),
        ("aten::bmm", [[131, 128, 64], [131, 64, 128]], "bfloat16", SMALL),
        # Members of the batch are rows, where one matrix is the other factor of all.
        ("aten::matmul", [[64, 256, 4096], [4096, 1024]], "bfloat16", UNKNOWN),
        ("aten::matmul", [[2, 256, 4096], [4096, 1024]], "bfloat16", SMALL),
        # A linear layer's weight is turned: (output, input).
        ("aten::linear", [[4096, 1024], [50257, 1024]], "bfloat16", "50257: no multiple of 8"),
        ("aten::linear", [[256, 16384], [512, 16384], [512]], "bfloat16", SMALL),
        ("aten::mv", [[4096, 4097], [4097]], "bfloat16", UNKNOWN),
        ("aten::mm", [[4097], [4097]], "bfloat16", UNKNOWN),
        ("aten::linear", [[256, 4097], [4097]], "bfloat16", UNKNOWN),
        ("aten::_grouped_mm", [[4096, 64], [8, 64, 64], [8]], "bfloat16", UNKNOWN),
    ],
)
def test_what_the_shapes_of_a_product_tell(operator, shapes, type_, expected):
    assert words(operator, shapes, type_) == expected


def forward_flops(images: int, weight: list[int], side: int) -> int:
    """Of a convolution whose result has this side: a product and a sum for each factor."""
    out, into, *kernel = weight
    return 2 * images * side * side * out * into * kernel[0] * kernel[1]


@pytest.mark.parametrize(("side", "expected"), [(56, UNKNOWN), (14, SMALL)])
def test_a_convolution_is_as_large_as_its_result(side, expected):
    """56 × 56 images of 64 channels, at stride 1 or 4: 784 tiles or 49."""
    weight = [64, 64, 1, 1]
    shapes = [[32, 64, 56, 56], weight, [], [], [], [], [], [], []]
    flops = forward_flops(32, weight, side)
    assert words("aten::convolution", shapes, flops=flops) == expected


@pytest.mark.parametrize(
    ("operator", "shapes", "expected"),
    [
        ("aten::convolution", [[64, 3, 224, 224], [64, 3, 7, 7]], "channels 3: no multiple of 8"),
        # Depthwise: one input channel for each group is what it is, not a side to be padded.
        ("aten::_conv_depthwise2d", [[64, 512, 112, 112], [512, 1, 3, 3]], UNKNOWN),
        ("aten::cudnn_convolution_transpose", [[64, 250, 56, 56], [250, 250, 3, 3]], UNKNOWN),
        (
            "aten::convolution_backward",
            [[64, 64, 112, 112], [64, 3, 224, 224], [64, 3, 7, 7], []],
            "channels 3: no multiple of 8",
        ),
        # The gradient of 4 images of 14 × 14 and 512 channels: 7 × 4 tiles.
        (
            "aten::convolution_backward",
            [[4, 512, 14, 14], [4, 512, 14, 14], [512, 512, 3, 3], [0]],
            SMALL,
        ),
        (
            "aten::convolution_backward",
            [[64, 512, 56, 56], [64, 512, 56, 56], [512, 1, 3, 3], [0]],
            UNKNOWN,
        ),
        ("aten::convolution", [[], [64, 3, 7, 7]], UNKNOWN),
        # A factor that is a vector, or a weight of too few sides, is no convolution's.
        ("aten::convolution", [[64, 3, 224, 224], [64, 3]], UNKNOWN),
        ("aten::convolution_backward", [[64, 64], [64, 3], [64, 3]], UNKNOWN),
        ("aten::convolution_backward", [[64, 64, 112, 112]], UNKNOWN),
        # One image without a batch, of 3 channels.
        ("aten::convolution", [[3, 224, 224], [64, 3, 7, 7]], "channels 3: no multiple of 8"),
    ],
)
def test_what_the_shapes_of_a_convolution_tell(operator, shapes, expected):
    assert words(operator, shapes, flops=1e12) == expected


def test_a_device_whose_multiprocessors_are_not_known_is_not_said_to_be_too_large():
    shapes = json.dumps([[128, 128], [128, 128]])
    assert shape_cause("aten::mm", shapes, "float16", 0, None) == ShapeCause((), 8)


def judged(folder, t: GpuTrace) -> Diagnosis:
    path = folder / "rank0.pt.trace.json"
    path.write_bytes(dump(t))
    return diagnose(open_run(str(path)))


def slow_matmuls(diagnosis: Diagnosis) -> Finding:
    (finding,) = (one for one in diagnosis.findings if one.id == "slow-matmuls")
    return finding


def seen(finding: Finding) -> dict[str, object]:
    return {item.label: item.value for item in finding.evidence}


def convolutions(t: GpuTrace, count: int, image: list[int], weight: list[int], length: int) -> None:
    """Convolutions of stride 1 that keep the images' size, each in one kernel."""
    padding = weight[2] // 2
    for _ in range(count):
        t.op(
            "aten::convolution",
            shapes=[image, weight, [], [], [], [], [], [], []],
            types=[*HALF, "", "ScalarList", "ScalarList", "ScalarList", "Scalar", "", "Scalar"],
            concrete=["", "", "", "[1, 1]", f"[{padding}, {padding}]", "[1, 1]", "False", "[0, 0]",
                      "1"],
        ).launch(CONVOLUTION, length)  # fmt: skip


def test_slow_convolutions_save_what_half_of_the_peak_leaves(tmp_path):
    image, weight = [64, 256, 56, 56], [255, 256, 3, 3]
    t = job(lambda t, s: (products(t), convolutions(t, 4, image, weight, us(2000))))
    finding = slow_matmuls(judged(tmp_path, t))
    peak = peaks_of_name("NVIDIA H100 80GB HBM3").peak("bfloat16")
    bound_ns = forward_flops(64, weight, 56) / peak * 1e9
    assert finding.title.startswith(f"convolutions attain {bound_ns / us(2000):.0%} of what")
    assert seen(finding)["time in them per step"] == 4 * us(2000)
    assert "; channels 255: no multiple of 8" in seen(finding)["such as"]
    assert "64×256×56×56 · 255×256×3×3" in seen(finding)["such as"]
    assert finding.advice.startswith("Pad odd sides to a multiple of 8, better of 64: channels of")
    # The GPU is never idle, so a step is shorter by what its convolutions are.
    assert finding.saving_ns == pytest.approx(4 * (us(2000) - bound_ns / REACHABLE), rel=0.02)


def test_small_convolutions_promise_nothing(tmp_path):
    image, weight = [32, 512, 7, 7], [512, 512, 3, 3]
    t = job(lambda t, s: (products(t, 4), convolutions(t, 20, image, weight, us(150))))
    finding = slow_matmuls(judged(tmp_path, t))
    assert finding.saving_ns is None
    assert seen(finding)["such as"].endswith(SMALL)
    assert finding.advice.startswith("Give each product more work")


def test_small_products_of_a_device_of_unknown_size_promise_nothing(tmp_path):
    small = {"shapes": [[256, 4096], [4096, 512]], "types": HALF}
    t = job(lambda t, s: (products(t, 4), products(t, 30, us(60), **small)))
    content = json.loads(dump(t))
    for device in content["deviceProperties"]:
        del device["numSms"]
    path = tmp_path / "rank0.pt.trace.json"
    path.write_text(json.dumps(content))
    finding = slow_matmuls(diagnose(open_run(str(path))))
    assert finding.saving_ns is None
    assert finding.saving_reason.startswith("they are too small to fill the device")


def test_the_same_product_on_two_devices_counts_once_on_each(tmp_path):
    """One process drives two GPUs, which take different times for it."""
    odd = {"shapes": [[8192, 1600], [1600, 50257]], "types": HALF}
    lengths = {0: us(6500), 1: us(8000)}
    t = GpuTrace(memory_bytes=80 << 30)
    for _ in range(4):
        with t.step():
            for device, length in lengths.items():
                t.op("aten::mm", **odd).launch(
                    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", length,
                    device=device,
                )  # fmt: skip
            t.sync()
    content = json.loads(dump(t))
    content["deviceProperties"].append({**content["deviceProperties"][0], "id": 1})
    path = tmp_path / "rank0.pt.trace.json"
    path.write_text(json.dumps(content))
    finding = slow_matmuls(diagnose(open_run(str(path))))
    # On the mean device, as all figures per step.
    assert seen(finding)["time in them per step"] == sum(lengths.values()) / 2
    assert seen(finding)["share of the step"] <= 1
