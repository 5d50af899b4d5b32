"""Every column of `metrics.csv`, in one place: name, unit, meaning. GPU columns are nvidia-smi's.

A name that nvidia-smi's `--query-gpu` knows means here what it means there. The others are ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.errors import UsageError
from stepscope.run.metrics import CLOCK_REASON_BITS

Value = str | int | float | None
"""What a source says of a column; None where it says nothing."""

NOT_AVAILABLE = "[N/A]"
MIB = 1 << 20


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: Its name, as `--query-gpu` takes it.
        unit: Its unit; empty where it has none.
        about: What its values are.
        decimals: Digits after the point.
        is_default: Whether it stands in the `metrics.csv` of a run.
    """

    name: str
    unit: str
    about: str
    decimals: int = 0
    is_default: bool = True

    @property
    def heading(self) -> str:
        """What the file's first line calls it: "utilization.gpu [%]"."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name

    def show(self, value: Value, *, with_unit: bool) -> str:
        """A value as nvidia-smi would print it; `[N/A]` for None."""
        if value is None:
            return NOT_AVAILABLE
        if isinstance(value, str):
            # A comma or a line break in a device's name would make two fields or rows of it.
            plain = "".join(one if one.isprintable() else " " for one in value)
            return " ".join(plain.replace(",", " ").replace('"', " ").split()) or NOT_AVAILABLE
        # A whole number must not pass through a float: times have more digits than one keeps.
        whole = isinstance(value, int) and not self.decimals
        text = str(value) if whole else f"{value:.{self.decimals}f}"
        return f"{text} {self.unit}" if with_unit and self.unit else text


_REASONS = {
    "gpu_idle": "nothing runs on the GPU",
    "applications_clocks_setting": "somebody set lower clocks",
    "sw_power_cap": "the power limit",
    "hw_slowdown": "the hardware slowed itself down, by half or more (heat or power)",
    "sync_boost": "a group of GPUs that boost together",
    "sw_thermal_slowdown": "the driver, because of heat",
    "hw_thermal_slowdown": "the hardware, because of heat",
    "hw_power_brake_slowdown": "the power supply asked for it",
}
REASON_BITS = {f"clocks_event_reasons.{name}": CLOCK_REASON_BITS[name] for name in _REASONS}
"""Column to the bit of NVML's mask that it shows."""


def _reasons() -> list[Column]:
    return [
        Column(f"clocks_event_reasons.{name}", "", f"`Active` or `Not Active`: {text}", 0, False)
        for name, text in _REASONS.items()
    ]


