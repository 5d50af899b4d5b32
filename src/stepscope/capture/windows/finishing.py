"""Has windows' files made beside the training, and collects the results.

Torch holds the interpreter's lock while it writes a trace, so a thread would gain nothing and
another process does the work.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.artifacts.job import FinishJob, RawTrace, RawTraceError
from stepscope.capture.windows.torch_recorder import release_events
from stepscope.errors import UnreadableInputError
from stepscope.run.figures import error_in_words
from stepscope.run.helper_processes import command_of, environment_of
from stepscope.run.manifest import (
    ArtifactRecord,
    FinishedRecord,
    WindowRecord,
    merge_finished,
    read_finished,
    with_reason,
)
from stepscope.system import resident_bytes

log = logging.getLogger("stepscope")


@dataclass
class PendingWindow:
    """A window whose files are being made.

    Attributes:
        profiler: Torch's profiler while its events may be needed again; None otherwise.
        deadline_ns: When to give up, on the monotonic clock.
    """

    job: FinishJob
    record: WindowRecord
    process: FinishingProcess
    profiler: Any
    deadline_ns: int
    scratch: Path


class WindowFinisher:
    """Has windows' files made beside the training, and collects the results.

    Args:
        mode: "auto", "fork" or "inline".
        timeout_s: How long a finishing process may take.
        done: Called with a window's record once its files exist or cannot be made, and when they
            are made in another way than planned.
    """

    def __init__(self, mode: str, timeout_s: float, done: Callable[[WindowRecord], None]) -> None:
        self._mode = mode
        self._timeout_ns = round(timeout_s * 1e9)
        self._done = done
        self._pending: list[PendingWindow] = []

    @property
    def is_busy(self) -> bool:
        """Whether any window's files are still being made."""
        return bool(self._pending)

    def submit(
        self, profiler: Any, job: FinishJob, record: WindowRecord, *, is_raw_there: bool
    ) -> WindowRecord:
        """Hand a stopped window over; returns its record with state "saving".

        Args:
            profiler: Torch's profiler, stopped.
            job: What to make of its events.
            record: What is known about the window.
            is_raw_there: Whether the raw trace has already been written.

        Raises:
            OSError: No process can be started, or the raw trace cannot be written.
            RawTraceError: Torch did not write a complete trace.
        """
        self.collect()
        scratch = job.raw_path.parent
        started_ns = time.perf_counter_ns()
        deadline_ns = time.monotonic_ns() + self._timeout_ns
        mode, reason = choose_mode(self._mode, record.stop_ns, is_busy=self.is_busy)
        if is_raw_there:
            mode, reason = INLINE, "on_trace_ready functions had already written it"
        process = fork(profiler, job, scratch) if mode == FORK else None
        if process is not None:
            pending = PendingWindow(job, record, process, profiler, deadline_ns, scratch)
        else:
            if mode == FORK:
                mode, reason = INLINE, "the system refused a fork"
            if not is_raw_there:
                profiler.export_chrome_trace(job.raw)
            RawTrace(job.raw_path).check_ends()
            process = start(job, scratch)
            pending = PendingWindow(job, record, process, None, deadline_ns, scratch)
            release_events(profiler, keep_events=is_raw_there)
        pending.record = dataclasses.replace(
            record,
            state="saving",
            export_mode=mode,
            export_reason=reason,
            export_ns=record.export_ns + time.perf_counter_ns() - started_ns,
        )
        self._pending.append(pending)
        return pending.record

    def collect(self) -> bool:
        """Collect processes that have ended or are late; returns whether there were any.

        Takes microseconds if there is nothing to do.
        """
        has_worked = False
        for pending in list(self._pending):
            if pending.process.has_ended():
                has_worked = True
                self._pending.remove(pending)
                self._settle(pending)
            elif time.monotonic_ns() > pending.deadline_ns:
                has_worked = True
                pending.process.kill()
                self._pending.remove(pending)
                self._give_up(pending)
        return has_worked

    def finish(self, limit_s: Callable[[], float]) -> None:
        """Wait for all windows up to a limit, then leave the remaining processes alone.

        A process that is left continues: its result is found beside the window.

        Args:
            limit_s: Returns the limit, and is called repeatedly: a signal may shorten it.
        """
        started_ns = time.monotonic_ns()
        self.collect()
        while self._pending and time.monotonic_ns() - started_ns < limit_s() * 1e9:
            time.sleep(0.005)
            self.collect()
        # On a busy machine, much time may have passed between the last check and the limit.
        self.collect()
        for pending in self._pending:
            self._drop_profiler(pending)
            pending.process.leave()
        self._pending.clear()

    def _settle(self, pending: PendingWindow) -> None:
        """Read the result of a process that has ended, or retry what it could not do."""
        try:
            finished = read_finished(pending.job.result_path)
        except UnreadableInputError as error:
            message = stderr_tail(pending.scratch)
            problem = f"the finishing process ended with code {pending.process.exit_code}"
            self._retry(pending, problem + (f": {message}" if message else f" ({error})"))
            return
        self._apply_result(pending, finished)

    def _give_up(self, pending: PendingWindow) -> None:
        """Handle a process that took too long and was killed; its files may exist all the same."""
        try:
            finished = read_finished(pending.job.result_path)
        except UnreadableInputError:
            problem = f"making the files took longer than {self._timeout_ns / 1e9:g} s"
            if _is_whole(pending.job):
                self._fail(pending, problem)
            else:
                self._retry(pending, problem)
            return
        self._apply_result(pending, finished)

    def _apply_result(self, pending: PendingWindow, finished: FinishedRecord) -> None:
        self._drop_profiler(pending)
        _remove(pending.scratch)
        record = merge_finished(pending.record, finished)
        if record.state == "empty":
            _remove(pending.job.window_path)
        self._done(record)

    def _retry(self, pending: PendingWindow, problem: str) -> None:
        """Write inline what a fork could not: its events are still in this process."""
        if pending.profiler is None:
            self._fail(pending, problem)
        else:
            self._write_inline(pending, problem)

    def _write_inline(self, pending: PendingWindow, problem: str) -> None:
        log.warning("stepscope: window %d: %s: writing it inline", pending.record.index, problem)
        profiler, pending.profiler = pending.profiler, None
        try:
            pending.scratch.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(pending.job.raw)
            RawTrace(pending.job.raw_path).check_ends()
            process = start(pending.job, pending.scratch)
            release_events(profiler, keep_events=False)
        except (OSError, RawTraceError, RuntimeError) as error:
            self._fail(pending, f"{problem}; then {error_in_words(error)}")
            return
        note = f"{pending.record.note}; " if pending.record.note else ""
        pending.record = dataclasses.replace(
            pending.record,
            export_mode=INLINE,
            export_reason=problem,
            note=f"{note}written inline after {problem}",
        )
        pending.process = process
        pending.deadline_ns = time.monotonic_ns() + self._timeout_ns
        self._pending.append(pending)
        self._done(pending.record)

    @staticmethod
    def _drop_profiler(pending: PendingWindow) -> None:
        profiler, pending.profiler = pending.profiler, None
        if profiler is not None:
            release_events(profiler, keep_events=False)

    def _fail(self, pending: PendingWindow, reason: str) -> None:
        self._drop_profiler(pending)
        kept = _keep_trace(pending.job)
        _remove(pending.scratch)
        record = pending.record
        if kept is not None:
            reason += "; the trace was kept"
            record = dataclasses.replace(record, artifacts=(*record.artifacts, kept))
        self._done(
            dataclasses.replace(
                record,
                state="failed" if kept is None else "partial",
                reason=with_reason(record, reason),
            )
        )


def _is_whole(job: FinishJob) -> bool:
    """Whether torch's trace was written completely."""
    try:
        RawTrace(job.raw_path).check_ends()
    except RawTraceError:
        return False
    return True


def _keep_trace(job: FinishJob) -> ArtifactRecord | None:
    """Keep the trace of a window whose finishing failed, at least as torch wrote it.

    It is moved, not read or compressed: this is the training thread.
    """
    path = job.trace_path
    try:
        if not path.exists():
            if not job.trace or not _is_whole(job):
                return None
            path = job.window_path / "trace.json"
            job.raw_path.replace(path)
        return ArtifactRecord("trace", f"{path.parent.name}/{path.name}", path.stat().st_size)
    except OSError as error:
        log.debug("stepscope: the trace could not be kept: %s", error)
        return None


def _remove(scratch: Path) -> None:
    shutil.rmtree(scratch, ignore_errors=True)


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
