"""The nsys reader against SQL run directly on the same files."""

import json
import re
import sqlite3
from collections import Counter
from contextlib import closing

import polars as pl
import pytest
from tests.support.traces import trace_path

from stepscope.trace.derive.columns import derive
from stepscope.trace.load import load

FILES = ("nsys/h100_2gpu_1s.sqlite", "nsys/mfu_2gpu_before.sqlite")


@pytest.fixture(scope="module", params=FILES)
def both(request):
    """The file's own answers, and the tables that the reader made of it."""
    path = trace_path(request.param)
    tables = load(path).tables()
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        yield connection, tables


def named(tables, category):
    return tables.events.filter(pl.col("category") == category).join(
        tables.names.select("name_id", "name", "kind", "group"), on="name_id"
    )


def test_kernels_by_name(both):
    sql, tables = both
    expected = sql.execute(
        "SELECT s.value, count(*), sum(k.end - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k"
        " JOIN StringIds s ON s.id = k.demangledName GROUP BY 1 ORDER BY 1"
    ).fetchall()
    found = named(tables, "kernel").group_by("name").agg(pl.len(), pl.col("dur_ns").sum())
    assert found.sort("name").rows() == expected


def test_kernels_one_by_one(both):
    sql, tables = both
    expected = sql.execute(
        "SELECT start, end - start, deviceId, streamId, gridX, gridY, gridZ,"
        " blockX, blockY, blockZ, registersPerThread, correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL"
    ).fetchall()
    kernels = named(tables, "kernel").join(tables.args, on="event")
    found = []
    for row in kernels.iter_rows(named=True):
        args = json.loads(row["args"])
        place = (row["start_ns"], row["dur_ns"], row["device"], row["stream"])
        sizes = (*args["grid"], *args["block"], args["registers per thread"], args["correlation"])
        found.append((*place, *sizes))
        assert row["correlation"] % 2**32 == args["correlation"]
    assert sorted(found) == sorted(expected)


def test_copies_and_fills(both):
    sql, tables = both
    expected = sql.execute(
        "SELECT start, end - start, deviceId, streamId, bytes, copyKind"
        " FROM CUPTI_ACTIVITY_KIND_MEMCPY ORDER BY 1, 2, 3"
    ).fetchall()
    copies = named(tables, "gpu_memcpy").sort("start_ns", "dur_ns", "device")
    kinds = {"host_to_device": 1, "device_to_host": 2, "device_to_device": 8}
    assert [
        (*row[:5], kinds[row[5]])
        for row in copies.select("start_ns", "dur_ns", "device", "stream", "bytes", "group").rows()
    ] == expected
    fills = named(tables, "gpu_memset")
    expected = sql.execute(
        "SELECT count(*), sum(end - start), sum(bytes) FROM CUPTI_ACTIVITY_KIND_MEMSET"
    ).fetchone()
    assert (len(fills), fills["dur_ns"].sum(), fills["bytes"].sum()) == expected


def test_runtime_calls_by_name_and_thread(both):
    sql, tables = both
    expected = Counter()
    for name, thread, count, total in sql.execute(
        "SELECT s.value, r.globalTid % 0x1000000, count(*), sum(r.end - r.start)"
        " FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s ON s.id = r.nameId GROUP BY 1, 2"
    ):
        plain = re.sub(r"(_v\d{4,}|_ptsz)+$", "", name)
        expected[plain, str(thread), "n"] += count
        expected[plain, str(thread), "ns"] += total
    calls = pl.concat([named(tables, "runtime"), named(tables, "driver")])
    found = Counter()
    for name, thread, count, total in (
        calls.join(tables.lanes, on="lane_id")
        .group_by("name", "tid")
        .agg(pl.len(), pl.col("dur_ns").sum())
        .iter_rows()
    ):
        found[name, thread, "n"] += count
        found[name, thread, "ns"] += total
    assert found == expected
    assert named(tables, "driver")["name"].str.starts_with("cu").all()


def test_ranges(both):
    sql, tables = both
    expected = Counter()
    for text, length in sql.execute(
        "SELECT coalesce(n.text, s.value), n.end - n.start FROM NVTX_EVENTS n"
        " LEFT JOIN StringIds s ON s.id = n.textId WHERE n.eventType IN (59, 60)"
    ):
        plain = re.sub(r", (seq|op_id) = .*", "", text)
        expected[plain] += 1
        expected[plain, "ns"] += length
    ranges = tables.events.join(
        tables.names.filter(pl.col("raw_category") == "nvtx").select("name_id", "name"),
        on="name_id",
    )
    found = Counter()
    for name, length in ranges.select("name", "dur_ns").iter_rows():
        found[name] += 1
        found[name, "ns"] += length
    assert found == expected
    sequence = sql.execute(
        "SELECT count(*) FROM NVTX_EVENTS WHERE text LIKE '%, seq = %'"
    ).fetchone()
    noted = tables.args["args"].str.contains(r'"Sequence number":\d').sum()
    assert noted == sequence[0]


def test_launches_need_the_process_as_well_as_the_correlation(both):
    sql, tables = both
    expected = {}
    for table in ("KERNEL", "MEMCPY", "MEMSET"):
        for work, call in sql.execute(
            f"SELECT k.start, r.start FROM CUPTI_ACTIVITY_KIND_{table} k"
            " JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = k.correlationId"
            " AND r.globalTid / 0x1000000 = k.globalPid / 0x1000000"
        ):
            expected.setdefault((table, work), []).append(call)
    derived = derive(tables)
    starts = tables.events["start_ns"]
    word = {"kernel": "KERNEL", "gpu_memcpy": "MEMCPY", "gpu_memset": "MEMSET"}
    found = {}
    linked = tables.events.with_columns(derived.columns.collect()["launch"]).drop_nulls("launch")
    for category, start, launch in linked.select("category", "start_ns", "launch").iter_rows():
        if category in word:
            found.setdefault((word[category], start), []).append(starts[launch])
    assert {k: sorted(v) for k, v in found.items()} == {k: sorted(v) for k, v in expected.items()}
    assert not derived.problems["problem"].is_in(["ambiguous_correlation"]).any()


def test_session_start_and_problems(both):
    sql, tables = both
    header = {key: json.loads(value) for key, value in tables.metadata.iter_rows()}
    start = sql.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
    assert header["baseTimeNanoseconds"] == start[0]
    assert header["META_DATA_EXPORT"]["EXPORT_PRODUCT_NAME"] == "NVIDIA Nsight Systems"
    assert tables.problems.is_empty()
