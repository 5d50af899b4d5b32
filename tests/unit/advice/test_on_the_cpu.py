"""What is said of a run whose model computes on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.planted import dump

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.finding import Severity
from stepscope.analysis.compute import host_compute
from stepscope.opening.reader import open_run
from stepscope.report.diagnosis import to_json as diagnosis_to_dict
from stepscope.report.diagnosis.sentences import compute_rows, compute_title

H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 80 << 30}
FLOATS = {"types": ["float", "float"]}


@pytest.fixture
def judge(tmp_path: Path):
    def judged(t: GpuTrace) -> Diagnosis:
        (tmp_path / "rank0.pt.trace.json").write_bytes(dump(t))
        return diagnose(open_run(str(tmp_path)))

    return judged


def op(t: GpuTrace, name: str, **operands):
    """An operator that takes no time of its own."""
    return t.op(name, before=0, after=0, **operands)


def training(body, gpus: int = 1, steps: int = 4) -> GpuTrace:
    t = GpuTrace(device_name=None, header={"deviceProperties": [H100] * gpus})
    for _ in range(steps):
        with t.step():
            body(t)
            with t.annotate("Optimizer.step#SGD.step"):
                op(t, "aten::_foreach_add_").python(us(500))
    return t


def slow_products(t: GpuTrace) -> None:
    op(t, "aten::addmm").python(ms(5))


def quick_products(t: GpuTrace) -> None:
    for _ in range(40):
        op(t, "aten::addmm").python(us(12))
        op(t, "aten::relu").python(us(6))


def test_a_model_on_the_cpu_of_a_machine_with_a_gpu_is_the_verdict(judge):
    diagnosis = judge(training(slow_products))
    (finding,) = (one for one in diagnosis.findings if one.id == "gpu-unused")
    assert finding.severity is Severity.HIGH
    assert "ran on the CPU" in finding.title
    assert diagnosis.verdict.startswith("gpu-unused: the model ran on the CPU")
    seen = {item.label: item.value for item in finding.evidence}
    assert seen["GPUs"] == "1 × NVIDIA H100 80GB HBM3"
    assert seen["mean aten::addmm"] == ms(5)


@pytest.mark.parametrize(
    ("body", "severity"),
    [
        (slow_products, Severity.HIGH),
        # As short as launches: the recording may have left the GPU out.
        (quick_products, Severity.MEDIUM),
        (
            lambda t: (quick_products(t), op(t, "aten::mkldnn_convolution").python(us(40))),
            Severity.HIGH,
        ),
        (lambda t: (slow_products(t), op(t, "aten::cudnn_convolution").python(us(40))), None),
        (lambda t: op(t, "aten::copy_").python(ms(5)), None),
        (lambda t: (slow_products(t), t.call("cudaLaunchKernel")), None),
    ],
)
def test_it_is_certain_only_where_operators_show_it(judge, body, severity):
    found = [one for one in judge(training(body)).findings if one.id == "gpu-unused"]
    assert [one.severity for one in found] == ([] if severity is None else [severity])
    for one in found:
        assert ("ProfilerActivity.CUDA" in one.advice) is (severity is Severity.MEDIUM)


def test_a_machine_without_a_gpu_misses_nothing(judge):
    diagnosis = judge(training(slow_products, gpus=0))
    assert not [one for one in diagnosis.findings if one.id == "gpu-unused"]


def test_the_report_shows_what_the_cpu_computes(judge):
    def body(t: GpuTrace) -> None:
        op(t, "aten::addmm", shapes=[[64], [32, 16], [16, 64]], types=["float"] * 3).python(ms(6))
        op(t, "aten::mul", shapes=[[32, 64], []], **FLOATS).python(ms(2))
        with t.beside(77, "pt_autograd_0"):
            op(t, "aten::sum", shapes=[[32, 64]], types=["float"]).python(us(1500))

    t = training(body, gpus=0)
    found = host_compute(t.load())
    assert found.total_ns == 4 * (ms(6) + ms(2) + us(1500) + us(500))
    assert found.kinds["total_ns"].sum() == found.total_ns
    assert dict(found.kinds.select("kind", "total_ns").iter_rows()) == {
        "matrix products": 4 * ms(6),
        "elementwise": 4 * ms(2),
        "reductions": 4 * us(1500),
        "optimizer": 4 * us(500),
    }
    diagnosis = judge(t)
    rows = dict(compute_rows(diagnosis.shown))
    assert compute_title(diagnosis.shown) == (
        "What the CPU computes",
        "10.0 ms of operators per step, 4 calls",
    )
    assert rows["by kind"].startswith("matrix products 60%, elementwise 20%, reductions 15%")
    assert rows["by operator"].startswith("aten::addmm 60%, aten::mul 20%")
    assert rows["by shape"].startswith("aten::addmm (64, 32 × 16, 16 × 64) 60%")
    assert rows["threads"].startswith("operators run on 2 threads (the main thread 85%, pt_auto")
    assert diagnosis_to_dict(diagnosis)["ranks"][0]["trace"]["compute"]["is_on_cpu"]
    assert "60% matrix products" in diagnosis.verdict


def test_graphs_of_the_compiler_are_one_operator_without_their_digests():
    def body(t: GpuTrace) -> None:
        op(t, "aten::addmm").python(ms(6))
        for digest in ("f5jybe5wwjbrubxfe7jll6m4", "forpvhikvzwiusw3qne3h7a5"):
            op(t, f"## Call CompiledFxGraph {digest} ##").python(ms(2))

    found = host_compute(training(body, gpus=0).load())
    operators = dict(found.operators.select("operator", "total_ns").iter_rows())
    assert operators["compiled code"] == 4 * ms(4)
    assert not [name for name in operators if "Graph" in name]
    kinds = dict(found.kinds.select("kind", "total_ns").iter_rows())
    assert kinds["compiled code"] == 4 * ms(4)
    assert found.operators["total_ns"].sum() == found.kinds["total_ns"].sum() == found.total_ns


@pytest.mark.parametrize(("call_ns", "is_overhead"), [(us(3), True), (us(30), False)])
def test_operators_as_short_as_their_call_are_said_to_be_so(judge, call_ns, is_overhead):
    def body(t: GpuTrace) -> None:
        for _ in range(800):
            op(t, "aten::add", shapes=[[4], [4]], types=["float"] * 2).python(call_ns)

    verdict = judge(training(body, gpus=0)).verdict
    said = "801 operators of a recorded step, aten::add 800 times, take 3.62 µs each, about what"
    assert (said in verdict) is is_overhead, verdict


@pytest.mark.parametrize(("drawn_ns", "is_slow"), [(ms(2), True), (us(50), False)])
def test_drawing_random_numbers_is_a_finding_from_a_notable_share_on(judge, drawn_ns, is_slow):
    def body(t: GpuTrace) -> None:
        op(t, "aten::mkldnn_convolution").python(ms(5))
        with op(t, "aten::dropout"):
            op(t, "aten::bernoulli_").python(drawn_ns)
            op(t, "aten::mul").python(us(100))

    found = [
        one for one in judge(training(body, gpus=0)).findings if one.id == "slow-random-numbers"
    ]
    assert len(found) == is_slow
    for one in found:
        seen = {item.label: item.value for item in one.evidence}
        assert seen["time in it per step"] == drawn_ns
        assert seen["share of the time of matrix products and convolutions"] == 0.4
        assert one.saving_ns == pytest.approx(drawn_ns, rel=0.01)
        assert one.is_upper_bound
        assert "Dropout2d" in one.advice


def test_random_numbers_of_the_data_are_not_called_dropouts(judge):
    """Dropout with p=0 is called and draws nothing; the data are random integers."""

    def body(t: GpuTrace) -> None:
        op(t, "aten::random_").python(us(600))
        op(t, "aten::mm").python(us(1500))
        op(t, "aten::dropout").python(us(1))

    found = judge(training(body, gpus=0)).findings
    (one,) = [one for one in found if one.id == "slow-random-numbers"]
    assert "dropout" not in one.advice
    assert "DataLoader workers" in one.advice


def zeroing(passes: int = 1, tensors: int = 10, zero: str = "aten::zero_", is_filled: bool = True):
    """A step of 10 ms: 1 ms zeroes, and 2 ms of each backward pass add to gradients."""

    def body(t: GpuTrace) -> None:
        if is_filled:
            with t.annotate("Optimizer.zero_grad#SGD.zero_grad"):
                count = tensors if zero == "aten::zero_" else 1
                for _ in range(count):
                    op(t, zero).python(ms(1) // count)
        for _ in range(passes):
            op(t, "aten::mm").python(ms(7))
            for _ in range(tensors):
                with op(t, "torch::autograd::AccumulateGrad"):
                    if is_filled:
                        op(t, "aten::add_").python(us(200))

    return body


@pytest.mark.parametrize(
    ("body", "spent_ns"),
    [
        (zeroing(), ms(3)),
        # Of two additions to a gradient, the second is needed.
        (zeroing(passes=2), ms(3)),
        (zeroing(zero="aten::_foreach_zero_"), ms(1)),
        (zeroing(is_filled=False), None),
    ],
)
def test_gradients_that_are_filled_with_zeros(judge, body, spent_ns):
    found = [f for f in judge(training(body, gpus=0)).findings if f.id == "zeroed-gradients"]
    assert len(found) == (spent_ns is not None)
    if found:
        spent = [one.value for one in found[0].evidence if one.label.startswith("time in")]
        assert sum(spent) == pytest.approx(spent_ns, rel=0.05)
        assert "set_to_none=True" in found[0].advice
        # Memory that is allocated anew may take as long: nothing is promised.
        assert found[0].saving_ns is None
        assert "new memory" in found[0].saving_reason
