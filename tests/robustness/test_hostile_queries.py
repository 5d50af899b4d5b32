"""Queries that one function makes take for ever, or all memory; results of DuckDB's own types."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.chrome_traces import operator, write

from stepscope.errors import UsageError
from stepscope.trace.load import load
from stepscope.trace.model import Trace
from stepscope.trace.sql.query import run_query


@pytest.fixture(scope="module")
def trace() -> Trace:
    return load(io.BytesIO(write([operator("op", "1", "5")])))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT levenshtein(repeat('ab', 100000), repeat('ba', 100000)) AS far",
        "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range * b.range = 7",
        "SELECT length(list_reduce(range(100000)::VARCHAR[], lambda x, y: x || y || x))",
    ],
    ids=["levenshtein", "join", "reduce"],
)
def test_the_time_limit_holds(trace: Trace, query: str) -> None:
    began = time.monotonic()
    with pytest.raises(UsageError, match=r"timed out after 2 s|memory|Memory"):
        run_query(trace, query, time_limit_s=2)
    # Without a limit, each of these takes minutes. A busy machine may take long to start.
    assert time.monotonic() - began < 50


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")
@pytest.mark.parametrize(
    "query",
    [
        "SELECT repeat('a', 3000000000) AS text",
        "SELECT list(repeat('ab', 1000) || range) AS texts FROM range(3000000)",
        "SELECT string_agg(repeat('ab', 1000)) AS text FROM range(1000000)",
    ],
)
def test_the_memory_limit_holds(trace: Trace, query: str) -> None:
    with pytest.raises(UsageError, match=r"(?i)memory|allocate"):
        run_query(trace, query, time_limit_s=120, memory_bytes=300_000_000)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
def test_ctrl_c_ends_the_query_and_its_process(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(write([operator("op", "1", "5")]))
    query = (
        "SELECT count(*) FROM range(100000000) a, range(100000000) b WHERE a.range * b.range = 7"
    )
    command = [sys.executable, "-m", "stepscope", "query", str(path), query]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, text=True
    )
    try:
        # The query itself has begun, so the command waits for its process.
        assert _until(lambda: any(_has_worked(one) for one in _group_of(process.pid)[1:]))
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "Traceback" not in errors
        assert _until(lambda: not _group_of(process.pid))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _group_of(leader: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _has_worked(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.cpu_times().user > 0.5)
    return False


def _until(holds: Callable[[], bool]) -> bool:
    for _ in range(600):
        if holds():
            return True
        time.sleep(0.1)
    return False


def test_the_process_of_a_query_ends_by_itself(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that the interpreter aborts at its end answers, too, but only a second later."""
    started, start = [], subprocess.Popen

    def kept(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(*words, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", kept)
    run_query(trace, "SELECT 1 AS one")
    assert [process.returncode for process in started] == [0]


def test_a_query_in_another_process_gives_the_same_rows(trace: Trace) -> None:
    query = "SELECT *, 3::HUGEINT AS large FROM events"
    assert run_query(trace, query).rows.equals(trace.sql(query))
    with pytest.raises(UsageError) as apart:
        run_query(trace, "SELECT no_column FROM events")
    with pytest.raises(UsageError) as here:
        trace.sql("SELECT no_column FROM events")
    assert str(apart.value) == str(here.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("TIMETZ '12:00:00+02'", "12:00:00+02"),
        ("INTERVAL 1 MONTH", "1 month"),
        ("'1010'::BIT", "1010"),
        ("1::UNION(a INT, b VARCHAR)", "1"),
        ("{'a': INTERVAL 1 DAY}", {"a": "1 day"}),
        ("[TIME '24:00:00']", ["24:00:00"]),
        ("[[DATE 'infinity']]", [["infinity"]]),
        ("MAP {[1]: 2}", "{[1]=2}"),
        ('{\'a "b\': 1::HUGEINT}::STRUCT("a ""b" HUGEINT)', {'a "b': 1}),
        ("'6e0d8c0e-3f0e-4c7e-9d0a-0a0a0a0a0a0a'::UUID", "6e0d8c0e-3f0e-4c7e-9d0a-0a0a0a0a0a0a"),
        ("array_value(1, 2)", [1, 2]),
        ("170141183460469231731687303715884105727::VARCHAR", str(2**127 - 1)),
        ("9223372036854775807::HUGEINT", 2**63 - 1),
    ],
)
def test_types_of_duckdb_become_text_or_numbers(trace: Trace, value: str, expected: object) -> None:
    rows = trace.sql(f"SELECT {value} AS x")
    assert rows["x"].to_list() == [expected]


@pytest.mark.parametrize(
    "value",
    [
        "'infinity'::DATE", "'-infinity'::TIMESTAMP", "'infinity'::TIMESTAMPTZ",
        "DATE '0044-01-01 (BC)'", "DATE '290000-01-01'", "TIMESTAMP '290000-01-01'",
        "340282366920938463463374607431768211455::UHUGEINT",
    ],
)  # fmt: skip
def test_values_beyond_every_type_are_named(trace: Trace, value: str) -> None:
    with pytest.raises(UsageError, match=r"column 'x' has dates outside|Could not cast"):
        trace.sql(f"SELECT {value} AS x")


@pytest.mark.parametrize("day", ["0001-01-01", "1970-01-01", "9999-12-31"])
@pytest.mark.parametrize("kind", ["DATE", "TIMESTAMP", "TIMESTAMP_MS", "TIMESTAMP_S"])
def test_dates_of_the_calendar_are_dates(trace: Trace, day: str, kind: str) -> None:
    assert str(trace.sql(f"SELECT '{day}'::{kind} AS x")["x"].to_list()[0]).startswith(day)


def test_dates_of_nanoseconds(trace: Trace) -> None:
    value = trace.sql("SELECT '2026-01-02 03:04:05'::TIMESTAMP_NS AS x")["x"].to_list()[0]
    assert value.isoformat() == "2026-01-02T03:04:05"
