"""Limits set by the container or job scheduler: memory and CPU of the control group."""

from __future__ import annotations

from stepscope.doctor.check import Check, in_gib, ok, warning
from stepscope.run.figures import plural
from stepscope.system import Limits, Machine, read_limits

_SMALL_MEMORY_BYTES = 4 << 30


def check_limits(machine: Machine) -> list[Check]:
    """Compare the limits with what a training process sees. Only Linux has them."""
    if not machine.is_linux:
        return []
    limits = read_limits(machine)
    return [_memory(machine, limits), _cpu(machine, limits)]


def _memory(machine: Machine, limits: Limits) -> Check:
    total_bytes = machine.memory_bytes("MemTotal")
    total = f" of the machine's {in_gib(total_bytes)}" if total_bytes is not None else ""
    usable = [size for size in (limits.memory_bytes, total_bytes) if size is not None]
    if limits.memory_bytes is None or (total_bytes and limits.memory_bytes >= total_bytes):
        text = f"no limit below the machine's {in_gib(total_bytes)}" if total_bytes else "no limit"
    else:
        text = f"limited to {in_gib(limits.memory_bytes)}{total}"
    if usable and min(usable) < _SMALL_MEMORY_BYTES:
        return warning(
            "memory",
            f"{text}; a window takes about 3 kB per event in the training process",
            "record short windows (active=1), or raise the container's limit",
        )
    return ok("memory", text)


def _cpu(machine: Machine, limits: Limits) -> Check:
    seen = plural(machine.cpu_count, "CPU")
    # Half a CPU of difference does no harm; a training that sees many CPUs and gets few suffers.
    if limits.cpus is None or limits.cpus > machine.cpu_count - 0.5:
        return ok("CPU", f"{seen}, no limit on CPU time")
    most = max(1, int(limits.cpus))
    return warning(
        "CPU",
        f"the process sees {seen} but gets the time of {limits.cpus:g}: if threads and workers "
        "are sized by what it sees, they compete for CPU time",
        f"set OMP_NUM_THREADS and num_workers so that together they stay near {most}, or raise "
        "the container's limit",
    )
