"""py-spy recordings: frames nest as they did, and threads have their names."""

import gzip
import json

import numpy as np
import pytest

from stepscope.analysis.python_functions import python_functions
from stepscope.commands.main import main
from stepscope.errors import UnreadableInputError
from stepscope.run.manifest import ExternalRecord, write_record
from stepscope.trace.derive.columns import derive
from stepscope.trace.formats.pyspy import read_pyspy, read_raw
from stepscope.trace.formats.trace_format import Input
from stepscope.trace.load import load
from stepscope.trace.problems import Problems
from stepscope.trace.source.content import Content


def frame(phase, name, ts, *, file="/app/train.py", line=3, tid=139794674297728):
    args = {"filename": file, "line": line}
    return {
        "args": args,
        "cat": "py-spy",
        "name": name,
        "ph": phase,
        "pid": 12,
        "tid": tid,
        "ts": ts,
    }


RECORDING = [
    frame("B", "thread (12): MainThread", 100, file="", line=0),
    frame("B", "<module>", 100, line=30),
    frame("B", "step", 100, line=11),
    frame("B", "load", 100, line=5),
    frame("E", "load", 300, line=5),
    frame("B", "compute", 300, line=9),
    frame("E", "compute", 450, line=9),
    frame("E", "step", 450, line=11),
    frame("B", "step", 500, line=12),
    frame("E", "step", 700, line=12),
    frame("E", "<module>", 700, line=30),
    frame("E", "thread (12): MainThread", 700, file="", line=0),
    frame("B", "wait", 200, file="/app/worker.py", tid=7),
    frame("E", "wait", 260, file="/app/worker.py", tid=7),
]


@pytest.fixture
def tables(tmp_path):
    path = tmp_path / "spy.json"
    path.write_text(json.dumps(RECORDING))
    return load(path).tables()


def test_frames_nest_as_they_were_called(tables):
    derived = derive(tables).columns.collect()
    names = tables.names["name"].gather(tables.events["name_id"]).to_list()
    parents = [None if p is None else names[p] for p in derived["parent"].to_list()]
    main = "thread (12): MainThread"
    module, step = "/app/train.py: <module>", "/app/train.py: step"
    assert list(zip(names, parents, derived["self_ns"].to_list(), strict=True)) == [
        (main, None, 0),
        (module, main, 50_000),
        (step, module, 0),
        ("/app/train.py: load", step, 200_000),
        ("/app/worker.py: wait", None, 60_000),
        ("/app/train.py: compute", step, 150_000),
        (step, module, 200_000),
    ]
    assert set(tables.events["category"].to_list()) == {"python_function"}
    assert tables.problems.is_empty()


def test_lanes_have_the_names_of_threads(tables):
    assert tables.lanes.select("tid", "thread_name").rows() == [
        ("139794674297728", "MainThread"),
        ("7", None),
    ]


def test_arguments_follow_their_frames(tables):
    names = tables.names["name"].gather(tables.events["name_id"]).to_list()
    lines = [json.loads(text)["line"] for text in tables.args["args"].to_list()]
    assert [line for name, line in zip(names, lines, strict=True) if name.endswith("step")] == [
        11,
        12,
    ]
    assert tables.args["event"].to_list() == list(range(len(names)))


def test_other_files_are_refused():
    other = b'[{"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": 1, "tid": 1}]'
    with pytest.raises(UnreadableInputError, match=r"other\.json: has no py-spy frames"):
        read_pyspy(Input("other.json", None, Content([other]), Problems()))


def test_a_recording_that_was_cut_off_is_read_and_says_so(tmp_path):
    path = tmp_path / "spy.json.gz"
    random = np.random.default_rng(1)
    frames = [
        frame(phase, f"f{number}", 10 * number + (phase == "E"), line=int(line))
        for number, line in enumerate(random.integers(1, 9999, 500))
        for phase in "BE"
    ]
    path.write_bytes(gzip.compress(json.dumps(frames).encode())[:-200])
    found = load(path).tables()
    assert 0 < len(found.events) < 500
    assert {"truncated", "truncated_stream"} <= set(found.problems["problem"])


