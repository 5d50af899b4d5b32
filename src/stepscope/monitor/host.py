"""The machine, its control group, and the watched processes, mostly through psutil."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import psutil

from stepscope.monitor.columns import MIB, Value
from stepscope.monitor.notes import Notes, Rates
from stepscope.monitor.processes import ProcessTree
from stepscope.run.figures import describe_error
from stepscope.system import ControlGroups, Machine, this_machine

_MB = 1e6
_INFINIBAND = "/sys/class/infiniband"
_INFINIBAND_WORD_BYTES = 4  # its counters count lanes of four bytes


class HostSource:
    """The values of the machine and of some processes."""

    def __init__(
        self,
        root_pid: int,
        notes: Notes,
        *,
        is_root_watched: bool = True,
        machine: Machine | None = None,
    ) -> None:
        self._notes = notes
        self._machine = machine or this_machine()
        self._groups = ControlGroups(self._machine)
        self._rates = Rates()
        self._tree = ProcessTree(root_pid, is_root_watched=is_root_watched)
        self._cpu_before: tuple[float, float, float] | None = None
        self._ports = list(self._find_ports())
        self._is_hardware: dict[str, bool] = {}
        self._readers: list[tuple[str, Callable[[], Mapping[str, Value]]]] = [
            ("host.cpu.", self._cpu),
            ("host.memory.", _memory),
            ("cgroup.memory.", self._group_memory),
            ("cgroup.cpu.", self._throttled),
            ("disk.", self._disk),
            ("network.", self._network),
            ("infiniband.", self._infiniband),
            ("process.", self._tree.read),
        ]

    def pids(self) -> Collection[int]:
        """The watched processes."""
        return self._tree.pids()

    def read(self, wanted: Collection[str]) -> dict[str, Value]:
        """The values by column. What cannot be read is left out and noted."""
        values: dict[str, Value] = {}
        for prefix, read in self._readers:
            asked = sorted(name for name in wanted if name.startswith(prefix))
            if not asked:
                continue
            try:
                values.update(read())
            except Exception as error:  # noqa: BLE001 - no quirk of a system may end the sampler
                for name in asked:
                    self._notes.add(name, describe_error(error))
        return values

    def _cpu(self) -> Mapping[str, Value]:
        times = psutil.cpu_times()
        # User time already includes guests' time.
        named = times._asdict()
        total = sum(value for name, value in named.items() if not name.startswith("guest"))
        waiting = named.get("iowait", 0.0)
        idle = times.idle + waiting
        before, self._cpu_before = self._cpu_before, (total, idle, waiting)
        if before is None or total <= before[0]:
            return {}
        passed = total - before[0]
        return {
            "host.cpu.utilization": _percent(passed - (idle - before[1]), passed),
            "host.cpu.iowait": _percent(waiting - before[2], passed) if "iowait" in named else None,
        }

    def _group_memory(self) -> Mapping[str, Value]:
        used, limit = self._groups.memory()
        if limit is None:
            self._notes.add("cgroup.memory", "no control group of this process has a limit")
        return {
            "cgroup.memory.used": None if used is None else used / MIB,
            "cgroup.memory.limit": None if limit is None else limit / MIB,
        }

    def _throttled(self) -> Mapping[str, Value]:
        throttled_ns = self._groups.throttled_ns()
        if throttled_ns is None:
            self._notes.add("cgroup.cpu.throttled", "no control group of this process counts it")
        rate = self._rates.per_second("throttled", throttled_ns, time.monotonic_ns())
        return {"cgroup.cpu.throttled": None if rate is None else rate / 1e9 * 100}

    def _disk(self) -> Mapping[str, Value]:
        disks = psutil.disk_io_counters(perdisk=True)
        real = [disks[name] for name in self._of_hardware("/sys/block", disks)]
        if not real:
            raise OSError("the system counts no disk")
        read, written = sum(one.read_bytes for one in real), sum(one.write_bytes for one in real)
        return self._megabytes({"disk.read": read, "disk.write": written})

    def _network(self) -> Mapping[str, Value]:
        interfaces = psutil.net_io_counters(pernic=True)
        outward = [name for name in interfaces if not _is_loopback(name)]
        real = [interfaces[name] for name in self._of_hardware("/sys/class/net", outward)]
        received, sent = sum(one.bytes_recv for one in real), sum(one.bytes_sent for one in real)
        return self._megabytes({"network.receive": received, "network.send": sent})

    def _infiniband(self) -> Mapping[str, Value]:
        totals = {}
        if not self._ports:
            self._notes.add("infiniband", "this machine has no such port")
        for column, file in (
            ("infiniband.receive", "port_rcv_data"),
            ("infiniband.send", "port_xmit_data"),
        ):
            counts = [self._machine.read_number(f"{port}/{file}") for port in self._ports]
            known = [count for count in counts if count is not None]
            if known:
                totals[column] = sum(known) * _INFINIBAND_WORD_BYTES
        return self._megabytes(totals)

    def _of_hardware(self, folder: str, names: Iterable[str]) -> list[str]:
        """Those of physical devices: bridges, bonds and volumes count the same bytes again.

        All of them if none is physical, as in a container or on systems other than Linux.
        """
        for name in set(names) - self._is_hardware.keys():
            link = f"{folder}/{name.replace('/', '!')}/device"
            self._is_hardware[name] = self._machine.path(link).exists()
        real = [name for name in names if self._is_hardware[name]]
        return real or list(names)

    def _megabytes(self, counted: Mapping[str, int]) -> Mapping[str, Value]:
        """Megabytes per second since the last call, of bytes that were counted by now."""
        now_ns = time.monotonic_ns()
        rates = {key: self._rates.per_second(key, size, now_ns) for key, size in counted.items()}
        return {key: None if rate is None else rate / _MB for key, rate in rates.items()}

    def _find_ports(self) -> Iterator[str]:
        folder = self._machine.path(_INFINIBAND)
        with contextlib.suppress(OSError):
            for port in sorted(folder.glob("*/ports/*/counters")):
                yield f"/{port.relative_to(self._machine.root)}"


def _memory() -> Mapping[str, Value]:
    memory = psutil.virtual_memory()
    return {
        "host.memory.total": memory.total / MIB,
        "host.memory.used": (memory.total - memory.available) / MIB,
        "host.memory.available": memory.available / MIB,
    }


def _percent(part: float, whole: float) -> float:
    return min(100.0, max(0.0, part / whole * 100))


def _is_loopback(name: str) -> bool:
    return name == "lo" or name.startswith("lo0") or "Loopback" in name
