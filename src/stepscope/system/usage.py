"""What this process uses of the machine, and may use."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from pathlib import Path


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
    from stepscope.system.control_groups import ControlGroups
    from stepscope.system.machine import this_machine

    machine = this_machine()
    available = None
    with contextlib.suppress(ValueError, IndexError):
        text = machine.read("/proc/meminfo") or ""
        available = int(text.partition("MemAvailable:")[2].split()[0]) << 10
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
    from stepscope.system.control_groups import read_limits
    from stepscope.system.machine import this_machine

    machine = this_machine()
    limit = read_limits(machine).cpus
    cpus = machine.cpu_count
    return cpus if limit is None else min(cpus, max(1, math.ceil(limit)))
