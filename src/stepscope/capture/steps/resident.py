"""How much host memory this process uses."""

from __future__ import annotations

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
