"""How many CPUs there are for this process."""

from __future__ import annotations

import os


def allowed_cpus() -> int:
    """CPUs that this process may run on, by its affinity where the system has one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
