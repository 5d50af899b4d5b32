"""Which line of the program a stack stands for, and which step and phase a time is in."""

from __future__ import annotations

import pickle

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.snapshot_tables import loaded
from tests.support.snapshots import plain_training

from stepscope.memory.program.lines import LINES, NO_STACK, lines_of
from stepscope.memory.program.ranges import RANGES, innermost, phase_of, ranges_of


def with_stacks(*stacks):
    trace = [
        {
            "action": "alloc", "addr": 512 * k, "size": 1, "stream": 0,
            "frames": [{"name": n, "filename": f, "line": line} for f, line, n in stack],
        }
        for k, stack in enumerate(stacks)
    ]  # fmt: skip
    return loaded(pickle.dumps({"segments": [], "device_traces": [trace]}))


TORCH = ("/opt/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", 125, "forward")
CALL = ("/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", 1500, "_call_impl")
OWN = ("/home/me/project/model.py", 31, "forward")
MAIN = ("train.py", 7, "<module>")
NOISE = ("??", 0, "torch::unwind::unwind()")
ALLOCATOR = ("??", 0, "c10::cuda::CUDACachingAllocator::Native::malloc(void**)")
BACKWARD = ("??", 0, "torch::autograd::MmBackward0::apply()")
EMPTY = ("EmptyTensor.cpp", 0, "at::TensorBase at::detail::_empty_generic<long>(c10::ArrayRef)")
EMPTY_CUDA = ("??", 0, "at::native::empty_cuda")
GENERATED_NODE = ("??", 0, "torch::autograd::generated::MmBackward0::apply(std::vector)")
NODE = ("??", 0, "torch::autograd::Node::operator()")
WORKSPACE = ("??", 0, "at::cuda::getNewWorkspace()")
GEMM = ("??", 0, "at::cuda::blas::gemm")
INDUCTOR = (f"/tmp/torchinductor_u/ab/c{'abcdefghijklm2345' * 3}.py", 77, "call")
RUN_INDUCTOR = ("/x/site-packages/torch/_inductor/utils.py", 1, "run")
WINDOWS_TORCH = (
    "C:\\Users\\u\\venv\\Lib\\site-packages\\torch\\nn\\modules\\module.py",
    1357,
    "convert",
)
WINDOWS_OWN = ("C:\\Users\\u\\proj\\train.py", 9, "main")
STEPSCOPE = ("/x/site-packages/stepscope/capture/profiler.py", 144, "step")
PYTHON = ("/usr/local/src/conda/python-3.11/Objects/call.c", 0, "_PyObject_MakeTPCall")


@pytest.mark.parametrize(
    ("stack", "line", "is_own"),
    [
        ([TORCH, CALL, OWN, MAIN], "project/model.py:31 forward", True),
        ([NOISE, ALLOCATOR, TORCH, OWN, MAIN], "project/model.py:31 forward", True),
        ([TORCH, CALL], "modules/linear.py:125 forward", False),
        ([NOISE, ALLOCATOR, BACKWARD, PYTHON], "MmBackward0", False),
        ([EMPTY, EMPTY_CUDA, GENERATED_NODE, NODE], "MmBackward0", False),
        ([WORKSPACE, GEMM, TORCH, CALL, OWN, MAIN], "project/model.py:31 forward", True),
        ([WORKSPACE, GEMM, GENERATED_NODE], "MmBackward0", False),
        ([INDUCTOR, OWN, CALL, MAIN], "project/model.py:31 forward", True),
        ([INDUCTOR, RUN_INDUCTOR], "_inductor/utils.py:1 run", False),
        ([WINDOWS_TORCH, WINDOWS_OWN], "proj/train.py:9 main", True),
        ([WINDOWS_TORCH], "modules/module.py:1357 convert", False),
        ([STEPSCOPE, OWN, MAIN], "project/model.py:31 forward", True),
        ([NOISE, ALLOCATOR], "torch::unwind::unwind()", False),
        ([MAIN], "train.py:7 <module>", True),
        ([("<frozen runpy>", 88, "_run_code"), TORCH], "modules/linear.py:125 forward", False),
    ],
)  # fmt: skip
def test_the_innermost_line_of_the_program_stands_for_a_stack(stack, line, is_own):
    lines = lines_of(with_stacks(stack))
    assert lines.select("line", "is_own").rows() == [(line, is_own)]
    assert lines.schema == LINES


def test_generated_code_stands_for_the_line_of_the_model_that_torch_noted():
    trace = (
        '  File "/home/me/project/model.py", line 31, in forward\n    x = self.block(x)\n'
        '  File "/x/site-packages/torch/nn/functional.py", line 5, in gelu\n    return f(x)\n'
    )
    frame = {
        "name": "call", "filename": INDUCTOR[0], "line": 7, "fx_node_op": "call_function",
        "fx_node_name": "gelu", "fx_original_trace": trace,
    }  # fmt: skip
    event = {"action": "alloc", "addr": 512, "size": 1, "stream": 0, "frames": [frame]}
    read = loaded(pickle.dumps({"segments": [], "device_traces": [[event]]}))
    assert lines_of(read).select("line", "is_own").rows() == [("project/model.py:31 forward", True)]


