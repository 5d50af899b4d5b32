"""Exports of Nsight Systems with values, types and tables that nsys never writes."""

import re
import sqlite3
from contextlib import closing

import polars as pl
import pytest
from tests.support.fake_nsys import EXPORT

from stepscope.commands.main import main
from stepscope.errors import UnreadableInputError
from stepscope.trace.load import load

UNTYPED = re.sub(
    r"\(([^()]*(?:INTEGER|TEXT)[^()]*)\)",
    lambda columns: "(" + re.sub(r" (INTEGER PRIMARY KEY|INTEGER|TEXT)", "", columns[1]) + ")",
    EXPORT,
)
"""The export with columns that take values of any type."""
ODD = {
    "null": None,
    "negative": -1,
    "largest": 2**63 - 1,
    "smallest": -(2**63),
    "beyond 32 bits": 2**40,
    "huge": 1e308,
    "endless": float("inf"),
    "text": "text",
    "digits": "9" * 400,
    "bytes": b"\xff\x00",
    "empty": "",
}


def make(path, script):
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def columns_of(connection):
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return [
        (table, row[1])
        for (table,) in tables
        for row in connection.execute(f"PRAGMA table_info({table})").fetchall()
    ]


def check(trace):
    """Whatever was left out, what is left is sound."""
    events = trace.events.collect()
    assert (events["dur_ns"] >= 0).all()
    assert (events["start_ns"].abs() <= 2**62).all()
    assert events["start_ns"].is_sorted()
    assert len(trace.derived.collect()) == len(events)


@pytest.mark.slow
@pytest.mark.parametrize("odd", ODD)
def test_one_odd_value(tmp_path, odd):
    path = make(tmp_path / "odd.sqlite", UNTYPED)
    with closing(sqlite3.connect(path)) as connection:
        for table, column in columns_of(connection):
            read = f"SELECT {column} FROM {table} WHERE rowid = 1"
            write = f"UPDATE {table} SET {column} = ? WHERE rowid = 1"
            (before,) = connection.execute(read).fetchone()
            connection.execute(write, (ODD[odd],))
            connection.commit()
            check(load(path))
            connection.execute(write, (before,))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("odd", ODD)
def test_nothing_but_odd_values(tmp_path, odd, capsys):
    path = make(tmp_path / "odd.sqlite", UNTYPED)
    with closing(sqlite3.connect(path)) as connection:
        for table, column in columns_of(connection):
            connection.execute(f"UPDATE {table} SET {column} = ?", (ODD[odd],))
        connection.commit()
    check(load(path))
    for verb in ("report", "info"):
        assert main([verb, str(path)]) in (0, 3)
        assert "unexpected" not in capsys.readouterr().err


def test_what_was_left_out_is_counted(tmp_path):
    path = make(tmp_path / "odd.sqlite", UNTYPED)
    with closing(sqlite3.connect(path)) as connection:
        kernels = "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET"
        connection.execute(f"{kernels} deviceId = ? WHERE rowid = 1", (2**40,))
        connection.execute(f"{kernels} start = ? WHERE rowid = 2", (2**63 - 1,))
        connection.execute("UPDATE NVTX_EVENTS SET start = 'soon' WHERE rowid = 2")
        connection.commit()
    trace = load(path)
    counts = dict(trace.problems.select("problem", "count").iter_rows())
    assert counts == {"odd_device": 1, "odd_time": 1, "no_time": 2}
    kernels = trace.events.filter(pl.col("category") == "kernel").collect()
    assert kernels["device"].to_list() == [None]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("table", re.findall(r"CREATE TABLE (\w+)", EXPORT))
@pytest.mark.parametrize("kind", ["missing", "empty", "without columns", "a view"])
def test_tables_that_are_not_as_they_should_be(tmp_path, table, kind):
    path = make(tmp_path / "odd.sqlite", EXPORT)
    with closing(sqlite3.connect(path)) as connection:
        if kind == "empty":
            connection.execute(f"DELETE FROM {table}")
        elif kind == "missing":
            connection.execute(f"DROP TABLE {table}")
        else:
            connection.execute(f"ALTER TABLE {table} RENAME TO elsewhere")
            made = "TABLE {} (unknown)" if kind == "without columns" else "VIEW {} AS SELECT 1 AS a"
            connection.execute(f"CREATE {made.format(table)}")
        connection.commit()
    check(load(path))


def test_a_damaged_export_leaves_nothing_open(tmp_path, recwarn):
    path = make(tmp_path / "damaged.sqlite", EXPORT)
    path.write_bytes(path.read_bytes()[:100] + bytes(4000))
    with pytest.raises(UnreadableInputError, match="damaged.sqlite: cannot be read by SQLite"):
        load(path)
    assert not [one for one in recwarn if issubclass(one.category, ResourceWarning)]


def test_a_damaged_schema_whose_message_is_not_utf8(tmp_path, recwarn):
    path = make(tmp_path / "damaged.sqlite", "CREATE TABLE kernels (start INT);")
    before = path.read_bytes()
    path.write_bytes(before.replace(b"kernels (start", b"kernel\xaa \xab\xacstart"))
    assert path.read_bytes() != before
    with pytest.raises(UnreadableInputError, match="damaged.sqlite: cannot be read by SQLite"):
        load(path)
    assert not recwarn.list
