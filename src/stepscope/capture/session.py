"""What is open while a capture runs, and what happens to it at steps, at signals and at the end."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

from stepscope.capture.config import CaptureConfig
from stepscope.capture.devices import DeviceProbe
from stepscope.capture.ending import describe_end, name_of, say_where
from stepscope.capture.flop_counter import (
    FLOP_COUNTER_FILE,
    FLOP_COUNTER_KIND,
    STEP_KIND,
    FlopCount,
)
from stepscope.capture.holder import NestedProfilerError, ProcessClaim
from stepscope.capture.journal import Journal
from stepscope.capture.memory import MemoryWatch
from stepscope.capture.ranks import RankIdentity, identify, records
from stepscope.capture.requests import RequestSources
from stepscope.capture.signals import SignalWatch, TerminationSignalError
from stepscope.capture.steps import Clock, StepRecorder
from stepscope.capture.tally import StepTally
from stepscope.capture.window import another_profiler_runs
from stepscope.capture.windows import WindowKeeper
from stepscope.errors import UsageError

log = logging.getLogger("stepscope")


class CaptureSession:
    """One capture in this process: its files, its recorder of steps, its windows, its listeners.

    After the start nothing in here raises an `Exception`: what fails is noted.

    Args:
        config: The options.

    Attributes:
        identity: Who this rank is.
        step: Number of the step that is going on.
        journal: The run's files; None where there are none, and so no capture.
        recorder: What times the steps.
        windows: What opens windows.
        requests: What asks for windows besides the schedule.
        memory: What watches the device's memory.
        flops: What counts the operations of one step; None where that is not wanted.
        before_end: Functions to be called when the capture ends, while it can still be added to.
        profiler: The profiler whose session this is.
    """

    def __init__(self, config: CaptureConfig) -> None:
        self.config = config
        self.identity = RankIdentity()
        self.step = 0
        self.journal: Journal | None = None
        self.recorder: StepRecorder | None = None
        self.windows: WindowKeeper | None = None
        self.requests: RequestSources | None = None
        self.memory: MemoryWatch | None = None
        self.flops: FlopCount | None = None
        self.before_end: list[Callable[[], object]] = []
        self.profiler: Any = None
        self._probe: DeviceProbe | None = None
        self._signals: SignalWatch | None = None
        self._tally = StepTally()
        self._is_started = False
        self._is_stopped = False
        self._process_id = os.getpid()
        self._busy = 0
        self._is_told_to_end = False

    @property
    def is_on(self) -> bool:
        """Whether anything is recorded."""
        return self.journal is not None and not self._is_stopped

    @property
    def recording_index(self) -> int | None:
        """Index of the window that is being recorded, or None."""
        return self.windows.recording_index if self.windows is not None else None

    # -- the start ----------------------------------------------------------------------------

    def start(self) -> None:
        """Open everything, and step 0.

        Raises:
            NestedProfilerError: Another profiler is recording in this process.
            UsageError: This was started before.
        """
        if self._is_started:
            raise UsageError("this Profiler was started before: make a new one for a new run")
        self._is_started = True
        if not self.config.enabled:
            return
        if not ProcessClaim.take(self):
            raise NestedProfilerError(
                "another stepscope.Profiler is running in this process: stop it first"
            )
        try:
            if another_profiler_runs():
                raise NestedProfilerError(
                    "a torch profiler is already recording in this process, and torch can serve "
                    "only one: remove it, or start this one after it has stopped"
                )
            with self.contain("starting the capture"):
                self._open()
        except BaseException:
            ProcessClaim.give_back(self)
            raise
        if self.journal is None:
            ProcessClaim.give_back(self)
            return
        with self.contain("opening the first step"):
            if self.windows is not None:
                self.windows.enter(0)
            self._attach_device()
            if self.recorder is not None:
                self.recorder.begin()
            if self.flops is not None:
                self.flops.step_begins(0)

    def _open(self) -> None:
        clock = Clock.start()
        self.identity = identify()
        self.journal = Journal.open(self.config, self.identity, clock)
        self.recorder = StepRecorder(clock, self.journal.write_step)
        self._probe = DeviceProbe()
        layout = self.journal.layout.rank(self.identity.rank)
        self.memory = MemoryWatch(
            self.config, layout, self.identity.rank, self.journal.add_snapshot
        )
        self.memory.start()
        if self.config.flop_counter and records(self.config.ranks, self.identity):
            self.flops = FlopCount(self.config.detail_step, self._keep_flops)
        self.windows = WindowKeeper(
            self.config, self.journal, layout, self.identity, self.memory.snapshot
        )
        self.requests = RequestSources(
            self.config, self.identity, self.journal, self.windows.planner
        )
        self.requests.start()
        self._signals = SignalWatch(
            self._on_terminate if self.config.flush_on_sigterm else None,
            self.requests.on_signal if self.config.triggers else None,
        )
        self._signals.install()
        # Held until the end, so that a profiler that nobody holds any more still ends properly.
        atexit.register(self._stop_at_exit)

    # -- steps --------------------------------------------------------------------------------

    def advance(self) -> None:
        """End the step that is going on; begin the next."""
        recorder = self.recorder
        if recorder is None or self.journal is None:
            self.step += 1
            return
        if not recorder.is_open:
            recorder.begin()
            return
        windows = self.windows
        ended = self.step
        if self.flops is not None and self.flops.is_counting:
            recorder.mark(STEP_KIND)
        record = recorder.end(ended, window=self.recording_index)
        self.journal.count_step()
        if record is not None:
            self._tally.add(record)
        if self.requests is not None:
            self.requests.step_ended(record)
        if self.memory is not None and self.memory.is_available:
            self.memory.step_ended(ended)
        has_worked = self.flops is not None and self.flops.step_ended(ended)
        self.step += 1
        if windows is not None and windows.advance(ended):
            has_worked = True
        if has_worked:
            # What opening or saving a window takes is the profiler's time and no step's.
            recorder.begin()
        if self._probe is not None:
            self._attach_device()
        if self.flops is not None:
            self.flops.step_begins(self.step)

    def _keep_flops(self, text: str) -> None:
        if self.journal is not None:
            self.journal.add_text(FLOP_COUNTER_KIND, FLOP_COUNTER_FILE, text)

    def begin_afresh(self) -> None:
        """A loop begins: what came before it is no part of its first step."""
        if self.windows is not None:
            self.windows.restart_step(self.step)
        if self.recorder is not None:
            self.recorder.begin()

    def leave_loop(self) -> None:
        """The loader is exhausted: the step that was opened for the next batch is none."""
        if self.windows is not None:
            self.windows.leave_step()
        if self.recorder is not None:
            self.recorder.cancel()

    def break_off(self) -> None:
        """The loop was left from inside: its last step counts as partial."""
        recorder = self.recorder
        if not self.is_on or recorder is None:
            return
        if self.windows is not None:
            self.windows.leave_step()
        if recorder.is_open:
            recorder.end(self.step, window=self.recording_index, is_partial=True)
        recorder.cancel()

    @contextlib.contextmanager
    def range(self, name: str) -> Iterator[None]:
        """A range in the trace, where one is being recorded; nothing otherwise."""
        if self.recording_index is None:
            yield
            return
        import torch

        with torch.profiler.record_function(name):
            yield

    def _attach_device(self) -> None:
        """Time and measure the GPU from the first step on that finds it in use."""
        if self._probe is not None and self.recorder is not None and self._probe.is_ready:
            self.recorder.attach_device(self._probe.timer(), self._probe.peak_memory)
            self._probe = None

    # -- the end ------------------------------------------------------------------------------

    def finish(self, error: BaseException | None, note: str = "") -> None:
        """End everything once, whatever happened. Never raises an `Exception`.

        Args:
            error: What ended the loop, where something did.
            note: What else is to be said of the end.
        """
        if self._is_stopped or not self._is_started or os.getpid() != self._process_id:
            return
        self._busy += 1
        try:
            if self.journal is not None:
                self._close(self.journal, error, note)
        finally:
            self._busy -= 1
            self._is_stopped = True
            ProcessClaim.give_back(self)
            atexit.unregister(self._stop_at_exit)
            if self._signals is not None:
                self._signals.resume()
                self._signals.remove()

    def _close(self, journal: Journal, error: BaseException | None, note: str) -> None:
        for function in self.before_end:
            with self.contain("ending what was added to the capture"):
                function()
        with self.contain("closing the last step"):
            if self.flops is not None:
                self.flops.leave()
                if self.flops.missed and self.step:
                    log.warning("stepscope: %s", self.flops.missed)
                    journal.note("counting operations", self.flops.missed, self.step)
            self._close_last_step(error)
        windows = self.windows
        if windows is not None:
            with self.contain("saving the last window"):
                cause = f"{name_of(error)} ended the loop" if error else "the loop ended"
                windows.flush(cause, self.step)
        if self.requests is not None:
            with self.contain("leaving the triggers"):
                self.requests.close()
        if self.memory is not None:
            with self.contain("closing the memory watch"):
                self.memory.close()
        # The manifest tells the end before the files are waited for: a kill may come meanwhile.
        with self.contain("closing the run"):
            if self.recorder is not None:
                self.recorder.close()
                if self.recorder.problem:
                    journal.note("timing steps", self.recorder.problem, self.step)
            journal.close(error, self._ending(error, note), self._tally.verdict())
        if windows is not None:
            is_hurried = isinstance(error, TerminationSignalError)
            with self.contain("waiting for the files"):
                windows.wait_for_files(lambda: self._patience_s(is_hurried))
                journal.end(self._ending(error, note))
        if self.identity.rank == 0 and (journal.windows or self.step):
            say_where(journal.layout.root, self._tally.verdict())

    def _ending(self, error: BaseException | None, note: str) -> str:
        follows = self.windows is not None and self.windows.planner.follows_schedule
        windows = self.journal.windows if self.journal is not None else ()
        return describe_end(error, note, self.step, windows, self.config if follows else None)

    def _patience_s(self, is_hurried: bool) -> float:
        """How long the end waits for files: less once the process has been told to end."""
        if is_hurried or self._is_told_to_end:
            return min(self.config.grace_s, self.config.export_timeout_s)
        return self.config.export_timeout_s

    def _close_last_step(self, error: BaseException | None) -> None:
        recorder = self.recorder
        if recorder is None or not recorder.is_open:
            return
        # After a clean loop the open step is only the time since the last boundary: no step.
        if error is not None or self.step == 0:
            recorder.end(self.step, window=self.recording_index, is_partial=True)
        recorder.cancel()

    def _stop_at_exit(self) -> None:
        self.finish(None, note="the process ended before stop() was called")

    def _on_terminate(self, is_fatal: bool) -> bool:
        """SIGTERM: save what was recorded; False if our own code must come to its end first."""
        if self._busy:
            self._is_told_to_end = True
            return False
        if is_fatal:
            self.finish(TerminationSignalError())
        elif self.windows is not None and self.is_on:
            with self.contain("saving on SIGTERM"):
                self.windows.flush("SIGTERM came", self.step)
        return True

    @contextlib.contextmanager
    def contain(self, where: str) -> Iterator[None]:
        """Keep the capture's own failures from the training: they are noted instead."""
        self._busy += 1
        try:
            yield
        except Exception as error:
            log.warning("stepscope: %s failed: %s: %s", where, type(error).__name__, error)
            log.debug("stepscope: %s failed", where, exc_info=True)
            if self.journal is not None:
                with contextlib.suppress(Exception):
                    self.journal.note(where, f"{type(error).__name__}: {error}", self.step)
        finally:
            self._busy -= 1
            if self._is_told_to_end and not self._busy and self._signals is not None:
                self._signals.resume()
