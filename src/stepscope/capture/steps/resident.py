"""How much host memory this process uses."""

from __future__ import annotations

import os
from pathlib import Path


def resident_bytes() -> int | None:
    """Resident memory of this process; None if the system does not say. Takes microseconds."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
