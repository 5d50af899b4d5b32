"""What happens once is named and set apart, and the rest is judged, with steps or without."""

from __future__ import annotations

import contextlib

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us


def loop(*, steps, vendor, annotate, slow_ns, before_ns=0, stacks=False, operator="aten::mm"):
    """Kernels that keep the GPU busy, and one slow launch among them."""
    t = GpuTrace(vendor=vendor, annotate_steps=annotate)
    with contextlib.ExitStack() as around:
        if stacks:
            around.enter_context(t.frame("train.py(1): main"))
        for step in range(steps):
            with t.step() if annotate else contextlib.nullcontext():
                if not step and before_ns:
                    with t.op("aten::empty"):
                        t.call("cudaFree", before_ns // 5)
                    t.python(before_ns - before_ns // 5)
                for number in range(60):
                    is_slow = step == 0 and number == 9
                    call_ns = slow_ns if is_slow and slow_ns else None
                    t.op(operator).launch("big_kernel", ms(1), call_ns=call_ns)
                t.sync()
    return t


@pytest.mark.sampled(4)
@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
@pytest.mark.parametrize(("steps", "annotate"), [(1, True), (1, False), (3, False), (4, True)])
@pytest.mark.parametrize("stacks", [False, True])
def test_one_slow_launch_is_no_launch_bound_step(diagnose_trace, vendor, steps, annotate, stacks):
    t = loop(steps=steps, vendor=vendor, annotate=annotate, slow_ns=ms(1300), stacks=stacks)
    diagnosis = diagnose_trace(t)
    ids = {finding.id for finding in diagnosis.findings}
    assert ids.isdisjoint({"launch-bound", "low-gpu-utilisation", "cpu-bound-python"})
    assert ids & {"one-off-costs", "slow-first-steps"}
    named = [f for f in diagnosis.findings if f.id in ("one-off-costs", "slow-first-steps")]
    assert len(named) == 1
    assert any("big_kernel" in str(item.value) for item in named[0].evidence)
    assert named[0].saving_ns is None
    assert "compute" in diagnosis.verdict
    (rank,) = diagnosis.ranks
    assert rank.step_ns == pytest.approx(ms(60) * (1 if annotate else steps), rel=0.05)


@pytest.mark.parametrize("annotate", [True, False])
@pytest.mark.parametrize("operator", ["aten::mul", "aten::mm", "mine::step"])
def test_what_is_left_of_a_busy_gpu_is_called_gpu_bound(diagnose_trace, annotate, operator):
    t = loop(steps=1, vendor="nvidia", annotate=annotate, slow_ns=ms(1300), operator=operator)
    diagnosis = diagnose_trace(t)
    assert {finding.id for finding in diagnosis.findings} == {"one-off-costs"}
    assert diagnosis.verdict.startswith("GPU-bound: ")
    assert "one call takes 1.30 s, once: loading of modules" in diagnosis.verdict


@pytest.mark.parametrize("annotate", [True, False])
def test_the_time_before_the_first_gpu_work_is_shown_with_its_parts(diagnose_trace, annotate):
    t = loop(steps=1, vendor="nvidia", annotate=annotate, slow_ns=0, before_ns=ms(30_000))
    (finding,) = (f for f in diagnose_trace(t).findings if f.id == "one-off-costs")
    seen = {item.label: item.value for item in finding.evidence}
    assert seen["before the first GPU work"] == pytest.approx(ms(30_000), rel=0.01)
    assert "cudaFree (creation of the device's context) 6.00 s" in seen["of which"]
    assert "host, cause not recorded 24.0 s" in seen["of which"]
    assert "30.0 s" in finding.title


def test_a_handful_of_small_kernels_beside_a_slow_launch_promises_nothing(diagnose_trace):
    """Launched at half the pace at which they run; but so few tell no rate of launches."""
    t = GpuTrace()
    with t.step():
        for number in range(16):
            call_ns = ms(6) if number == 9 else None
            t.op("aten::mul", before=us(16)).launch(
                "vectorized_elementwise_kernel", us(11), call_ns=call_ns
            )
    diagnosis = diagnose_trace(t)
    assert not [finding for finding in diagnosis.findings if finding.saving_ns]
    assert diagnosis.verdict.startswith("one-off-costs: one call takes 6")
    assert "Apart from that, " in diagnosis.verdict


def test_many_slow_launches_are_launch_bound_still(diagnose_trace):
    t = GpuTrace()
    for _ in range(4):
        with t.step():
            for _ in range(100):
                t.op("aten::mul", before=us(30)).launch("kernel", us(5))
            t.sync()
    diagnosis = diagnose_trace(t)
    (finding,) = (f for f in diagnosis.findings if f.id == "launch-bound")
    seen = {item.label: item.value for item in finding.evidence}
    assert seen["calls that launch work, per step"] == 100
    assert seen["host time per launch, median"] == pytest.approx(us(34), rel=0.1)
    assert diagnosis.findings[0] is finding


def test_one_slow_call_in_each_step_is_no_rate_of_launches(diagnose_trace):
    t = GpuTrace()
    for _ in range(4):
        with t.step():
            t.sync()
            for number in range(60):
                t.op("aten::mul").launch("k", us(100), call_ns=ms(20) if number == 30 else None)
            t.sync()
    assert "launch-bound" not in {finding.id for finding in diagnose_trace(t).findings}


@pytest.mark.parametrize("where", ["between operators", "backward"])
def test_a_gap_without_stacks_is_never_called_python(diagnose_trace, where):
    t = GpuTrace()
    for _ in range(4):
        with t.step():
            for _ in range(10):
                t.op("aten::mm").launch("gemm", us(100))
            if where == "backward":
                with t.thread():
                    for _ in range(6):
                        t.op("autograd::engine::evaluate_function: MmBackward0").launch(
                            "gemm", us(100)
                        )
                        t.python(ms(4))
                    t.op("autograd::engine::evaluate_function: MmBackward0").launch("gemm", us(1))
            else:
                t.python(ms(20))
            t.sync()
    diagnosis = diagnose_trace(t)
    words = [diagnosis.verdict]
    for finding in diagnosis.findings:
        words += [finding.title, finding.advice, finding.assumption]
    said = " ".join(words).replace("cpu-bound-python", "")
    assert "DataLoader" not in said
    assert "Python outside" not in said
    assert "Python holds" not in said
    (rank,) = diagnosis.ranks
    named = {part.name: part.total_ns for part in rank.partition.parts}
    expected = {
        "between operators": "idle: host, cause not recorded",
        "backward": "idle: between operators of backward",
    }[where]
    assert named["idle: Python"] == 0
    assert named[expected] > ms(50)


@pytest.mark.parametrize(("steps", "annotate"), [(1, True), (1, False), (3, False), (5, True)])
@pytest.mark.parametrize(
    ("vendor", "call"),
    [
        ("nvidia", "cuModuleLoadData"),
        ("nvidia", "cudaLibraryLoadData"),
        ("amd", "hipModuleLoadDataEx"),
        ("nvidia", "urProgramBuild"),
    ],
)
def test_loading_modules_once_is_no_compilation(diagnose_trace, vendor, call, steps, annotate):
    t = GpuTrace(vendor=vendor, annotate_steps=annotate)
    for step in range(steps):
        with t.step():
            for number in range(60):
                with t.op("aten::mm"):
                    if step == 0 and number == 3:
                        t.call(call, ms(2000))
                    t.launch("big_kernel", ms(1))
            t.sync()
    diagnosis = diagnose_trace(t)
    ids = {finding.id for finding in diagnosis.findings}
    assert ids == {"slow-first-steps" if steps == 5 else "one-off-costs"}
    assert diagnosis.verdict.startswith("GPU-bound")
    assert diagnosis.ranks[0].step_ns == pytest.approx(
        ms(60) * (1 if annotate else steps), rel=0.01
    )


def test_modules_that_a_compiler_loads_are_its_work(diagnose_trace):
    t = GpuTrace()
    for step in range(5):
        with t.step():
            if step == 2:
                with t.annotate("_compile.compile_inner (dynamo_timed)"):
                    t.python(ms(100))
                    t.call("cuModuleLoadData", ms(300))
                    t.python(ms(20))
            for _ in range(60):
                t.op("aten::mm").launch("big_kernel", ms(1))
            t.sync()
    (finding,) = (f for f in diagnose_trace(t).findings if f.id == "compilation-in-window")
    assert finding.evidence[0].value == pytest.approx(ms(420), rel=0.01)


@pytest.mark.parametrize(
    ("operator", "is_found"), [("aten::linalg_inv_ex", True), ("mine::f", False)]
)
def test_an_operator_of_torch_alone_of_its_name_loads_its_library(
    diagnose_trace, operator, is_found
):
    t = GpuTrace(annotate_steps=False)
    for number in range(60):
        t.op("aten::mm").launch("big_kernel", ms(1))
        if number == 20:
            t.op(operator, before=ms(1500)).launch("getrf_kernel", ms(1))
    t.sync()
    diagnosis = diagnose_trace(t)
    found = [finding.title for finding in diagnosis.findings if finding.id == "one-off-costs"]
    assert (
        found == [f"one call takes 1.50 s, once: first run of an operator ({operator})"][:is_found]
    )
    assert diagnosis.verdict.startswith("GPU-bound") is is_found
