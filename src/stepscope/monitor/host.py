"""The machine, its control group, and the watched processes, mostly through psutil."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import psutil

from stepscope.monitor.columns import MIB, Value
from stepscope.monitor.notes import Notes, Rates
from stepscope.monitor.processes import ProcessTree
from stepscope.run.figures import error_in_words
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
        self._readers: list[tuple[frozenset[str], Callable[[], Mapping[str, Value]]]] = [
            (frozenset({"host.cpu.utilization", "host.cpu.iowait"}), self._cpu),
            (
                frozenset({"host.memory.total", "host.memory.used", "host.memory.available"}),
                _memory,
            ),
            (frozenset({"cgroup.memory.used", "cgroup.memory.limit"}), self._group_memory),
            (frozenset({"cgroup.cpu.throttled"}), self._throttled),
            (frozenset({"disk.read", "disk.write"}), self._disk),
            (frozenset({"network.receive", "network.send"}), self._network),
            (frozenset({"infiniband.receive", "infiniband.send"}), self._infiniband),
            (
                frozenset(
                    {
                        "process.count",
                        "process.cpu",
                        "process.memory.rss",
                        "process.disk.read",
                        "process.disk.write",
                    }
                ),
                self._processes,
            ),
        ]

    def pids(self) -> Collection[int]:
        """The watched processes."""
        return self._tree.pids()

    def read(self, wanted: Collection[str]) -> dict[str, Value]:
        """The values by column. What cannot be read is left out and noted."""
        values: dict[str, Value] = {}
        for columns, read in self._readers:
            asked = columns & set(wanted)
            if not asked:
                continue
            try:
                values.update(read())
            except Exception as error:  # noqa: BLE001 - no quirk of a system may end the sampler
                for name in sorted(asked):
                    self._notes.add(name, error_in_words(error))
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
        now_ns = time.monotonic_ns()
        real = [disks[name] for name in self._of_hardware("/sys/block", disks)]
        if not real:
            raise OSError("the system counts no disk")
        return {
            "disk.read": self._megabytes("disk.read", sum(one.read_bytes for one in real), now_ns),
            "disk.write": self._megabytes(
                "disk.write", sum(one.write_bytes for one in real), now_ns
            ),
        }

    def _network(self) -> Mapping[str, Value]:
        interfaces = psutil.net_io_counters(pernic=True)
        now_ns = time.monotonic_ns()
        outward = [name for name in interfaces if not _is_loopback(name)]
        real = [interfaces[name] for name in self._of_hardware("/sys/class/net", outward)]
        return {
            "network.receive": self._megabytes(
                "network.receive", sum(one.bytes_recv for one in real), now_ns
            ),
            "network.send": self._megabytes(
                "network.send", sum(one.bytes_sent for one in real), now_ns
            ),
        }

    def _infiniband(self) -> Mapping[str, Value]:
        found: dict[str, Value] = {}
        now_ns = time.monotonic_ns()
        if not self._ports:
            self._notes.add("infiniband", "this machine has no such port")
        for column, file in (
            ("infiniband.receive", "port_rcv_data"),
            ("infiniband.send", "port_xmit_data"),
        ):
            counts = [self._machine.read_number(f"{port}/{file}") for port in self._ports]
            known = [count for count in counts if count is not None]
            if known:
                total = sum(known) * _INFINIBAND_WORD_BYTES
                found[column] = self._megabytes(column, total, now_ns)
        return found

    def _processes(self) -> Mapping[str, Value]:
        return self._tree.read()

    def _of_hardware(self, folder: str, names: Iterable[str]) -> list[str]:
        """Those of physical devices: bridges, bonds and volumes count the same bytes again.

        All of them if none is physical, as in a container or on systems other than Linux.
        """
        for name in set(names) - self._is_hardware.keys():
            link = f"{folder}/{name.replace('/', '!')}/device"
            self._is_hardware[name] = self._machine.path(link).exists()
        real = [name for name in names if self._is_hardware[name]]
        return real or list(names)

    def _megabytes(self, key: str, count_bytes: int, now_ns: int) -> float | None:
        rate = self._rates.per_second(key, count_bytes, now_ns)
        return None if rate is None else rate / _MB

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