def speedscope(**changes):
    def thread(name, samples, weights):
        kind = {"type": "sampled", "unit": "seconds", "startValue": 0.0, "endValue": sum(weights)}
        return {"name": name, "samples": samples, "weights": weights, **kind}

    stacks = [[0, 1, 2], [0, 1, 3], [0, 1]]
    names = ("<module>", "step", "load", "compute", "wait")
    frames = [{"name": name, "file": "/app/train.py", "line": 3, "col": None} for name in names]
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "profiles": [
            thread('Process 12 Thread 12 "MainThread"', stacks, [0.2, 0.1, 0.1]),
            thread('Process 12 Thread 7 ""', [[4]], [0.5]),
        ],
        "shared": {"frames": frames},
        "exporter": "py-spy@0.4.1",
        **changes,
    }


def test_speedscopes_stacks_are_frames_too(tmp_path):
    path = tmp_path / "py-spy.speedscope.json"
    path.write_text(json.dumps(speedscope()))
    trace = load(path)
    answer = python_functions(trace)
    rows = answer.functions.to_dicts()
    took = {row["function"]: (row["self_ns"], row["total_ns"]) for row in rows}
    assert took == {
        "<module>": (0, 400_000_000),
        "step": (100_000_000, 400_000_000),
        "load": (200_000_000, 200_000_000),
        "compute": (100_000_000, 100_000_000),
        "wait": (500_000_000, 500_000_000),
    }
    assert set(answer.threads["thread"]) == {"MainThread", "7"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"exporter": "other@1"}, "a profile of speedscope, not a trace; speedscope shows it"),
        ({"profiles": []}, "a profile of speedscope without samples"),
        ({"shared": {"frames": []}}, "a damaged profile of speedscope"),
        ({"profiles": 3}, "a damaged profile of speedscope"),
        ({"shared": None}, "a damaged profile of speedscope"),
    ],
)
def test_other_and_damaged_profiles_of_speedscope_are_named(tmp_path, changes, message):
    path = tmp_path / "py-spy.speedscope.json"
    path.write_text(json.dumps(speedscope(**changes)))
    with pytest.raises(UnreadableInputError, match=message):
        load(path)


RAW = """\
thread (12): MainThread;<module> (/app/train.py:3);step (/app/train.py:9);load (/app/data.py:4) 20
thread (0x7F): Loader;wait (/app/worker.py:8) 50
thread (12): MainThread;<module> (/app/train.py:3);step (/app/train.py:9) 10
thread (12): MainThread;<module> (/app/train.py:3);step (/app/train.py:12);compute (libm.so) 10
"""


def raw(folder, text=RAW, rate=None):
    path = folder / "py-spy.txt"
    path.write_text(text)
    if rate is not None:
        record = ExternalRecord("py-spy", command=("py-spy", "record", "--rate", str(rate), "--"))
        write_record(folder / "manifest.json", record)
    return load(path)


@pytest.mark.parametrize(("rate", "sample_ns"), [(None, 10_000_000), (200, 5_000_000)])
def test_stacks_with_counts_are_frames_too(tmp_path, rate, sample_ns):
    """Of a recording that Stepscope made, its manifest says how long a sample is."""
    answer = python_functions(raw(tmp_path, rate=rate))
    rows = answer.functions.to_dicts()
    took = {
        row["function"]: (row["self_ns"] / sample_ns, row["total_ns"] / sample_ns) for row in rows
    }
    assert took == {
        "wait": (50, 50),
        "load": (20, 20),
        "step": (10, 40),
        "libm.so: compute": (10, 10),
        "<module>": (0, 40),
    }
    threads = answer.threads.select("thread", "covered_ns").rows()
    assert threads == [("MainThread", 40 * sample_ns), ("Loader", 50 * sample_ns)]
    assert any("counted each sample as 10 ms" in note for note in answer.notes) is (rate is None)


