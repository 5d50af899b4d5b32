"""Every question on traces that lack nearly everything: it answers, and never falls over."""

from __future__ import annotations

import functools
import io
import json

import pytest
from tests.support.gpu_trace import GpuTrace, us

import stepscope
from stepscope.advice.diagnosis import diagnose
from stepscope.analysis.questions import QUESTIONS, ask_all
from stepscope.analysis.selection.scope import EventChoice, Scope
from stepscope.errors import UnreadableInputError, UsageError
from stepscope.opening.reader import open_run
from stepscope.report.answer import result_to_dict
from stepscope.trace.model import Trace
from stepscope.trace.paths import resolve_traces

ASKED = [one for one in QUESTIONS if not one.over_ranks]


def _load(events: list[dict]) -> Trace:
    return stepscope.load(io.BytesIO(_file(events)))


def _file(events: list[dict]) -> bytes:
    return json.dumps({"traceEvents": events}).encode()


def _kernel(ts: float, dur: float, **args: object) -> dict:
    args = {"device": 0, "stream": 7, **args}
    return {
        "ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": ts, "dur": dur,
        "args": args,
    }  # fmt: skip


def _host(name: str, ts: float, dur: float, category: str = "cpu_op", **args: object) -> dict:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur,
        "args": args,
    }  # fmt: skip


def _two_devices() -> GpuTrace:
    t = GpuTrace()
    for _ in range(2):
        with t.step():
            t.launch("a", us(30))
            t.launch("b", us(50), device=1)
            t.python(us(200))
    return t


DEGENERATE = {
    "no events": lambda: [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}}
    ],
    "no GPU": lambda: [_host("aten::mm", 1, 5)],
    "no host": lambda: [_kernel(1, 5), _kernel(9, 2)],
    "one kernel": lambda: [_kernel(5, 1)],
    "kernels without duration": lambda: [_kernel(0, 0), _kernel(0, 0)],
    "steps and nothing else": lambda: [
        _host("ProfilerStep#1", 1, 5, "user_annotation"),
        _host("ProfilerStep#2", 6, 0),
    ],
    "steps after all work": lambda: [
        _kernel(1, 5),
        _host("ProfilerStep#1", 100, 5, "user_annotation"),
        _host("aten::mm", 101, 2),
    ],
    "work before its own launch": lambda: [
        _host("cudaLaunchKernel", 50, 5, "cuda_runtime", correlation=1),
        _kernel(10, 5, correlation=1),
        _host("cudaLaunchKernel", 60, 5, "cuda_runtime", correlation=2),
        _kernel(62, 5, correlation=2),
    ],
    "all at once": lambda: [
        _host("cudaLaunchKernel", 5, 0, "cuda_runtime", correlation=1),
        _kernel(5, 3, correlation=1),
        _kernel(5, 3, stream=9),
        _kernel(5, 3, stream=11),
    ],
    "two devices": lambda: _two_devices().document()["traceEvents"],
    "steps numbered far apart": lambda: [
        _host("ProfilerStep#0", 1, 50, "user_annotation"),
        _host("cudaLaunchKernel", 5, 2, "cuda_runtime", correlation=1),
        _kernel(10, 3, correlation=1),
        _host("ProfilerStep#99999", 60, 50, "user_annotation"),
        _host("cudaLaunchKernel", 65, 2, "cuda_runtime", correlation=2),
        _kernel(70, 3, correlation=2),
    ],
    "arguments that are damaged": lambda: [
        _host("nccl:all_reduce", 1, 9, **{"Input Dims": [[4], [4]], "Input type": []}),
        _host("cudaLaunchKernel", 2, 2, "cuda_runtime", correlation=1),
        _kernel(10, 3, correlation=1, **{"registers per thread": 1e30, "grid": [0, -1, 2]}),
        {
            "ph": "i",
            "cat": "cpu_instant_event",
            "name": "[memory]",
            "pid": 1,
            "tid": 1,
            "ts": 3,
            "s": "t",
            "args": {
                "Total Allocated": 2**63,
                "Total Reserved": 1e30,
                "Bytes": 2**63,
                "Device Id": 2**40,
                "Device Type": 1,
                "Addr": -1,
            },
        },
    ],
}


@functools.cache
def _trace(case: str) -> Trace:
    return _load(DEGENERATE[case]())


