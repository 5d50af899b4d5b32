"""Makes short-lived processes reuse freed memory instead of returning it to the system.

Analyses create and drop hundreds of arrays of tens of megabytes. By default, the C library requests
and returns the memory of each, and the system clears its pages every time, which takes up to half
of the run time on large traces. Retained memory serves the next array instead, until the process
exits. Huge pages, which numpy asks for with every large array, make that worse: the request splits
the retained memory into ever more mappings, and a fault has to find and clear two megabytes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # option numbers from glibc's malloc.h
_NEVER = 2**31 - 1
_HUGE_PAGES = "NUMPY_MADVISE_HUGEPAGE"


def keep_freed_memory() -> None:
    """Retains the memory of freed arrays for later ones.

    Only for commands, since the setting applies to the whole process and to those it starts. Call
    it before numpy is imported, or numpy still asks for huge pages. A value that the user set for
    `NUMPY_MADVISE_HUGEPAGE` stays. Has no effect without glibc.
    """
    mallopt = _function_of_glibc("mallopt")
    if mallopt is None:
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, _NEVER)
    os.environ.setdefault(_HUGE_PAGES, "0")


def return_freed_memory() -> None:
    """Returns the memory of freed arrays to the system.

    For the end of a phase whose arrays were made by threads that have ended: memory that was
    retained for these threads serves no other. Has no effect without glibc.
    """
    malloc_trim = _function_of_glibc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _function_of_glibc(name: str) -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):  # another C library
        return None
    return function
