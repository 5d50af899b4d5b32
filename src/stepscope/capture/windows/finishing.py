"""Has windows' files made beside the training, and collects the results.

Torch holds the interpreter's lock while it writes a trace, so that a thread would gain nothing: the
training thread writes it as plain JSON, and another process compresses it and makes the tables.
"""

from __future__ import annotations

import dataclasses
import logging
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stepscope.artifacts.job import FinishJob, RawTrace, RawTraceError
from stepscope.errors import UnreadableInputError
from stepscope.run.helper_processes import command_of, environment_of
from stepscope.run.manifest import (
    ArtifactRecord,
    FinishedRecord,
    WindowRecord,
    merge_finished,
    read_record,
    with_reason,
)

log = logging.getLogger("stepscope")


@dataclass(frozen=True)
class PendingWindow:
    """A window whose files are being made, up to a deadline on the monotonic clock."""

    job: FinishJob
    record: WindowRecord
    process: subprocess.Popen[bytes]
    deadline_ns: int


class WindowFinisher:
    """Has windows' files made beside the training, and hands each window's record to `done`."""

    def __init__(self, timeout_s: float, done: Callable[[WindowRecord], None]) -> None:
        self._timeout_ns = round(timeout_s * 1e9)
        self._done = done
        self._pending: list[PendingWindow] = []

    @property
    def is_busy(self) -> bool:
        """Whether any window's files are still being made."""
        return bool(self._pending)

    def submit(self, job: FinishJob, record: WindowRecord) -> WindowRecord:
        """Hand a window over whose raw trace exists; returns its record with state "saving".

        Raises:
            OSError: No process can be started.
        """
        self.collect()
        started_ns = time.perf_counter_ns()
        deadline_ns = time.monotonic_ns() + self._timeout_ns
        process = start(job)
        record = dataclasses.replace(
            record,
            state="saving",
            export_ns=record.export_ns + time.perf_counter_ns() - started_ns,
        )
        self._pending.append(PendingWindow(job, record, process, deadline_ns))
        return record

    def collect(self) -> bool:
        """Collect processes that have ended or are late; returns whether there were any.

        Takes microseconds if there is nothing to do.
        """
        has_worked = False
        for pending in list(self._pending):
            is_late = pending.process.poll() is None
            if is_late and time.monotonic_ns() <= pending.deadline_ns:
                continue
            if is_late:
                pending.process.kill()
                pending.process.wait()
            has_worked = True
            self._pending.remove(pending)
            self._settle(pending, is_late=is_late)
        return has_worked

    def finish(self, limit_s: Callable[[], float]) -> None:
        """Wait for all windows up to a limit, which a signal may lower; then leave the rest alone.

        A process that is left continues: its result is found beside the window.
        """
        started_ns = time.monotonic_ns()
        self.collect()
        while self._pending and time.monotonic_ns() - started_ns < limit_s() * 1e9:
            time.sleep(0.005)
            self.collect()
        # On a busy machine, much time may have passed between the last check and the limit.
        self.collect()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # they keep running on purpose
            self._pending.clear()

    def _settle(self, pending: PendingWindow, *, is_late: bool) -> None:
        """Read the result of a process that has ended, or was killed: its files may exist then."""
        try:
            finished = read_record(pending.job.result_path, FinishedRecord)
        except UnreadableInputError as error:
            message = stderr_tail(pending.job.raw_path.parent)
            problem = f"the finishing process ended with code {pending.process.returncode}"
            problem += f": {message}" if message else f" ({error})"
            if is_late:
                problem = f"making the files took longer than {self._timeout_ns / 1e9:g} s"
            self._fail(pending, problem)
            return
        _remove(pending.job.raw_path.parent)
        record = merge_finished(pending.record, finished)
        if record.state == "empty":
            _remove(pending.job.window_path)
        self._done(record)

    def _fail(self, pending: PendingWindow, reason: str) -> None:
        kept = _keep_trace(pending.job)
        _remove(pending.job.raw_path.parent)
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


def _keep_trace(job: FinishJob) -> ArtifactRecord | None:
    """Keep the trace of a window whose finishing failed, at least as torch wrote it.

    It is moved, not read or compressed: this is the training thread.
    """
    path = job.trace_path
    try:
        if not path.exists():
            if not job.trace:
                return None
            RawTrace(job.raw_path).check_ends()
            path = job.window_path / "trace.json"
            job.raw_path.replace(path)
        return ArtifactRecord("trace", f"{path.parent.name}/{path.name}", path.stat().st_size)
    except (OSError, RawTraceError) as error:
        log.debug("stepscope: the trace could not be kept: %s", error)
        return None


def _remove(scratch: Path) -> None:
    shutil.rmtree(scratch, ignore_errors=True)


_MESSAGE_BYTES = 2000


def start(job: FinishJob) -> subprocess.Popen[bytes]:
    """Start the finishing process for a raw trace that exists."""
    with (job.raw_path.parent / "messages.txt").open("ab") as messages:
        return subprocess.Popen(
            command_of("stepscope.artifacts.finish", job.encode()),
            env=environment_of(),
            stdin=subprocess.DEVNULL,
            stdout=messages,
            stderr=messages,
            start_new_session=True,
        )


def stderr_tail(scratch: Path) -> str:
    """The last line that the process wrote, if any."""
    try:
        data = (scratch / "messages.txt").read_bytes()[-_MESSAGE_BYTES:]
    except OSError:
        return ""
    lines = data.decode("utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""
