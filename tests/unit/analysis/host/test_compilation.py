"""Compilation is torch.compile at work, not a call of what it compiled."""

from __future__ import annotations

import polars as pl
import pytest
from tests.support.gpu_trace import GpuTrace, ms, us

from stepscope.advice.diagnosis import diagnose
from stepscope.analysis.host.causes import HostCause, cause_of_names
from stepscope.analysis.host.partition import partition_host
from stepscope.opening.reader import open_run
from stepscope.trace.classify import classify_names

COMPILING = {
    "_compile.compile_inner (dynamo_timed)": "cpu_op",
    "compile_fx.<locals>.bw_compiler (dynamo_timed)": "cpu_op",
    "entire_frame_compile": "cpu_op",
    "async_compile.wait": "cpu_op",
    "torch/_dynamo/convert_frame.py(1633): _compile": "python_function",
    "torch/_dynamo/output_graph.py(3046): call_user_compiler": "python_function",
    "torch/_inductor/compile_fx.py(900): codegen_and_compile": "python_function",
    "torch/_inductor/graph.py(2300): compile_to_module": "python_function",
    "triton/compiler/compiler.py(226): compile": "python_function",
}
EXECUTING = {
    "torch/_dynamo/eval_frame.py(1076): compile_wrapper": "python_function",
    "torch/_dynamo/eval_frame.py(1423): _fn": "python_function",
    "torch/_inductor/output_code.py(721): __call__": "python_function",
    "torch/_inductor/runtime/autotune_cache.py(490): has_active_compile": "python_function",
    "torch/_functorch/_aot_autograd/runtime_wrappers.py(3471): backward": "python_function",
    "triton/compiler/compiler.py(460): launch_metadata": "python_function",
    "Torch-Compiled Region: 0/0": "cpu_op",
    "## Call CompiledFxGraph f7ducbkm4hcayh ##": "cpu_op",
    "CompiledFunctionBackward": "cpu_op",
    "TorchDynamo Cache Lookup": "cpu_op",
    "AOTDispatcher Runtime Wrapper Prologue": "cpu_op",
}


@pytest.mark.parametrize("name", [*COMPILING, *EXECUTING])
def test_names_as_torch_2_13_writes_them(name):
    category = {**COMPILING, **EXECUTING}[name]
    names = classify_names(pl.DataFrame({"name": [name], "category": [category]}))
    is_compilation = cause_of_names(names)[0] == HostCause.COMPILATION
    assert is_compilation == (name in COMPILING)


def training(compiling_step: int | None) -> GpuTrace:
    """Steps of 10 ms that call compiled code, recorded with stacks, on a CPU."""
    t = GpuTrace(device_name=None)
    for number in range(4):
        with t.step(), t.frame("torch/_dynamo/eval_frame.py(1076): compile_wrapper"):
            if number == compiling_step:
                with t.frame("torch/_dynamo/convert_frame.py(1633): _compile"):
                    t.op("_compile.compile_inner (dynamo_timed)").python(ms(400))
            with t.op("Torch-Compiled Region: 0/0", before=us(10), after=us(10)):
                t.python(ms(10))
    return t


def test_calling_compiled_code_is_no_compilation(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(training(None).json())
    judged = diagnose(open_run(str(path)))
    assert "compilation-in-window" not in {finding.id for finding in judged.findings}
    assert judged.ranks[0].host is not None
    assert judged.ranks[0].host.partition.of("compilation") == 0


def test_compiling_is_a_part_of_the_step_of_its_own(tmp_path):
    t = training(2)
    host = partition_host(t.load())
    assert host is not None
    assert host.steps["compilation_ns"].to_list() == [0, 0, ms(400) + us(3), 0]
    path = tmp_path / "trace.json"
    path.write_bytes(t.json())
    finding = next(
        f for f in diagnose(open_run(str(path))).findings if f.id == "compilation-in-window"
    )
    assert finding.steps == (2,)
    assert finding.evidence[0].value == ms(400) + us(3)
