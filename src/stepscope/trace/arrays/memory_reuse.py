"""Lets a process that answers one question use its memory again, rather than fetch it anew.

Analyses make and drop arrays of tens of megabytes by the hundred. By default the C library asks the
system for each of these and gives it back, and the system clears every page of it again: on large
traces up to half of the time. Kept, the memory serves the next array; it goes when the process
ends.
"""

from __future__ import annotations

import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # numbers of these options in glibc's malloc.h
_NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Keep what large arrays leave behind for the next ones.

    For commands alone: it is a setting of the whole process. It has an effect with glibc; elsewhere
    nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, _NEVER)
