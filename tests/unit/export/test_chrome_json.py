"""A trace written and read again is the same trace."""

from __future__ import annotations

import json

import pytest
from polars.testing import assert_frame_equal
from tests.support.same_trace import content_of
from tests.support.traces import KINETO, trace_path

from stepscope.export.selection import cut
from stepscope.export.to_chrome import write_chrome
from stepscope.trace.load import load


def again(trace, path, steps=None):
    with path.open("wb") as file:
        write_chrome(cut(trace, steps), file.write)
    json.loads(path.read_bytes())  # a strict reader takes it too
    return load(path)


def assert_same(left, right):
    ours, theirs = content_of(left), content_of(right)
    for name, table in ours.items():
        assert_frame_equal(table, theirs[name])


def test_everything_comes_back(trace, tmp_path):
    assert_same(trace, again(trace, tmp_path / "out.json"))


@pytest.mark.parametrize(
    "name", [KINETO[0], *(pytest.param(name, marks=pytest.mark.slow) for name in KINETO[1:])]
)
def test_real_traces_come_back(name, tmp_path):
    trace = load(trace_path(name))
    assert_same(trace, again(trace, tmp_path / "out.json"))


ODD = [
    {"ph": "X", "cat": "cpu_op", "name": 'a "quoted" \\ name\u2028 <b>', "pid": "Spans",
     "tid": "007", "ts": -1.5, "dur": 0.001, "args": {"correlation": 2**63, "x": None}},
    {"ph": "X", "name": "", "pid": -7, "tid": -0.5, "ts": 1e12, "dur": 3},
    {"ph": "C", "name": "c", "pid": 1, "tid": 1, "ts": 5, "args": {"v": 1.5}},
    {"ph": "i", "s": "t", "cat": "x", "name": "i", "pid": 1, "tid": 1, "ts": 6},
    {"ph": "M", "name": "process_labels", "pid": 1, "tid": 0, "args": {"labels": "GPU"}},
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "é\n"}},
]  # fmt: skip


def test_odd_events_come_back(tmp_path):
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({"traceEvents": ODD, 'a "key"': {"b": [1, 2.5, "c"]}}))
    trace = load(path)
    assert_same(trace, again(trace, tmp_path / "out.json"))


def test_links_of_nsys_exports_survive(tmp_path):
    path = trace_path("nsys/h100_2gpu_1s.sqlite")
    trace = load(path)
    found = again(trace, tmp_path / "out.json")
    links = ["launch", "step", "parent"]
    assert_frame_equal(trace.derived.select(links).collect(), found.derived.select(links).collect())
