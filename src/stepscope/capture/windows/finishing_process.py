"""The process that makes a window's files: how it gets the events, its start and its end.

*fork*: a child of this process, which shares its memory, writes the trace and then becomes the
finishing process. *inline*: this process writes the plain trace and starts the finishing process
for the rest.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.artifacts.job import FinishJob
from stepscope.run.helper_processes import command_of, environment_of
from stepscope.system.usage import resident_bytes

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
_SAVE_FAILED = 91
_MESSAGE_BYTES = 2000


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


@dataclass
class FinishingProcess:
    """A process that makes a window's files.

    Attributes:
        child: The process, if it was started and not forked.
    """

    process_id: int
    child: subprocess.Popen[bytes] | None = None
    exit_code: int | None = field(default=None, init=False)

    def has_ended(self) -> bool:
        """Whether the process has ended. Reaps it if so; never waits."""
        if self.exit_code is not None:
            return True
        if self.child is not None:
            self.exit_code = self.child.poll()
            return self.exit_code is not None
        try:
            process_id, status = os.waitpid(self.process_id, os.WNOHANG)
        except ChildProcessError:  # another handler has already reaped it
            self.exit_code = 0
            return True
        if process_id:
            self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code is not None

    def kill(self) -> None:
        """Kill the process and reap it."""
        if self.has_ended():
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process_id, signal.SIGKILL)
        if self.child is not None:
            self.exit_code = self.child.wait()
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.process_id, 0)
        self.exit_code = -signal.SIGKILL

    def leave(self) -> None:
        """Leave the process running on its own."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # it keeps running on purpose
            self.child = None


def fork(profiler: Any, job: FinishJob, scratch: Path) -> FinishingProcess | None:
    """Fork a child that writes the raw trace and then becomes the finishing process.

    Returns:
        The child, or None if the system allows no more processes.
    """
    results = profiler.profiler.kineto_results
    arguments = _command(job)
    environment = environment_of(job.search_path)
    descriptor = os.open(scratch / "messages.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    with warnings.catch_warnings():
        # Python warns about forks in processes with threads; this child only handles files.
        warnings.simplefilter("ignore")
        try:
            process_id = os.fork()
        except OSError as error:
            log.warning("stepscope: cannot fork (%s): writing inline", error)
            process_id = -1
    if process_id:
        os.close(descriptor)
        return FinishingProcess(process_id) if process_id > 0 else None
    # The child from here on: only file work, and never a return into the caller's frames.
    try:
        os.setsid()
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        results.save(job.raw)
        os.execve(arguments[0], arguments, environment)  # noqa: S606 - a list that we build
    finally:
        os._exit(_SAVE_FAILED)


def start(job: FinishJob, scratch: Path) -> FinishingProcess:
    """Start the finishing process for a raw trace that already exists."""
    with (scratch / "messages.txt").open("ab") as messages:
        child = subprocess.Popen(
            _command(job),
            env=environment_of(job.search_path),
            stdin=subprocess.DEVNULL,
            stdout=messages,
            stderr=messages,
            start_new_session=True,
        )
    return FinishingProcess(child.pid, child)


def _command(job: FinishJob) -> list[str]:
    return command_of("stepscope.artifacts", job.encode())


def stderr_tail(scratch: Path) -> str:
    """The last line that the process wrote, if any."""
    try:
        data = (scratch / "messages.txt").read_bytes()[-_MESSAGE_BYTES:]
    except OSError:
        return ""
    lines = data.decode("utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""
