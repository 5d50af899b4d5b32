"""The counters of a trace.

Definitions
    memory       Bytes that the caching allocator holds for tensors (allocated) and has from the
                 driver (reserved), after each `[memory]` event.
    queue        Work that has been launched and has not begun, summed over the streams of a
                 device: it grows when a launching call begins and shrinks when the work begins.
    busy         Share of each stretch of time in which at least one stream of a device works. The
                 file is divided into at most 2,000 stretches, which last 10**k ns.
    bandwidth    Bytes per second that the copies in flight move, by device and kind of copy; each
                 copy counts with its mean rate.
    metrics      Samples of `metrics.csv` beside the run, moved from Unix time to the trace's own.
    counters     What the file itself counts (`ph` C).

A series is a step function: a value holds from its time up to the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.calls.allocations import memory_events
from stepscope.analysis.calls.operands import numbers_in
from stepscope.analysis.record.metrics import read_metrics
from stepscope.analysis.selection.gpu_work import gpu_work
from stepscope.errors import StepscopeError
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

Float64Array = npt.NDArray[np.float64]

_MOST_STRETCHES = 2000
_METRICS = {
    "utilization.gpu": ("utilisation", "percent"),
    "power.draw": ("power", "watts"),
    "power.draw.instant": ("power", "watts"),
    "temperature.gpu": ("temperature", "celsius"),
    "clocks.current.sm": ("SM clock", "megahertz"),
    "clocks.sm": ("SM clock", "megahertz"),
    "memory.used": ("memory used", "mebibytes"),
}


@dataclass(frozen=True, eq=False)
class Series:
    """One counter.

    Attributes:
        name: What is counted, for people.
        group: Counters of a group are drawn below each other: "memory", "queue", "metrics", ….
        unit: "bytes", "count", "share", "watts", ….
        time_ns: When the value changes, in order, each moment once.
    """

    name: str
    group: str
    unit: str
    time_ns: Int64Array
    value: Float64Array

    def __post_init__(self) -> None:
        if len(self.time_ns) != len(self.value):
            raise ValueError(f"'{self.name}' has as many times as values")
        if (np.diff(self.time_ns) <= 0).any():
            raise ValueError(f"the times of '{self.name}' are out of order")

    @property
    def highest(self) -> float:
        """The greatest value; 0 where there is none."""
        return float(self.value.max(initial=0.0))


def series_of(
    name: str, group: str, unit: str, time_ns: Int64Array, value: npt.NDArray[np.generic]
) -> Series:
    """A series from samples in any order; of several at one moment the last one given holds."""
    order = np.argsort(time_ns, kind="stable")
    times = time_ns[order]
    last = np.append(times[1:] != times[:-1], True)[: len(times)]
    return Series(name, group, unit, times[last], value[order][last].astype(np.float64))


def sum_of(
    name: str,
    group: str,
    unit: str,
    start_ns: Int64Array,
    end_ns: Int64Array,
    amount: npt.NDArray[np.int64],
) -> Series:
    """The sum of the amounts that are in force: each one from its start to its end."""
    times = np.concatenate((start_ns, end_ns))
    order = np.argsort(times, kind="stable")
    total = np.cumsum(np.concatenate((amount, -amount))[order])
    return series_of(name, group, unit, times[order], total)


def counters_of(trace: Trace, origin_ns: int, metrics: Path | None) -> tuple[Series, ...]:
    """All counters, in the order in which they are drawn.

    Args:
        origin_ns: Times are counted from here on.
        metrics: The `metrics.csv` of its rank, where there is one.
    """
    found = [*_memory(trace, origin_ns), *_queues(trace, origin_ns)]
    found += [*_busy(trace, origin_ns), *_bandwidth(trace, origin_ns)]
    found += _of_file(trace, origin_ns)
    if metrics is not None and trace.base_time_ns:
        found += _metrics(metrics, trace.base_time_ns + origin_ns)
    return tuple(found)


def _memory(trace: Trace, origin: int) -> list[Series]:
    rows = memory_events(trace).sort("time_ns", maintain_order=True)
    found = []
    for (kind, device), mine in rows.group_by(["kind", "device"], maintain_order=True):
        where = "host" if kind == "cpu" else f"GPU {device}"
        times = mine["time_ns"].to_numpy() - origin
        total = mine["allocated_bytes"].fill_null(mine["change_bytes"].fill_null(0).cum_sum())
        label = f"allocated, {where}"
        if mine["allocated_bytes"].null_count():
            label += " (since the start)"
        found.append(series_of(label, "memory", "bytes", times, total.to_numpy()))
        known = mine.drop_nulls("reserved_bytes")
        if len(known) and kind != "cpu":
            times = known["time_ns"].to_numpy() - origin
            reserved = known["reserved_bytes"].to_numpy()
            found.append(series_of(f"reserved, {where}", "memory", "bytes", times, reserved))
    # GPUs first: the host's allocations say little of a training.
    return sorted(found, key=lambda one: ("host" in one.name, one.name))


def _queues(trace: Trace, origin: int) -> list[Series]:
    work = gpu_work(trace).table.drop_nulls("launch")
    starts = trace.columns("start_ns")["start_ns"].to_numpy()
    found = []
    for (device,), mine in work.group_by(["device"], maintain_order=True):
        called = starts[mine["launch"].to_numpy()]
        began = np.maximum(mine["start_ns"].to_numpy(), called)  # the clocks differ a little
        one = np.ones(len(mine), np.int64)
        name = f"launched and waiting, GPU {device}"
        found.append(sum_of(name, "queue", "count", called - origin, began - origin, one))
    return found


def _busy(trace: Trace, origin: int) -> list[Series]:
    work = gpu_work(trace).table
    found = []
    for (device,), mine in work.group_by(["device"], maintain_order=True):
        start = mine["start_ns"].to_numpy()
        busy = intervals.merge(start, start + mine["dur_ns"].to_numpy())
        if not len(busy):  # no work of the device has a duration
            continue
        first, last = int(busy.starts[0]), int(busy.ends[-1])
        step = next(10**k for k in range(19) if (last - first) // 10**k < _MOST_STRETCHES)
        borders = np.arange(first, last + 2 * step, step)
        share = np.diff(intervals.covered_before(busy, borders)) / step
        times = borders - origin
        found.append(
            series_of(f"busy, GPU {device}", "busy", "share", times, np.append(share, 0.0))
        )
    return found


def _bandwidth(trace: Trace, origin: int) -> list[Series]:
    copies = gpu_work(trace).table.filter(
        pl.col("category") == Category.GPU_MEMCPY.value, pl.col("bytes") > 0, pl.col("dur_ns") > 0
    )
    names = trace.name_rows["name_id", "name"]
    found = []
    named = copies.join(names, on="name_id", how="left", maintain_order="left")
    for (device, name), mine in named.group_by(["device", "name"], maintain_order=True):
        start = mine["start_ns"].to_numpy()
        end = start + mine["dur_ns"].to_numpy()
        rate = (mine["bytes"].to_numpy() * 1e9 / mine["dur_ns"].to_numpy()).astype(np.int64)
        title = f"{name}, GPU {device}"
        found.append(
            sum_of(title, "bandwidth", "bytes_per_second", start - origin, end - origin, rate)
        )
    return found


def _of_file(trace: Trace, origin: int) -> list[Series]:
    """Counters that the file itself holds: one series per name and key of its arguments."""
    rows = trace.counters.join(trace.names.select("name_id", "name"), on="name_id").select(
        "name", "time_ns", "args"
    )
    values: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
    for name, time_ns, text in rows.collect().iter_rows():
        for key, value in numbers_in(text):
            times, numbers = values.setdefault((name, key), ([], []))
            times.append(time_ns)
            numbers.append(value)
    return [
        series_of(
            name if key in {"value", name} else f"{name}: {key}",
            "counters",
            "number",
            np.array(times, np.int64) - origin,
            np.array(numbers),
        )
        for (name, key), (times, numbers) in sorted(values.items())
    ]


def _metrics(path: Path, origin_unix_ns: int) -> list[Series]:
    try:
        frame, _ = read_metrics(path)
    except StepscopeError:
        return []
    if "time_ns" not in frame.columns:
        return []
    by = "index" if "index" in frame.columns else None
    found = []
    groups = frame.group_by([by], maintain_order=True) if by else [((0,), frame)]
    for (number,), mine in groups:
        if number is None:
            continue
        for column, (label, unit) in _METRICS.items():
            if column in mine.columns:
                known = mine.select("time_ns", value=column).drop_nulls()
                if len(known):
                    found.append(
                        series_of(f"{label}, GPU {int(float(number))}", "metrics", unit,
                                  known["time_ns"].to_numpy() - origin_unix_ns,
                                  known["value"].to_numpy())
                    )  # fmt: skip
    return found
