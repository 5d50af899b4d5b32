"""Rules about what the GPU computes, on devices and shapes that the labelled set does not have."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest
from tests.support import planted
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.planted import (
    CUTLASS,
    HALF,
    MM_FLOAT,
    MUL,
    PLAIN,
    SOFTMAX,
    dump,
    job,
    optimizer,
    products,
)

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.evidence.locations import location_of
from stepscope.advice.finding import Finding
from stepscope.advice.rules.compute.precision import WORTH_IT
from stepscope.analysis.hardware.devices import KNOWN
from stepscope.opening.reader import open_run
from stepscope.trace.load import load


@pytest.fixture
def judge(tmp_path):
    def judged(t: GpuTrace) -> Diagnosis:
        (tmp_path / "rank0.pt.trace.json").write_bytes(dump(t))
        return diagnose(open_run(str(tmp_path)))

    return judged


@pytest.fixture
def found(judge):
    def judged(t: GpuTrace, rule: str) -> list[Finding]:
        return [one for one in judge(t).findings if one.id == rule]

    return judged


def seen(finding: Finding) -> dict[str, object]:
    return {item.label: item.value for item in finding.evidence}


def in_full_precision(name: str, major: int, minor: int = 0, count: int = 10) -> GpuTrace:
    """Products of 900 µs in FP32 on a device of this name and compute capability."""
    device = {
        "id": 0, "name": name, "totalGlobalMem": 80 << 30, "numSms": 80,
        "computeMajor": major, "computeMinor": minor,
    }  # fmt: skip

    def body(t: GpuTrace, _step: int) -> None:
        products(t, count, name=PLAIN, **MM_FLOAT)
        t.op("aten::softmax").launch(SOFTMAX, us(900) * (10 - count))

    return job(body, device_name=name, header={"deviceProperties": [device]})


@pytest.mark.parametrize(
    ("name", "capability", "share_left", "words", "remedy"),
    [
        ("NVIDIA H100 80GB HBM3", (9, 0), 0.5, "in TF32 these kernels take half", "Allow TF32"),
        # A peak of TF32 that is 1.68 times as high leaves 0.6 of the time; a quarter more.
        ("NVIDIA H20", (9, 0), 1.25 * 44 / 74, "in TF32 these kernels take 74% of", "Allow TF32"),
        ("Tesla V100-SXM2-32GB", (7, 0), 0.5, "in half precision", "GradScaler"),
        ("NVIDIA GeForce RTX 4090", (8, 9), 0.625, "in half precision", "torch.bfloat16"),
        # Nobody knows whether TF32 is faster there: on some it is not.
        ("NVIDIA GeForce RTX 4070", (8, 9), 0.625, "in half precision", "torch.bfloat16"),
    ],
)
def test_full_precision_promises_what_the_device_gains(
    found, name, capability, share_left, words, remedy
):
    (finding,) = found(in_full_precision(name, *capability), "full-precision-matmuls")
    assert words in finding.assumption
    assert remedy in finding.advice
    assert ("TF32 off" in finding.title) is (remedy == "Allow TF32")
    assert seen(finding)["time in them per step"] == 10 * us(900)
    # The GPU is never idle, so a step is shorter by what its products are.
    assert finding.saving_ns == pytest.approx(10 * us(900) * (1 - share_left), rel=0.02)


def test_its_place_is_the_piece_of_work_that_gets_shorter_most(found, tmp_path):
    def body(t: GpuTrace, step: int) -> None:
        products(t, 8, name=PLAIN, **MM_FLOAT)
        products(t, 1, us(1300 if step == 2 else 900), name=PLAIN, **MM_FLOAT)
        t.op("aten::softmax").launch(SOFTMAX, ms(2))  # longer, and it stays

    (finding,) = found(job(body, device_name="NVIDIA H100"), "full-precision-matmuls")
    trace = load(str(tmp_path / "rank0.pt.trace.json"))
    place = location_of(finding, trace, None, ())
    assert place.end_ns - place.start_ns == us(1300)
    columns = trace.columns("start_ns", "dur_ns")
    assert columns.row(place.event) == (place.start_ns, us(1300))


def test_full_precision_counts_from_a_tenth_of_the_step_on(found):
    (finding,) = found(in_full_precision("NVIDIA H100", 9, count=2), "full-precision-matmuls")
    assert seen(finding)["of all matrix products"] == 1.0
    assert not found(in_full_precision("NVIDIA H100", 9, count=0), "full-precision-matmuls")
    assert not found(in_full_precision("Tesla P100", 6), "full-precision-matmuls")

    def body(t: GpuTrace, _step: int) -> None:
        products(t, 9)
        products(t, 1, us(880), name=PLAIN, **MM_FLOAT)

    assert not found(job(body), "full-precision-matmuls")


def test_half_precision_is_worth_it_on_each_known_device():
    for peaks in KNOWN:
        half = max(peaks.teraflops.get(name, 0.0) for name in ("float16", "bfloat16"))
        assert half >= WORTH_IT * peaks.teraflops["float32"]


def attention(
    t: GpuTrace, lengths: tuple[int, int] | None, between: int = us(5700), outside: int = 5
) -> None:
    """Attention of queries by keys without a fused kernel, below other products."""
    products(t, outside)
    shapes: list[dict] = [{}, {}, {}]
    if lengths is not None:
        queries, keys = lengths
        shapes = [
            {"shapes": each, "types": HALF}
            for each in (
                [[96, queries, 64], [96, 64, keys]],
                [[8, 12, queries, keys], [], []],
                [[96, queries, keys], [96, keys, 64]],
            )
        ]
    with t.frame("model.py(12): attend"):
        t.op("aten::bmm", **shapes[0]).launch(CUTLASS, us(1900))
        t.op("aten::mul", **shapes[1]).launch(MUL, us(100))
        t.op("aten::_softmax", **shapes[1]).launch(SOFTMAX, between)
        t.op("aten::bmm", **shapes[2]).launch(CUTLASS, us(1700))


@pytest.mark.parametrize(
    ("lengths", "scores", "padded"),
    [
        ((3137, 3137), "8 × 12 × 3137 × 3137", "Pad the length 3137 to 3144"),
        ((4096, 77), "8 × 12 × 4096 × 77", "Pad the length 77 to 80"),
        ((4095, 80), "8 × 12 × 4095 × 80", "Pad the length 4095 to 4096"),
        ((4096, 4096), "8 × 12 × 4096 × 4096", None),
        # One query at a time, as in generation, is no length to be padded.
        ((1, 4096), "8 × 12 × 1 × 4096", None),
        (None, None, None),
    ],
)
def test_unfused_attention_says_what_the_shapes_tell(found, lengths, scores, padded):
    (finding,) = found(job(lambda t, s: attention(t, lengths)), "unfused-attention")
    assert seen(finding).get("scores") == scores
    assert ("Pad the length" in finding.advice) is (padded is not None)
    assert (padded or "") in finding.advice
    assert seen(finding)["in"] == "attend (model.py:12)"
    assert seen(finding)["softmax kernels per step"] == 1
    assert seen(finding)["of this, on the scores between the products"] == us(5800)
    # The GPU is never idle: without the scaling and the softmax a step is this much shorter.
    assert finding.saving_ns == pytest.approx(us(5800), rel=0.02)


def test_attention_whose_scores_take_little_is_none(found):
    """A step of 50 × 0.9 ms, 3.6 ms of products, 0.3 ms of optimizer, and the work on the scores.

    From 3% of it on, which is 1.51 ms, it is a finding.
    """

    def short(between: int) -> GpuTrace:
        return job(lambda t, s: attention(t, (4096, 4096), between - us(100), outside=50))

    assert not found(short(us(1450)), "unfused-attention")
    assert found(short(us(1570)), "unfused-attention")


def test_attention_that_nothing_of_the_program_is_known_of_has_no_place(found):
    def body(t: GpuTrace, _step: int) -> None:
        t.op("aten::bmm").launch(CUTLASS, us(1900))
        t.op("aten::_softmax").launch(SOFTMAX, us(5700))
        t.op("aten::bmm").launch(CUTLASS, us(1700))
        optimizer(t)

    (finding,) = found(job(body), "unfused-attention")
    assert "in" not in seen(finding)


def test_full_precision_on_two_devices_is_told_of_the_mean_device(found):
    """One process drives two GPUs, and each computes in FP32 for 40% of a step."""
    device = {"name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 80 << 30, "numSms": 132,
              "computeMajor": 9, "computeMinor": 0}  # fmt: skip
    t = GpuTrace(header={"deviceProperties": [{"id": number, **device} for number in (0, 1)]})
    for _ in range(4):
        with t.step():
            for number in (0, 1):
                t.op("aten::mm", **MM_FLOAT).launch(PLAIN, us(4000), device=number)
                t.op("aten::softmax").launch(SOFTMAX, us(6000), device=number)
            t.sync()
    (finding,) = found(t, "full-precision-matmuls")
    assert seen(finding)["time in them per step"] == us(4000)
    assert seen(finding)["share of the step"] == pytest.approx(0.4, rel=0.02)


SQUARE = {"shapes": [[8192, 8192], [8192, 8192]], "types": HALF}
"""An elementwise operator on these moves 403 MB, which take an H100 120 µs."""


def kernels_below(operators: list[str], name: str = "my_kernel", **operands) -> GpuTrace:
    """Products, and in between runs of 10 kernels of 130 µs below operators, outermost first."""

    def body(t: GpuTrace, _step: int) -> None:
        for _ in range(2):
            products(t, 2)
            for _ in range(10):
                with contextlib.ExitStack() as opened:
                    for operator in operators[:-1]:
                        opened.enter_context(t.op(operator, **operands))
                    t.op(operators[-1], **operands).launch(name, us(130))

    return job(body)


@pytest.mark.parametrize("operator", ["aten::mul", "aten::add_", "aten::sum", "aten::dropout"])
def test_an_unknown_kernel_is_not_fusible_by_its_operator_alone(judge, operator):
    diagnosis = judge(kernels_below([operator]))
    assert not diagnosis.findings
    assert diagnosis.verdict.startswith("GPU-bound: ")
    assert "of the step is compute" in diagnosis.verdict


def test_an_unknown_kernel_counts_by_the_bytes_that_its_operator_moves(found):
    (named,) = found(kernels_below(["aten::mul"], MUL, **SQUARE), "unfused-elementwise")
    (unknown,) = found(kernels_below(["aten::mul"], **SQUARE), "unfused-elementwise")
    assert unknown.saving_ns == pytest.approx(named.saving_ns, rel=0.01)
    # Of 403 MB per kernel, the middle ones of a chain keep the 134 MB of their other operand.
    assert seen(unknown)["of this, from kernel to kernel"] == 2 * 9 * 2 * (8192 * 8192 * 2)


@pytest.mark.parametrize(
    ("operators", "device"),
    [
        (["aten::mul", "mine::scaled"], "NVIDIA H100 80GB HBM3"),
        (["mine::scaled"], "NVIDIA H100 80GB HBM3"),
        (["aten::mul"], "an accelerator"),
    ],
)
def test_shapes_are_no_evidence_below_own_operators_or_on_unknown_devices(
    judge, monkeypatch, operators, device
):
    monkeypatch.setattr(planted, "GpuTrace", partial(GpuTrace, device_name=device))
    assert not judge(kernels_below(operators, **SQUARE)).findings
