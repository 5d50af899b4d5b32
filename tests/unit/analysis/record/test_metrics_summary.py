"""What a file of metrics shows, against sums made another way; and nvidia-smi's own files."""

from __future__ import annotations

import csv
import json
import statistics
import time
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.nvml import stepscope

from stepscope.analysis.record.metrics import is_metrics_file, read_metrics, summarise_metrics
from stepscope.errors import UnreadableInputError
from stepscope.monitor.columns import parse_columns
from stepscope.monitor.recorder import MetricsFile, row_of
from stepscope.report.metrics import to_json as metrics_to_dict
from stepscope.run.manifest import write_record
from stepscope.run.metrics import (
    THROTTLE_MASK,
    GpuDescription,
    MetricsRecord,
    Note,
    read_metrics_record,
    record_path,
)

COLUMNS = parse_columns(
    "timestamp,time_ns,index,name,uuid,utilization.gpu,memory.used,memory.total,power.draw,"
    "energy.total,temperature.gpu,clocks_event_reasons.active,gpm.tensor,xid.count,"
    "host.cpu.utilization,process.memory.rss,process.count"
)
NVIDIA_SMI = """\
timestamp, name, utilization.gpu [%], utilization.memory [%], memory.used [MiB], temperature.gpu
2026/03/01 10:00:00.123, NVIDIA A100-SXM4-80GB, 90 %, 40 %, 1000 MiB, 55
2026/03/01 10:00:01.125, NVIDIA A100-SXM4-80GB, 10 %, [N/A], 2000 MiB, [N/A]
2026/03/01 10:00:02.130, NVIDIA A100-SXM4-80GB, 80 %
2026/03/01 10:00:03.123, NVIDIA A100-SXM4-80GB, 20 %, 20 %, 1500 MiB, 57
2026/03/01 10:00:04.123, NVIDIA A100"""

GPU_VALUES = st.fixed_dictionaries(
    {
        "utilization.gpu": st.none() | st.integers(0, 100),
        "memory.used": st.none() | st.integers(0, 81920),
        "power.draw": st.none() | st.floats(0, 1000).map(lambda value: round(value, 2)),
        "clocks_event_reasons.active": st.none()
        | st.integers(0, 0x3FF).map(lambda mask: f"0x{mask:016x}"),
    }
)


def write(path, samples, columns=COLUMNS):
    file = MetricsFile(path, columns)
    for number, gpus in enumerate(samples):
        common = {"timestamp": f"t{number:05d}", "time_ns": 10**18 + number * 10**9}
        rows = [
            row_of(
                columns, {"index": index, "uuid": f"GPU-{index}", **gpu, **common}, with_units=True
            )
            for index, gpu in enumerate(gpus)
        ]
        file.write(rows)
    file.close()
    return path


def mean(values):
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


@given(st.lists(st.tuples(GPU_VALUES, GPU_VALUES), min_size=1, max_size=12))
def test_means_and_peaks_agree_with_plain_sums(tmp_path_factory, samples):
    path = write(tmp_path_factory.mktemp("metrics") / "metrics.csv", samples)
    summary = summarise_metrics(path)
    assert summary.samples == len(samples)
    assert summary.span_ns == (len(samples) - 1) * 10**9
    assert summary.gpus["uuid"].to_list() == ["GPU-0", "GPU-1"]
    for index, row in enumerate(summary.gpus.to_dicts()):
        own = [gpus[index] for gpus in samples]
        expected = mean([one["utilization.gpu"] for one in own])
        assert row["utilization_percent"] == (None if expected is None else pytest.approx(expected))
        used = [one["memory.used"] for one in own if one["memory.used"] is not None]
        assert row["memory_peak_bytes"] == (max(used) << 20 if used else None)
        power = mean([one["power.draw"] for one in own])
        assert row["power_watts"] == (None if power is None else pytest.approx(power, abs=0.006))
        masks = [int(text, 16) for one in own if (text := one["clocks_event_reasons.active"])]
        slowed = mean([bool(mask & THROTTLE_MASK) for mask in masks])
        assert row["throttled_share"] == (None if slowed is None else pytest.approx(slowed))
        capped = mean([bool(mask & 0x4) for mask in masks])
        assert row["throttled_sw_power_cap_share"] == (
            None if capped is None else pytest.approx(capped)
        )


