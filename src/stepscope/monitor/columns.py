"""All columns of `metrics.csv`: name, unit, meaning; and what a source of GPU values is.

Names that nvidia-smi's `--query-gpu` accepts mean the same here. The others are Stepscope's own.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.errors import UsageError
from stepscope.run.metrics import CLOCK_REASON_BITS

Value = str | int | float | None
"""The value of a column; None if the source has none."""

NOT_AVAILABLE = "[N/A]"
MIB = 1 << 20


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        is_default: Whether it is in the `metrics.csv` of a run.
    """

    name: str
    unit: str
    about: str
    decimals: int = 0
    is_default: bool = True

    @property
    def heading(self) -> str:
        """The heading in the file's first line: "utilization.gpu [%]"."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name

    def show(self, value: Value, *, with_unit: bool) -> str:
        """A value as nvidia-smi would print it; `[N/A]` for None."""
        if value is None:
            return NOT_AVAILABLE
        if isinstance(value, str):
            # A comma or a line break in a device's name would split the field or the row.
            plain = "".join(one if one.isprintable() else " " for one in value)
            return " ".join(plain.replace(",", " ").replace('"', " ").split()) or NOT_AVAILABLE
        # An integer must not pass through a float, which keeps fewer digits than times have.
        whole = isinstance(value, int) and not self.decimals
        text = str(value) if whole else f"{value:.{self.decimals}f}"
        return f"{text} {self.unit}" if with_unit and self.unit else text


_REASONS = {
    "gpu_idle": "nothing runs on the GPU",
    "applications_clocks_setting": "application clocks were set lower",
    "sw_power_cap": "the power limit",
    "hw_slowdown": "the hardware reduces clocks by half or more (heat or power)",
    "sync_boost": "a group of GPUs boosts together",
    "sw_thermal_slowdown": "the driver lowers clocks because of heat",
    "hw_thermal_slowdown": "the hardware lowers clocks because of heat",
    "hw_power_brake_slowdown": "the power supply requested it",
}
REASON_BITS = {f"clocks_event_reasons.{name}": CLOCK_REASON_BITS[name] for name in _REASONS}
"""Column to its bit in NVML's mask."""


