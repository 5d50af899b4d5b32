"""Makes short-lived processes reuse freed memory instead of returning it to the system.

Analyses create and drop hundreds of arrays of tens of megabytes. By default, the C library requests
and returns the memory of each, and the system clears its pages every time, which takes up to half
of the run time on large traces. Retained memory serves the next array instead, until the process
exits. Huge pages, which numpy asks for with every large array, make that worse: the request splits
the retained memory into ever more mappings, and a fault has to find and clear two megabytes.

All threads share one such pool. With one each, as is the default, what the threads of the reader
retained would serve nothing after loading. polars has an allocator of its own, jemalloc, with four
pools per processor by default; it gets one for two processors. Its large pieces of memory come from
that pool as well, and not from one of their own, which returns what is freed at once.

Python looks for objects that only refer to each other after every 700 new ones or so. Importing the
modules of a report makes tens of thousands that stay, and looking at them over and over takes a
tenth of the time for imports. Arrays are freed as soon as nothing refers to them, without such a
search.

numpy's library for linear algebra starts a thread for each further processor when it is imported,
which looks for work for a while before it sleeps. No analysis has any.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # option numbers from glibc's malloc.h
_NEVER = 2**31 - 1
_NEW_OBJECTS = 250_000
"""Python searches for garbage after this many; importing the modules of a report makes fewer."""
_HUGE_PAGES = "NUMPY_MADVISE_HUGEPAGE"
_JEMALLOC = "_RJEM_MALLOC_CONF"
"""Options of the allocator in polars, which reads them when it is imported."""
_LINEAR_ALGEBRA_THREADS = "OPENBLAS_NUM_THREADS"


def keep_freed_memory() -> None:
    """Retains the memory of freed arrays for later ones, and does without what commands waste.

    That is searching for garbage often, and threads for linear algebra. Only for commands, since
    the setting applies to the whole process and to those it starts. Call it before numpy and polars
    are imported, which read their settings then. Values that the user set for
    `NUMPY_MADVISE_HUGEPAGE`, `OPENBLAS_NUM_THREADS` and `_RJEM_MALLOC_CONF` stay. Without glibc,
    memory is returned as always.
    """
    gc.set_threshold(_NEW_OBJECTS)
    os.environ.setdefault(_LINEAR_ALGEBRA_THREADS, "1")
    mallopt = _from_glibc("mallopt")
    if mallopt is None:
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, _NEVER)
    mallopt(_ARENA_MAX, 1)
    os.environ.setdefault(_HUGE_PAGES, "0")
    pools = max(1, (os.cpu_count() or 1) // 2)
    os.environ.setdefault(_JEMALLOC, f"narenas:{pools},oversize_threshold:0")


def return_freed_memory() -> None:
    """Returns the memory of freed arrays to the system, once.

    For the moment after work that takes more memory than all that follows. To get memory again
    takes time, so this does not pay where later arrays are as large. Has no effect without glibc.
    """
    malloc_trim = _from_glibc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _from_glibc(name: str) -> Any:
    """Returns a function of the C library; None if that is another one."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):  # another C library
        return None
