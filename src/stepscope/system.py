"""Facts about the machine, its control groups, and what this process uses and may use of them."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

_CAP_SYS_PTRACE = 19
"""Bit of the kernel's capability mask (capabilities(7))."""


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

    def may_trace(self) -> bool:
        """Whether this process has the capability CAP_SYS_PTRACE of the Linux kernel."""
        text = self.read("/proc/self/status") or ""
        with contextlib.suppress(ValueError, IndexError):
            mask = int(text.partition("CapEff:")[2].splitlines()[0], 16)
            return bool(mask >> _CAP_SYS_PTRACE & 1)
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
    limit = ControlGroups(machine).cpus()
    cpus = machine.cpu_count
    return cpus if limit is None else min(cpus, max(1, math.ceil(limit)))


_CGROUPS = "/sys/fs/cgroup"
_MEMORY_MOUNTS = {"": (_CGROUPS,), "memory": (f"{_CGROUPS}/memory",)}
_CPU_MOUNTS = {"": (_CGROUPS,), "cpu": (f"{_CGROUPS}/cpu", f"{_CGROUPS}/cpu,cpuacct")}
"""Controller to where its groups lie; in version 2 of the interface, groups have no controller."""
# Version 1 writes "no limit" as the largest number of whole pages.
_NO_LIMIT_BYTES = 1 << 60


class ControlGroups:
    """The control groups of this process, in both versions of the kernel's interface.

    A group's folder has the files of its version alone, so whichever is there is read. The groups
    are determined once; their limits and usage are read each time.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._memory: list[str] = []
        self._cpu: list[str] = []
        for line in (machine.read("/proc/self/cgroup") or "").splitlines():
            parts = line.split(":", 2)
            if len(parts) == 3:
                for controller in parts[1].split(","):
                    self._memory += _folders(_MEMORY_MOUNTS.get(controller, ()), parts[2])
                    self._cpu += _folders(_CPU_MOUNTS.get(controller, ()), parts[2])
        # A group without a limit is unlikely to get one while a training runs.
        self._memory = [folder for folder in self._memory if self._limit(folder) is not None]

    def memory(self) -> tuple[int | None, int | None]:
        """(used, limit) in bytes of the group with the tightest limit; None if there is none.

        Used memory is what the limit counts, minus cached files that were not read recently,
        which the kernel frees before it kills a process.
        """
        limits = [(self._limit(folder), folder) for folder in self._memory]
        known = [(limit, folder) for limit, folder in limits if limit is not None]
        if not known:
            return None, None
        limit, folder = min(known, key=lambda one: one[0])
        used = self._machine.read_number(f"{folder}/memory.current")
        if used is None:
            used = self._machine.read_number(f"{folder}/memory.usage_in_bytes")
        if used is None:
            return None, limit
        # In version 1, only the first counts the groups below, as the usage does.
        cached = self._statistic(f"{folder}/memory.stat", "total_inactive_file", "inactive_file")
        return max(0, used - (cached or 0)), limit

    def cpus(self) -> float | None:
        """CPU time per unit of time that the tightest quota allows, in CPUs; None for no limit."""
        read, quotas = self._machine.read, []
        for folder in self._cpu:
            text = read(f"{folder}/cpu.max")
            if text is None:  # version 1 has the quota, or -1 for none, and the period apart
                parts = (read(f"{folder}/cpu.cfs_{part}_us") for part in ("quota", "period"))
                text = " ".join(filter(None, parts))
            words = text.split()
            if len(words) == 2 and all(word.isascii() and word.isdigit() for word in words):
                quotas += [int(words[0]) / int(words[1])] if int(words[1]) else []
        return min(quotas, default=None)

    def throttled_ns(self) -> int | None:
        """Time in which the group was throttled since its creation; None if it is not counted.

        It is that of the nearest group that counts it; its parents count their own.
        """
        for folder in self._cpu:
            for key, unit_ns in (("throttled_usec", 1000), ("throttled_time", 1)):
                value = self._statistic(f"{folder}/cpu.stat", key)
                if value is not None:
                    return value * unit_ns
        return None

    def _limit(self, folder: str) -> int | None:
        """Bytes of a memory limit; None for "max", the largest number, and invalid text."""
        read = self._machine.read
        text = read(f"{folder}/memory.max") or read(f"{folder}/memory.limit_in_bytes") or ""
        is_number = text.isascii() and text.isdigit()
        return int(text) if is_number and int(text) < _NO_LIMIT_BYTES else None

    def _statistic(self, file: str, *keys: str) -> int | None:
        """The number under the first of some keys that a file has."""
        lines = [line.partition(" ") for line in (self._machine.read(file) or "").splitlines()]
        found = {key: int(value) for key, _, value in lines if value.isdecimal()}
        return next((found[key] for key in keys if key in found), None)


def _folders(mounts: tuple[str, ...], path: str) -> list[str]:
    """The group's folder and all its parents, since each may set a limit."""
    group = PurePosixPath("/") / path.lstrip("/")
    above = (group, *group.parents)
    return [mount + str(folder).rstrip("/") for mount in mounts for folder in above]