def test_counters_give_what_they_grew_by(tmp_path):
    samples = [
        ({"energy.total": 100.0 + 50 * n, "xid.count": n // 2},
         {"energy.total": (100.0, 200.0, 5.0, 9.0)[n]})
        for n in range(4)
    ]  # fmt: skip
    gpus = summarise_metrics(write(tmp_path / "metrics.csv", samples)).gpus
    # The second GPU's driver was loaded anew in between: nothing is known of it.
    assert gpus["energy_joules"].to_list() == [150.0, None]
    assert gpus["xid_errors"].to_list() == [1, None]


def test_the_hosts_values_count_once_for_each_sample(tmp_path):
    host = [{"host.cpu.utilization": value, "process.memory.rss": value * 10, "process.count": 3}
            for value in (10, 20, 60)]  # fmt: skip
    path = write(tmp_path / "metrics.csv", [(one, one, one) for one in host])
    row = summarise_metrics(path).host.to_dicts()[0]
    assert row["cpu_percent"] == pytest.approx(30.0)
    assert row["process_memory_peak_bytes"] == 600 << 20
    assert row["processes"] == 3
    assert row["group_memory_limit_bytes"] is None


def test_a_file_of_nvidia_smi_is_read(tmp_path):
    path = tmp_path / "gpu_usage.csv"
    path.write_text(NVIDIA_SMI)
    assert is_metrics_file(path)
    summary = summarise_metrics(path)
    # One line is too short, and the last one was still being written.
    assert (summary.samples, summary.skipped_lines) == (3, 2)
    assert summary.span_ns == 3_000_000_000
    (row,) = summary.gpus.to_dicts()
    assert row["name"] == "NVIDIA A100-SXM4-80GB"
    assert row["utilization_percent"] == pytest.approx(40.0)
    assert row["memory_utilization_percent"] == pytest.approx(30.0)
    assert row["memory_peak_bytes"] == 2000 << 20
    assert row["temperature_peak_celsius"] == 57
    assert row["throttled_share"] is None
    ended = stepscope("info", path)
    assert ended.returncode == 0
    assert "A100-SXM4-80GB" in ended.stdout
    assert "2 broken lines skipped" in ended.stdout
    as_json = json.loads(stepscope("info", path, "--format", "json").stdout)
    assert as_json["gpus"][0]["utilization_percent"] == pytest.approx(40.0)


@pytest.mark.parametrize("apart_ms", [0, 3, 200])
def test_gpus_that_no_column_tells_apart_are_told_by_their_turns(tmp_path, apart_ms):
    """A query without `index`, as guides have it: each sample has a row for each GPU."""
    path = tmp_path / "gpu_usage.csv"
    rows = [
        f"2026/01/31 12:00:{second:02}.{gpu * apart_ms:03}, A100, {busy} %, 100 MiB, 50 MiB"
        for second in range(5)
        for gpu, busy in enumerate((90 + second, 20))
    ]
    rows.append("2026/01/31 12:00:05.000, A100, 95 %, 100 MiB, 50 MiB")  # cut off
    header = "timestamp, name, utilization.gpu [%], memory.used [MiB], memory.free [MiB]"
    path.write_text("\n".join([header, *rows, ""]))
    summary = summarise_metrics(path)
    assert summary.samples == 6
    assert summary.gpus.select("index", "name", "samples", "utilization_percent").rows() == [
        (0, "A100", 6, 92.5),
        (1, "A100", 5, 20.0),
    ]


@pytest.mark.parametrize("busy", [(90, 20), (90,)])
def test_one_gpu_at_uneven_times_is_one(tmp_path, busy):
    path = tmp_path / "gpu_usage.csv"
    seconds = [0, 1, 3, 4, 6, 8, 9, 11, 12]
    rows = [
        f"2026/01/31 12:00:{second:02}.000, A100, {busy[at % len(busy)]} %"
        for at, second in enumerate(seconds)
    ]
    path.write_text("\n".join(["timestamp, name, utilization.gpu [%]", *rows, ""]))
    assert len(summarise_metrics(path).gpus) == 1


def test_without_units_and_without_a_gpus_name(tmp_path):
    path = tmp_path / "short.csv"
    path.write_text("utilization.gpu [%], memory.used [MiB]\n50, 100\n70, 300\n")
    (row,) = summarise_metrics(path).gpus.to_dicts()
    assert (row["utilization_percent"], row["memory_peak_bytes"]) == (60.0, 300 << 20)
    assert summarise_metrics(path).span_ns is None


def test_a_machine_without_gpus_has_no_rows(tmp_path):
    path = tmp_path / "metrics.csv"
    file = MetricsFile(path, COLUMNS)
    file.write([row_of(COLUMNS, {"timestamp": "t", "time_ns": 1}, with_units=True)])
    file.close()
    summary = summarise_metrics(path)
    assert len(summary.gpus) == 0
    assert summary.samples == 1
    empty = tmp_path / "empty"
    empty.mkdir()
    MetricsFile(empty / "metrics.csv", COLUMNS).close()
    assert summarise_metrics(empty / "metrics.csv").samples == 0


@pytest.mark.parametrize(
    "content", ["", "\n", "a,b\n1,2\n", "timestamp, timestamp\n1, 2\n", "\x00\xff, name\n", "{}"]
)
def test_what_is_no_metrics_is_refused(tmp_path, content):
    path = tmp_path / "metrics.csv"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UnreadableInputError, match="not a file of metrics"):
        summarise_metrics(path)
    with pytest.raises(UnreadableInputError, match="cannot be read"):
        summarise_metrics(tmp_path / "missing.csv")


