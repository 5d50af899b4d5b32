"""Limits set by the container or job scheduler: memory and CPU of the control group."""

from __future__ import annotations

from stepscope.doctor.check import Check, ok, warning
from stepscope.run.figures import binary_size, plural
from stepscope.system import ControlGroups, Machine

_SMALL_MEMORY_BYTES = 4 << 30


def check_limits(machine: Machine) -> list[Check]:
    """Compare the limits with what a training process sees. Only Linux has them."""
    if not machine.is_linux:
        return []
    groups = ControlGroups(machine)
    return [_memory(machine, groups.memory()[1]), _cpu(machine, groups.cpus())]


def _memory(machine: Machine, limit_bytes: int | None) -> Check:
    total_bytes = machine.memory_bytes("MemTotal")
    whole = binary_size(total_bytes or 0)
    total = f" of the machine's {whole}" if total_bytes is not None else ""
    usable = [size for size in (limit_bytes, total_bytes) if size is not None]
    if limit_bytes is None or (total_bytes and limit_bytes >= total_bytes):
        text = f"no limit below the machine's {whole}" if total_bytes else "no limit"
    else:
        text = f"limited to {binary_size(limit_bytes)}{total}"
    if usable and min(usable) < _SMALL_MEMORY_BYTES:
        return warning(
            "memory",
            f"{text}; a window takes about 3 kB per event in the training process",
            "record short windows (active=1), or raise the container's limit",
        )
    return ok("memory", text)


def _cpu(machine: Machine, limit: float | None) -> Check:
    seen = plural(machine.cpu_count, "CPU")
    # Half a CPU of difference does no harm; a training that sees many CPUs and gets few suffers.
    if limit is None or limit > machine.cpu_count - 0.5:
        return ok("CPU", f"{seen}, no limit on CPU time")
    most = max(1, int(limit))
    return warning(
        "CPU",
        f"the process sees {seen} but gets the time of {limit:g}: if threads and workers "
        "are sized by what it sees, they compete for CPU time",
        f"set OMP_NUM_THREADS and num_workers so that together they stay near {most}, or raise "
        "the container's limit",
    )
