"""Handing a window's events over to a process beside the training.

Torch holds the interpreter's lock while it writes a trace, so that a thread would gain nothing.
Two ways remain. *fork*: a child of this process, which has the same memory, writes the file and
then becomes the finishing process. *inline*: this process writes the plain file itself, and starts
the finishing process for the rest.
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

from stepscope._package import IMPORT_ROOT
from stepscope.artifacts.job import FinishJob
from stepscope.artifacts.raw import RawTrace, RawTraceError
from stepscope.capture.steps.resident import resident_bytes
from stepscope.capture.windows.window import let_go
from stepscope.errors import UnreadableInputError
from stepscope.run.manifest import (
    ArtifactRecord,
    FinishedRecord,
    WindowRecord,
    merge_finished,
    read_finished,
    with_reason,
)

log = logging.getLogger("stepscope")

_SAVE_FAILED = 91
_FORK_BASE_NS = 10_000_000
_FORK_NS_PER_BYTE = 0.01
"""Copying the page tables of a process: about 10 ms per GB of its memory."""
_UNKNOWN_BYTES = 1 << 30
_EXPORT_PART_OF_STOP = 0.4
"""What a raw export takes, at least, as a part of what stopping took: both grow with the events."""
_MESSAGE_BYTES = 2000
_UNSAFE_MODULES = {
    "mpi4py.MPI": "which may hold memory for RDMA",
    "horovod.torch": "which may hold memory for RDMA",
    "torch_npu": "whose device's memory a fork cannot share",
    "torch_xla": "whose device's memory a fork cannot share",
    "habana_frameworks.torch": "whose device's memory a fork cannot share",
}


@dataclass
class PendingExport:
    """A window whose files are being made.

    Attributes:
        job: What the finishing process was asked.
        record: What is known of the window so far.
        process_id: The process that works on it.
        profiler: Torch's profiler, kept while the events may be needed again; None otherwise.
        deadline_ns: When it is given up, on the monotonic clock.
        scratch: Folder of what is only needed meanwhile.
        child: The process, where it was started and not forked.
    """

    job: FinishJob
    record: WindowRecord
    process_id: int
    profiler: Any
    deadline_ns: int
    scratch: Path
    child: subprocess.Popen[bytes] | None = None
    exit_code: int | None = field(default=None, init=False)

    def has_ended(self) -> bool:
        """Whether the process has ended; collects it if so, without waiting."""
        if self.exit_code is not None:
            return True
        if self.child is not None:
            self.exit_code = self.child.poll()
            return self.exit_code is not None
        try:
            process_id, status = os.waitpid(self.process_id, os.WNOHANG)
        except ChildProcessError:  # somebody else's handler has collected it
            self.exit_code = 0
            return True
        if process_id:
            self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code is not None

    def kill(self) -> None:
        """End the process and collect it."""
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


class Exporter:
    """Exports windows, one at a time, and collects what became of them.

    Args:
        mode: "auto", "fork" or "inline".
        timeout_s: After this long a finishing process is given up.
        done: Receives each window's record once its files are there, or cannot be, or are made in
            another way than was said.
    """

    def __init__(self, mode: str, timeout_s: float, done: Callable[[WindowRecord], None]) -> None:
        self._mode = mode
        self._timeout_ns = round(timeout_s * 1e9)
        self._done = done
        self._pending: list[PendingExport] = []

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
            job: What to make of it.
            record: What is known of the window.
            is_raw_there: Whether the raw trace has been written already.

        Raises:
            OSError: No process can be started, or the raw trace cannot be written.
            RawTraceError: Torch wrote no whole trace.
        """
        self.collect()
        scratch = job.raw_path.parent
        started_ns = time.perf_counter_ns()
        deadline_ns = time.monotonic_ns() + self._timeout_ns
        mode, reason = self._choose_mode(record.stop_ns)
        if is_raw_there:
            mode, reason = "inline", "on_trace_ready functions had it written already"
        process_id = _fork(profiler, job, scratch) if mode == "fork" else None
        if process_id is not None:
            pending = PendingExport(job, record, process_id, profiler, deadline_ns, scratch)
        else:
            if mode == "fork":
                mode, reason = "inline", "the system refused a fork"
            if not is_raw_there:
                profiler.export_chrome_trace(job.raw)
            RawTrace(job.raw_path).check_ends()
            child = _start(job, scratch)
            pending = PendingExport(job, record, child.pid, None, deadline_ns, scratch, child)
            let_go(profiler, keep_events=is_raw_there)
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
        """Take in what has ended, give up what takes too long; whether there was anything.

        Costs microseconds where there was nothing.
        """
        has_worked = False
        for pending in list(self._pending):
            if pending.has_ended():
                has_worked = True
                self._pending.remove(pending)
                self._settle(pending)
            elif time.monotonic_ns() > pending.deadline_ns:
                has_worked = True
                pending.kill()
                self._pending.remove(pending)
                self._give_up(pending)
        return has_worked

    def finish(self, limit_s: Callable[[], float]) -> None:
        """Wait for all windows, but no longer than a limit; then leave the rest to itself.

        A process that is left goes on: what it makes is found beside the window.

        Args:
            limit_s: The limit, asked for again and again: a signal may shorten it.
        """
        started_ns = time.monotonic_ns()
        self.collect()
        while self._pending and time.monotonic_ns() - started_ns < limit_s() * 1e9:
            time.sleep(0.005)
            self.collect()
        # Between the last look and the limit a machine that is busy may have let much time pass.
        self.collect()
        for pending in self._pending:
            self._drop_profiler(pending)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)  # it is left to itself on purpose
                pending.child = None
        self._pending.clear()

    def _choose_mode(self, stop_ns: int) -> tuple[str, str]:
        """How to hand the events over, and why."""
        if self._mode == "inline":
            return "inline", "export_mode='inline'"
        if not hasattr(os, "fork"):
            return "inline", "this system cannot fork"
        if self._pending:
            return "inline", "another window's files were still being made"
        reason = fork_is_unsafe()
        if self._mode == "fork":
            if reason:
                log.warning("stepscope: export_mode='fork' although %s", reason)
            return "fork", "export_mode='fork'" + (f", although {reason}" if reason else "")
        if reason:
            return "inline", reason
        fork_ns = _FORK_BASE_NS + _FORK_NS_PER_BYTE * (resident_bytes() or _UNKNOWN_BYTES)
        if stop_ns * _EXPORT_PART_OF_STOP > fork_ns:
            return "fork", "a fork takes less time than writing"
        return "inline", "writing takes less time than a fork"

    def _settle(self, pending: PendingExport) -> None:
        """A process has ended: read what it says, or do again what it could not."""
        try:
            finished = read_finished(pending.job.result_path)
        except UnreadableInputError as error:
            self._try_again(pending, str(error))
            return
        self._take_in(pending, finished)

    def _give_up(self, pending: PendingExport) -> None:
        """A process took too long and was ended.

        Its files may be there all the same, and a fork that hung can be done without.
        """
        try:
            finished = read_finished(pending.job.result_path)
        except UnreadableInputError:
            told = f"making the files took longer than {self._timeout_ns / 1e9:g} s"
            if pending.profiler is None or _is_whole(pending.job):
                self._fail(pending, told)
            else:
                self._write_inline(pending, told)
            return
        self._take_in(pending, finished)

    def _take_in(self, pending: PendingExport, finished: FinishedRecord) -> None:
        self._drop_profiler(pending)
        _remove(pending.scratch)
        record = merge_finished(pending.record, finished)
        if record.state == "empty":
            _remove(pending.job.window_path)
        self._done(record)

    def _try_again(self, pending: PendingExport, problem: str) -> None:
        message = _last_words(pending.scratch)
        told = f"the finishing process ended with code {pending.exit_code}"
        told += f": {message}" if message else f" ({problem})"
        if pending.profiler is None:
            self._fail(pending, told)
        else:
            self._write_inline(pending, told)

    def _write_inline(self, pending: PendingExport, told: str) -> None:
        # The events are still in this process: what the fork could not write, it can.
        log.warning("stepscope: window %d: %s: writing it inline", pending.record.index, told)
        profiler, pending.profiler = pending.profiler, None
        try:
            pending.scratch.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(pending.job.raw)
            RawTrace(pending.job.raw_path).check_ends()
            child = _start(pending.job, pending.scratch)
            let_go(profiler, keep_events=False)
        except (OSError, RawTraceError, RuntimeError) as error:
            self._fail(pending, f"{told}; then {type(error).__name__}: {error}")
            return
        note = f"{pending.record.note}; " if pending.record.note else ""
        pending.record = dataclasses.replace(
            pending.record,
            export_mode="inline",
            export_reason=told,
            note=f"{note}written inline after {told}",
        )
        pending.child, pending.process_id, pending.exit_code = child, child.pid, None
        pending.deadline_ns = time.monotonic_ns() + self._timeout_ns
        self._pending.append(pending)
        self._done(pending.record)

    @staticmethod
    def _drop_profiler(pending: PendingExport) -> None:
        profiler, pending.profiler = pending.profiler, None
        if profiler is not None:
            let_go(profiler, keep_events=False)

    def _fail(self, pending: PendingExport, reason: str) -> None:
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
    """Whether torch's own trace has been written to its end."""
    try:
        RawTrace(job.raw_path).check_ends()
    except RawTraceError:
        return False
    return True


