"""Facts about the machine, its control groups, and what this process uses and may use of them."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

# Bits of the kernel's capability mask (capabilities(7)).
_CAPABILITY_BITS = {"CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38}


@dataclass(frozen=True)
class Machine:
    """The machine, which tests replace.

    Attributes:
        system: As in `sys.platform`: "linux", "darwin", "win32".
        root: Root of the system's files: "/" outside tests.
        user: Effective user ID; None if the system has none.
        cpu_count: CPUs that this process may be scheduled on.
        beside: The folder of this Python, where its packages install programs; None for none.
    """

    system: str
    root: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    user: int | None = None
    cpu_count: int = 1
    beside: Path | None = None

    @property
    def is_linux(self) -> bool:
        """Whether the system has files under /proc and /sys."""
        return self.system.startswith("linux")

    def read(self, path: str) -> str | None:
        """The stripped text of a system file; None if it cannot be read."""
        try:
            return self.path(path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def read_number(self, path: str) -> int | None:
        """The integer in a system file; None if there is none."""
        text = self.read(path)
        try:
            return int(text) if text is not None else None
        except ValueError:
            return None

    def memory_bytes(self, kind: str) -> int | None:
        """Memory of a kind that Linux counts, such as "MemTotal"; None if it is unknown."""
        with contextlib.suppress(ValueError, IndexError):
            text = self.read("/proc/meminfo") or ""
            return int(text.partition(f"{kind}:")[2].split()[0]) << 10
        return None

    def path(self, path: str) -> Path:
        """The path of a system file, below the root."""
        return self.root / path.lstrip("/")

    def find_program(self, name: str) -> str | None:
        """The path of a program, on PATH or next to this Python; None if it is not found."""
        found = shutil.which(name, path=self.environment.get("PATH", ""))
        if found is None and self.beside is not None:
            found = shutil.which(name, path=str(self.beside))
        return found

    def has_capability(self, name: str) -> bool:
        """Whether this process has a capability of the Linux kernel.

        Raises:
            KeyError: No check uses a capability of this name.
        """
        bit = _CAPABILITY_BITS[name]
        for line in (self.read("/proc/self/status") or "").splitlines():
            key, _, value = line.partition(":")
            if key == "CapEff":
                try:
                    return bool(int(value.strip(), 16) >> bit & 1)
                except ValueError:
                    return False
        return False


def this_machine() -> Machine:
    """The machine that runs this process."""
    user = os.geteuid() if hasattr(os, "geteuid") else None
    beside = Path(sys.executable).parent if sys.executable else None
    return Machine(sys.platform, Path("/"), dict(os.environ), user, allowed_cpus(), beside)


def resident_bytes() -> int | None:
    """Resident memory of this process; None if the system does not say. Takes microseconds."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_resident_bytes() -> int | None:
    """The most memory that this process has used on the host; None if the system does not say.

    Linux notes the peak only now and then, so that it may be below what is in use.
    """
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    noted = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return max(noted, resident_bytes() or 0)


def private_bytes(process_id: int) -> int | None:
    """Memory that a process shares with no other."""
    with contextlib.suppress(OSError, ValueError):
        text = Path(f"/proc/{process_id}/smaps_rollup").read_text(encoding="ascii")
        lines = [line.split() for line in text.splitlines() if line.startswith("Private_")]
        return sum(int(words[1]) for words in lines) << 10
    return None


def shared_memory_bytes() -> int | None:
    """Shared memory that is free, as DataLoaders' workers use it for batches."""
    with contextlib.suppress(OSError, AttributeError):
        found = os.statvfs("/dev/shm")  # noqa: S108 - only its free space is asked for
        return found.f_bavail * found.f_frsize
    return None


def available_bytes() -> int | None:
    """Memory that new processes may take: the machine's, or what a control group leaves."""
    machine = this_machine()
    available = machine.memory_bytes("MemAvailable")
    used, limit = ControlGroups(machine).memory()
    if used is None or limit is None:
        return available
    left = max(0, limit - used)
    return left if available is None else min(available, left)


def allowed_cpus() -> int:
    """CPUs that this process may run on, by its affinity where the system has one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usable_cpus() -> int:
    """CPUs that this process may use: its affinity, less what control groups take away."""
    machine = this_machine()
    limit = read_limits(machine).cpus
    cpus = machine.cpu_count
    return cpus if limit is None else min(cpus, max(1, math.ceil(limit)))


CGROUPS = "/sys/fs/cgroup"
_CPU_MOUNTS = (f"{CGROUPS}/cpu", f"{CGROUPS}/cpu,cpuacct")
# Version 1 writes "no limit" as the largest number of whole pages.
_NO_LIMIT_BYTES = 1 << 60


@dataclass(frozen=True)
class Limits:
    """The tightest limits of the control groups that this process is in; None for no limit.

    Attributes:
        memory_bytes: Memory that it may use together with all others of its group.
        cpus: CPU time per unit of time, in CPUs.
    """

    memory_bytes: int | None = None
    cpus: float | None = None


def read_limits(machine: Machine) -> Limits:
    """Read the limits from both versions of the kernel's control groups."""
    memory: list[int] = []
    cpus: list[float] = []
    for controllers, path in control_groups(machine):
        if not controllers:
            for folder in folders_upwards(CGROUPS, path):
                memory += _finite(machine.read(f"{folder}/memory.max"))
                cpus += _quota(machine.read(f"{folder}/cpu.max"))
        if "memory" in controllers:
            for folder in folders_upwards(f"{CGROUPS}/memory", path):
                memory += _finite(machine.read(f"{folder}/memory.limit_in_bytes"))
        if "cpu" in controllers:
            for mount in _CPU_MOUNTS:
                for folder in folders_upwards(mount, path):
                    quota = machine.read(f"{folder}/cpu.cfs_quota_us")
                    period = machine.read(f"{folder}/cpu.cfs_period_us")
                    cpus += _quota(f"{quota} {period}")
    return Limits(min(memory, default=None), min(cpus, default=None))