def test_stacks_of_several_processes_without_threads(tmp_path):
    """As with --subprocesses alone: a process without a frame has a sample all the same."""
    text = """\
process 12:"python train.py";main (train.py:3);load (data.py:4) 3
process 12:"python train.py" 2
process 13:"python: worker; of 2";main (worker.py:3) 4
"""
    answer = python_functions(raw(tmp_path, text))
    assert answer.threads.select("process", "thread", "covered_ns").sort("process").rows() == [
        ("12", "all threads", 30_000_000),
        ("13", "all threads", 40_000_000),
    ]


def test_a_thread_has_one_lane_before_and_after_it_has_a_name(tmp_path):
    """As in a recording from the start: py-spy reads names from Python's threading."""
    text = """\
process 12:"python -c "print('a'); main()"";thread (12);<module> (train.py:1) 3
process 12:"python -c "print('a'); main()"";thread (12): MainThread;<module> (train.py:2) 4
process 12:"python -c "print('a'); main()"";thread (12);<module> (train.py:1);load (data.py:4) 1
process 12:"python -c "print('a'); main()"";thread (13);wait (data.py:4) 1
"""
    answer = python_functions(raw(tmp_path, text))
    assert answer.threads.select("process", "thread", "covered_ns").rows() == [
        ("12", "MainThread", 80_000_000),
        ("12", "13", 10_000_000),
    ]
    took = dict(answer.functions.select("function", "self_ns").rows())
    assert took == {"<module>": 70_000_000, "load": 10_000_000, "wait": 10_000_000}


def test_without_threads_those_of_stepscope_leave_the_training_in(tmp_path):
    """What `--threads` would tell apart is told by what a thread runs."""
    text = """\
<module> (train.py:3);step (train.py:9) 20
_bootstrap (threading.py:1002);run (threading.py:982);save (/a/stepscope/capture/finish.py:9) 5
_bootstrap (threading.py:1002);run (threading.py:982);fetch (/app/data.py:4) 30
_bootstrap (threading.py:1002);run (threading.py:982);fetch (/app/data.py:4);read (/app/io.py:7) 4
"""
    answer = python_functions(raw(tmp_path, text))
    assert answer.threads.select("process", "thread", "covered_ns").rows() == [
        (None, "MainThread", 200_000_000),
        (None, "threads in fetch", 340_000_000),
    ]
    assert "save" not in answer.functions["function"]


@pytest.mark.parametrize(
    ("thread", "who"),
    [
        ('Thread 12 "MainThread"', "MainThread spent"),
        ('Process 12 Thread 7 ""', "thread 7 of process 12 spent"),
        ('Process 12 Thread 7 "Loader"', "Loader of process 12 spent"),
    ],
)
def test_the_verdict_names_the_thread_as_far_as_it_is_known(tmp_path, capsys, thread, who):
    """Without `--subprocesses`, py-spy does not say which process it sampled."""
    profile = {**speedscope()["profiles"][0], "name": thread}
    path = tmp_path / "py-spy.speedscope.json"
    path.write_text(json.dumps(speedscope(profiles=[profile])))
    assert main(["report", str(path)]) == 0
    assert f"Verdict  {who} " in capsys.readouterr().out


@pytest.mark.parametrize(("samples", "is_much"), [(60, True), (10, False)])
def test_the_verdict_says_how_much_of_a_short_recording_is_imports(
    tmp_path, capsys, samples, is_much
):
    path = tmp_path / "py-spy.txt"
    inside = "_find_and_load (<frozen importlib._bootstrap>:1176);exec (a.py:1)"
    path.write_text(
        f"<module> (train.py:1);{inside};{inside} {samples}\n"
        f"<module> (train.py:9);step (train.py:4) {100 - samples}\n"
    )
    assert main(["report", str(path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert ("; 60% of the time went into imports: record longer" in printed) is is_much
    assert "imports" not in printed or is_much


def test_lines_that_are_no_stack_are_skipped_and_counted(tmp_path):
    trace = raw(tmp_path, RAW + "nothing\nmain (a.py:1) 1e9\n" + "main (a.py:1) " + 40 * "9")
    assert trace.tables().problems.filter(problem="skipped")["count"].to_list() == [3]
    with pytest.raises(UnreadableInputError, match="without a frame"):
        read_raw(Input("a.txt", None, Content([b'process 12:"a" 5\n']), Problems()))
