"""Advice says nothing that is done already: compiled code, captured graphs, fused optimizers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.planted import GEMM, HALF, MM, SMALL, optimizer, products

from stepscope.advice.finding import Finding

TRITON = "triton_poi_fused_add_relu_0"
REGION = "Torch-Compiled Region: 0/0"


def _advice(found: list[Finding]) -> str:
    return " ".join(one.advice for one in found)


def _small_on_a_cpu(t: GpuTrace, compiled: bool) -> None:
    for _ in range(4):
        t.python(us(350))
        if compiled:
            with t.op(REGION):
                t.op("aten::addmm").python(us(300))
        else:
            t.op("aten::addmm").python(us(300))


def _small_on_a_gpu(t: GpuTrace, how: str) -> None:
    for _ in range(5):
        t.python(us(400))
        if how == "captured":
            t.graph_launch([(GEMM, us(8)), (SMALL, us(2))] * 15)
        elif how == "compiled":
            with t.op(REGION):
                t.op(TRITON).launch(TRITON, us(20))
                t.op("aten::mm", **MM).launch(GEMM, us(60))
        else:
            t.op("aten::mm", **MM).launch(GEMM, us(60))
    t.item()


def _steps(body: Callable[[GpuTrace], object], count: int = 8, **options) -> GpuTrace:
    t = GpuTrace(**options)
    if options.get("device_name", "") is not None:
        products(t, 1, us(50))
    for _ in range(count):
        with t.step():
            body(t)
    return t


@pytest.mark.parametrize(
    ("compiled", "begins", "advised"),
    [
        (False, "eager-mode overhead", "torch.compile takes some of the Python away"),
        (True, "Python around the compiled code", "Run less Python between the calls of compiled"),
    ],
)
def test_small_compiled_inference_on_a_cpu_is_not_told_to_compile(
    diagnose_trace, compiled, begins, advised
):
    diagnosis = diagnose_trace(_steps(lambda t: _small_on_a_cpu(t, compiled), device_name=None))
    (finding,) = (one for one in diagnosis.findings if one.id == "cpu-bound-python")
    assert finding.title.startswith(begins)
    assert advised in finding.advice
    assert "CUDA" not in finding.advice
    assert ("torch.compile takes" in finding.advice) is not compiled


@pytest.mark.parametrize(
    ("how", "begins", "advised"),
    [
        ("eager", "eager-mode overhead", "torch.compile takes"),
        ("compiled", "Python around the compiled code", "mode='reduce-overhead') launch a whole"),
        ("captured", "Python around the CUDA graphs", "Put more of the step in the CUDA graphs."),
    ],
)
def test_on_a_gpu_what_runs_is_named_and_the_next_step_advised(
    diagnose_trace, how, begins, advised
):
    diagnosis = diagnose_trace(_steps(lambda t: _small_on_a_gpu(t, how)))
    (finding,) = (one for one in diagnosis.findings if one.id == "cpu-bound-python")
    assert finding.title.startswith(begins)
    assert advised in finding.advice
    if how != "eager":
        assert "torch.compile takes" not in _advice(list(diagnosis.findings))
        assert "torch.compile(mode" not in _advice(list(diagnosis.findings))


@pytest.mark.parametrize("is_fused", [True, False])
def test_a_fused_optimizer_is_not_advised_where_one_is_in_use(diagnose_trace, is_fused):
    def body(t: GpuTrace) -> None:
        _small_on_a_gpu(t, "compiled")
        t.op("autograd::engine::evaluate_function: CompiledFunctionBackward").launch(TRITON, us(50))
        if is_fused:
            optimizer(t)
        else:
            with t.annotate("Optimizer.step#AdamW.step"):
                t.op("aten::_foreach_add_").launch(SMALL, us(300))

    found = list(diagnose_trace(_steps(body)).findings)
    assert {"cpu-bound-python", "launch-bound"} <= {one.id for one in found}
    assert ("fused optimizer" in _advice(found)) is not is_fused


def test_chains_beside_compiled_code_are_to_be_brought_into_it(diagnose_trace):
    def body(t: GpuTrace) -> None:
        with t.op(REGION):
            products(t, 4, us(500))
        for _ in range(8):
            t.op("aten::mul", shapes=[[8192, 8192]] * 2, types=HALF).launch(SMALL, us(120))

    (finding,) = (
        one for one in diagnose_trace(_steps(body)).findings if one.id == "unfused-elementwise"
    )
    assert "bring what runs eagerly into the compiled code" in finding.advice
    assert "torch.compile the model" not in finding.advice


@pytest.mark.parametrize("compiled", [True, False])
def test_random_numbers_beside_compiled_code_are_to_be_brought_into_it(diagnose_trace, compiled):
    def body(t: GpuTrace) -> None:
        if compiled:
            with t.op(REGION):
                t.op("aten::linear").python(ms(4))
        with t.op("aten::native_dropout"):
            t.op("aten::bernoulli_").python(ms(8))
        t.op("autograd::engine::evaluate_function: AddmmBackward0").python(ms(4))

    found = diagnose_trace(_steps(body, device_name=None)).findings
    advice = next(one.advice for one in found if one.id == "slow-random-numbers")
    assert ("Bring it into the compiled code" in advice) is compiled
    assert ("Use torch.compile" in advice) is not compiled
