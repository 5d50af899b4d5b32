"""The nsys reader on exports made by hand: absent tables, missing parts, hostile files."""

import json
import os
import sqlite3
from contextlib import closing

import polars as pl
import pytest

from stepscope.errors import UnreadableInputError
from stepscope.trace.derive.columns import derive
from stepscope.trace.load import load
from stepscope.trace.schema import EVENTS

REPORT = b"NVIDIA Tegra Profiler Report 2025@3@1@1"
PROCESS = 0x1000000 * 42
THREAD = PROCESS + 43

SCRIPT = f"""
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
INSERT INTO StringIds VALUES (1, 'cudaLaunchKernel_v7000'), (2, 'volta_sgemm_128x64_nn'),
  (3, 'iteration 5'), (4, 'main'), (5, 'cuLaunchKernelEx');
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER,
  globalTid INTEGER);
INSERT INTO NVTX_EVENTS VALUES
  (0, 1000, 59, NULL, 3, {THREAD}),
  (10, 300, 59, 'aten::mm, seq = 12, op_id = 7', NULL, {THREAD}),
  (20, NULL, 59, 'still open', NULL, {THREAD}),
  (5, 900, 60, 'across', NULL, {THREAD}),
  (77, NULL, 34, 'a mark', NULL, {THREAD}),
  (NULL, 5, 59, 'no start', NULL, {THREAD});
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER,
  correlationId INTEGER, nameId INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (30, 40, {THREAD}, 9, 1), (50, 45, {THREAD}, 10, 5),
  (60, 61, {THREAD + 0x1000000}, 9, 1);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,
  streamId INTEGER, correlationId INTEGER, globalPid INTEGER, shortName INTEGER, gridX INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 200, 0, 7, 9, {PROCESS}, 2, 4),
  (300, 400, 0, 7, 77, {PROCESS}, 999, 4);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER,
  streamId INTEGER, correlationId INTEGER, globalPid INTEGER, graphId INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (500, 600, 0, 7, 10, {PROCESS}, 3);
CREATE TABLE ThreadNames (nameId INTEGER, globalTid INTEGER);
INSERT INTO ThreadNames VALUES (4, {THREAD});
CREATE TABLE SOMETHING_NEW (start INTEGER, what TEXT);
INSERT INTO SOMETHING_NEW VALUES (1, 'x');
CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start INTEGER, globalPid INTEGER, deviceId INTEGER,
  bytes INTEGER, memoryOperationType INTEGER);
INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (3, {PROCESS}, 0, 512, 0),
  (9, {PROCESS}, 0, 512, 1);
CREATE TABLE GPU_METRICS (timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER);
INSERT INTO GPU_METRICS VALUES (11, 256, 1, 55);
CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INTEGER, metricId INTEGER, metricName TEXT);
INSERT INTO TARGET_INFO_GPU_METRICS VALUES (256, 1, 'SMs Active [%]');
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, totalMemory INTEGER, smCount INTEGER);
INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H100', 85, 132);
"""


def make(path, script):
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def read_nsys(path):
    return load(path).tables()


@pytest.fixture
def export(tmp_path):
    return make(tmp_path / "a report#1%.sqlite", SCRIPT)


def names_of(tables):
    return tables.names["name"].gather(tables.events["name_id"]).to_list()