@dataclass(frozen=True)
class _MemoryGroup:
    """The files of one group: its limit, its usage, and the size of its cached files."""

    limit: str
    used: str
    statistics: str
    cached_key: str


class ControlGroups:
    """The control groups of this process, in both versions of the kernel's interface.

    The groups are determined once; their usage is read each time.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._memory: list[_MemoryGroup] = []
        self._cpu: str | None = None
        self._cpu_unit_ns = 1
        for controllers, path in control_groups(machine):
            if not controllers:
                self._memory += [
                    _MemoryGroup(
                        f"{folder}/memory.max",
                        f"{folder}/memory.current",
                        f"{folder}/memory.stat",
                        "inactive_file",
                    )
                    for folder in folders_upwards(CGROUPS, path)
                ]
                self._find_cpu([CGROUPS], path, "throttled_usec")
            if "memory" in controllers:
                self._memory += [
                    _MemoryGroup(
                        f"{folder}/memory.limit_in_bytes",
                        f"{folder}/memory.usage_in_bytes",
                        f"{folder}/memory.stat",
                        "total_inactive_file",
                    )
                    for folder in folders_upwards(f"{CGROUPS}/memory", path)
                ]
            if "cpu" in controllers:
                self._find_cpu(_CPU_MOUNTS, path, "throttled_time")
        # A group without a limit is unlikely to get one while a training runs.
        self._memory = [
            group for group in self._memory if finite_limit(machine.read(group.limit)) is not None
        ]

    def memory(self) -> tuple[int | None, int | None]:
        """(used, limit) in bytes of the group with the tightest limit; None if there is none.

        Used memory is what the limit counts, minus cached files that were not read recently,
        which the kernel frees before it kills a process.
        """
        tightest: tuple[int, _MemoryGroup] | None = None
        for group in self._memory:
            limit = finite_limit(self._machine.read(group.limit))
            if limit is not None and (tightest is None or limit < tightest[0]):
                tightest = limit, group
        if tightest is None:
            return None, None
        limit, group = tightest
        used = self._machine.read_number(group.used)
        if used is None:
            return None, limit
        cached = self._statistic(group.statistics, group.cached_key) or 0
        return max(0, used - cached), limit

    def throttled_ns(self) -> int | None:
        """Time in which the group was throttled since its creation; None if it is not counted."""
        if self._cpu is None:
            return None
        file, _, key = self._cpu.partition("#")
        value = self._statistic(file, key)
        return None if value is None else value * self._cpu_unit_ns

    def _find_cpu(self, mounts: list[str] | tuple[str, ...], path: str, key: str) -> None:
        """The nearest group that counts its throttling; parents count their own."""
        for mount in mounts:
            for folder in folders_upwards(mount, path):
                if self._cpu is None and self._statistic(f"{folder}/cpu.stat", key) is not None:
                    self._cpu = f"{folder}/cpu.stat#{key}"
                    self._cpu_unit_ns = 1000 if key.endswith("usec") else 1

    def _statistic(self, file: str, key: str) -> int | None:
        for line in (self._machine.read(file) or "").splitlines():
            name, _, value = line.partition(" ")
            if name == key and value.isdecimal():
                return int(value)
        return None


def control_groups(machine: Machine) -> Iterator[tuple[set[str], str]]:
    """(controllers, path) of each control group of this process; version 2 has no controllers."""
    for line in (machine.read("/proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            yield {word for word in parts[1].split(",") if word}, parts[2]


def folders_upwards(mount: str, path: str) -> Iterator[str]:
    """The group's folder and all its parents, since each may set a limit."""
    group = PurePosixPath("/") / path.lstrip("/")
    for folder in (group, *group.parents):
        yield mount + str(folder).rstrip("/")


def finite_limit(text: str | None) -> int | None:
    """Bytes of a memory limit; None for "max", the largest number, and invalid text."""
    if text is None or not (text.isascii() and text.isdigit()):
        return None
    return int(text) if int(text) < _NO_LIMIT_BYTES else None


def _finite(text: str | None) -> list[int]:
    limit = finite_limit(text)
    return [] if limit is None else [limit]


def _quota(text: str | None) -> list[float]:
    """CPUs of a quota "MICROSECONDS PERIOD"; empty for "max", -1 and invalid text."""
    words = (text or "").split()
    if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words):
        return []
    return [int(words[0]) / int(words[1])] if int(words[1]) else []
