"""Limits set by the container or job scheduler: memory and CPU of the control group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from stepscope.doctor.check import Check, State
from stepscope.doctor.machine import Machine, in_gib
from stepscope.run.figures import plural

AREA = "limits"
CGROUPS = "/sys/fs/cgroup"
_SMALL_MEMORY_BYTES = 4 << 30
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
            for mount in (f"{CGROUPS}/cpu", f"{CGROUPS}/cpu,cpuacct"):
                for folder in folders_upwards(mount, path):
                    quota = machine.read(f"{folder}/cpu.cfs_quota_us")
                    period = machine.read(f"{folder}/cpu.cfs_period_us")
                    cpus += _quota(f"{quota} {period}")
    return Limits(min(memory, default=None), min(cpus, default=None))


def check_limits(machine: Machine) -> list[Check]:
    """Compare the limits with what a training process sees. Only Linux has them."""
    if not machine.is_linux:
        return []
    limits = read_limits(machine)
    return [_memory(machine, limits), _cpu(machine, limits)]


def _memory(machine: Machine, limits: Limits) -> Check:
    total_bytes = _total_memory(machine)
    total = f" of the machine's {in_gib(total_bytes)}" if total_bytes is not None else ""
    usable = [size for size in (limits.memory_bytes, total_bytes) if size is not None]
    if limits.memory_bytes is None or (total_bytes and limits.memory_bytes >= total_bytes):
        text = f"no limit below the machine's {in_gib(total_bytes)}" if total_bytes else "no limit"
    else:
        text = f"limited to {in_gib(limits.memory_bytes)}{total}"
    if usable and min(usable) < _SMALL_MEMORY_BYTES:
        return Check(
            AREA,
            "memory",
            State.WARNING,
            f"{text}; a window takes about 3 kB per event in the training process",
            "record short windows (active=1), or raise the container's limit",
        )
    return Check(AREA, "memory", State.OK, text)


def _cpu(machine: Machine, limits: Limits) -> Check:
    seen = plural(machine.cpu_count, "CPU")
    # Half a CPU of difference does no harm; a training that sees many CPUs and gets few suffers.
    if limits.cpus is None or limits.cpus > machine.cpu_count - 0.5:
        return Check(AREA, "CPU", State.OK, f"{seen}, no limit on CPU time")
    most = max(1, int(limits.cpus))
    return Check(
        AREA,
        "CPU",
        State.WARNING,
        f"the process sees {seen} but gets the time of {limits.cpus:g}: if threads and workers "
        "are sized by what it sees, they compete for CPU time",
        f"set OMP_NUM_THREADS and num_workers so that together they stay near {most}, or raise "
        "the container's limit",
    )


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


def _total_memory(machine: Machine) -> int | None:
    for line in (machine.read("/proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            words = line.split()
            return int(words[1]) * 1024 if len(words) > 1 and words[1].isdigit() else None
    return None
