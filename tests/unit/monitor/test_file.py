"""Columns, rows, and the file that is appended to."""

from __future__ import annotations

import csv
import resource

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.project import ROOT

from stepscope.analysis.record.metrics import read_metrics
from stepscope.errors import UsageError
from stepscope.monitor.columns import (
    ALIASES,
    COLUMNS,
    DEFAULT_COLUMNS,
    header_of,
    is_of_host,
    parse_columns,
)
from stepscope.monitor.notes import Notes, Rates
from stepscope.monitor.querying import CsvFormat
from stepscope.monitor.recorder import MetricsFile, row_of
from stepscope.monitor.sampler import Ticks, timestamp
from stepscope.run.metrics import last_sample

THREE = parse_columns("timestamp,index,utilization.gpu")


def sample(number: int, gpus: int = 2) -> list[list[str]]:
    return [[f"2026/01/01 00:00:{number:09.3f}", str(gpu), "5 %"] for gpu in range(gpus)]


def test_columns_carry_nvidia_smis_headings():
    columns = parse_columns("timestamp, utilization.gpu,memory.used,power.draw,clocks.sm,clocks.gr")
    assert header_of(columns) == (
        "timestamp, utilization.gpu [%], memory.used [MiB], power.draw [W], "
        "clocks.current.sm [MHz], clocks.current.graphics [MHz]"
    )
    assert set(ALIASES.values()) <= set(COLUMNS)
    assert not set(ALIASES) & set(COLUMNS)


def test_the_runs_file_begins_with_its_times():
    names = [column.name for column in DEFAULT_COLUMNS]
    assert names[:2] == ["timestamp", "time_ns"]
    assert {"utilization.gpu", "memory.used", "host.cpu.utilization", "process.cpu"} <= set(names)
    assert not is_of_host("process.gpu.memory")


@pytest.mark.parametrize("text", ["", "nam", "name,,uuid", "utilisation.gpu"])
def test_what_is_no_column_is_refused(text):
    with pytest.raises(UsageError, match="there is no column"):
        parse_columns(text)


@pytest.mark.parametrize(
    ("text", "header", "units"),
    [("csv", True, True), ("csv,noheader", False, True), ("csv, nounits,noheader", False, False)],
)
def test_formats_are_those_of_nvidia_smi(text, header, units):
    assert CsvFormat.parse(text) == CsvFormat(header, units)


@pytest.mark.parametrize("text", ["", "xml", "noheader", "csv,short"])
def test_other_formats_are_refused(text):
    with pytest.raises(UsageError, match="csv,noheader"):
        CsvFormat.parse(text)


VALUES = st.one_of(
    st.none(),
    st.integers(-(2**40), 2**60),
    st.floats(-1e12, 1e12),
    st.text(max_size=30),
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # other work may slow the drawing
@given(st.lists(st.fixed_dictionaries({column.name: VALUES for column in DEFAULT_COLUMNS[3:8]})))
def test_whatever_a_driver_says_a_row_stays_a_row(rows):
    columns = DEFAULT_COLUMNS[3:8]
    lines = [", ".join(row_of(columns, row, with_units=True)) for row in rows]
    assert all(len(line.split(", ")) == len(columns) for line in lines)
    assert all(line.isprintable() for line in lines)


def test_what_is_written_reads_back(tmp_path):
    path = tmp_path / "metrics.csv"
    columns = parse_columns(
        "timestamp,time_ns,index,name,utilization.gpu,power.draw,clocks_event_reasons.active"
    )
    values = [
        {"timestamp": "t", "time_ns": 2**62 + 1, "index": 3, "name": "A, B", "power.draw": 12.345},
        {"timestamp": "t", "time_ns": 5, "index": 4, "clocks_event_reasons.active": "0x0000000f"},
    ]
    file = MetricsFile(path, columns)
    file.write([row_of(columns, row, with_units=True) for row in values])
    file.close()
    frame, skipped = read_metrics(path)
    assert skipped == 0
    assert frame["time_ns"].to_list() == [2**62 + 1, 5]
    assert frame["name"].to_list() == ["A B", None]
    assert frame["power.draw"].to_list() == [pytest.approx(12.35, abs=0.011), None]
    assert frame["clocks_event_reasons.active"].to_list() == [None, 15]
    assert frame["utilization.gpu"].to_list() == [None, None]
    with path.open(newline="") as text:
        # Python's own reader agrees on what is a field.
        assert {len(row) for row in csv.reader(text, skipinitialspace=True)} == {len(columns)}


def test_rows_are_appended_after_a_kill_and_a_torn_line_spoils_no_other(tmp_path):
    path = tmp_path / "metrics.csv"
    MetricsFile(path, THREE).close()
    with path.open("a") as file:
        file.write(", ".join(sample(1)[0]) + "\n2026/01/01 00:00:0")
    again = MetricsFile(path, THREE)
    again.write(sample(2))
    again.close()
    lines = path.read_text().splitlines()
    assert lines[0] == header_of(THREE)
    assert lines[1:] == [
        ", ".join(sample(1)[0]),
        "2026/01/01 00:00:0",
        *(", ".join(row) for row in sample(2)),
    ]
    frame, skipped = read_metrics(path)
    assert (len(frame), skipped) == (3, 1)


def test_a_file_of_something_else_is_left_alone(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("my,own,table\n1,2,3\n")
    with pytest.raises(UsageError, match="exists with other columns"):
        MetricsFile(path, THREE)
    assert path.read_text() == "my,own,table\n1,2,3\n"


@pytest.mark.parametrize("gpus", [1, 3])
def test_the_file_stays_within_its_share_and_its_samples_evenly_spaced(tmp_path, gpus):
    path = tmp_path / "metrics.csv"
    most = 20_000
    file = MetricsFile(path, THREE, most)
    distance, number = 1, 0
    for _ in range(2000):
        before = file.thinned
        is_kept = file.write(sample(number, gpus))
        assert path.stat().st_size <= most
        has_thinned = file.thinned > before
        number += 2 * distance if has_thinned and is_kept else distance
        distance *= 2 if has_thinned else 1
    file.close()
    lines = path.read_text().splitlines()[1:]
    times = list(dict.fromkeys(line.partition(",")[0] for line in lines))
    assert len(lines) == gpus * len(times)
    assert file.thinned > 1
    seconds = [float(time.rpartition(":")[2]) for time in times]
    assert seconds == [index * distance for index in range(len(seconds))]
    assert path.stat().st_size > most / 3


def test_a_full_disk_loses_rows_and_nothing_else(tmp_path):
    path = tmp_path / "metrics.csv"
    file = MetricsFile(path, THREE)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    import signal

    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, hard))
        for number in range(20):
            file.write(sample(number))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    file.write(sample(99))
    file.close()
    assert "File too large" in (file.problem or "")
    frame, _ = read_metrics(path)
    assert frame["timestamp"].to_list()[-1].endswith("00:00099.000"[-10:])