COLUMNS: dict[str, Column] = {
    column.name: column
    for column in (
        Column("timestamp", "", "when the sample was begun: local time, to the millisecond"),
        Column("time_ns", "", "the same, in nanoseconds since the epoch: the clock of steps.jsonl"),
        Column("index", "", "the driver's number of the GPU, from 0"),
        Column("name", "", "the GPU's name"),
        Column("uuid", "", "the GPU's (or MIG device's) UUID"),
        Column("pci.bus_id", "", "its place on the bus", 0, False),
        Column("serial", "", "its serial number", 0, False),
        Column("driver_version", "", "version of the driver", 0, False),
        Column("count", "", "number of GPUs that the driver knows", 0, False),
        Column("pstate", "", "performance state: P0 (most) to P12 (least)"),
        Column(
            "utilization.gpu",
            "%",
            "share of the driver's last period (1/6 s to 1 s) in which "
            "any kernel ran: 100 says nothing of how much of the GPU worked",
        ),
        Column(
            "utilization.memory",
            "%",
            "share of that period in which device memory was read or written",
        ),
        Column("utilization.encoder", "%", "use of the video encoder", 0, False),
        Column("utilization.decoder", "%", "use of the video decoder", 0, False),
        Column("memory.total", "MiB", "device memory"),
        Column("memory.reserved", "MiB", "kept by driver and firmware", 0, False),
        Column(
            "memory.used", "MiB", "taken by all processes together, caches of allocators included"
        ),
        Column("memory.free", "MiB", "not taken"),
        Column("temperature.gpu", "", "of the chip, in °C"),
        Column("temperature.memory", "", "of the memory, in °C"),
        Column("fan.speed", "%", "of the greatest speed", 0, False),
        Column("power.draw", "W", "of the board; since Ampere the driver's mean over a second", 2),
        Column("power.draw.instant", "W", "of the board, at this moment", 2, False),
        Column("enforced.power.limit", "W", "the limit that holds now", 2),
        Column("power.limit", "W", "the limit that was asked for", 2, False),
        Column(
            "energy.total",
            "J",
            "what the GPU took since its driver was loaded; differences count",
            3,
        ),
        Column("clocks.current.graphics", "MHz", "shader clock", 0, False),
        Column("clocks.current.sm", "MHz", "clock of the multiprocessors"),
        Column("clocks.current.memory", "MHz", "memory clock"),
        Column("clocks.current.video", "MHz", "clock of encoder and decoder", 0, False),
        Column("clocks.max.sm", "MHz", "greatest clock of the multiprocessors", 0, False),
        Column("clocks.max.memory", "MHz", "greatest memory clock", 0, False),
        Column(
            "clocks_event_reasons.active",
            "",
            "why clocks are lower than they could be: a mask of the reasons below, in hexadecimal",
        ),
        *_reasons(),
        Column("pcie.link.gen.current", "", "generation of the PCIe link now", 0, False),
        Column("pcie.link.gen.max", "", "greatest that GPU and slot can do", 0, False),
        Column("pcie.link.width.current", "", "lanes of the link now", 0, False),
        Column("pcie.link.width.max", "", "lanes that GPU and slot can do", 0, False),
        Column(
            "pcie.tx",
            "MB/s",
            "sent by the GPU over PCIe: mean since the last sample (GPM), before Hopper over 20 ms",
            1,
        ),
        Column("pcie.rx", "MB/s", "received over PCIe, likewise", 1),
        Column("nvlink.tx", "MB/s", "data sent over all NVLinks, mean since the last sample", 1),
        Column("nvlink.rx", "MB/s", "data received over them", 1),
        Column(
            "gpm.graphics",
            "%",
            "time in which any kernel was resident, since the last sample "
            "(Hopper and later, as all gpm columns)",
            1,
        ),
        Column("gpm.sm", "%", "multiprocessors that were busy, mean since the last sample", 1),
        Column("gpm.occupancy", "%", "resident warps of those that would fit", 1),
        Column("gpm.tensor", "%", "time in which tensor cores worked, over all multiprocessors", 1),
        Column("gpm.dram", "%", "memory bandwidth, of the greatest", 1),
        Column("gpm.fp64", "%", "time in FP64 arithmetic outside tensor cores", 1, False),
        Column("gpm.fp32", "%", "time in FP32 arithmetic outside tensor cores", 1, False),
        Column("gpm.fp16", "%", "time in FP16 arithmetic outside tensor cores", 1, False),
        Column(
            "ecc.errors.corrected.volatile.total",
            "",
            "memory errors mended since the driver was loaded",
            0,
            False,
        ),
        Column(
            "ecc.errors.uncorrected.volatile.total",
            "",
            "memory errors that could not be mended, since the driver was loaded",
        ),
        Column("xid.count", "", "Xid errors that the driver reported since sampling began"),
        Column("xid.last", "", "number of the last of them"),
        Column(
            "process.gpu.memory",
            "MiB",
            "device memory of the watched processes; in a "
            "container of its own process numbers the driver does not tell",
        ),
        Column(
            "host.cpu.utilization",
            "%",
            "CPUs of the machine that were busy since the last sample; 100: all",
            1,
        ),
        Column(
            "host.cpu.iowait",
            "%",
            "CPUs that were idle with a read or write of theirs outstanding",
            1,
        ),
        Column("host.memory.total", "MiB", "memory of the machine", 0, False),
        Column("host.memory.used", "MiB", "total less available"),
        Column("host.memory.available", "MiB", "what programs could get without swapping"),
        Column(
            "cgroup.memory.used",
            "MiB",
            "of the control group (container, job) whose limit "
            "is the tightest, without cached files that it could give up",
        ),
        Column("cgroup.memory.limit", "MiB", "that limit; versions 1 and 2"),
        Column(
            "cgroup.cpu.throttled",
            "%",
            "time since the last sample in which the group was "
            "held back because its CPU time was used up; several CPUs add up",
            1,
        ),
        Column(
            "disk.read",
            "MB/s",
            "read from the machine's disks, mean since the last sample; volumes made of "
            "disks do not count again",
            1,
        ),
        Column("disk.write", "MB/s", "written to them", 1),
        Column(
            "network.receive",
            "MB/s",
            "over the machine's network cards, mean since the last "
            "sample; in a container over its interfaces but loopback",
            1,
        ),
        Column("network.send", "MB/s", "likewise", 1),
        Column(
            "infiniband.receive",
            "MB/s",
            "over all InfiniBand and RoCE ports, past the "
            "kernel's network, mean since the last sample",
            1,
        ),
        Column("infiniband.send", "MB/s", "likewise", 1),
        Column("process.count", "", "processes that are watched: the training and all below it"),
        Column("process.cpu", "%", "their CPU time since the last sample; 100: one CPU", 1),
        Column(
            "process.memory.rss",
            "MiB",
            "their resident memory, added up: pages that they share count for each",
        ),
        Column(
            "process.disk.read",
            "MB/s",
            "read by them from disks and network file systems, not from the system's cache, mean "
            "since the last sample",
            1,
        ),
        Column("process.disk.write", "MB/s", "written by them, likewise", 1),
    )
}
"""Canonical name to column, in the order of the file."""