def _keep_trace(job: FinishJob) -> ArtifactRecord | None:
    """What is left of a window whose finishing failed: its trace, as torch wrote it at least.

    It is moved and neither read nor compressed: this is the training thread.
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


def fork_is_unsafe() -> str:
    """Why this process had better not be forked; empty where nothing speaks against it."""
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


def _fork(profiler: Any, job: FinishJob, scratch: Path) -> int | None:
    """A child that writes the raw trace and then becomes the finishing process.

    Returns:
        The child's process number, or None where the system allows no more processes.
    """
    results = profiler.profiler.kineto_results
    arguments = _command(job)
    environment = _environment(job)
    descriptor = os.open(scratch / "messages.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    with warnings.catch_warnings():
        # Python warns that threads and forks do not mix; this child does file work only.
        warnings.simplefilter("ignore")
        try:
            process_id = os.fork()
        except OSError as error:
            log.warning("stepscope: cannot fork (%s): writing inline", error)
            process_id = -1
    if process_id:
        os.close(descriptor)
        return process_id if process_id > 0 else None
    # From here on the child: nothing but file work, and never back into the caller's frames.
    try:
        os.setsid()
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        results.save(job.raw)
        os.execve(arguments[0], arguments, environment)  # noqa: S606 - a list that we build
    finally:
        os._exit(_SAVE_FAILED)


def _start(job: FinishJob, scratch: Path) -> subprocess.Popen[bytes]:
    """The finishing process, for a raw trace that is already there."""
    with (scratch / "messages.txt").open("ab") as messages:
        return subprocess.Popen(
            _command(job),
            env=_environment(job),
            stdin=subprocess.DEVNULL,
            stdout=messages,
            stderr=messages,
            start_new_session=True,
        )


def _command(job: FinishJob) -> list[str]:
    # The working directory must not decide which modules are found.
    safe_path = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safe_path, "-m", "stepscope.artifacts", job.encode()]


def _environment(job: FinishJob) -> dict[str, str]:
    """The environment of the finishing process: it must find this very package."""
    paths = [str(IMPORT_ROOT), *job.search_path]
    environment = dict(os.environ)
    if environment.get("PYTHONPATH"):
        paths.append(environment["PYTHONPATH"])
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def _last_words(scratch: Path) -> str:
    """The last line that the process left, if any."""
    try:
        data = (scratch / "messages.txt").read_bytes()[-_MESSAGE_BYTES:]
    except OSError:
        return ""
    lines = data.decode("utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def _remove(scratch: Path) -> None:
    shutil.rmtree(scratch, ignore_errors=True)
