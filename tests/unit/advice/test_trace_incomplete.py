"""What is said of steps without GPU work, by what they launched and what others did on the GPU."""

from __future__ import annotations

from tests.support.gpu_trace import GpuTrace, ms, us

from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.rules.recording import find_trace_incomplete


def found(launching_steps, recorded_steps):
    """The findings of a trace of six steps, some of which use the GPU, and some are recorded.

    The first step is a slow start, which is no steady step.
    """
    t = GpuTrace()
    lost = []
    for number in range(6):
        with t.step(dur_ns=ms(200 if number == 0 else 20)):
            before = len(t.events)
            t.op("aten::relu").python(ms(2))
            if number in launching_steps:
                t.op("aten::mm").launch("gemm", ms(1))
                t.sync()
            if number not in recorded_steps:
                lost += [e for e in t.events[before:] if e["cat"] == "kernel"]
    t.events = [event for event in t.events if event not in lost]
    view = WindowView(t.load())
    return view, find_trace_incomplete(Subject(0, window=view))


def test_steps_that_launch_nothing_lack_no_gpu_work():
    view, findings = found({0}, {0})
    assert view.graph.steps == (1, 2, 3, 4, 5)
    assert not view.has_gpu
    assert findings == []


def test_steps_whose_work_is_missing_are_counted_and_left_out():
    view, (finding,) = found(range(6), {0})
    assert view.graph.steps == (0,)
    assert finding.title == "the GPU's work of 5 of 6 steps was not recorded"
    assert [(item.label, item.value) for item in finding.evidence] == [
        ("launches without GPU work", 5)
    ]


def test_a_trace_without_any_gpu_work_says_so():
    view, (finding,) = found(range(6), ())
    assert view.graph.steps == (1, 2, 3, 4, 5)
    assert finding.title == "kernels were launched, but the trace has no GPU work"


def test_the_only_step_with_its_work_takes_no_longer_than_that():
    """The host runs ahead: when the work of the steps before ended, nobody knows."""
    t = GpuTrace()
    for _ in range(6):
        with t.step():
            for _ in range(20):
                t.op("aten::mm").launch("gemm", us(400))
    last = t.calls[-20].start_ns
    early = {e["args"]["correlation"] for e in t.events if "Launch" in e["name"] and e["ts"] < last}
    t.events = [
        e for e in t.events if e["cat"] != "kernel" or e["args"]["correlation"] not in early
    ]
    view = WindowView(t.load())
    assert view.graph.steps == (5,)
    assert view.step_ns == ms(8)


def test_work_of_recorded_operators_was_not_launched_before_the_recording():
    t = GpuTrace()
    for _ in range(6):
        with t.step():
            for _ in range(20):
                t.op("aten::mm").launch("gemm", us(400))
    second = next(e["ts"] for e in t.events if e["name"] == "ProfilerStep#2")
    t.events = [e for e in t.events if e["ts"] >= second or e["cat"] != "cuda_runtime"]
    (finding,) = find_trace_incomplete(Subject(0, window=WindowView(t.load())))
    assert finding.title == "33% of the GPU work has no launch in the trace"
