"""What is said of steps without GPU work, by what they launched and what others did on the GPU."""

from __future__ import annotations

from tests.support.gpu_trace import GpuTrace, ms

from stepscope.advice.rules import trace_incomplete
from stepscope.advice.subject import Subject
from stepscope.advice.window_view import WindowView


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
    assert view.graph.steps == (1, 2, 3, 4, 5)
    return view, trace_incomplete.find(Subject(0, window=view))


def test_steps_that_launch_nothing_lack_no_gpu_work():
    view, findings = found({0}, {0})
    assert not view.has_gpu
    assert findings == []


def test_work_that_only_the_start_has_is_not_said_to_be_missing_from_the_trace():
    _, (finding,) = found(range(6), {0})
    assert finding.title == (
        "kernels were launched, but GPU work was recorded outside these steps only"
    )
    # Those of the start are not among them.
    assert [(item.label, item.value) for item in finding.evidence] == [
        ("calls that launch kernels", 5)
    ]
    assert trace_incomplete.lacks_gpu_work(finding)


def test_a_trace_without_any_gpu_work_says_so():
    _, (finding,) = found(range(6), ())
    assert finding.title == "kernels were launched, but the trace has no GPU work"
