"""Steps that nobody annotated, and the thread that runs them."""

from __future__ import annotations

import itertools

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.tables import TableBuilder

from stepscope.trace.derive.columns import derive
from stepscope.trace.derive.main_thread import find_main_lane
from stepscope.trace.derive.unannotated_steps import describe
from stepscope.trace.model import Trace

BATCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
STEP = "Optimizer.step#SGD.step"
MEAN = "autograd::engine::evaluate_function: MeanBackward0"


def annotate(build, name, start, dur, **more):
    return build.host(name, start, dur, category="user_annotation", **more)


def iteration(build, start, *, batch=True, step=True, name=STEP):
    """100 ns: fetch 10, forward 30, backward 30, optimizer 10, and 20 of nothing."""
    if batch:
        annotate(build, BATCH, start, 10)
    build.host("aten::linear", start + 10, 30)
    build.host(MEAN, start + 40, 30)
    if step:
        annotate(build, name, start + 70, 10)
        build.host("aten::add_", start + 72, 5)


def found(build):
    tables = build.build()
    steps = derive(tables).host_steps
    source = describe(steps, tables.names, tables.events.select("name_id"))
    return steps.select("step", "start_ns", "end_ns").rows(), source


def test_a_step_begins_with_its_batch_and_the_last_has_the_usual_tail():
    build = TableBuilder()
    build.host("aten::empty", -500, 5)
    for number in range(3):
        iteration(build, 100 * number)
    build.host("aten::item", 285, 400)
    assert found(build) == (
        [(0, 0, 100), (1, 100, 200), (2, 200, 300)],
        "3 optimizer steps taken as steps",
    )


def test_accumulation_has_several_batches_in_a_step():
    build = TableBuilder()
    for number in range(8):
        iteration(build, 100 * number, step=number % 4 == 3)
    steps, source = found(build)
    assert steps == [(0, 0, 400), (1, 400, 780)]
    assert source == "2 optimizer steps taken as steps"


def test_an_evaluation_between_two_epochs_is_outside_the_steps():
    build = TableBuilder()
    for number in range(12):
        iteration(build, 100 * number, step=not 3 <= number < 9)
    steps, _ = found(build)
    assert [start for _, start, _ in steps] == [0, 100, 200, 900, 1000, 1100]
    assert steps[2] == (2, 200, 300)


def test_the_attempt_that_ends_an_epoch_belongs_to_the_next_step():
    build = TableBuilder()
    for number in range(4):
        iteration(build, 100 * number)
    annotate(build, BATCH, 400, 5)
    for number in range(5, 9):
        iteration(build, 100 * number)
    steps, _ = found(build)
    assert steps[4] == (4, 400, 600)
    assert len(steps) == 8


def test_without_batches_a_step_ends_with_the_optimizer():
    build = TableBuilder()
    for number in range(3):
        iteration(build, 100 * number, batch=False)
    assert found(build)[0] == [(0, 10, 80), (1, 80, 180), (2, 180, 280)]


def test_two_optimizers_one_after_the_other_step_once():
    build = TableBuilder()
    for number in range(3):
        iteration(build, 100 * number)
        annotate(build, "Optimizer.step#Muon.step", 100 * number + 82, 5)
    assert found(build)[0] == [(0, 0, 100), (1, 100, 200), (2, 200, 287)]


def test_zero_grad_alone_is_no_step():
    build = TableBuilder()
    for number in range(4):
        annotate(build, "Optimizer.zero_grad#SGD.zero_grad", 100 * number, 5)
        build.host("aten::linear", 100 * number + 10, 30)
    assert found(build) == ([], "")


def test_batches_are_steps_where_nothing_is_optimized():
    build = TableBuilder()
    for number in range(3):
        annotate(build, BATCH, 100 * number, 10)
        build.host("aten::linear", 100 * number + 10, 30)
    annotate(build, BATCH, 300, 5)
    assert found(build) == (
        [(0, 0, 100), (1, 100, 200), (2, 200, 300)],
        "3 batches of the DataLoader taken as steps",
    )


@pytest.mark.parametrize(
    ("names", "source"),
    [
        (("train_step",) * 3, "3 ranges 'train_step' taken as steps"),
        (("batch 1", "batch 2", "batch 3"), "3 ranges 'batch N' taken as steps"),
        (
            ("execute_new_1_cached_7", "execute_new_0_cached_8", "execute_new_0_cached_8"),
            "3 ranges 'execute_new_N_cached_N' taken as steps",
        ),
    ],
)
def test_repeated_ranges_are_steps(names, source):
    build = TableBuilder()
    for number, name in enumerate(names):
        annotate(build, name, 100 * number, 60)
        build.host("aten::linear", 100 * number + 10, 30)
    assert found(build) == ([(0, 0, 100), (1, 100, 200), (2, 200, 260)], source)


def test_of_ranges_that_alternate_the_first_begins_a_step():
    build = TableBuilder()
    for number in range(3):
        annotate(build, "prefill", 100 * number, 20)
        build.host("aten::linear", 100 * number + 5, 10)
        annotate(build, "decode", 100 * number + 30, 60)
        build.host("aten::linear", 100 * number + 35, 40)
    assert found(build) == (
        [(0, 0, 100), (1, 100, 200), (2, 200, 220)],
        "3 ranges 'prefill' taken as steps",
    )


