"""Having windows' files made beside the training, and taking in what became of them.

Torch holds the interpreter's lock while it writes a trace, so that a thread would gain nothing:
another process does it (`handover_mode` says in which way, `finishing_process` has the process).
"""

from __future__ import annotations

import dataclasses
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.artifacts.job import FinishJob
from stepscope.artifacts.raw import RawTrace, RawTraceError
from stepscope.capture.windows.finishing_process import FinishingProcess, fork, last_words, start
from stepscope.capture.windows.handover_mode import FORK, INLINE, choose_mode
from stepscope.capture.windows.torch_recorder import let_go
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


@dataclass
class PendingWindow:
    """A window whose files are being made.

    Attributes:
        job: What the finishing process was asked.
        record: What is known of the window so far.
        process: The process that works on it.
        profiler: Torch's profiler, kept while the events may be needed again; None otherwise.
        deadline_ns: When it is given up, on the monotonic clock.
        scratch: Folder of what is only needed meanwhile.
    """

    job: FinishJob
    record: WindowRecord
    process: FinishingProcess
    profiler: Any
    deadline_ns: int
    scratch: Path


class WindowFinisher:
    """Has windows' files made beside the training, and collects what became of them.

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
        mode, reason = choose_mode(self._mode, record.stop_ns, is_busy=self.is_busy)
        if is_raw_there:
            mode, reason = INLINE, "on_trace_ready functions had it written already"
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
            pending.process.leave()
        self._pending.clear()

    def _settle(self, pending: PendingWindow) -> None:
        """A process has ended: read what it says, or do again what it could not."""
        try:
            finished = read_finished(pending.job.result_path)
        except UnreadableInputError as error:
            self._try_again(pending, str(error))
            return
        self._take_in(pending, finished)

    def _give_up(self, pending: PendingWindow) -> None:
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

    def _take_in(self, pending: PendingWindow, finished: FinishedRecord) -> None:
        self._drop_profiler(pending)
        _remove(pending.scratch)
        record = merge_finished(pending.record, finished)
        if record.state == "empty":
            _remove(pending.job.window_path)
        self._done(record)

    def _try_again(self, pending: PendingWindow, problem: str) -> None:
        message = last_words(pending.scratch)
        told = f"the finishing process ended with code {pending.process.exit_code}"
        told += f": {message}" if message else f" ({problem})"
        if pending.profiler is None:
            self._fail(pending, told)
        else:
            self._write_inline(pending, told)

    def _write_inline(self, pending: PendingWindow, told: str) -> None:
        # The events are still in this process: what the fork could not write, it can.
        log.warning("stepscope: window %d: %s: writing it inline", pending.record.index, told)
        profiler, pending.profiler = pending.profiler, None
        try:
            pending.scratch.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(pending.job.raw)
            RawTrace(pending.job.raw_path).check_ends()
            process = start(pending.job, pending.scratch)
            let_go(profiler, keep_events=False)
        except (OSError, RawTraceError, RuntimeError) as error:
            self._fail(pending, f"{told}; then {type(error).__name__}: {error}")
            return
        note = f"{pending.record.note}; " if pending.record.note else ""
        pending.record = dataclasses.replace(
            pending.record,
            export_mode=INLINE,
            export_reason=told,
            note=f"{note}written inline after {told}",
        )
        pending.process = process
        pending.deadline_ns = time.monotonic_ns() + self._timeout_ns
        self._pending.append(pending)
        self._done(pending.record)

    @staticmethod
    def _drop_profiler(pending: PendingWindow) -> None:
        profiler, pending.profiler = pending.profiler, None
        if profiler is not None:
            let_go(profiler, keep_events=False)

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


def _remove(scratch: Path) -> None:
    shutil.rmtree(scratch, ignore_errors=True)