COLUMNS: dict[str, Column] = {
    column.name: column
    for column in (
        Column("timestamp", "", "start of the sample: local time, to the millisecond"),
        Column("time_ns", "", "the same, in nanoseconds since the epoch: the clock of steps.jsonl"),
        Column("index", "", "index of the GPU in the driver, from 0"),
        Column("name", "", "the GPU's name"),
        Column("uuid", "", "the GPU's (or MIG device's) UUID"),
        Column("pci.bus_id", "", "its address on the PCI bus", 0, False),
        Column("serial", "", "its serial number", 0, False),
        Column("driver_version", "", "version of the driver", 0, False),
        Column("count", "", "number of GPUs in the driver", 0, False),
        Column("pstate", "", "performance state: P0 (fastest) to P12 (slowest)"),
        Column(
            "utilization.gpu",
            "%",
            "share of the driver's last period (1/6 s to 1 s) in which "
            "any kernel ran; 100 does not mean that the whole GPU was busy",
        ),
        Column(
            "utilization.memory",
            "%",
            "share of that period in which device memory was read or written",
        ),
        Column("utilization.encoder", "%", "use of the video encoder", 0, False),
        Column("utilization.decoder", "%", "use of the video decoder", 0, False),
        Column("memory.total", "MiB", "device memory"),
        Column("memory.reserved", "MiB", "reserved by driver and firmware", 0, False),
        Column(
            "memory.used", "MiB", "used by all processes together, including caches of allocators"
        ),
        Column("memory.free", "MiB", "not used"),
        Column("temperature.gpu", "", "of the chip, in °C"),
        Column("temperature.memory", "", "of the memory, in °C"),
        Column("fan.speed", "%", "percentage of the maximum speed", 0, False),
        Column(
            "power.draw", "W", "of the board; since Ampere, the driver's mean over one second", 2
        ),
        Column("power.draw.instant", "W", "of the board, at this moment", 2, False),
        Column("enforced.power.limit", "W", "the limit in force", 2),
        Column("power.limit", "W", "the requested limit", 2, False),
        Column("energy.total", "J", "energy used since the driver was loaded; use differences", 3),
        Column("clocks.current.graphics", "MHz", "shader clock", 0, False),
        Column("clocks.current.sm", "MHz", "clock of the multiprocessors"),
        Column("clocks.current.memory", "MHz", "memory clock"),
        Column("clocks.current.video", "MHz", "clock of encoder and decoder", 0, False),
        Column("clocks.max.sm", "MHz", "maximum clock of the multiprocessors", 0, False),
        Column("clocks.max.memory", "MHz", "maximum memory clock", 0, False),
        Column(
            "clocks_event_reasons.active",
            "",
            "why clocks are reduced: a bit mask of the reasons below, in hexadecimal",
        ),
        *(
            Column(
                f"clocks_event_reasons.{name}", "", f"`Active` or `Not Active`: {what}", 0, False
            )
            for name, what in _REASONS.items()
        ),
        Column("pcie.link.gen.current", "", "current generation of the PCIe link", 0, False),
        Column("pcie.link.gen.max", "", "maximum generation of GPU and slot", 0, False),
        Column("pcie.link.width.current", "", "current number of lanes", 0, False),
        Column("pcie.link.width.max", "", "maximum number of lanes of GPU and slot", 0, False),
        Column(
            "pcie.tx",
            "MB/s",
            "sent by the GPU over PCIe, mean since the last sample (GPM) or, before Hopper, 20 ms",
            1,
        ),
        Column("pcie.rx", "MB/s", "received over PCIe, measured in the same way", 1),
        Column("nvlink.tx", "MB/s", "data sent over all NVLinks, mean since the last sample", 1),
        Column(
            "nvlink.rx", "MB/s", "data received over all NVLinks, mean since the last sample", 1
        ),
        Column(
            "gpm.graphics",
            "%",
            "time in which any kernel was resident, since the last sample "
            "(Hopper and later, like all gpm columns)",
            1,
        ),
        Column(
            "gpm.sm", "%", "share of multiprocessors that were busy, mean since the last sample", 1
        ),
        Column("gpm.occupancy", "%", "resident warps, relative to the maximum", 1),
        Column(
            "gpm.tensor", "%", "time in which tensor cores were busy, over all multiprocessors", 1
        ),
        Column("gpm.dram", "%", "memory bandwidth, relative to the maximum", 1),
        Column("gpm.fp64", "%", "time in FP64 arithmetic outside tensor cores", 1, False),
        Column("gpm.fp32", "%", "time in FP32 arithmetic outside tensor cores", 1, False),
        Column("gpm.fp16", "%", "time in FP16 arithmetic outside tensor cores", 1, False),
        Column(
            "ecc.errors.corrected.volatile.total",
            "",
            "memory errors corrected since the driver was loaded",
            0,
            False,
        ),
        Column(
            "ecc.errors.uncorrected.volatile.total",
            "",
            "uncorrectable memory errors since the driver was loaded",
        ),
        Column("xid.count", "", "Xid errors that the driver reported since sampling began"),
        Column("xid.last", "", "number of the last Xid error"),
        Column(
            "process.gpu.memory",
            "MiB",
            "device memory of the watched processes; in a "
            "container with its own process IDs, the driver does not report it",
        ),
        Column(
            "host.cpu.utilization",
            "%",
            "share of the machine's CPUs that were busy since the last sample; 100: all",
            1,
        ),
        Column(
            "host.cpu.iowait",
            "%",
            "share of CPUs that were idle with outstanding disk reads or writes",
            1,
        ),
        Column("host.memory.total", "MiB", "memory of the machine", 0, False),
        Column("host.memory.used", "MiB", "total minus available"),
        Column("host.memory.available", "MiB", "memory that programs can get without swapping"),
        Column(
            "cgroup.memory.used",
            "MiB",
            "of the control group (container, job) whose limit "
            "is the tightest, without cached files that it can release",
        ),
        Column("cgroup.memory.limit", "MiB", "that limit; of control groups of version 1 or 2"),
        Column(
            "cgroup.cpu.throttled",
            "%",
            "time since the last sample in which the group was "
            "throttled because it had used up its CPU time; added up over CPUs",
            1,
        ),
        Column(
            "disk.read",
            "MB/s",
            "read from the machine's disks, mean since the last sample; volumes made of "
            "disks are not counted twice",
            1,
        ),
        Column(
            "disk.write", "MB/s", "written to the machine's disks, mean since the last sample", 1
        ),
        Column(
            "network.receive",
            "MB/s",
            "received over the machine's network cards, mean since the last "
            "sample; in a container, over its interfaces except loopback",
            1,
        ),
        Column("network.send", "MB/s", "sent over them, measured in the same way", 1),
        Column(
            "infiniband.receive",
            "MB/s",
            "received over all InfiniBand and RoCE ports, bypassing the "
            "kernel's network, mean since the last sample",
            1,
        ),
        Column("infiniband.send", "MB/s", "sent over them, measured in the same way", 1),
        Column(
            "process.count", "", "number of watched processes: the training and its descendants"
        ),
        Column("process.cpu", "%", "their CPU time since the last sample; 100: one CPU", 1),
        Column(
            "process.memory.rss",
            "MiB",
            "their resident memory, added up; shared pages count for each process",
        ),
        Column(
            "process.disk.read",
            "MB/s",
            "read by them from disks and network file systems, without the system's cache, mean "
            "since the last sample",
            1,
        ),
        Column("process.disk.write", "MB/s", "written by them, measured in the same way", 1),
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
"""Other names that nvidia-smi accepts for the same columns."""

DEFAULT_COLUMNS = tuple(column for column in COLUMNS.values() if column.is_default)
"""The columns of a run's `metrics.csv`."""
_HOST_PREFIXES = ("host.", "cgroup.", "disk.", "network.", "infiniband.", "process.")


def is_of_host(name: str) -> bool:
    """Whether a column describes the machine, not one GPU."""
    return name.startswith(_HOST_PREFIXES) and name != "process.gpu.memory"


def parse_columns(text: str) -> tuple[Column, ...]:
    """The columns in a list such as "timestamp,name,utilization.gpu"."""
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
    """The first line of a file with these columns."""
    return ", ".join(column.heading for column in columns)


def same_uuid(one: str, other: str) -> bool:
    """Whether two spellings of a UUID mean the same GPU: torch omits NVML's prefix."""
    bare = [re.sub("^(gpu|mig)-", "", uuid.strip().lower()) for uuid in (one, other)]
    return bare[0] == bare[1] != ""