ALIASES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_serial": "serial",
    "gpu_bus_id": "pci.bus_id",
    "clocks.gr": "clocks.current.graphics",
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "clocks.video": "clocks.current.video",
    "clocks.max.mem": "clocks.max.memory",
    "pcie.link.gen.gpucurrent": "pcie.link.gen.current",
    "power.draw.average": "power.draw",
} | {
    name.replace("clocks_event_reasons", "clocks_throttle_reasons"): name
    for name in COLUMNS
    if name.startswith("clocks_event_reasons")
}
"""Other names that nvidia-smi takes for the same."""

DEFAULT_COLUMNS = tuple(column for column in COLUMNS.values() if column.is_default)
"""The columns of a run's `metrics.csv`."""
_HOST_PREFIXES = ("host.", "cgroup.", "disk.", "network.", "infiniband.", "process.")


def is_of_host(name: str) -> bool:
    """Whether a column is about the machine and not about one GPU."""
    return name.startswith(_HOST_PREFIXES) and name != "process.gpu.memory"


def parse_columns(text: str) -> tuple[Column, ...]:
    """The columns that a list such as "timestamp,name,utilization.gpu" names.

    Raises:
        UsageError: It names one that does not exist, or none.
    """
    columns = []
    for word in text.split(","):
        name = ALIASES.get(word.strip(), word.strip())
        column = COLUMNS.get(name)
        if column is None:
            near = difflib.get_close_matches(name, [*COLUMNS, *ALIASES], n=1)
            hint = f": did you mean {near[0]}?" if near else ""
            raise UsageError(
                f"--query-gpu: there is no column {name!r}{hint} (--help-query-gpu lists them)"
            )
        columns.append(column)
    return tuple(columns)


def header_of(columns: Sequence[Column]) -> str:
    """The first line of a file of these columns."""
    return ", ".join(column.heading for column in columns)
