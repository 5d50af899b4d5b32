"""How much of the CPUs other programs use while a process of the trials runs.

Of the CPUs that this process may use: their busy time, less the CPU time of this process and of the
children that ended meanwhile. Programs at a lower priority (nice) do not count where this process
has the usual one, as they run on what is left. Whether others share the memory bus or the GPU is
not seen.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import psutil

DISTURBED = 0.1
"""From this share of the CPUs on, what ran meanwhile is not compared."""


@dataclass(frozen=True)
class CpuClock:
    """The CPU times at one moment.

    Attributes:
        wall_s: The moment.
        busy_s: Busy time of the CPUs that this process may use; None if unknown.
        own_s: CPU time of this process and its ended children.
        cpus: How many CPUs these are.
    """

    wall_s: float
    busy_s: float | None
    own_s: float
    cpus: int

    @classmethod
    def now(cls) -> CpuClock:
        """The clock of this moment."""
        times = os.times()
        own_s = times.user + times.system + times.children_user + times.children_system
        try:
            every = psutil.cpu_times(percpu=True)
            usable = psutil.Process().cpu_affinity() if hasattr(os, "sched_getaffinity") else None
            chosen = [every[cpu] for cpu in usable if cpu < len(every)] if usable else every
            lowers = hasattr(os, "getpriority") and os.getpriority(os.PRIO_PROCESS, 0) == 0
            kinds = ("user", "system", "irq", "softirq", *(() if lowers else ("nice",)))
            busy_s = sum(getattr(cpu, kind, 0.0) for cpu in chosen for kind in kinds)
        except (OSError, psutil.Error, NotImplementedError, AttributeError):
            return cls(time.monotonic(), None, own_s, 1)
        return cls(time.monotonic(), busy_s, own_s, len(chosen))

    def others_share_until(self, later: CpuClock) -> float | None:
        """The share of the CPUs' time, 0 to 1, that other programs used; None if unknown."""
        spent_s = (later.wall_s - self.wall_s) * later.cpus
        if self.busy_s is None or later.busy_s is None or spent_s <= 0:
            return None
        others_s = (later.busy_s - self.busy_s) - (later.own_s - self.own_s)
        return min(1.0, max(0.0, others_s / spent_s))
