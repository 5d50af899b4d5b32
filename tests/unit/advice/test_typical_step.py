"""The step that a page draws: which one it is, how it is bounded, and that nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.chrome_traces import write
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.viewer import training

from stepscope.advice.rank.window_answers import MOST_SLICES, thread_title, typical_step
from stepscope.advice.rank.window_details import BUCKETS
from stepscope.analysis.call_tree import build_call_tree
from stepscope.analysis.operators import analyse_operators
from stepscope.analysis.selection.scope import Scope
from stepscope.analysis.timeline import timeline
from stepscope.trace.load import load

RANGES = "main thread: ranges"


def steps_of(*waits_ms, kernels=4, kernel_us=200):
    """A training whose steps wait so long for their input, then run so many kernels."""
    t = GpuTrace()
    for wait in waits_ms:
        with t.step():
            t.data_wait(ms(wait))
            for number in range(kernels):
                t.op("aten::mm").launch(f"sgemm_{number}", us(kernel_us))
            t.sync()
    return t.load()


def lanes_of(step):
    return {lane.title: lane for lane in step.lanes}


def test_it_is_the_steady_step_nearest_to_the_median():
    trace = steps_of(1, 9, 2, 3, 30)
    found = typical_step(trace, (0, 1, 2, 3, 4))
    assert found.step == 3
    assert typical_step(trace, (1, 4)).step in {1, 4}
    row = trace.device_steps.row(3, named=True)
    assert (found.device, found.dur_ns) == (0, row["end_ns"] - row["start_ns"])


def test_what_is_drawn_of_a_gpu_adds_up_to_the_step_s_partition():
    trace = training().load()
    found = typical_step(trace, (0, 1, 2))
    scope = Scope(steps=(found.step,))
    known = timeline(trace, scope)
    lanes = lanes_of(found)
    idle = sum(one.dur_ns for one in lanes["GPU idle"].slices)
    work = [one for name, lane in lanes.items() if name.startswith("stream") for one in lane.slices]
    assert idle == known.idle_ns
    compute = sum(one.dur_ns for one in work if one.what == "compute")
    assert compute == known.compute_ns
    assert {one.what for one in work} == {"compute", "communication", "memcpy"}
    for lane in found.lanes:
        for one in lane.slices:
            assert 0 <= one.start_ns <= one.start_ns + one.dur_ns <= found.dur_ns


def test_of_many_slices_the_longest_are_drawn_and_the_others_kept_as_a_share():
    t = GpuTrace()
    for _ in range(3):
        with t.step():
            for number in range(700):
                t.op("aten::mul").launch("tiny", us(3 + number % 7))
            t.sync()
    trace = t.load()
    found = typical_step(trace, (0, 1, 2))
    drawn = sum(len(lane.slices) for lane in found.lanes)
    assert 0 < drawn <= MOST_SLICES
    (stream,) = [lane for lane in found.lanes if lane.title.startswith("stream")]
    assert stream.others + len(stream.slices) == 700
    assert len(stream.rest) == BUCKETS
    assert stream.rest_what == "compute"
    assert all(0 <= share <= 1 for share in stream.rest)
    covered = np.sum(stream.rest) * found.dur_ns / BUCKETS
    covered += sum(one.dur_ns for one in stream.slices)
    known = timeline(trace, Scope(steps=(found.step,))).compute_ns
    assert covered == pytest.approx(known, rel=0.01)


def test_of_what_is_nested_only_the_outermost_is_drawn():
    t = GpuTrace()
    for _ in range(3):
        with t.step():
            with t.op("aten::linear"):
                t.op("aten::addmm").launch("sgemm", us(100))
            t.python(ms(1))
            t.sync()
    found = typical_step(t.load(), (0, 1, 2))
    names = {one.name for one in lanes_of(found)["main thread: operators"].slices}
    assert "aten::linear" in names
    assert "aten::addmm" not in names


def test_ranges_that_stepscope_writes_have_no_name_of_its_own():
    t = GpuTrace()
    for _ in range(3):
        with t.step():
            with t.annotate("stepscope.data_wait"):
                t.python(ms(5))
            with t.annotate("my phase"):
                t.op("aten::mm").launch("sgemm", us(100))
            t.sync()
    trace = t.load()
    names = {one.name for one in lanes_of(typical_step(trace, (0, 1, 2)))[RANGES].slices}
    assert names >= {"wait for the batch", "my phase"}
    assert not any(name.startswith("stepscope.") for name in names)
    tables = (analyse_operators(trace, Scope()).table, build_call_tree(trace).nodes)
    for table in tables:
        assert "wait for the batch" in table["name"].to_list()
        assert not table["name"].str.starts_with("stepscope.").any()


def test_without_steps_there_is_none():
    t = GpuTrace()
    t.op("aten::mm").launch("sgemm", us(100))
    assert typical_step(t.load(), ()) is None


def test_of_operators_that_last_equally_long_the_first_of_the_file_is_drawn(tmp_path):
    here = {"ph": "X", "pid": 5, "tid": 5}
    events = [
        here | {"cat": "user_annotation", "name": f"ProfilerStep#{n}", "ts": 5000 * n, "dur": 5000}
        for n in range(2)
    ]
    for number in range(20):
        span = {"cat": "cpu_op", "ts": 200 * number, "dur": 199}
        nested = ("aten::to", *(f"aten::_to_copy_{depth}" for depth in range(200)))
        events += [here | span | {"name": name} for name in nested]
    path = tmp_path / "trace.json"
    path.write_bytes(write(events))
    lanes = lanes_of(typical_step(load(path), (0, 1)))
    names = {one.name for one in lanes["main thread: operators"].slices}
    assert names == {"aten::to"}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("thread 639 (pt_autograd_0)", "pt_autograd_0"),
        ("thread 785244 (python3.8)", "thread 785244"),
        ("loader", "loader"),
        ("", "thread 7"),
    ],
)
def test_a_thread_is_named_by_what_tells_it_from_others(given, shown):
    assert thread_title(given, 7) == shown