def test_everything_finds_its_place(export):
    tables = read_nsys(export)
    assert list(tables.events.schema) == list(EVENTS)
    derived = derive(tables)
    rows = tables.events.with_columns(
        *derived.columns.collect().drop("event"),
        pl.Series("name", names_of(tables)),
        tables.args["args"].alias("args"),
    )
    by_name = {row["name"]: row for row in rows.iter_rows(named=True)}
    operator, kernel = by_name["aten::mm"], by_name["volta_sgemm_128x64_nn"]
    assert operator["category"] == "cpu_op"
    assert json.loads(operator["args"])["Sequence number"] == 12
    call = rows.row(kernel["launch"], named=True)
    assert (call["name"], call["category"], call["start_ns"]) == ("cudaLaunchKernel", "runtime", 30)
    assert kernel["correlation"] == 42 * 2**32 + 9
    assert rows.row(kernel["op"], named=True)["name"] == "still open", (
        "open ranges end with the trace"
    )
    assert (kernel["kind"], kernel["group"], kernel["step"]) == ("compute", "gemm", 5)
    assert json.loads(kernel["args"])["grid"] == [4, None, None]
    assert by_name["cuLaunchKernelEx"]["category"] == "driver"
    assert by_name["CUDA graph"]["launch"] == by_name["cuLaunchKernelEx"]["event"]
    assert by_name["(name missing)"]["launch"] is None
    lanes = {row["lane_id"]: row for row in tables.lanes.iter_rows(named=True)}
    assert lanes[by_name["across"]["lane_id"]]["tid"] == "43 ranges"
    assert lanes[operator["lane_id"]]["thread_name"] == "main"
    assert lanes[kernel["lane_id"]] | {"lane_id": 0, "thread_name": None, "process_name": None} == {
        "lane_id": 0, "pid": "0", "tid": "7", "is_gpu": True, "device": 0, "stream": 7,
        "process_name": None, "thread_name": None,
    }  # fmt: skip
    moments = tables.instants.join(tables.names, on="name_id").sort("time_ns")
    assert moments["name"].to_list() == ["[cuda memory]", "[cuda memory]", "a mark"]
    assert [json.loads(a)["Bytes"] for a in moments["args"].to_list()[:2]] == [512, -512]
    assert json.loads(tables.counters["args"][0]) == {"value": 55}
    header = dict(tables.metadata.rows())
    assert json.loads(header["deviceProperties"])[0]["numSms"] == 132


def test_what_was_wrong_is_counted(export):
    problems = {row["problem"]: row for row in read_nsys(export).problems.to_dicts()}
    assert {word: row["count"] for word, row in problems.items()} == {
        "no_time": 1,
        "unclosed": 1,
        "negative_duration": 1,
        "tables_not_read": 1,
        "missing_name": 1,
    }
    assert "SOMETHING_NEW" in problems["tables_not_read"]["message"]


def test_an_export_with_almost_nothing(tmp_path):
    tables = read_nsys(
        make(tmp_path / "e.sqlite", "CREATE TABLE StringIds (id INTEGER, value TEXT)")
    )
    assert tables.events.is_empty()
    assert tables.lanes.is_empty()
    assert derive(tables).columns.collect().is_empty()


def test_views_are_not_read(tmp_path):
    script = """
    CREATE TABLE StringIds (id INTEGER, value TEXT);
    CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(start) AS
      (SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start FROM n;
    """
    assert read_nsys(make(tmp_path / "bomb.sqlite", script)).events.is_empty()


def test_the_file_is_not_written(export):
    before = export.read_bytes()
    export.chmod(0o444)
    read_nsys(export)
    assert export.read_bytes() == before
    assert [p.name for p in export.parent.iterdir()] == [export.name]


def test_other_databases_and_damaged_ones_are_refused(tmp_path, export):
    other = make(tmp_path / "other.sqlite", "CREATE TABLE t (x)")
    with pytest.raises(UnreadableInputError, match=r"other\.sqlite.*not exported by Nsight"):
        read_nsys(other)
    tables = ("device_traces", "segments", "blocks")
    snapshot = make(
        tmp_path / "snapshot.db", ";".join(f"CREATE TABLE {name} (id)" for name in tables)
    )
    with pytest.raises(UnreadableInputError, match=r"snapshot in SQLite .*memory\._dump_snapshot$"):
        read_nsys(snapshot)
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(export.read_bytes()[:5000])
    with pytest.raises(UnreadableInputError, match=r"damaged\.sqlite: cannot be read by SQLite"):
        read_nsys(damaged)


def test_a_report_needs_nsys(tmp_path, monkeypatch):
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(REPORT)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        UnreadableInputError, match=r"nsys export --type sqlite --output run\.sqlite"
    ):
        read_nsys(report)


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a shell script")
def test_a_report_is_exported_where_nsys_is(tmp_path, monkeypatch, export):
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(REPORT)
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\ncp "{export}" "$5"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    assert len(read_nsys(report).events) == len(read_nsys(export).events)
    program.write_text("#!/bin/sh\necho too old >&2\nexit 3\n")
    with pytest.raises(UnreadableInputError, match=r"code 3 \(too old\)"):
        read_nsys(report)