@pytest.mark.sampled(80)
@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("question", ASKED, ids=lambda one: one.name)
def test_it_answers(question, case: str) -> None:
    trace = _trace(case)
    scopes = [Scope(), Scope(events=EventChoice.LINKED)]
    steps = trace.steps["step"].to_list()
    scopes += [Scope(steps=(steps[-1],))] if steps else []
    for scope in scopes:
        try:
            result = question.ask(trace, scope)
        except UsageError as error:
            # A replay of nothing is no answer; the graph says so.
            assert question.name in {"critical-path", "fusion", "what-if"}
            assert "holds no" in str(error)
            continue
        document = result_to_dict(result)
        json.dumps(document)
        assert document["scope"]["counted"] >= 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", DEGENERATE)
def test_what_it_answers_can_be_shown_and_reported(case: str, tmp_path, monkeypatch) -> None:
    """And compared with itself: an answer, or a word of why there is none, and never a crash."""
    from stepscope.commands.main import main

    monkeypatch.setenv("COLUMNS", "100")
    path = tmp_path / "trace.json"
    path.write_bytes(_file(DEGENERATE[case]()))
    formats = ("table", "json", "csv", "md")
    asked = [["report", "--format", output] for output in formats]
    asked += [["show", q.name, "--format", formats[n % 4]] for n, q in enumerate(ASKED)]
    for arguments in asked:
        assert main([*arguments, str(path)]) in (0, 2, 3), arguments
    assert main(["compare", str(path), str(path)]) in (0, 2, 3)


@pytest.mark.parametrize("case", DEGENERATE)
def test_idle_causes_still_add_up(case: str) -> None:
    from stepscope.analysis.idle import idle_causes
    from stepscope.analysis.timeline import timeline

    trace = _trace(case)
    steps = trace.steps["step"].to_list()
    for asked in (None, *[(step,) for step in steps]):
        for events in EventChoice:
            scope = Scope(steps=asked, events=events)
            causes = idle_causes(trace, scope)
            assert causes.idle_ns == timeline(trace, scope).idle_ns
            assert causes.causes["idle_ns"].sum() == causes.idle_ns
            assert causes.total_ns == timeline(trace, scope).total_ns


def test_two_devices_are_added_up_and_told_apart() -> None:
    from stepscope.analysis.idle import idle_causes
    from stepscope.analysis.timeline import timeline

    trace = _two_devices().load()
    both = timeline(trace)
    parts = [timeline(trace, Scope(devices=(device,))) for device in (0, 1)]
    assert both.compute_ns == sum(part.compute_ns for part in parts) == 2 * us(80)
    assert both.total_ns == sum(part.total_ns for part in parts)
    assert parts[1].scope.excluded == {"GPU events of other devices": 2}
    idle = [idle_causes(trace, Scope(devices=(device,))) for device in (0, 1)]
    assert idle_causes(trace).idle_ns == sum(one.idle_ns for one in idle)


@pytest.mark.parametrize("question", ASKED, ids=lambda one: one.name)
def test_answers_about_a_file_that_is_cut_off_say_so(question, tmp_path):
    content = json.dumps(_two_devices().document())
    for name, length in (("whole", len(content)), ("cut", content.rindex("}, {") + 10)):
        (tmp_path / f"{name}.json").write_text(content[:length])
    notes = {}
    for name in ("whole", "cut"):
        traces = resolve_traces((str(tmp_path / f"{name}.json"),))
        try:
            (answer,) = ask_all(question, traces).answers
        except UsageError:
            pytest.skip("nothing to answer in such a trace")
        notes[name] = "; ".join(answer.result.notes)
    assert "the file is truncated" not in notes["whole"]
    assert "the file is truncated" in notes["cut"]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([_host("aten::mm", 0, 0)] * 3, "none of its events has a duration"),
        (
            [_host("aten::mm", 9 * i, -1) for i in range(3)],
            r"none of its events has a duration \(set negative durations to 0 \(3×\)\)",
        ),
        (
            [{**_host("aten::mm", 0, 1), "ts": None}],
            r"it holds no events \(skipped events without a usable time \('ts'\)\)",
        ),
    ],
)
def test_a_trace_without_any_time_is_not_judged(events, words, tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(_file(events))
    with pytest.raises(UnreadableInputError, match=f"nothing to judge: {words}$"):
        diagnose(open_run(str(path)))
