"""A load of a kernel is no compilation, and autotuning is named as a whole."""

from __future__ import annotations

import polars as pl
import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.planted import GEMM, MM, products

from stepscope.analysis.calls.one_off import AUTOTUNING, one_off_calls

FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>"
KERNEL = "_attn_fwd"


def _loading(loads: int, *, in_steps: tuple[int, ...], in_compiler: bool = False) -> GpuTrace:
    """Six steps, some of which load kernels: by themselves, or in a stage of the compiler."""
    t = GpuTrace()
    for step in range(6):
        with t.step():
            for number in range(20):
                is_new = step in in_steps and number < loads
                with t.op("aten::mm", **MM):
                    if is_new and in_compiler:
                        with t.annotate("_compile.compile_inner (dynamo_timed)"):
                            t.python(us(100))
                            t.call("cuModuleLoadData", ms(4))
                    elif is_new:
                        t.call("cuModuleLoadData", ms(4))
                    t.launch(f"_fwd_{step}_{number}" if is_new else GEMM, us(500))
            t.sync()
    return t


@pytest.mark.parametrize(
    ("in_compiler", "title"),
    [(False, "6 of 6 recorded steps load new kernels"), (True, "6 of 6 recorded steps compile")],
)
def test_steps_that_load_kernels_again_and_again_do_not_compile(diagnose_trace, in_compiler, title):
    diagnosis = diagnose_trace(_loading(2, in_steps=tuple(range(6)), in_compiler=in_compiler))
    (finding,) = (one for one in diagnosis.findings if one.id == "recompilation")
    assert finding.title.startswith(title)
    label = "compiling, per step" if in_compiler else "loading kernels, per step"
    assert finding.evidence[0].label == label
    assert ("compile" in f"{finding.title} {finding.assumption}") is in_compiler


def _tune(t: GpuTrace, configurations: int = 6, times: int = 40, kernel: str = KERNEL) -> int:
    """Loads and times a kernel as Triton's do_bench does; how long that takes."""
    begun = t.now
    for _ in range(configurations):
        t.python(ms(2))
        t.call("cuModuleLoadData", ms(3))
        t.launch(kernel, us(200))
        t.sync()
        for _ in range(times):
            with t.op("aten::zero_"), t.op("aten::fill_"):
                t.launch(FILL, us(90))
            t.record_event()
            t.launch(kernel, us(200))
            t.record_event()
        t.sync()
    return t.now - begun


def test_autotuning_in_one_pass_is_named_as_a_whole(diagnose_trace):
    t = GpuTrace(annotate_steps=False)
    for number in range(40):
        t.op("aten::mm", **MM).launch(GEMM, us(900))
        if number == 10:
            took_ns = _tune(t)
    t.sync()
    diagnosis = diagnose_trace(t)
    assert [one.id for one in diagnosis.findings] == ["one-off-costs"]
    (finding,) = diagnosis.findings
    assert finding.title.startswith(f"autotuning of kernels ({KERNEL}) takes ")
    # The time before its first load is not known to be its own.
    assert finding.evidence[0].value == pytest.approx(took_ns - ms(2), rel=0.001)
    assert f"Part of this: {finding.title}" in diagnosis.verdict


def test_a_choice_among_kernels_is_one_stretch():
    """As torch.compile chooses with mode='max-autotune': each candidate has a name of its own."""
    t = GpuTrace(annotate_steps=False)
    products(t, 5)
    for candidate in range(5):
        t.call("cuModuleLoadData", ms(2))
        t.sync()
        for _ in range(30):
            t.op("aten::zero_").launch(FILL, us(60))
            t.record_event()
            t.launch(f"triton_mm_{candidate}", us(150))
            t.record_event()
        t.sync()
    products(t, 5)
    (row,) = one_off_calls(t.load()).filter(pl.col("kind") == AUTOTUNING).iter_rows(named=True)
    assert row["end_ns"] - row["start_ns"] > 5 * 30 * us(210)


def test_autotuning_in_a_stage_of_the_compiler_is_a_part_of_that(diagnose_trace):
    t = GpuTrace()
    for step in range(6):
        with t.step():
            if step == 3:
                with t.annotate("CachingAutotuner.benchmark_all_configs (dynamo_timed)"):
                    took_ns = _tune(t, 3)
            products(t, 20)
            t.sync()
    diagnosis = diagnose_trace(t)
    (finding,) = (one for one in diagnosis.findings if one.id == "compilation-in-window")
    seen = {item.label: item.value for item in finding.evidence}
    assert seen["of which autotuning"] == pytest.approx(took_ns - ms(2), rel=0.01)
    assert "one-off-costs" not in {one.id for one in diagnosis.findings}


def test_steps_that_time_their_own_kernels_do_not_autotune():
    """A loop that measures each pass by events records two around several kernels."""
    t = GpuTrace()
    for _ in range(30):
        with t.step():
            t.record_event()
            products(t, 3)
            t.record_event()
            t.sync()
    assert AUTOTUNING not in one_off_calls(t.load())["kind"].to_list()


@pytest.mark.parametrize("beside", [0, 3])
def test_a_benchmark_in_every_step_is_no_one_off(beside):
    t = GpuTrace()
    for _ in range(6):
        with t.step():
            products(t, beside)
            _tune(t, 1)
            t.sync()
    assert AUTOTUNING not in one_off_calls(t.load())["kind"].to_list()
