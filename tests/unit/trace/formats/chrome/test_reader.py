"""What the tolerant reader makes of single events; the compiled one must say the same."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
from tests.support.chrome_traces import (
    FRAMES,
    LAYOUTS,
    Digits,
    assert_same_tables,
    kernel,
    operator,
    read_compiled,
    read_tolerantly,
    write,
)
from tests.support.watched import Watched

from stepscope.terminal import working
from stepscope.trace.formats.chrome import scan
from stepscope.trace.schema import TABLES
from stepscope.trace.tables import Tables


def read(events: list[dict[str, Any]], layout: str = "kineto-2024") -> Tables:
    data = write(events, layout)
    tables = read_tolerantly(data)
    assert_same_tables(tables, read_compiled(data))
    return tables


def problems(tables: Tables) -> dict[str, int]:
    return dict(tables.problems.select("problem", "count").iter_rows())


def test_tables_have_the_schema() -> None:
    tables = read([operator(), kernel(), {"ph": "C", "name": "m", "ts": 1, "args": {"a": 1}}])
    for name, schema in TABLES.items():
        assert getattr(tables, name).schema == pl.Schema(schema)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_tables(layout: str, frame: str) -> None:
    events = [operator(), kernel(), operator("aten::add", "7.0004", "1")]
    data = write(events, layout, frame)
    tables = read_tolerantly(data)
    assert tables.events["start_ns"].to_list() == [1001, 10500, 7000]
    assert tables.events["dur_ns"].to_list() == [5250, 2000, 1000]
    assert tables.events["correlation"].to_list() == [None, 11, None]
    assert tables.events["external_id"].to_list() == [3, 3, 3]
    assert tables.events["device"].to_list() == [None, 0, None]
    assert tables.events["stream"].to_list() == [None, 7, None]
    assert tables.names["name"].to_list() == ["aten::mm", "gemm", "aten::add"]
    assert [json.loads(text) for text in tables.args["args"]] == [e["args"] for e in events]
    assert not len(tables.problems)
    if frame != "bare-array":
        header = dict(tables.metadata.iter_rows())
        assert json.loads(header["distributedInfo"])["world_size"] == 2
    for block in (1 << 20, 64, 7):
        assert_same_tables(tables, read_tolerantly(data, block))
        assert_same_tables(tables, read_compiled(data, block))


def test_arguments_are_kept_to_the_letter() -> None:
    data = (
        b'[{"ph":"X","name":"a","ts":1,"dur":1,"args":{ "x" :1.50,\n "y": [1 ,2],"z":"\\u00e9"}}]'
    )
    for tables in (read_tolerantly(data), read_compiled(data)):
        assert tables.args["args"][0] == '{ "x" :1.50,\n "y": [1 ,2],"z":"\\u00e9"}'


def test_identifiers_keep_64_bits() -> None:
    tables = read(
        [
            kernel(args={"correlation": 2**64 - 1, "External id": 2**63}),
            kernel(args={"correlation": -1, "External id": -5}),
            kernel(args={"correlation": 2**64, "External id": 7}),
            kernel(args={"correlation": "12", "External id": 1.0, "external id": 4}),
            kernel(args={"correlation": 0, "external id": 9}),
        ]
    )
    assert tables.events["correlation"].to_list() == [2**64 - 1, None, None, None, 0]
    assert tables.events["external_id"].to_list() == [2**63, None, 7, None, 9]
    assert problems(tables) == {"identifier_out_of_range": 1}


def test_devices_and_streams_of_gpu_events_fall_back_on_the_lane() -> None:
    tables = read(
        [
            kernel(pid=3, tid="stream 12", args={}),
            kernel(pid=3, tid=12, cat="gpu_user_annotation", args={"External id": 1}),
            kernel(pid=3, tid=1_000_012, cat="cuda_sync", args={"device": 3, "stream": 12}),
            kernel(pid=5, tid=5, cat="cuda_runtime", args={"device": 1, "stream": 2}),
            kernel(pid=3, tid=12, cat="gpu_memcpy", args={"bytes": 4096, "stream": -1}),
        ]
    )
    assert tables.events["device"].to_list() == [3, 3, 3, None, 3]
    assert tables.events["stream"].to_list() == [12, 12, 12, None, None]
    assert tables.events["bytes"].to_list() == [None, None, None, None, 4096]
    assert tables.lanes["is_gpu"].to_list() == [True, True, True, False]


@pytest.mark.parametrize(
    ("word", "category"),
    [
        ("Operator", "cpu_op"), ("Kernel", "kernel"), ("Memcpy", "gpu_memcpy"),
        ("Runtime", "runtime"), ("xpu_runtime", "runtime"), ("mtia_runtime", "runtime"),
        ("privateuse1_driver", "driver"), ("cuda_sync", "device_sync"), ("Trace", "span"),
        ("python_function", "python_function"), ("something new", "other"), (None, "other"),
    ],
)  # fmt: skip
def test_words_of_every_recorder_become_categories(word: str | None, category: str) -> None:
    event = operator()
    if word is None:
        del event["cat"]
    else:
        event["cat"] = word
    tables = read([event])
    assert tables.events["category"].to_list() == [category]
    assert tables.names["raw_category"].to_list() == [word]


def test_one_lane_whether_its_thread_is_a_number_or_a_word() -> None:
    tables = read([operator(tid="100"), operator(tid=100), operator(tid=""), operator(tid=None)])
    assert tables.events["lane_id"].to_list() == [0, 0, 1, 2]
    assert tables.lanes["tid"].to_list() == ["100", "", None]


def test_other_phases_become_other_tables() -> None:
    tables = read(
        [
            {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "main"}},
            {"ph": "M", "name": "process_labels", "pid": 1, "tid": 0, "args": {"labels": "CPU"}},
            {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": 2, "args": {"sort_index": 1}},
            {"ph": "i", "name": "[memory]", "pid": 1, "tid": 2, "ts": 5, "args": {"B": 4}},
            {"ph": "C", "name": "power", "pid": 1, "tid": 2, "ts": 6, "args": {"W": 300}},
            {"ph": "s", "id": 9, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 2, "ts": 7},
            {"ph": "f", "id": "0x9", "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 2,
             "ts": "8.5", "bp": "e"},
            {"ph": "N", "id": 1, "name": "object", "ts": 1},
            {"name": "phaseless", "ts": 1},
        ]
    )  # fmt: skip
    assert not len(tables.events)
    assert tables.lanes.row(0, named=True)["process_name"] == "python"
    assert tables.lanes.row(0, named=True)["thread_name"] == "main"
    assert tables.instants["time_ns"].to_list() == [5000]
    assert json.loads(tables.instants["args"][0]) == {"B": 4}
    assert tables.counters["time_ns"].to_list() == [6000]
    assert tables.flows.select("flow_id", "time_ns", "phase").rows() == [
        (9, 7000, "s"),
        (9, 8500, "f"),
    ]
    labels = dict(tables.metadata.iter_rows())
    assert json.loads(labels["process_labels (pid 1, tid 0)"]) == {"labels": "CPU"}
    assert not any("sort_index" in key for key in labels)
    assert problems(tables) == {"phase_not_kept": 1, "no_phase": 1}


def test_beginnings_and_ends_become_events_where_they_end() -> None:
    lane = {"pid": 1, "tid": 1}
    tables = read(
        [
            {"ph": "B", "name": "outer", "cat": "c", "ts": 1, **lane, "args": {"a": 1}},
            {"ph": "B", "name": "inner", "ts": 2, **lane},
            {"ph": "X", "name": "x", "ts": 2.5, "dur": 0.25, **lane},
            {"ph": "E", "ts": 3, **lane},
            {"ph": "E", "ts": 9, **lane, "args": {"b": 2}},
            {"ph": "E", "ts": 10, **lane},
            {"ph": "b", "id": 4, "cat": "net", "name": "request", "ts": 1, **lane},
            {"ph": "e", "id": 4, "cat": "net", "name": "request", "ts": 4, **lane},
            {"ph": "B", "name": "open", "ts": 8, **lane},
        ]
    )
    names = tables.names["name"]
    got = tables.events.select("name_id", "start_ns", "dur_ns").rows()
    assert [(names[n], start, dur) for n, start, dur in got] == [
        ("x", 2500, 250),
        ("inner", 2000, 1000),
        ("outer", 1000, 8000),
        ("request", 1000, 3000),
        ("open", 8000, 2000),
    ]
    assert tables.events["event"].to_list() == list(range(5))
    assert json.loads(tables.args["args"][2]) == {"a": 1, "b": 2}
    assert tables.lanes["tid"].to_list() == ["1", "async net:4"]
    assert problems(tables) == {"unmatched_end": 1, "unclosed": 1}


def test_an_end_on_another_lane_ends_nothing() -> None:
    tables = read(
        [
            {"ph": "B", "name": "open", "ts": 1, "pid": 1, "tid": 1},
            {"ph": "E", "ts": 2, "pid": 1, "tid": 2},
            {"ph": "E", "ts": 5, "pid": 1, "tid": 1},
        ]
    )
    assert tables.events.select("start_ns", "dur_ns").rows() == [(1000, 4000)]
    assert problems(tables) == {"unmatched_end": 1}


def test_durations_that_cannot_be_are_reported() -> None:
    tables = read(
        [
            operator(dur="-5"),
            operator(start="9223372036854775", dur="5"),
            operator(dur="18446744073709551.615"),
            kernel(start="0", dur="0"),
            operator(start="1e300"),
            {"ph": "X", "name": "no time", "pid": 1},
            {"ph": "X", "name": "no dur", "ts": 1, "pid": 1},
        ]
    )
    assert tables.events["dur_ns"].to_list() == [0, 0, 0, 0]
    assert problems(tables) == {
        "negative_duration": 1,
        "no_duration": 2,
        "no_time": 2,
        "overflowed_duration": 1,
        "zero_time": 1,
    }


def test_names_are_numbered_in_the_order_of_their_appearance() -> None:
    flow = {"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "ts": 1}
    tables = read([flow, operator("b"), operator("a"), kernel(name="b"), operator("b")])
    assert tables.names.select("name", "raw_category").rows() == [
        ("ac2g", "ac2g"), ("b", "cpu_op"), ("a", "cpu_op"), ("b", "kernel"),
    ]  # fmt: skip
    assert tables.events["name_id"].to_list() == [1, 2, 3, 1]


def test_a_name_spelt_in_two_ways_is_one_name() -> None:
    one, other = b'{"ph":"X","name":"caf\\u00e9","ts":1}', b'{"ph":"X","name":"caf\xc3\xa9","ts":2}'
    data = b"[" + one + b"," + other + b"]"
    tables = read_tolerantly(data)
    assert tables.names["name"].to_list() == ["café"]
    assert_same_tables(tables, read_compiled(data))


def test_of_duplicate_keys_the_last_counts() -> None:
    data = (
        b'[{"ph":"i","ph":"X","name":"a","name":"b","ts":1,"ts":2,"dur":1,'
        b'"args":{"correlation":5},"args":{"correlation":6,"correlation":7,"device":1}}]'
    )
    tables = read_tolerantly(data)
    assert_same_tables(tables, read_compiled(data))
    assert tables.events.select("start_ns", "correlation").rows() == [(2000, 7)]
    assert tables.names["name"].to_list() == ["b"]
    assert tables.args["args"][0].startswith('{"correlation":6')


def test_absolute_and_integer_times() -> None:
    tables = read(
        [
            operator(start="1711964646000000.25", dur="1"),
            operator(start="1623142623460111", dur="25"),
            operator(start="7999999999999.689", dur="0.001"),
        ]
    )
    assert tables.events["start_ns"].to_list() == [
        1711964646000000250,
        1623142623460111000,
        7999999999999689,
    ]
    assert tables.events["dur_ns"].to_list() == [1000, 25000, 1]


def test_an_empty_list_of_events_is_a_trace() -> None:
    tables = read([])
    assert not len(tables.events)
    assert not len(tables.problems)


def test_times_as_words() -> None:
    tables = read([operator(ts="12.5", dur="1.5"), operator(ts="soon")])
    assert tables.events.select("start_ns", "dur_ns").rows() == [(12500, 1500)]
    assert problems(tables) == {"no_time": 1}


def test_extra_keys_are_reported() -> None:
    tables = read([operator(tts=5), operator(cname="good"), operator(id=3)])
    assert len(tables.events) == 3
    assert problems(tables) == {"extra_keys": 1}


def test_unusual_events_between_usual_ones_keep_their_order() -> None:
    events = []
    for number in range(400):
        unusual = {"args": None} if number % 3 == 0 else {}
        start = f"{number}e0" if number % 7 == 0 else str(number)
        events.append(operator(f"op {number % 11}", start, "1", **unusual))
    data = write(events)
    tables = read_tolerantly(data)
    assert tables.events["start_ns"].to_list() == [number * 1000 for number in range(400)]
    for block in (1 << 22, 4096, 333):
        assert_same_tables(tables, read_compiled(data, block))


def test_digits_stay_what_they_are() -> None:
    assert str(Digits("1.500")) == "1.500"


def test_whoever_watches_is_told_when_threads_compile_the_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watching: list[object] = []
    real = scan.scan_events

    def called(*given: int) -> int:
        watching.append(working.current_line())
        return int(real(*given))

    monkeypatch.setattr(scan, "scan_events", called)
    line = Watched()
    token = working._CURRENT.set(line)
    try:
        read_compiled(write([operator(), kernel()]))
    finally:
        working._CURRENT.reset(token)
    assert watching
    assert set(watching) == {line}


@pytest.mark.parametrize("block", [1, 2, 3, 5])
def test_numbers_cut_anywhere_stay_whole(block: int) -> None:
    numbers = {"a": "10.5", "b": "1e5", "c": "-0.25", "d": "2.5E-3", "e": "7"}
    header = ", ".join(f'"{key}": {digits}' for key, digits in numbers.items())
    data = f'{{{header}, "traceEvents": [1.5, 2e3, {{"ph": "X", "name": "a", "ts": 1, "dur": 2}}]}}'
    for read in (read_tolerantly, read_compiled):
        tables = read(data.encode(), block)
        assert dict(tables.metadata.rows()) == numbers
        assert tables.problems.select("problem", "count").rows() == [("not_an_event", 2)]


def test_a_long_header_is_whole_wherever_the_blocks_of_the_file_are_cut() -> None:
    long = json.dumps([0] * 210_000)  # more values than an event can have that is repaired
    for text in (
        f'{{"metadata": {long}, "deviceProperties": [], "traceEvents": [{{"ph": "X", "ts": 1}}]}}',
        f'{{"traceEvents": [{{"ph": "X", "ts": 1}}], "metadata": {long}, "deviceProperties": []}}',
    ):
        tables = read_tolerantly(text.encode(), block=1 << 19)
        assert tables.metadata.rows() == [("metadata", long), ("deviceProperties", "[]")]
        assert tables.problems["problem"].to_list() == ["no_duration"]
