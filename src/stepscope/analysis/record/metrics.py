"""The summary of a `metrics.csv`: the GPUs' load, memory, temperature and throttling.

Files that nvidia-smi wrote (`--query-gpu=… --format=csv`) are read as well. The GPU
clocks of a job's ranks are compared: whose GPU runs slower than its peers', and why.

Definitions
    Clock of a rank: the median clock of its GPU's multiprocessors over the samples in which the GPU
    was busy; an idle GPU lowers its clock without harm.
    Peers: the other ranks with a GPU of the same name.
    Slow: the clock is at most `SLOW_SHARE` of the median of the peers' clocks, and lower than it by
    more than five times their spread (the median distance from their median, scaled to a normal
    distribution's standard deviation). GPUs of one model differ by some percent where power limits
    them, so a wide spread accuses nobody.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from stepscope.errors import UnreadableInputError
from stepscope.run.figures import percent
from stepscope.run.files import open_regular, read_regular
from stepscope.run.metrics import (
    CLOCK_REASON_BITS,
    THROTTLE_MASK,
    THROTTLE_REASONS,
    MetricsRecord,
    read_metrics_record,
)

_TEXTS = ("timestamp", "name", "uuid", "serial", "pci.bus_id", "pstate", "driver_version")
_KEYS = ("index", "name", "uuid")
_MASKS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
_TELL_GPUS_APART = ("index", "uuid", "serial", "pci.bus_id")
_MOST_GPUS, _LEAST_SAMPLES = 32, 3
_APART = 2
"""How many times as far apart samples are as the rows of one, at least."""
_MOST_BYTES = 1 << 30
_BUSY_PERCENT = 50


@dataclass(frozen=True)
class MetricsSummary:
    """A file of metrics. Every mean is over the samples that have a value.

    Attributes:
        samples: Number of samples: rows with one time count as one, or if all rows are of GPUs, the
            rows of one.
        span_ns: From the first sample to the last; None if times are missing.
        gpus: One row for each GPU: index (where rows do not say which GPU they are of, but come
            several at a time, the place in the sample), name, uuid, samples, utilization_percent
            and memory_utilization_percent (means), memory_peak_bytes, memory_total_bytes,
            power_watts (mean), power_peak_watts, energy_joules (from first to last sample),
            temperature_peak_celsius, clock_mhz (mean of the multiprocessors' clock), busy_samples
            (those with a clock in which the GPU was busy: utilization.gpu of 50% or more),
            busy_clock_mhz (median over these), set_lower_share (of the samples: the application
            clocks were set lower),
            throttled_share (of the samples, 0 to 1: power or heat reduced the clocks; None if no
            sample has it), one share `throttled_…_share` for each of `THROTTLE_REASONS` (a sample
            can have several), tensor_percent, sm_percent, dram_percent (means of GPM), xid_errors
            and ecc_errors (uncorrected, new since the first sample). Null if the file does not
            have the value.
        host: One row: cpu_percent, iowait_percent (means), memory_peak_bytes,
            group_memory_peak_bytes, group_memory_limit_bytes, throttled_percent (mean),
            disk_read_bytes_per_second, network_receive_bytes_per_second (means), process_percent
            (mean), process_memory_peak_bytes, processes (greatest number).
        record: The sampler's own record of the file; None without one.
    """

    path: Path
    samples: int
    span_ns: int | None
    gpus: pl.DataFrame
    host: pl.DataFrame
    skipped_lines: int
    record: MetricsRecord | None


def is_metrics_file(path: Path) -> bool:
    """Whether the first line of a file is that of a file of metrics."""
    try:
        with open_regular(path) as file:
            first = file.readline(1 << 16)
    except OSError:
        return False
    names = {part.strip().partition(b" [")[0] for part in first.split(b",")}
    known = {b"timestamp", b"utilization.gpu", b"memory.used", b"power.draw", b"temperature.gpu"}
    return path.suffix == ".csv" and bool(names & known)


def summarise_metrics(path: Path) -> MetricsSummary:
    """Read and summarise a file of metrics."""
    frame, skipped = read_metrics(path)
    if gpus := _gpus_in_turn(frame):
        place = pl.int_range(pl.len(), dtype=pl.Int64) % gpus
        frame = frame.with_columns(place.cast(pl.Float64).alias("index"))
    record = None
    with contextlib.suppress(UnreadableInputError):
        record = read_metrics_record(path)
    times = frame.get_column("time_ns") if "time_ns" in frame.columns else None
    span_ns = None
    if times is not None and times.drop_nulls().len():
        span_ns = int(times.max() - times.min())  # type: ignore[operator, arg-type]
    samples = frame["timestamp"].n_unique() if "timestamp" in frame.columns else len(frame)
    of_gpus = _gpus(frame)
    if len(frame) and of_gpus["samples"].sum() == len(frame):
        # nvidia-smi writes a time of its own for each GPU.
        samples = int(of_gpus["samples"].max())  # type: ignore[arg-type]
    return MetricsSummary(path, samples, span_ns, of_gpus, _host(frame), skipped, record)


def _gpus_in_turn(frame: pl.DataFrame) -> int:
    """How many GPUs there are, if nothing names them but each sample has a row of each; else 0.

    As of nvidia-smi without `index`: it writes the rows of a sample one right after the other.
    """
    if "time_ns" not in frame.columns or any(name in frame.columns for name in _TELL_GPUS_APART):
        return 0
    times = frame["time_ns"]
    if times.null_count():
        return 0
    after_ns = np.diff(times.to_numpy())
    names = frame["name"].to_numpy() if "name" in frame.columns else None
    for gpus in range(2, min(_MOST_GPUS, len(times) // _LEAST_SAMPLES) + 1):
        is_next = np.arange(1, len(times)) % gpus == 0
        if after_ns[is_next].min() <= _APART * max(0, after_ns[~is_next].max()):
            continue
        if names is None or (names[gpus:] == names[:-gpus]).all():
            return gpus
    return 0


def read_metrics(path: Path) -> tuple[pl.DataFrame, int]:
    """The rows of a file of metrics, and how many lines were no rows.

    Returns:
        Columns by their names without units: texts as String, `time_ns` as Int64 (from `timestamp`
        in this machine's time zone where the file lacks it), masks as Int64, all else as Float64
        in the file's units; `[N/A]` as null.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UnreadableInputError(f"{path}: more than 1 GiB of metrics: cut it in pieces")
        data = read_regular(path, _MOST_BYTES)
    except OSError as error:
        raise UnreadableInputError(f"{path}: cannot be read: {error.strerror or error}") from error
    # What stands behind the last line break is a line that was being written.
    whole, _, torn = data.rpartition(b"\n")
    lines = whole.decode("utf-8", "replace").split("\n")
    names = [part.strip().partition(" [")[0] for part in lines[0].split(",")]
    if not names[0] or len(set(names)) != len(names) or not is_metrics_file(path):
        raise UnreadableInputError(
            f"{path}: not a file of metrics: its first line must name columns such as timestamp "
            "and utilization.gpu (nvidia-smi writes it with --format=csv, not with noheader)"
        )
    texts = pl.DataFrame({"line": lines[1:]}, schema={"line": pl.String})
    fields = texts.select(pl.col("line").str.split(","))
    fits = pl.col("line").list.len() == len(names)
    rows = fields.filter(fits)
    skipped = len(fields) - len(rows) + bool(torn.strip())
    # "[N/A]", and what else nvidia-smi says instead of a value.
    is_missing = pl.all().str.contains(r"^\[.*\]$") | (pl.all() == "N/A")
    frame = rows.select(
        pl.col("line").list.get(place).str.strip_chars().alias(name)
        for place, name in enumerate(names)
    ).with_columns(pl.when(is_missing).then(None).otherwise(pl.all()).name.keep())
    return _typed(frame), skipped


def _typed(frame: pl.DataFrame) -> pl.DataFrame:
    columns = []
    for name in frame.columns:
        column = pl.col(name)
        if name in _TEXTS or (name.startswith("clocks_event_reasons.") and name not in _MASKS):
            # No text of an untrusted file shall control a terminal.
            columns.append(column.str.replace_all(r"[\x00-\x1f\x7f-\x9f]", " "))
        elif name == "time_ns":
            columns.append(column.cast(pl.Int64, strict=False))
        elif name in _MASKS:
            digits = column.str.strip_prefix("0x").str.to_integer(base=16, strict=False)
            columns.append(digits.cast(pl.Int64).alias(_MASKS[0]))
        else:
            columns.append(column.str.extract(r"^(-?[0-9.]+)").cast(pl.Float64, strict=False))
    frame = frame.select(columns)
    if "timestamp" in frame.columns and "time_ns" not in frame.columns:
        moment = pl.col("timestamp").str.to_datetime("%Y/%m/%d %H:%M:%S%.f", strict=False)
        moments = frame.select(moment).to_series()
        frame = frame.with_columns(_since_1970(moments).alias("time_ns"))
    return frame


def _since_1970(local: pl.Series) -> pl.Series:
    """Nanoseconds since 1970 of moments in this machine's time zone, as nvidia-smi writes them."""
    hours = local.dt.truncate("1h")
    offsets_ns = {}  # they change with the seasons
    for hour in hours.drop_nulls().unique().to_list():
        with contextlib.suppress(OverflowError, ValueError, OSError):  # no year of a calendar
            offset = hour.astimezone().utcoffset()
            offsets_ns[hour] = round(offset.total_seconds() * 1e9) if offset else 0
    shift = hours.replace_strict(
        list(offsets_ns), list(offsets_ns.values()), default=None, return_dtype=pl.Int64
    )
    return local.dt.timestamp("ns") - shift


def _gpus(frame: pl.DataFrame) -> pl.DataFrame:
    find = partial(column_of, frame)
    named = [name for name in _KEYS if name in frame.columns]
    # A file that does not say which GPU: all of it counts as one, if it is about one at all.
    is_of_gpu = (
        pl.any_horizontal(pl.col(name).is_not_null() for name in named)
        if named
        else pl.lit(any(name.startswith(("utilization.", "memory.")) for name in frame.columns))
    )
    mask = find("clocks_event_reasons.active", pl.Int64)
    is_idle = (mask & CLOCK_REASON_BITS["gpu_idle"]) != 0
    is_busy = (find("utilization.gpu") >= _BUSY_PERCENT).fill_null(~is_idle).fill_null(value=True)
    is_busy &= find("clocks.current.sm").is_not_null()
    keys = [
        find("index").cast(pl.Int64).alias("index"),
        find("name", pl.String).alias("name"),
        find("uuid", pl.String).alias("uuid"),
    ]
    return (
        frame.filter(is_of_gpu)
        .group_by(keys, maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("samples"),
            find("utilization.gpu").mean().alias("utilization_percent"),
            find("utilization.memory").mean().alias("memory_utilization_percent"),
            bytes_of(find("memory.used").max()).alias("memory_peak_bytes"),
            bytes_of(
                pl.coalesce(find("memory.total"), find("memory.used") + find("memory.free")).max()
            ).alias("memory_total_bytes"),
            find("power.draw").mean().alias("power_watts"),
            find("power.draw").max().alias("power_peak_watts"),
            _growth(find("energy.total")).alias("energy_joules"),
            find("temperature.gpu").max().alias("temperature_peak_celsius"),
            find("clocks.current.sm").mean().alias("clock_mhz"),
            is_busy.sum().cast(pl.Int64).alias("busy_samples"),
            find("clocks.current.sm").filter(is_busy).median().alias("busy_clock_mhz"),
            ((mask & CLOCK_REASON_BITS["applications_clocks_setting"]) != 0)
            .mean()
            .alias("set_lower_share"),
            ((mask & THROTTLE_MASK) != 0).mean().alias("throttled_share"),
            *[
                ((mask & CLOCK_REASON_BITS[reason]) != 0).mean().alias(f"throttled_{reason}_share")
                for reason in THROTTLE_REASONS
            ],
            find("gpm.sm").mean().alias("sm_percent"),
            find("gpm.tensor").mean().alias("tensor_percent"),
            find("gpm.dram").mean().alias("dram_percent"),
            find("xid.count").max().cast(pl.Int64).alias("xid_errors"),
            _growth(find("ecc.errors.uncorrected.volatile.total"))
            .cast(pl.Int64)
            .alias("ecc_errors"),
        )
        .filter(pl.col("samples") > 0)  # constants as keys make a group of no rows
    )


def _host(frame: pl.DataFrame) -> pl.DataFrame:
    # The host's values stand in each row of a sample: one of them is enough.
    if "timestamp" in frame.columns:
        frame = frame.unique("timestamp", keep="first", maintain_order=True)
    find = partial(column_of, frame)
    return frame.select(
        find("host.cpu.utilization").mean().alias("cpu_percent"),
        find("host.cpu.iowait").mean().alias("iowait_percent"),
        bytes_of(find("host.memory.used").max()).alias("memory_peak_bytes"),
        bytes_of(find("cgroup.memory.used").max()).alias("group_memory_peak_bytes"),
        bytes_of(find("cgroup.memory.limit").min()).alias("group_memory_limit_bytes"),
        find("cgroup.cpu.throttled").mean().alias("throttled_percent"),
        (find("disk.read").mean() * 1e6).alias("disk_read_bytes_per_second"),
        (find("network.receive").mean() * 1e6).alias("network_receive_bytes_per_second"),
        find("process.cpu").mean().alias("process_percent"),
        bytes_of(find("process.memory.rss").max()).alias("process_memory_peak_bytes"),
        find("process.count").max().cast(pl.Int64).alias("processes"),
    )


def column_of(frame: pl.DataFrame, name: str, kind: type[pl.DataType] = pl.Float64) -> pl.Expr:
    """A column of a file of metrics by its name; nulls where the file does not have it."""
    return pl.col(name) if name in frame.columns else pl.lit(None, kind)


def bytes_of(mebibytes: pl.Expr) -> pl.Expr:
    """Mebibytes, as files of metrics have them, in bytes."""
    return (mebibytes * (1 << 20)).round().cast(pl.Int64)


def _growth(counter: pl.Expr) -> pl.Expr:
    """What a counter grew by; a counter that began anew in between says nothing."""
    known = counter.drop_nulls()
    grew = known.last() - known.first()
    return pl.when(known.diff().min() >= 0).then(grew).otherwise(None)


SLOW_SHARE = 0.9
_FEWEST_SAMPLES = 5
_SPREADS = 5
_NORMAL = 1.4826
_OFTEN = 0.1
_SETTING = "applications_clocks_setting"


@dataclass(frozen=True)
class GpuClock:
    """The clock of one rank's GPU.

    Attributes:
        samples: How many samples had the GPU busy.
        clock_mhz: Median of the multiprocessors' clock over these.
        power_watts: Mean; None if unknown.
        temperature_celsius: The highest; None if unknown.
        reasons: Why the clock was lowered, with the share of samples: those in a tenth of them or
            more, the most frequent first.
    """

    gpu: str
    samples: int
    clock_mhz: float
    power_watts: float | None
    temperature_celsius: float | None
    reasons: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class SlowClock:
    """A GPU that runs at a lower clock than its peers.

    Attributes:
        peers: How many ranks it is compared with.
        peers_mhz: Median of their clocks.
    """

    own: GpuClock
    peers: int
    peers_mhz: float

    @property
    def share(self) -> float:
        """Its clock as a share of its peers'."""
        return self.own.clock_mhz / self.peers_mhz

    def text(self) -> str:
        """The figures, as a clause."""
        own = self.own
        why = ", ".join(f"{name.replace('_', ' ')} {percent(share)}" for name, share in own.reasons)
        celsius = own.temperature_celsius
        heat = "" if celsius is None else f", up to {celsius:.0f} °C"
        power = "" if own.power_watts is None else f", {own.power_watts:.0f} W"
        return (
            f"{own.clock_mhz:.0f} MHz, {percent(self.share)} of its peers' {self.peers_mhz:.0f} MHz"
            f"{heat}{power}; {f'clock lowered by: {why}' if why else 'no reason recorded'}"
        )


def clock_of(metrics: MetricsSummary) -> GpuClock | None:
    """The clock of a rank's GPU; None if its metrics do not tell.

    Metrics of several GPUs do not say which of them is the rank's.
    """
    if len(metrics.gpus) != 1:
        return None
    row = metrics.gpus.row(0, named=True)
    if row["busy_clock_mhz"] is None or row["busy_samples"] < _FEWEST_SAMPLES:
        return None
    shares = {reason: row[f"throttled_{reason}_share"] for reason in THROTTLE_REASONS}
    shares[_SETTING] = row["set_lower_share"]
    often = [(reason, share) for reason, share in shares.items() if share and share >= _OFTEN]
    return GpuClock(
        row["name"] or "",
        row["busy_samples"],
        row["busy_clock_mhz"],
        row["power_watts"],
        row["temperature_peak_celsius"],
        tuple(sorted(often, key=lambda one: -one[1])),
    )


def slow_clocks(
    clocks: Mapping[int, GpuClock], most_share: float = SLOW_SHARE
) -> dict[int, SlowClock]:
    """Finds the ranks whose GPUs run at a lower clock than their peers'.

    Args:
        most_share: Share of the peers' clock up to which a clock is slow.
    """
    found = {}
    by_name: dict[str, list[int]] = {}
    for rank, clock in clocks.items():
        by_name.setdefault(clock.gpu, []).append(rank)
    for ranks in by_name.values():
        all_mhz = np.array([clocks[rank].clock_mhz for rank in ranks])
        for place, rank in enumerate(ranks if len(ranks) > 1 else ()):
            peers = np.delete(all_mhz, place)
            usual = float(np.median(peers))
            spread = _NORMAL * float(np.median(np.abs(peers - usual)))
            own = clocks[rank].clock_mhz
            if own <= most_share * usual and usual - own > _SPREADS * spread:
                found[rank] = SlowClock(clocks[rank], len(peers), usual)
    return found
