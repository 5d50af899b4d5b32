"""The main thread's partition, on small traces whose answer can be worked out by hand."""

from __future__ import annotations

import io
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analysis.host.partition import BRIDGED_GAP_NS, PARTS, partition_host
from stepscope.analysis.selection.partition import OTHER
from stepscope.trace.load import load

NAMES = {
    "input": ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation"),
    "wait": ("stepscope.data_wait", "user_annotation"),
    "communication": ("c10d::allreduce_", "cpu_op"),
    "communication phase": ("communication", "user_annotation"),
    "optimizer": ("Optimizer.step#AdamW.step", "user_annotation"),
    "backward": ("autograd::engine::evaluate_function: AddmmBackward0", "cpu_op"),
    "forward": ("aten::linear", "cpu_op"),
    "none": ("my own words", "user_annotation"),
}


def event(kind, start_us, duration_us, thread=1):
    name, category = NAMES.get(kind, (kind, "user_annotation"))
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 7,
        "tid": thread,
        "ts": start_us,
        "dur": duration_us,
    }


def trace_of(*events):
    return load(io.BytesIO(json.dumps({"traceEvents": list(events)}).encode()))


def test_a_step_with_everything_in_it():
    result = partition_host(
        trace_of(
            event("ProfilerStep#4", 0, 10_000),
            event("input", 0, 3_000),
            event("wait", 0, 3_100),
            event("forward", 3_100, 1_000),
            event("forward", 4_200, 900),  # 100 µs after the one before: dispatch
            event("backward", 6_100, 1_000),  # 1 ms after forward: Python outside operators
            event("communication", 6_500, 200),  # inside backward, and first in rank
            event("optimizer", 7_100, 900),
            event("none", 8_000, 2_000),
            event("forward", 0, 9_000, thread=2),  # another thread's work is not the step's
        )
    )
    assert result is not None
    row = result.steps.to_dicts()[0]
    assert row == {
        "step": 4,
        "wall_ns": 10_000_000,
        "compilation_ns": 0,
        "input_ns": 3_100_000,
        "communication_ns": 200_000,
        "optimizer_ns": 900_000,
        "backward_ns": 800_000,
        "forward_ns": 2_000_000,
        "other_ns": 3_000_000,
    }
    assert {part.name: part.total_ns for part in result.partition.parts} == {
        name: row[f"{name}_ns"] for name in (*PARTS, OTHER)
    }


def test_a_collective_that_holds_the_thread_is_communication_to_its_end():
    # The call is short, and the wait for its thread is no operator: the phase has both.
    result = partition_host(
        trace_of(
            event("ProfilerStep#4", 0, 10_000),
            event("forward", 0, 4_000),
            event("communication phase", 4_000, 6_000),
            event("communication", 4_100, 100),
        )
    )
    assert result is not None
    found = {part.name: part.total_ns for part in result.partition.parts}
    assert (found["communication"], found["forward"], found[OTHER]) == (6_000_000, 4_000_000, 0)


def test_an_operator_belongs_to_the_steps_that_it_spans():
    result = partition_host(
        trace_of(
            event("ProfilerStep#0", 0, 1_000),
            event("ProfilerStep#1", 1_000, 1_000),
            event("forward", 900, 300),
        )
    )
    assert result is not None
    assert result.steps["forward_ns"].to_list() == [100_000, 200_000]


def test_a_last_step_in_which_nothing_ran_is_left_out_and_told():
    result = partition_host(
        trace_of(
            event("ProfilerStep#8", 0, 1_000),
            event("forward", 100, 300),
            event("ProfilerStep#9", 1_000, 5),
        )
    )
    assert result is not None
    assert result.steps["step"].to_list() == [8]
    assert result.excluded_steps == (9,)


def test_a_trace_without_steps_is_one_whole():
    result = partition_host(trace_of(event("forward", 0, 10)))
    assert result is not None
    assert result.steps["step"].to_list() == [0]
    assert result.partition.total_ns == result.partition.of("forward") > 0


