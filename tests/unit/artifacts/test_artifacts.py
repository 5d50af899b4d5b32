"""Tables and stacks from a raw trace, against brute force and against torch's own table."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import inspect
import json
import sys
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.runs import steps_in_trace

from stepscope.artifacts.calls import OPERATOR, Call, gather, nested
from stepscope.artifacts.finish import finish
from stepscope.artifacts.job import FinishJob, RawTrace, RawTraceError, blocks_with_names
from stepscope.artifacts.key_averages import key_averages
from stepscope.artifacts.stacks import folded, frame
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.option import option, options_of
from stepscope.capture.windows.recorder import artifact_options
from stepscope.run.manifest import ArtifactRecord


def event(name, ts, dur, cat="cpu_op", tid=1, **args):
    where = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid}
    return {**where, "ts": ts, "dur": dur, "args": args}


def write_like_kineto(path, events, tail='],"traceName": "x" }'):
    """Lay events out as torch does: one key to a line, events separated on lines of their own."""
    pieces = []
    for item in events:
        lines = ",\n    ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in item.items())
        pieces.append("  {\n    " + lines + "\n  }")
    head = ' {\n    "schemaVersion": 1,\n    "traceEvents": [\n    \n'
    path.write_text(head + ",\n".join(pieces) + "\n  " + tail)
    return path


intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=12)


@st.composite
def nested_calls(draw, low=0, high=64, depth=4):
    """Calls that nest properly, as a list of (start, duration)."""
    result = []
    cursor = low
    while cursor < high and depth and draw(st.booleans()):
        start = draw(st.integers(cursor, high - 1))
        end = draw(st.integers(start + 1, high))
        result.append((start, end - start))
        result += draw(nested_calls(start, end, depth - 1))
        cursor = end
    return result


@given(nested_calls())
def test_self_times_of_nested_calls_against_brute_force(pairs):
    calls = [Call(str(n), OPERATOR, start, dur) for n, (start, dur) in enumerate(pairs)]
    calls.sort(key=lambda call: (call.start_ns, -call.dur_ns))
    list(nested(calls, OPERATOR))
    expected = dict.fromkeys(range(len(calls)), 0)
    for moment in range(65):
        inside = [n for n, c in enumerate(calls) if c.start_ns <= moment < c.start_ns + c.dur_ns]
        if inside:
            # The innermost is the shortest; of equals the later in the order.
            expected[min(inside, key=lambda n: (calls[n].dur_ns, -n))] += 1
    assert {n: call.self_ns for n, call in enumerate(calls)} == expected


@given(intervals)
def test_no_time_is_counted_twice_whatever_overlaps(pairs):
    calls = [Call(str(n), OPERATOR, start, dur) for n, (start, dur) in enumerate(pairs)]
    calls.sort(key=lambda call: (call.start_ns, -call.dur_ns))
    list(nested(calls, OPERATOR))
    covered = {m for call in calls for m in range(call.start_ns, call.start_ns + call.dur_ns)}
    assert sum(call.self_ns for call in calls) <= len(covered) + sum(
        max(0, a.start_ns + a.dur_ns - b.start_ns)
        for a in calls
        for b in calls
        if a.start_ns < b.start_ns < a.start_ns + a.dur_ns < b.start_ns + b.dur_ns
    )
    for call in calls:
        assert 0 <= call.self_ns <= call.dur_ns
        place, seen = call.parent, 0
        while place is not None:
            place, seen = place.parent, seen + 1
            assert seen <= len(calls)


def test_a_step_that_begins_inside_its_marking_call_is_not_inside_it():
    window = gather(
        [
            event("_enter_", 0, 10, "python_function"),
            event("ProfilerStep#1", 8, 100, "user_annotation"),
            event("aten::mm", 9, 40),
        ],
        {},
    )
    host, _ = folded(window)
    assert host == {"_enter_": 8_000, "ProfilerStep#1": 60_000, "ProfilerStep#1;aten::mm": 40_000}


def test_device_work_goes_to_the_operator_that_launched_it():
    window = gather(
        [
            event("aten::linear", 0, 100, **{"External id": 1}),
            event("aten::mm", 10, 50, **{"External id": 2}),
            event("cudaLaunchKernel", 20, 5, "cuda_runtime", correlation=7),
            event("gemm", 200, 30, "kernel", tid=7, **{"External id": 2, "correlation": 7}),
            event("cudaMemcpyAsync", 70, 5, "cuda_runtime", correlation=8),
            event("Memcpy HtoD", 230, 11, "gpu_memcpy", tid=7, correlation=8),
            event("orphan", 300, 4, "kernel", tid=7),
            event("step", 200, 30, "gpu_user_annotation", tid=7),
        ],
        {},
    )
    averages = key_averages(window)
    rows = {row.name: row for row in averages.operators}
    assert rows["aten::mm"].self_device_ns == rows["aten::mm"].device_ns == 30_000
    assert rows["aten::linear"].self_device_ns == 11_000
    assert rows["aten::linear"].device_ns == 41_000
    assert rows["aten::linear"].self_cpu_ns == 45_000
    assert averages.unlinked_device_ns == 4_000
    total = sum(row.self_device_ns for row in averages.operators) + averages.unlinked_device_ns
    assert total == sum(row.device_ns for row in averages.device) == 45_000
    _, device = folded(window)
    assert device == {
        "aten::linear;aten::mm;cudaLaunchKernel;gemm": 30_000,
        "aten::linear;cudaMemcpyAsync;Memcpy HtoD": 11_000,
        "orphan": 4_000,
    }


def test_memory_goes_to_the_innermost_operator():
    def memory(ts, size, device_type=0):
        args = {"Bytes": size, "Device Type": device_type, "Device Id": 0}
        return {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": ts, "args": args}

    window = gather(
        [
            event("outer", 0, 100),
            event("inner", 10, 20),
            memory(15, 64),
            memory(50, -16),
            memory(60, 512, device_type=1),
            memory(500, 9999),
        ],
        {},
    )
    rows = {row.name: row for row in key_averages(window).operators}
    assert (rows["inner"].self_cpu_bytes, rows["inner"].cpu_bytes) == (64, 64)
    assert (rows["outer"].self_cpu_bytes, rows["outer"].cpu_bytes) == (-16, 48)
    assert (rows["outer"].self_device_bytes, rows["outer"].device_bytes) == (512, 512)


def test_a_recursive_operator_counts_its_launches_once():
    window = gather(
        [
            event("f", 0, 100, **{"External id": 1}),
            event("g", 5, 2),
            event("f", 10, 50, **{"External id": 2}),
            event("k", 200, 30, "kernel", tid=7, **{"External id": 2}),
        ],
        {},
    )
    row = next(row for row in key_averages(window).operators if row.name == "f")
    assert (row.calls, row.self_cpu_ns, row.cpu_ns, row.device_ns) == (2, 98_000, 150_000, 30_000)


def test_steps_are_one_row():
    window = gather(
        [
            event("ProfilerStep#7", 0, 100, "user_annotation"),
            event("aten::mm", 10, 50),
            event("ProfilerStep#8", 100, 40, "user_annotation"),
        ],
        {},
    )
    rows = {row.name: row for row in key_averages(window).operators}
    assert rows.keys() == {"ProfilerStep*", "aten::mm"}
    row = rows["ProfilerStep*"]
    assert (row.calls, row.self_cpu_ns, row.cpu_ns) == (2, 90_000, 140_000)


def test_a_call_that_only_dispatches_to_its_own_name_is_one_call():
    window = gather([event("f", 0, 100), event("f", 10, 50)], {})
    (row,) = key_averages(window).operators
    assert (row.calls, row.self_cpu_ns, row.cpu_ns) == (1, 100_000, 100_000)


@pytest.mark.parametrize(
    ("given_name", "expected"),
    [("a;b", "a,b"), ("two\nlines", "two?lines"), (" spaced ", "spaced"), ("größe", "größe")],
)
def test_frames_cannot_break_a_line(given_name, expected):
    assert frame(given_name) == expected


# -- reading what torch wrote ---------------------------------------------------------------------


def test_pieces_are_the_events_whatever_the_block_size(tmp_path, monkeypatch):
    from stepscope.artifacts import job as raw

    events = [event(f"n{n}" * (n % 7), n, 1, x=[1, 2], y="},\\n") for n in range(50)]
    path = write_like_kineto(tmp_path / "t.json", events)
    for size in (64, 97, 1000, 1 << 20):
        monkeypatch.setattr(raw, "_BLOCK_BYTES", size)
        trace = RawTrace(path)
        assert list(trace.events()) == events
        assert trace.broken_events == 0


def test_broken_events_are_counted_and_the_rest_is_read(tmp_path):
    path = write_like_kineto(
        tmp_path / "t.json", [event("a", 0, 1), event("QUOTE", 2, 1), event("c", 4, 1)]
    )
    path.write_bytes(path.read_bytes().replace(b'"QUOTE"', b'"un"quoted"'))
    trace = RawTrace(path)
    assert [item["name"] for item in trace.events()] == ["a", "c"]
    assert trace.broken_events == 1
    assert "quoted" in trace.first_problem


def test_invalid_text_in_a_name_is_replaced(tmp_path):
    path = write_like_kineto(tmp_path / "t.json", [event("NAME", 0, 1)])
    path.write_bytes(path.read_bytes().replace(b"NAME", b"\xff\xfe"))
    assert [item["name"] for item in RawTrace(path).events()] == ["\ufffd\ufffd"]


@pytest.mark.parametrize(
    ("content", "word"),
    [(None, "no trace file"), (b"", "truncated"), (b'{"traceEvents": [\n{"a": 1', "truncated")],
)
def test_a_missing_or_cut_trace_is_told(tmp_path, content, word):
    path = tmp_path / "t.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RawTraceError, match=word):
        RawTrace(path).check_ends()


def test_step_ranges_are_renamed_in_any_block(tmp_path, monkeypatch):
    from stepscope.artifacts import job as raw

    events = [
        event(name, 0, 1, "user_annotation")
        for name in ("ProfilerStep#3", "ProfilerStep#3/2", "ProfilerStep#4")
    ]
    path = write_like_kineto(tmp_path / "t.json", events)
    renames = {"ProfilerStep#3": "stepscope.no_step#3", "ProfilerStep#3/2": "ProfilerStep#3"}
    for size in (10, 64, 1 << 20):
        monkeypatch.setattr(raw, "_BLOCK_BYTES", size)
        text = b"".join(blocks_with_names(path, renames))
        names = [item["name"] for item in json.loads(text)["traceEvents"]]
        assert names == ["stepscope.no_step#3", "ProfilerStep#3", "ProfilerStep#4"]
        assert b"".join(blocks_with_names(path, {})) == path.read_bytes()


# -- the whole job --------------------------------------------------------------------------------


def job_for(tmp_path, events, *, config=None, **values):
    window = tmp_path / "rank00000" / "window-0000"
    window.mkdir(parents=True)
    raw = write_like_kineto(tmp_path / "raw.json", events)
    artifacts = artifact_options(config or CaptureConfig())
    return FinishJob(str(raw), str(window), 0, artifacts=artifacts, **values)


STACKS = CaptureConfig(with_stack=True)
STEP = [event("ProfilerStep#0", 0, 100, "user_annotation"), event("aten::mm", 1, 50)]


@pytest.mark.parametrize("trace_format", ["json.gz", "json"])
def test_a_job_makes_everything_and_says_so(tmp_path, trace_format):
    job = job_for(tmp_path, STEP, steps=(0,), config=STACKS, trace_format=trace_format)
    assert FinishJob.decode(job.encode()) == job
    result = finish(job)
    assert result.problem == ""
    assert [item.problem for item in result.artifacts] == [""] * 4
    assert {item.kind for item in result.artifacts} == {
        "trace",
        "key_averages",
        "key_averages_csv",
        "stacks",
    }
    assert not job.raw_path.exists()
    assert job.result_path.exists()
    if trace_format == "json.gz":
        assert steps_in_trace(job.trace_path) == [0]
    with (job.window_path / "key_averages.csv").open() as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert rows["aten::mm"]["self_cpu_ns"] == "50000"


def test_tensorboards_names_are_in_the_order_of_the_windows_whichever_is_finished_first(tmp_path):
    board = tmp_path / "board"
    options = {"tensorboard_directory": str(board), "tensorboard_worker": "rank0_here_1"}
    jobs = [
        job_for(tmp_path / str(n), STEP, steps=(n,), tensorboard_ns=1000 + n, **options)
        for n in range(2)
    ]
    for job in reversed(jobs):
        finish(job)
    names = sorted(path.name for path in board.iterdir())
    assert names == [f"rank0_here_1.{1000 + n}.pt.trace.json.gz" for n in range(2)]


@pytest.mark.parametrize(
    ("events", "options", "word"),
    [
        (STEP, {"steps": (0, 1)}, "steps 1 are missing"),
        (STEP, {"needs_kernels": True}, "no kernel was recorded"),
        (STEP[:1], {"steps": (0,)}, "no operator"),
        ([], {}, "no operator"),
    ],
)
def test_what_is_missing_in_a_trace_is_told(tmp_path, events, options, word):
    assert word in finish(job_for(tmp_path, events, **options)).problem


@pytest.mark.parametrize(
    "name", sorted({option.artifact for option in options_of(CaptureConfig).values()} - {""})
)
def test_an_artifact_that_options_name_is_a_module_that_makes_it(name):
    make = importlib.import_module(f"stepscope.artifacts.{name}").make
    assert list(inspect.signature(make).parameters) == ["job", "window", "options"]


def test_a_kind_of_files_is_a_module_and_the_options_that_name_it(tmp_path, monkeypatch):
    seen = []

    def make(job, window, options):
        seen.append((job.index, window.events, options))
        return [ArtifactRecord("colours", "window-0000/colours.txt")]

    module = ModuleType("stepscope.artifacts.colours")
    module.make = make
    monkeypatch.setitem(sys.modules, module.__name__, module)

    @dataclasses.dataclass(frozen=True)
    class More(CaptureConfig):
        colours: int = option(7, "Colours of the table.", artifact="colours")

    result = finish(job_for(tmp_path, STEP, config=More(key_averages=False), steps=(0,)))
    assert [item.kind for item in result.artifacts] == ["trace", "colours"]
    assert seen == [(0, 2, {"colours": 7})]


def test_a_module_that_fails_costs_no_other(tmp_path):
    job = job_for(tmp_path, STEP, steps=(0,))
    job.artifacts["no_such_module"] = {}
    result = finish(job)
    assert "no_such_module" in result.artifacts[-1].problem
    assert [item.problem for item in result.artifacts[:-1]] == ["", "", ""]


def test_one_artifact_that_fails_costs_no_other(tmp_path):
    job = job_for(tmp_path, STEP, steps=(0,), config=STACKS)
    (job.window_path / "key_averages.txt").mkdir()
    result = finish(job)
    problems = {item.kind: item.problem for item in result.artifacts}
    assert problems["key_averages"]
    assert problems["trace"] == problems["stacks"] == problems["key_averages_csv"] == ""


def test_the_table_agrees_with_torchs_own(tmp_path):
    import torch
    from tests.support.training import SmallTraining, batches

    training = SmallTraining()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        for batch in batches(3):
            training.step(batch)
    profiler.export_chrome_trace(str(tmp_path / "t.json"))
    ours = {
        row.name: row
        for row in key_averages(gather(RawTrace(tmp_path / "t.json").events(), {})).operators
    }
    theirs = {row.key: row for row in profiler.key_averages() if row.key != "[memory]"}
    assert set(ours) == set(theirs)
    for name, row in theirs.items():
        assert ours[name].calls == row.count, name
        # torch sums times that it has rounded to microseconds less finely than the trace.
        assert ours[name].cpu_ns / 1000 == pytest.approx(row.cpu_time_total, abs=2, rel=1e-3), name
        assert ours[name].self_cpu_ns / 1000 == pytest.approx(
            row.self_cpu_time_total, abs=2, rel=1e-3
        ), name
        assert ours[name].self_cpu_bytes == row.self_cpu_memory_usage, name


def test_floating_point_operations_agree_with_torchs_own(tmp_path):
    import torch

    activities = [torch.profiler.ProfilerActivity.CPU]
    image = torch.randn(2, 6, 17, 13)
    with torch.profiler.profile(activities=activities, with_flops=True) as profiler:
        torch.randn(5, 7) @ torch.randn(7, 3)
        torch.nn.functional.linear(torch.randn(4, 9), torch.randn(2, 9), torch.randn(2))
        torch.bmm(torch.randn(3, 4, 5), torch.randn(3, 5, 6))
        torch.baddbmm(torch.randn(3, 4, 6), torch.randn(3, 4, 5), torch.randn(3, 5, 6))
        torch.ones(3, 11).mul(torch.ones(3, 11)).add(torch.ones(3, 11))
        torch.nn.functional.conv2d(image, torch.randn(4, 6, 3, 5), stride=2, padding=1)
        torch.nn.functional.conv2d(image, torch.randn(8, 3, 3, 3), groups=2, dilation=(2, 1))
    profiler.export_chrome_trace(str(tmp_path / "t.json"))
    window = gather(RawTrace(tmp_path / "t.json").events(), {}, with_flops=True)
    ours = {row.name: row.flops for row in key_averages(window).operators if row.flops}
    theirs = {row.key: row.flops for row in profiler.key_averages() if row.flops}
    assert ours == theirs
    assert {"aten::mm", "aten::addmm", "aten::conv2d"} <= set(ours)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"Input Dims": "x"},
        {"Input Dims": []},
        {"Input Dims": [[], []]},
        {"Input Dims": [[2], [2]]},
        {"Input Dims": [["a", "b"], ["c", "d"]]},
        {"Input Dims": [[1, 2, 3, 4], [1, 2, 3, 4]], "Concrete Inputs": ["", "", ""]},
    ],
)
@pytest.mark.parametrize("name", ["aten::mm", "aten::conv2d", "aten::mul", "mm"])
def test_odd_shapes_count_as_nothing(name, arguments):
    from stepscope.artifacts.calls import flops_of

    assert isinstance(flops_of(name, arguments), int)


def test_stacks_have_no_frame_and_no_thread_of_the_recorder():
    window = gather(
        [
            event("train.py(3): main", 0, 1000, "python_function"),
            event("stepscope/capture/profiler.py(149): step", 100, 200, "python_function"),
            event("contextlib.py(3): __enter__", 110, 50, "python_function"),
            event("stepscope/capture/profiler.py(220): _watch", 400, 400, "python_function"),
            event("<built-in function next>", 410, 300, "python_function"),
            event("queue.py(9): get", 430, 100, "python_function"),
            event("stepscope/capture/steps/phases.py(9): timed", 850, 100, "python_function"),
            event("cudaLaunchKernel", 860, 10, "cuda_runtime", correlation=7),
            event("gemm", 900, 30, "kernel", tid=7, correlation=7),
            event("threading.py(1002): _bootstrap", 0, 900, "python_function", tid=2),
            event("stepscope/capture/record/new.py(1): work", 0, 900, "python_function", tid=2),
            event("aten::mm", 10, 50, tid=2),
        ],
        {},
    )
    host, device = folded(window)
    main = "train.py(3): main"
    assert host == {
        main: 300_000,
        f"{main};<built-in function next>": 200_000,
        f"{main};<built-in function next>;queue.py(9): get": 100_000,
        f"{main};cudaLaunchKernel": 10_000,
    }
    assert device == {f"{main};cudaLaunchKernel;gemm": 30_000}