@given(st.binary(max_size=400))
def test_no_bytes_break_the_reader(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("metrics") / "metrics.csv"
    path.write_bytes(b"timestamp, time_ns, name, utilization.gpu [%]\n" + data)
    frame, skipped = read_metrics(path)
    lines = data.decode("utf-8", "replace").split("\n")
    rows = list(csv.reader([line for line in lines[:-1] if line.count(",") == 3], quoting=3))
    assert len(frame) == sum(line.count(",") == 3 for line in lines[:-1])
    assert len(frame) >= len(rows) or any("\r" in line for line in lines)
    assert len(frame) + skipped in {len(lines) - 1, len(lines)}
    summarise_metrics(path)


def test_the_record_beside_the_file_comes_along(tmp_path):
    path = write(tmp_path / "metrics.csv", [({}, {})])
    gpu = GpuDescription(0, "GPU-0", "A", "nvidia")
    record = MetricsRecord(
        "ended", "told to stop", 5, 2.0, 1, 7, 3, 4, 0.25, (gpu,), (Note("x", "y", 1, 2),)
    )
    write_record(record_path(path), record)
    assert read_metrics_record(path) == record
    assert summarise_metrics(path).record == record
    plain = metrics_to_dict(summarise_metrics(path))
    assert json.loads(json.dumps(plain))["record"]["notes"][0]["what"] == "x"
    other = tmp_path / "gpu.csv"
    write_record(record_path(other), record)
    assert (tmp_path / "gpu.csv.json").exists()


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the time zone cannot be changed here")
def test_the_times_of_nvidia_smi_are_in_the_machines_time_zone(tmp_path, monkeypatch):
    path = tmp_path / "gpu.csv"
    path.write_text(
        "timestamp, memory.used [MiB]\n2025/01/15 08:00:00.250, 5 MiB\n[N/A], 5 MiB\n"
        "0001/01/01 00:00:00.000, 5 MiB\n"
        "2025/07/15 08:00:00.250, 5 MiB\n"
    )
    try:
        for zone, winter, summer in (("UTC0", 8, 8), ("EST5EDT,M3.2.0,M11.1.0", 13, 12)):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            expected = [
                int(datetime(2025, month, 15, hour, tzinfo=timezone.utc).timestamp()) * 10**9
                + 250_000_000
                for month, hour in ((1, winter), (7, summer))
            ]
            found = read_metrics(path)[0]["time_ns"].to_list()
            assert (found[0], found[1], found[-1]) == (expected[0], None, expected[1])
    finally:
        monkeypatch.undo()
        time.tzset()