def test_the_last_sample_is_the_last_whole_one(tmp_path):
    path = tmp_path / "metrics.csv"
    assert last_sample(path) == []
    file = MetricsFile(path, THREE)
    assert last_sample(path) == []
    for number in range(3000):
        file.write(sample(number))
    file.close()
    with path.open("a") as text:
        text.write("2026/01/01 00:0")
    rows = last_sample(path)
    assert [row["index"] for row in rows] == ["0", "1"]
    assert {row["timestamp"] for row in rows} == {sample(2999)[0][0]}
    assert rows[0]["utilization.gpu"] == "5 %"


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@given(st.lists(st.floats(0.0, 5.0), max_size=30))
def test_ticks_keep_their_grid_and_make_up_for_nothing(delays):
    clock = Clock()
    ticks = Ticks(1.0, clock)
    taken = []
    for delay in delays:
        clock.now += ticks.wait_s()
        taken.append(clock.now)
        ticks.advance()
        assert 0.0 < ticks.wait_s() <= 1.0 + 1e-9
        clock.now += delay
    # Each sample is at or after a whole second of the grid, and no second has two.
    seconds = [int(moment - 100.0 + 1e-6) for moment in taken]
    assert len(set(seconds)) == len(seconds)


def test_rates_need_two_readings_and_a_counter_that_grows():
    rates = Rates()
    assert rates.per_second("a", 10, 1_000_000_000) is None
    assert rates.per_second("a", 30, 3_000_000_000) == 10.0
    assert rates.per_second("a", 5, 4_000_000_000) is None
    assert rates.per_second("a", 6, 4_000_000_000) is None
    assert rates.per_second("a", None, 5_000_000_000) is None
    assert rates.per_second("a", 8, 6_000_000_000) is None


def test_a_note_is_one_entry_however_often(tmp_path):
    added = []
    notes = Notes(added.append)
    for _ in range(5):
        notes.add("x", "why\nnot")
    notes.add("x", "")
    assert [(note.what, note.why, note.times) for note in notes.entries] == [
        ("x", "why not", 5),
        ("x", "no reason was given", 1),
    ]
    assert len(added) == notes.changes == 2
    for number in range(1000):
        notes.add("y", number)
    assert len(notes.entries) == 200


def test_timestamps_are_nvidia_smis(monkeypatch):
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        assert timestamp(1_767_225_599_999_999_999) == "2025/12/31 23:59:59.999"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_every_column_stands_in_the_docs_as_it_is():
    page = (ROOT / "docs/verbs/monitor.md").read_text(encoding="utf-8")
    for column in COLUMNS.values():
        names = [column.name, *(alias for alias, name in ALIASES.items() if name == column.name)]
        first = f"`{names[0]}`"
        if len(names) > 1:
            first += f" (or {', '.join(f'`{name}`' for name in names[1:])})"
        is_default = "yes" if column.is_default else ""
        about = column.about[0].upper() + column.about[1:]
        assert f"| {first} | {column.unit} | {is_default} | {about} |" in page
