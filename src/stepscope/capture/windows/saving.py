"""What makes and saves windows: imported when the first one comes.

Torch holds the interpreter's lock while it writes a trace, so that a thread would gain nothing: the
training thread writes it as plain JSON, and another process compresses it and makes the tables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.artifacts.job import FinishJob, RawTrace, RawTraceError
from stepscope.capture.messages import WindowAnnouncer
from stepscope.capture.options.config import WINDOW_RECORDERS, CaptureConfig
from stepscope.capture.ranks import RankIdentity
from stepscope.capture.record.journal import Journal
from stepscope.capture.windows.planner import Budget, WindowPlan, another_profiler_runs
from stepscope.capture.windows.recorder import SCRATCH, Window, WindowTools
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

if TYPE_CHECKING:
    from stepscope.capture.shared_store import PauseTogether


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


log = logging.getLogger("stepscope")


class WindowSaver:
    """Makes and saves windows, and notes what became of them."""

    def __init__(
        self,
        config: CaptureConfig,
        journal: Journal,
        identity: RankIdentity,
        snapshot: Callable[[str], object],
        write_steps: Callable[[], object],
        announcer: WindowAnnouncer,
        pauses: PauseTogether | None,
    ) -> None:
        self._config = config
        self._journal = journal
        self._snapshot = snapshot
        self.announcer = announcer
        self._pauses = pauses
        module = WINDOW_RECORDERS[config.window_recorder]
        self.kind: type[Window] = (
            importlib.import_module(f"stepscope.capture.windows.{module}").RECORDER
            if module
            else Window
        )
        self.budget = Budget(config, journal.rank)
        self.finisher = WindowFinisher(config.export_timeout_s, self.settle)
        self._tools = WindowTools(config, identity, self.finisher, write_steps)

    def unavailable_reason(self) -> str:
        """Why no window can be recorded at all; empty if windows can be recorded."""
        reason = self.kind.unavailable_reason()
        if reason:
            recorder = self._config.window_recorder
            log.warning(
                "stepscope: window_recorder=%s: no windows are recorded: %s", recorder, reason
            )
        return reason

    def refusal(self, plan: WindowPlan) -> str:
        """Why this window may not be opened now; empty if it may."""
        if self.kind.uses_torch_profiler and another_profiler_runs():
            return "another torch profiler was recording in this process"
        return self.budget.refusal(plan)

    def make(self, plan: WindowPlan) -> Window:
        """Make a window that has not begun."""
        return self.kind(self._tools, plan)

    def save(self, window: Window, reason: str, step_number: int) -> None:
        """Stop a window and hand it over, with the reason if incomplete, while other ranks wait.

        Raises:
            Exception: It could not be saved: the caller discards the window and notes why.
        """
        plan = window.plan
        try:
            if self._pauses is not None:
                self._pauses.announce(plan.first_step, "begun")
            self._stop_and_hand_over(window, reason, step_number)
        except Exception:
            shutil.rmtree(plan.directory / SCRATCH, ignore_errors=True)
            with contextlib.suppress(OSError):
                plan.directory.rmdir()
            raise
        finally:
            if self._pauses is not None:
                self._pauses.announce(plan.first_step, "done")

    def note(self, plan: WindowPlan, state: str, reason: str) -> None:
        """Note a window that was not recorded."""
        log.warning("stepscope: window %d was not recorded: %s", plan.index, reason)
        self._journal.add_window(_record_of(plan, state, reason=reason))

    def settle(self, record: WindowRecord) -> None:
        """Note the final state of a window: its files exist, or cannot be made."""
        record, placed = self._journal.update_window(record)
        self.announcer.saved(record, placed)
        self.budget.learn_from(record)
        self._prune()

    def _prune(self) -> None:
        for removed in self.budget.prune(self._journal.windows):
            self._journal.update_window(removed)

    def _stop_and_hand_over(self, window: Window, reason: str, step_number: int) -> None:
        plan = window.plan
        started_ns = time.perf_counter_ns()
        try:
            stop_ns = window.stop()
            whole = window.ranges.whole_steps
            record = window.save(
                _record_of(
                    plan,
                    "saving",
                    first_step=plan.first_step,
                    last_step=whole[-1] if whole else None,
                    reason=reason,
                    details=plan.details,
                    stop_ns=stop_ns,
                    predicted_pause_ns=self.budget.predicted_pause_ns(plan),
                ),
                step_number,
            )
        except BaseException as error:
            if not isinstance(error, Exception):
                self.note(plan, "failed", f"{type(error).__name__} came while it was being saved")
            raise
        if plan.with_memory:
            self._snapshot(f"{plan.cause}, window {plan.index}")
        pause_ns = time.perf_counter_ns() - started_ns
        record = dataclasses.replace(record, pause_ns=pause_ns)
        self._journal.add_window(record)
        if record.state != "saving":
            self.announcer.saved(record, [])
            self._prune()
        if window.interruption is not None:
            raise window.interruption


def _record_of(plan: WindowPlan, state: str, **more: Any) -> WindowRecord:
    steps, cause, note = plan.steps, plan.cause, plan.note
    return WindowRecord(plan.index, state, planned_steps=steps, cause=cause, note=note, **more)
