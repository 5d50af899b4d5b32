"""How a window's events leave this process: by a fork, or written inline.

*fork*: a child of this process, which shares its memory, writes the trace and then becomes the
finishing process. *inline*: this process writes the plain trace and starts the finishing process
for the rest.
"""

from __future__ import annotations

import logging
import os
import sys

from stepscope.capture.steps.resident import resident_bytes

log = logging.getLogger("stepscope")

FORK = "fork"
INLINE = "inline"
_FORK_BASE_NS = 10_000_000
_FORK_NS_PER_BYTE = 0.01
"""Cost of copying the page tables of a process: about 10 ms per GB of its memory."""
_UNKNOWN_BYTES = 1 << 30
_EXPORT_PART_OF_STOP = 0.4
"""Lower bound of the time of a raw export relative to stopping: both grow with the events."""
_UNSAFE_MODULES = {
    "mpi4py.MPI": "which may hold memory for RDMA",
    "horovod.torch": "which may hold memory for RDMA",
    "torch_npu": "whose device's memory a fork cannot share",
    "torch_xla": "whose device's memory a fork cannot share",
    "habana_frameworks.torch": "whose device's memory a fork cannot share",
}


def choose_mode(wanted: str, stop_ns: int, *, is_busy: bool) -> tuple[str, str]:
    """Choose how to hand the events over; returns the mode and the reason.

    Args:
        wanted: The option `export_mode`: "auto", "fork" or "inline".
        stop_ns: How long torch took to stop recording, which grows with the events.
        is_busy: Whether another window's files are still being made.
    """
    if wanted == INLINE:
        return INLINE, "export_mode='inline'"
    if not hasattr(os, "fork"):
        return INLINE, "this system cannot fork"
    if is_busy:
        return INLINE, "another window's files were still being made"
    reason = fork_is_unsafe()
    if wanted == FORK:
        if reason:
            log.warning("stepscope: export_mode='fork' although %s", reason)
        return FORK, "export_mode='fork'" + (f", although {reason}" if reason else "")
    if reason:
        return INLINE, reason
    fork_ns = _FORK_BASE_NS + _FORK_NS_PER_BYTE * (resident_bytes() or _UNKNOWN_BYTES)
    if stop_ns * _EXPORT_PART_OF_STOP > fork_ns:
        return FORK, "a fork takes less time than writing"
    return INLINE, "writing takes less time than a fork"


def fork_is_unsafe() -> str:
    """Why this process should not be forked; empty if nothing speaks against it."""
    import torch
    from torch import distributed

    for name, what in _UNSAFE_MODULES.items():
        if name in sys.modules:
            return f"{name} is loaded, {what}"
    for name in ("cuda", "xpu"):
        module = getattr(torch, name, None)
        if module is not None and module.is_initialized():
            return f"{name} is initialised, whose pinned memory a fork cannot share"
    if distributed.is_available() and distributed.is_initialized():
        for backend in ("nccl", "ucc", "mpi", "xccl"):
            if backend in str(distributed.get_backend()):
                return f"the process group uses {backend}, which may hold memory for RDMA"
    return ""