moments = st.integers(0, 60)


@settings(max_examples=3 * settings.default.max_examples // 2, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(NAMES)), moments, st.integers(0, 30)), max_size=12),
    st.lists(st.integers(1, 40), min_size=1, max_size=3),
)
def test_against_a_count_of_single_ticks(events, lengths):
    """A tick is 50 µs, so that the bridged gap is four ticks; each tick is labelled on its own."""
    tick_us = 50
    boundaries = np.concatenate(([0], np.cumsum(lengths)))
    steps = [
        event(f"ProfilerStep#{n}", int(begin) * tick_us, (int(end) - int(begin)) * tick_us)
        for n, (begin, end) in enumerate(itertools.pairwise(boundaries))
    ]
    result = partition_host(
        trace_of(*steps, *(event(k, s * tick_us, d * tick_us) for k, s, d in events))
    )
    assert result is not None

    horizon = 200
    label = np.full(horizon, -1)
    order = {"wait": "input", "communication phase": "communication", "none": None}
    for part in reversed(PARTS):
        for kind, start, duration in events:
            if order.get(kind, kind) == part:
                label[start : start + duration] = PARTS.index(part)
    bridged = BRIDGED_GAP_NS // (tick_us * 1000)
    exact = label.copy()
    labelled = np.flatnonzero(exact >= 0)
    for left, right in itertools.pairwise(labelled):
        if 1 < right - left <= bridged + 1 and exact[left] == exact[right]:
            label[left + 1 : right] = exact[left]

    table = {row["step"]: row for row in result.steps.to_dicts()}
    for n, (begin, end) in enumerate(itertools.pairwise(boundaries)):
        if n in result.excluded_steps:
            assert (label[begin:end] < 0).all()
            continue
        for number, part in enumerate(PARTS):
            ticks = int((label[begin:end] == number).sum())
            assert table[n][f"{part}_ns"] == ticks * tick_us * 1000, part
        assert sum(table[n][f"{p}_ns"] for p in (*PARTS, OTHER)) == table[n]["wall_ns"]


def test_input_is_found_in_a_real_window(tmp_path):
    torch = pytest.importorskip("torch")
    from stepscope import Profiler, open_run

    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            import time

            time.sleep(0.01)
            return torch.ones(4)

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Profiler(output_dir=tmp_path, wait=1, warmup=1, active=3) as profiler:
        for batch in profiler.watch(torch.utils.data.DataLoader(Slow(), batch_size=1)):
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    (window,) = open_run(tmp_path).windows
    assert window.trace_path is not None
    result = partition_host(load(window.trace_path))
    assert result is not None
    assert result.steps["step"].to_list() == [2, 3, 4]
    assert (result.steps["input_ns"] >= 10_000_000).all()
    for part in ("forward", "backward", "optimizer"):
        assert (result.steps[f"{part}_ns"] > 0).all(), part


@pytest.mark.parametrize(
    ("name", "is_batch"),
    [
        ("train.py(9): get_batch", True),
        ("lib/data.py(120): generate_data", True),
        ("train.py(9): forward", False),
        ("train.py(9): get_batch_size", False),
        ("train.py(9): _next_data", False),
        ("stepscope/capture/steps/loader_waits.py(84): next_batch", False),
    ],
)
def test_what_a_function_does_that_makes_a_batch_is_input(name, is_batch):
    result = partition_host(
        trace_of(
            event("ProfilerStep#4", 0, 1_000),
            event(name, 0, 700) | {"cat": "python_function"},
            event("forward", 100, 500),
            event("backward", 700, 300),
        )
    )
    assert result is not None
    parts = {part.name: part.total_ns for part in result.partition.parts if part.total_ns}
    if is_batch:
        assert parts == {"input": 700_000, "backward": 300_000}
    else:
        assert parts == {"forward": 500_000, "backward": 300_000, "other": 200_000}
