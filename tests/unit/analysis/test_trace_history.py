"""The host's memory in a trace, as a history: what was allocated, and where."""

from __future__ import annotations

import gzip
import json

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analysis.memory.opening import open_memory
from stepscope.analysis.memory.trace_history import HOST, history_of_trace
from stepscope.errors import UnreadableInputError
from stepscope.memory.categories.census import parse_census
from stepscope.memory.questions.composition import peak
from stepscope.memory.questions.table import answer, question
from stepscope.memory.questions.totals import totals
from stepscope.memory.simulator.capacity import capacity_of
from stepscope.memory.view import MemoryView
from stepscope.trace.load import load

BASE_NS = 1_759_000_000_000_000_000


def instant(time_us, change, address, *, device_type=0, thread=7):
    args = {"Bytes": change, "Addr": address, "Device Id": -1, "Device Type": device_type}
    return {
        "ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1,
        "tid": thread, "ts": time_us, "args": args,
    }  # fmt: skip


def span(name, start_us, end_us, category="python_function", thread=7):
    return {
        "ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start_us,
        "dur": end_us - start_us, "args": {},
    }  # fmt: skip


def traced(folder, *events):
    path = folder / "t.pt.trace.json"
    document = {
        "schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "traceEvents": list(events),
    }  # fmt: skip
    path.write_text(json.dumps(document))
    return load(path)


def test_allocations_have_their_line_and_their_time(tmp_path):
    trace = traced(
        tmp_path,
        span("train.py(3): main", 0, 1000),
        span("nn.Module: Net_0", 5, 400),
        span("torch/nn/modules/module.py(9): _call_impl", 10, 300),
        span("model.py(7): forward", 20, 200),
        span("<built-in method linear>", 30, 100),
        span("aten::linear", 35, 90, "cpu_op"),
        instant(40, 1000, 64),
        instant(250, 500, 128),
        instant(500, -1000, 64),
        instant(600, 300, 64, thread=8),
        span("ProfilerStep#4", 0, 1000, "user_annotation"),
    )
    view = MemoryView(history_of_trace(trace))
    rows = view.allocations.select(
        "requested_bytes", "size_bytes", "line", "start_ns", "free_ns", "step"
    ).sort("start_ns").rows()  # fmt: skip
    assert rows == [
        (1000, 1000, "model.py:7 forward", BASE_NS + 40_000, BASE_NS + 500_000, 4),
        (500, 500, "train.py:3 main", BASE_NS + 250_000, None, 4),
        (300, 300, "no stack recorded", BASE_NS + 600_000, None, 4),
    ]
    assert view.replay.mismatches == 0
    found = totals(view)
    assert (found.device, found.peak_allocated_bytes, found.allocated_bytes) == (HOST, 1500, 800)
    assert found.reserved_bytes == found.allocated_bytes


def test_what_was_there_before_comes_from_the_census(tmp_path):
    events = instant(40_000, 1000, 64), instant(50_000, -1000, 64), instant(60_000, 10, 512)
    trace = traced(tmp_path, *events)
    lines = [
        {"census": 1},
        {"kind": "parameter", "device": -1, "time_ns": BASE_NS, "addresses": [4096, 8192],
         "bytes": [400, 44]},
        {"kind": "input", "device": -1, "time_ns": BASE_NS, "addresses": [9000], "bytes": [5]},
        {"kind": "parameter", "device": 0, "time_ns": BASE_NS, "addresses": [7000], "bytes": [7]},
        {"kind": "optimizer_state", "device": -1, "time_ns": BASE_NS + 55_000_000,
         "addresses": [64], "bytes": [20]},
    ]  # fmt: skip
    census = parse_census([json.dumps(line).encode() for line in lines], "a file")
    view = MemoryView(history_of_trace(trace, census), census)
    held = dict(peak(view).categories.select("category", "allocated_bytes").iter_rows())
    assert held == {"unknown": 1000, "parameter": 444}
    assert view.replay.mismatches == 0
    alone = MemoryView(history_of_trace(trace))
    for one, is_missing in ((view, False), (alone, True)):
        notes = answer(one, question("overview")).result.notes
        assert any("held before the recording began" in note for note in notes) == is_missing


def test_the_memory_of_a_gpu_is_not_the_hosts(tmp_path):
    trace = traced(tmp_path, instant(40, 1000, 64, device_type=1))
    with pytest.raises(UnreadableInputError, match="no memory events of the host"):
        history_of_trace(trace)
    with pytest.raises(UnreadableInputError, match="`stepscope show memory .*` shows them"):
        open_memory(str(tmp_path / "t.pt.trace.json"))


def test_without_any_memory_event_the_error_says_how_to_record_them(tmp_path):
    with pytest.raises(UnreadableInputError, match="profile_memory"):
        history_of_trace(traced(tmp_path, span("main", 0, 10)))


def test_who_asks_for_the_hosts_memory_hears_of_the_gpus_events(tmp_path):
    gpu = [instant(at, 1000, at, device_type=1) for at in (41, 42, 43)]
    traced(tmp_path, instant(40, 8, 64), *gpu)
    view = open_memory(str(tmp_path / "t.pt.trace.json")).view
    answered = answer(view, question("overview"))
    assert answered.kind == "the host's memory in a trace"
    assert any("3 memory events of GPUs" in note for note in answered.result.notes)
    traced(tmp_path, instant(40, 8, 64))
    view = open_memory(str(tmp_path / "t.pt.trace.json")).view
    assert not any("GPU" in note for note in answer(view, question("overview")).result.notes)


def test_nothing_is_cached_so_nothing_is_given_back_for_want_of_room(tmp_path):
    events = []
    for number in range(10):
        events += [instant(10 * number, 100, 64), instant(10 * number + 5, -100, 64)]
    view = MemoryView(history_of_trace(traced(tmp_path, *events)))
    assert capacity_of(view.replay, HOST).bytes is None


def test_a_folder_of_a_run_and_a_packed_trace_open(tmp_path):
    traced(tmp_path, instant(40, 1000, 64))
    text = (tmp_path / "t.pt.trace.json").read_bytes()
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "t.pt.trace.json.gz").write_bytes(gzip.compress(text))
    for path in (folder, folder / "t.pt.trace.json.gz"):
        assert totals(open_memory(str(path)).view).allocations == 1


STEPS = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5000)), max_size=60)


@settings(max_examples=2 * settings.default.max_examples // 5)
@given(STEPS)
def test_the_curve_is_the_running_sum(tmp_path_factory, steps):
    live, events, sums, time = {}, [], [], 0
    for place, size in steps:
        time += 10
        address = 64 * (place + 1)
        if address in live:
            events.append(instant(time, -live.pop(address), address))
        else:
            live[address] = size
            events.append(instant(time, size, address))
        sums.append(sum(live.values()))
    if not events:
        return
    trace = traced(tmp_path_factory.mktemp("t"), *events)
    view = MemoryView(history_of_trace(trace))
    assert view.replay.mismatches == 0
    curve = view.curve(HOST)
    after = curve.filter(pl.col("time_ns").is_not_null()).group_by(
        "time_ns", maintain_order=True
    ).last()  # fmt: skip
    assert after["allocated_bytes"].to_list() == sums
    assert after["reserved_bytes"].to_list() == sums
