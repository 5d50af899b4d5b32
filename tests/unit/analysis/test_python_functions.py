"""Where the interpreter's time went: sums that add up, recursion, threads, and the report of it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import stepscope
from stepscope.adapters.script import launch
from stepscope.analysis.call_tree import build_call_tree
from stepscope.analysis.python_functions import is_sampled, python_functions
from stepscope.commands.report import command as report
from stepscope.commands.show import command as show
from stepscope.run.manifest import ArtifactRecord, ExternalRecord, JobRecord, write_record


def frame(phase, name, ts, *, file="/app/train.py", tid=1):
    return {
        "args": {"filename": file, "line": 3},
        "cat": "py-spy",
        "name": name,
        "ph": phase,
        "pid": 12,
        "tid": tid,
        "ts": ts,
    }


def call(name, first, last, *inside, **more):
    return [frame("B", name, first, **more), *inside, frame("E", name, last, **more)]


RECORDING = [
    *call(
        "thread (1): MainThread",
        0,
        1000,
        *call(
            "main",
            0,
            1000,
            *call("load", 0, 300),
            *call("fact", 300, 900, *call("fact", 400, 800, *call("leaf", 500, 600))),
        ),
        file="",
    ),
    *call("wait", 200, 250, file="/x/lib/python3.11/site-packages/torch/utils/data.py", tid=2),
]


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "py-spy.json"
    path.write_text(json.dumps(RECORDING))
    return path


def rows(answer):
    return {row["function"]: row for row in answer.functions.to_dicts()}


def test_self_and_total_times(recording):
    answer = python_functions(stepscope.load(recording))
    found = rows(answer)
    assert {name: (row["self_ns"], row["total_ns"]) for name, row in found.items()} == {
        "main": (100_000, 1_000_000),
        "load": (300_000, 300_000),
        "fact": (500_000, 600_000),  # the inner call is part of the outer one's time
        "leaf": (100_000, 100_000),
        "wait": (50_000, 50_000),
    }
    assert found["fact"]["count"] == 2
    assert answer.functions["function"][0] == "fact"
    assert answer.covered_ns == 1_050_000
    assert answer.functions["self_ns"].sum() == answer.covered_ns
    assert found["main"]["total_share"] == pytest.approx(1000 / 1050)
    assert (found["fact"]["place"], found["wait"]["place"]) == (
        "/app/train.py",
        "torch/utils/data.py",
    )


def test_threads(recording):
    answer = python_functions(stepscope.load(recording))
    first, second = answer.threads.to_dicts()
    assert (first["thread"], first["covered_ns"], first["most_in"]) == (
        "MainThread",
        1_000_000,
        "fact",
    )
    assert (second["covered_ns"], second["covered_share"]) == (50_000, pytest.approx(0.05))
    assert answer.recording_ns == 1_000_000


@settings(deadline=None, max_examples=25)
@given(st.lists(st.lists(st.sampled_from("abc"), max_size=5), min_size=1, max_size=12))
def test_sampled_stacks_agree_with_counting_samples(stacks):
    """An independent count: of each sample, its innermost frame, and the set of its frames."""
    events, open_frames = [], []
    for moment, stack in enumerate([*stacks, []]):
        same = 0
        while same < min(len(stack), len(open_frames)) and stack[same] == open_frames[same]:
            same += 1
        events += [frame("E", name, moment * 10) for name in reversed(open_frames[same:])]
        events += [frame("B", name, moment * 10) for name in stack[same:]]
        open_frames = stack
    if not events:
        return
    answer = python_functions(stepscope.load(_stream(events)))
    found = rows(answer)
    for name in "abc":
        own = sum(1 for stack in stacks if stack and stack[-1] == name) * 10_000
        total = sum(1 for stack in stacks if name in stack) * 10_000
        row = found.get(name, {"self_ns": 0, "total_ns": 0})
        assert (row["self_ns"], row["total_ns"]) == (own, total)
    assert answer.covered_ns == sum(1 for stack in stacks if stack) * 10_000


def _stream(events):
    import io

    return io.BytesIO(json.dumps(events).encode())


@pytest.mark.parametrize(
    "file", [launch.__file__, "/x/site-packages/stepscope/adapters/launch.py"], ids=["now", "once"]
)
def test_the_thread_that_waits_for_the_training_is_left_out(file):
    waiting = call(
        "launch",
        0,
        5000,
        *call("wait", 0, 5000, file="/usr/lib/subprocess.py", tid=9),
        file=file,
        tid=9,
    )
    answer = python_functions(stepscope.load(_stream([*RECORDING, *waiting])))
    assert answer.recording_ns == 1_000_000
    assert len(answer.threads) == 2
    (reason,) = answer.scope.excluded
    assert answer.scope.excluded[reason] == 2
    assert "waits for the training" in reason


def test_a_main_thread_that_ran_a_function_of_ours_last_is_still_the_training_s():
    """At exit our own function is the outermost one; on a thread of ours there are no others."""
    ours = "/x/site-packages/stepscope/capture/end.py"
    marks = {"file": "", "tid": 1}
    events = [
        frame("B", "thread (12): MainThread", 0, **marks),
        *call("main", 0, 900, *call("slow", 100, 900)),
        *call("finish", 900, 1000, file=ours),
        frame("E", "thread (12): MainThread", 1000, **marks),
        *call(
            "thread (12): steps", 0, 1000, *call("wait", 0, 1000, file=ours, tid=2), file="", tid=2
        ),
    ]
    answer = python_functions(stepscope.load(_stream(events)))
    assert set(rows(answer)) == {"main", "slow"}
    assert list(answer.threads["thread"]) == ["MainThread"]


def test_a_trace_of_torch_has_operators_inside_its_functions():
    trace = stepscope.load(
        _stream(
            [
                {"ph": "X", "cat": "python_function", "name": "a.py(3): step", "pid": 1, "tid": 1,
                 "ts": 0, "dur": 100},
                {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10,
                 "dur": 70},
            ]
        )
    )  # fmt: skip
    assert not is_sampled(trace)
    (row,) = python_functions(trace).functions.to_dicts()
    assert (row["function"], row["place"]) == ("step", "a.py(3)")
    assert (row["self_ns"], row["total_ns"]) == (30_000, 100_000)


def test_the_report_of_a_recording(recording):
    done = CliRunner().invoke(report, [str(recording)])
    assert done.exit_code == 0, done.output
    assert "MainThread of process 12 spent 50% of 1.00 ms in fact" in done.output
    assert "recorded with --idle" in " ".join(done.output.split())
    assert "Functions" in done.output
    assert "Threads" in done.output


def test_the_report_as_json(recording):
    done = CliRunner().invoke(report, [str(recording), "--format", "json"])
    document = json.loads(done.output)
    assert document["covered_ns"] == 1_050_000
    assert document["functions"][0]["function"] == "fact"


def test_a_run_is_asked_for_what_py_spy_recorded_of_it(recording, tmp_path):
    run = tmp_path / "profiles" / "one"
    write_record(run / "run.json", JobRecord("one", 1))
    folder = run / "external" / "py-spy-host-12"
    artifact = ArtifactRecord("py-spy", "py-spy.json")
    write_record(folder / "manifest.json", ExternalRecord("py-spy", artifacts=(artifact,)))
    recording.rename(folder / "py-spy.json")
    for path in (run, tmp_path / "profiles"):
        done = CliRunner().invoke(show, ["python-functions", str(path), "--format", "json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.output)["functions"][0]["function"] == "fact"


def test_a_trace_with_nothing_to_judge_is_still_refused(tmp_path):
    path = tmp_path / "trace.json"
    events = [{"ph": "X", "cat": "other", "name": "x", "pid": 1, "tid": 1, "ts": 0, "dur": 1}]
    path.write_text(json.dumps({"traceEvents": events}))
    done = CliRunner().invoke(report, [str(path)])
    assert "nothing to judge" in str(done.exception)


OWN = "stepscope/capture/stepping.py(93): advance"


def python(name, ts, dur, *, tid=1):
    return {
        "ph": "X",
        "cat": "python_function",
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": ts,
        "dur": dur,
    }


TORCH = {
    "traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 20, "dur": 10},
        python("train.py(3): main", 0, 1000),
        python("stepscope/capture/profiler.py(149): step", 100, 200),
        python(OWN, 110, 180),
        python("<built-in function perf_counter_ns>", 120, 10),
        python("json/encoder.py(3): encode", 140, 50),
        python("<built-in function next>", 150, 10),
        python("stepscope/capture/profiler.py(220): _watch", 400, 400),
        python("<built-in function next>", 410, 300),
        python("train.py(9): __next__", 420, 200),
        python("queue.py(9): get", 430, 100),
        python("threading.py(1002): _bootstrap", 0, 900, tid=2),
        python("threading.py(982): run", 0, 900, tid=2),
        python("stepscope/capture/record/upload.py(156): _work", 0, 900, tid=2),
        python("threading.py(331): wait", 10, 800, tid=2),
        python("threading.py(1002): _bootstrap", 0, 900, tid=3),
        python("threading.py(982): run", 0, 900, tid=3),
        python("train.py(40): read_ahead", 0, 900, tid=3),
        python("stepscope/capture/steps/loader_waits.py(84): next_batch", 10, 300, tid=3),
        python("torch/utils/data.py(84): __next__", 20, 200, tid=3),
    ]
}
THEIRS = {"main", "<built-in function next>", "__next__", "get", "_bootstrap", "run", "read_ahead"}


@pytest.fixture
def with_own_frames(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(TORCH))
    return stepscope.load(path)


def test_frames_and_threads_of_the_recorder_are_left_out(with_own_frames):
    answer = python_functions(with_own_frames)
    found = rows(answer)
    assert set(found) == THEIRS
    assert len(answer.threads) == 2
    assert found["<built-in function next>"]["count"] == 1
    assert found["<built-in function next>"]["self_ns"] == 100_000
    assert answer.scope.excluded == {"functions of Stepscope itself": 11}


def test_the_call_tree_hangs_what_they_call_under_what_called_them(with_own_frames):
    nodes = build_call_tree(with_own_frames).nodes
    names = dict(zip(nodes["node"], nodes["name"], strict=True))
    assert not [name for name in names.values() if "stepscope/" in name]
    above = {
        name: names.get(parent) for name, parent in zip(nodes["name"], nodes["parent"], strict=True)
    }
    assert above["<built-in function next>"] == "train.py(3): main"
    (main_ns,) = nodes.filter(name="train.py(3): main")["host_self_ns"]
    assert main_ns == (1000 - 10 - 200 - 400) * 1000