def test_ranges_around_little_of_the_work_are_no_steps():
    build = TableBuilder()
    for number in range(3):
        annotate(build, "logging", 100 * number, 5)
        build.host("aten::item", 100 * number + 1, 2)
        for place in range(3):
            build.host("aten::linear", 100 * number + 10 + 20 * place, 15)
    assert found(build) == ([], "")


def test_calls_of_the_outermost_module_are_steps():
    build = TableBuilder()
    for number in range(3):
        start = 100 * number
        build.host("nn.Module: Net_0", start, 60, category="python_function")
        build.host("nn.Module: Linear_0", start + 5, 40, category="python_function")
        build.host("aten::linear", start + 10, 30)
    assert found(build) == (
        [(0, 0, 100), (1, 100, 200), (2, 200, 260)],
        "3 calls of the module Net_0 taken as steps",
    )


@settings(max_examples=3 * settings.default.max_examples // 2, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([BATCH, STEP, MEAN, "aten::mm", "train_step", "nn.Module: Net_0"]),
            st.integers(0, 20),
            st.integers(0, 10),
        ),
        max_size=30,
    )
)
def test_steps_are_in_order_and_never_overlap(told):
    build, now = TableBuilder(), 0
    for name, pause, length in told:
        category = "cpu_op"
        if name in (BATCH, STEP, "train_step"):
            category = "user_annotation"
        elif name.startswith("nn.Module"):
            category = "python_function"
        now += pause
        build.host(name, now, length, category=category)
        now += length
    steps = derive(build.build()).host_steps
    times = steps.select("start_ns", "end_ns").rows()
    assert all(start <= end for start, end in times)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(times))
    assert steps["step"].to_list() == list(range(len(times)))


def test_annotations_win():
    build = TableBuilder()
    build.step(7, 0, 300)
    for number in range(3):
        iteration(build, 100 * number)
    assert found(build) == ([(7, 0, 300)], "")


def test_what_was_taken_as_steps_is_among_the_problems():
    build = TableBuilder()
    for number in range(3):
        iteration(build, 100 * number)
    problems = derive(build.build()).problems
    row = problems.filter(pl.col("problem") == "steps_not_annotated").row(0, named=True)
    assert "3 optimizer steps taken as steps" in row["message"]
    assert "only if the profiler has a schedule" in row["message"]


def main_thread(build):
    tables = build.build()
    lane = find_main_lane(tables.events, tables.names)
    return None if lane is None else tables.lanes["tid"][lane]


def test_a_thread_that_only_waits_for_the_device_is_the_main_one():
    build = TableBuilder()
    build.host("cudaDeviceSynchronize", 0, 50, thread=4, category="runtime")
    build.host("main.py(1): f", 0, 90, thread=5, category="python_function")
    assert main_thread(build) == "4"


def test_the_main_thread_is_not_the_one_with_most_launches():
    build = TableBuilder()
    annotate(build, BATCH, 0, 500, thread=1)
    build.host("aten::linear", 510, 20, thread=1)
    build.launch(512, 2, 600, 5)
    build.host(MEAN, 540, 400, thread=2)
    for number in range(9):
        call = build.host(
            "cudaLaunchKernel", 550 + number, 1, thread=2, category="runtime", correlation=90
        )
    assert call
    assert main_thread(build) == "1"


def test_without_loader_and_optimizer_the_engine_is_left_out():
    build = TableBuilder()
    build.host("aten::linear", 0, 20, thread=1)
    build.host(MEAN, 30, 400, thread=2)
    build.host("aten::mm", 40, 300, thread=2)
    assert main_thread(build) == "1"


def test_who_steps_the_optimizer_comes_before_who_waits_for_batches():
    build = TableBuilder()
    annotate(build, BATCH, 0, 500, thread=9)
    annotate(build, STEP, 100, 5, thread=1)
    build.host("aten::add_", 101, 2, thread=1)
    assert main_thread(build) == "1"


def test_who_calls_backward_is_the_main_thread():
    build = TableBuilder()
    build.host("torch/_tensor.py(630): backward", 0, 50, thread=1, category="python_function")
    build.host("aten::mm", 10, 300, thread=2)
    assert main_thread(build) == "1"


def test_without_any_activity_there_is_no_main_thread():
    build = TableBuilder()
    build.gpu("kernel", 0, 5)
    assert main_thread(build) is None


def unannotated_gpu_training() -> Trace:
    """The autograd thread launches three times as much as the main one, which waits for batches."""
    t = GpuTrace(annotate_steps=False)
    for _ in range(4):
        with t.step():
            t.data_wait(ms(8))
            for _ in range(4):
                t.op("aten::mm").launch("gemm_forward", us(200))
            with t.thread(), t.op(MEAN):
                for _ in range(12):
                    t.op("aten::mm").launch("gemm_backward", us(200))
            with t.annotate(STEP):
                t.op("aten::_fused_sgd_").launch("multi_tensor_apply_kernel", us(100))
    return t.load()


def test_a_gpu_training_without_annotations_is_divided_by_its_main_thread():
    from stepscope.analysis.input_pipeline import input_pipeline

    trace = unannotated_gpu_training()
    assert trace.lanes["thread_name"][trace.main_lane] == "python"
    assert trace.step_source == "4 optimizer steps taken as steps"
    answer = input_pipeline(trace)
    assert answer.wait_ns == 4 * ms(8)
    assert answer.waits == 4