def test_a_function_without_a_known_line_is_told_apart_by_what_it_calls():
    lines = lines_of(with_stacks([TORCH, ("train.py", 0, "main")], [("train.py", 0, "main")]))
    assert lines["line"].to_list() == [
        "train.py main, in modules/linear.py:125 forward",
        "train.py main",
    ]


def test_every_stack_has_a_line():
    odd = {"action": "alloc", "addr": 1, "size": 1, "stream": 0, "frames": [7]}
    read = loaded(pickle.dumps({"segments": [], "device_traces": [[odd]]}))
    assert lines_of(read)["line"].to_list() == [NO_STACK]
    read = loaded(pickle.dumps(plain_training()))
    assert len(lines_of(read)) == len(read.stacks)
    assert lines_of(loaded(pickle.dumps({"segments": [], "device_traces": [[]]}))).is_empty()


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("Optimizer.zero_grad#SGD.zero_grad", "optimizer"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "input"),
        ("## forward ##", "forward"),
        ("loss.backward", "backward"),
        ("nccl:all_reduce", "communication"),
        ("ProfilerStep#3", None),
        ("aten::mm", None),
        ("", None),
    ],
)
def test_phases_by_name(name, phase):
    assert phase_of(name) == phase


def annotated(*entries):
    """Entries: name, whether it starts, time in microseconds, device."""
    annotations = [
        {"name": n, "stage": "START" if s else "END", "time_us": t, "device": d}
        for n, s, t, d in entries
    ]
    snapshot = {"segments": [], "device_traces": [], "external_annotations": annotations}
    return loaded(pickle.dumps(snapshot))


def test_ranges_nest_by_name_and_device():
    found = ranges_of(
        annotated(
            ("ProfilerStep#0", True, 10, 0),
            ("forward", True, 20, 0),
            ("forward", True, 25, 1),
            ("forward", True, 30, 0),
            ("forward", False, 40, 0),
            ("forward", False, 50, 0),
            ("nothing", False, 55, 0),
            ("ProfilerStep#0", False, 60, 0),
            ("step 12", True, 70, 0),
        )
    )
    assert found.table.schema == RANGES
    assert found.unmatched == 1
    assert found.table.select("device", "name", "start_ns", "end_ns", "depth", "step").rows() == [
        (0, "ProfilerStep#0", 10_000, 60_000, 0, 0),
        (0, "forward", 20_000, 50_000, 1, None),
        (1, "forward", 25_000, None, 0, None),
        (0, "forward", 30_000, 40_000, 2, None),
        (0, "step 12", 70_000, None, 0, 12),
    ]
    assert found.steps.rows() == [(0, 0, 10_000, 60_000), (0, 12, 70_000, None)]


def test_a_real_order_of_annotations_in_which_ends_come_late():
    """Two ranges of one name that begin before any of them ends."""
    found = ranges_of(
        annotated(("a", True, 1, 0), ("a", True, 2, 0), ("b", True, 3, 0), ("b", False, 4, 0),
                  ("a", False, 5, 0), ("a", False, 6, 0))
    )  # fmt: skip
    assert found.table.select("name", "start_ns", "end_ns").rows() == [
        ("a", 1000, 6000),
        ("a", 2000, 5000),
        ("b", 3000, 4000),
    ]


TREES = st.recursive(st.just([]), lambda children: st.lists(children, max_size=3), max_leaves=12)


@given(TREES, TREES)
def test_the_innermost_range_at_any_time(one, other):
    entries, time = [], 0

    def write(tree, device):
        nonlocal time
        for child in tree:
            name = f"r{time}"
            entries.append((name, True, time, device))
            time += 1
            write(child, device)
            entries.append((name, False, time, device))
            time += 1

    write(one, 0)
    write(other, 1)
    ranges = ranges_of(annotated(*entries)).table
    times = [t * 1000 + half for t in range(-1, time + 2) for half in (0, 500)]
    for device in (0, 1, 2):
        found = innermost(
            ranges, pl.Series([device] * len(times), dtype=pl.Int32), pl.Series(times)
        )
        for at, row in zip(times, found.to_list(), strict=True):
            inside = ranges.filter(
                (pl.col("device") == device) & (pl.col("start_ns") <= at) & (pl.col("end_ns") > at)
            ).sort("depth")
            assert row == (None if inside.is_empty() else inside["range"][-1])


def test_no_time_is_in_no_range():
    ranges = ranges_of(annotated(("a", True, 1, 0))).table
    found = innermost(ranges, pl.Series([0, 0], dtype=pl.Int32), pl.Series([None, 2000]))
    assert found.to_list() == [None, 0]
