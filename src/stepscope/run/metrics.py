"""`metrics.json`: a sampler's record of the `metrics.csv` next to it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from stepscope.run.files import open_regular
from stepscope.run.layout import METRICS_FILE, METRICS_RECORD_FILE
from stepscope.run.manifest import FORMAT_VERSION, read_record

_TAIL_BYTES = 1 << 16
CLOCK_REASON_BITS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
"""Why a GPU's clocks are reduced: the bits of `clocks_event_reasons.active`."""
THROTTLE_REASONS = (
    "sw_power_cap",
    "hw_slowdown",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
)
"""Those that slow the work down: power and heat."""
THROTTLE_MASK = sum(CLOCK_REASON_BITS[reason] for reason in THROTTLE_REASONS)


@dataclass(frozen=True)
class GpuDescription:
    """One sampled GPU, of the vendor "nvidia" or "amd"."""

    index: int
    uuid: str
    name: str
    vendor: str


@dataclass(frozen=True)
class Note:
    """Something that a sampler could not read, or that went wrong.

    Attributes:
        what: Columns, a device, or a file.
        first_ns: When it first occurred, in nanoseconds since the epoch.
    """

    what: str
    why: str
    first_ns: int
    times: int = 1


@dataclass(frozen=True)
class MetricsRecord:
    """What a sampler did.

    Attributes:
        state: "running" or "ended".
        started_ns: First sample, nanoseconds since the epoch.
        interval_s: Current interval between samples, in seconds.
        thinned: How often every second sample was dropped to keep the file small; the interval
            was doubled each time.
        samples: Samples taken; after thinning, the file has fewer.
        cpu_s: CPU time of sampling, including its start, in seconds; that of the whole process
            if the sampler is a thread.
        notes: What is missing, and why.
    """

    state: str = "running"
    ended: str = ""
    started_ns: int = 0
    interval_s: float = 1.0
    thinned: int = 0
    samples: int = 0
    watched_pid: int = 0
    process_id: int = 0
    cpu_s: float = 0.0
    gpus: tuple[GpuDescription, ...] = ()
    notes: tuple[Note, ...] = ()
    format: str = "stepscope-metrics"
    version: int = FORMAT_VERSION


def record_path(metrics: Path) -> Path:
    """The path of the record of a `metrics.csv`; for a file of another name, "NAME.json"."""
    if metrics.name == METRICS_FILE:
        return metrics.with_name(METRICS_RECORD_FILE)
    return metrics.with_name(f"{metrics.name}.json")


def read_metrics_record(metrics: Path) -> MetricsRecord:
    """Read the record of a file of metrics."""
    return read_record(record_path(metrics), MetricsRecord)


def last_sample(metrics: Path) -> list[dict[str, str]]:
    """The rows of the last complete sample of a file; empty if there is none yet."""
    samples = read_samples(metrics, _TAIL_BYTES)
    return samples[-1] if samples else []


def read_samples(metrics: Path, most_bytes: int | None = None) -> list[list[dict[str, str]]]:
    """All complete samples of a file: rows of texts by column name, without units.

    Empty if there is no file.

    Args:
        most_bytes: How much of the end of the file is read; None for all of it.
    """
    try:
        with open_regular(metrics) as file:
            header = file.readline()
            size, start = file.seek(0, os.SEEK_END), len(header)
            if most_bytes is not None:
                start = max(start, size - most_bytes)
            file.seek(start)
            data = file.read()
    except OSError:
        return []
    rows = _rows(header, data, is_cut=start > len(header))
    return [list(sample) for _, sample in groupby(rows, lambda row: row.get("timestamp"))]


def _rows(header: bytes, data: bytes, *, is_cut: bool) -> list[dict[str, str]]:
    # Text after the last line break is still being written.
    lines = data.decode("utf-8", "replace").split("\n")[:-1]
    # The file is untrusted: its text must not control a terminal.
    lines = ["".join(one if one.isprintable() else " " for one in line) for line in lines]
    if is_cut:
        lines = lines[1:]
    names = [
        part.strip().partition(" [")[0] for part in header.decode("utf-8", "replace").split(",")
    ]
    return [
        dict(zip(names, fields, strict=True))
        for fields in ([part.strip() for part in line.split(",")] for line in lines)
        if len(fields) == len(names)
    ]
