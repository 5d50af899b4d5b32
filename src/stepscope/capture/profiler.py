"""The profiler that a training loop holds: steps, phases, and windows by schedule."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from stepscope.capture.config import CaptureConfig
from stepscope.capture.devices import DeviceProbe
from stepscope.capture.holder import ProcessClaim
from stepscope.capture.journal import Journal
from stepscope.capture.memory import MemoryWatch
from stepscope.capture.monitoring import RankMonitor
from stepscope.capture.ranks import RankIdentity, identify
from stepscope.capture.requests import RequestSources
from stepscope.capture.signals import SignalWatch, TerminationSignalError
from stepscope.capture.steps import Clock, StepRecorder
from stepscope.capture.tally import StepTally
from stepscope.capture.window import another_profiler_runs
from stepscope.capture.windows import WindowKeeper
from stepscope.errors import UsageError
from stepscope.run.layout import RunLayout

log = logging.getLogger("stepscope")

_Batch = TypeVar("_Batch")
_DATA_WAIT_RANGE = "stepscope.data_wait"


class NestedProfilerError(UsageError, RuntimeError):
    """A second profiler in a process that already has one: torch can serve only one at a time."""


class Profiler:
    """Records every step's time, and chosen steps in full detail, into a run directory.

    Use it around the training loop, either with `watch`:

        with stepscope.Profiler(output_dir="profiles") as profiler:
            for batch in profiler.watch(loader):
                train_step(batch)

    or by calling `step()` at the end of each iteration, as with torch.profiler. What goes wrong
    inside the capture is written to the manifest and to the log named "stepscope"; it never
    reaches the training. Only wrong options and a second profiler raise, and only at the start.

    Args:
        config: The options; or give them as keywords.
        **options: Fields of `CaptureConfig`.

    Raises:
        ConfigError: An option cannot work.
    """

    def __init__(self, config: CaptureConfig | None = None, **options: Any) -> None:
        if config is not None and options:
            raise UsageError("give Profiler either a config or options, not both")
        if config is None:
            config = _config_of(options)
        self.config = config
        self._identity = RankIdentity()
        self._step = 0
        self._is_started = False
        self._is_stopped = False
        self._process_id = os.getpid()
        self._journal: Journal | None = None
        self._recorder: StepRecorder | None = None
        self._probe: DeviceProbe | None = None
        self._windows: WindowKeeper | None = None
        self._stepped_in_watch = False
        self._watch_depth = 0
        self._signals: SignalWatch | None = None
        self._requests: RequestSources | None = None
        self._memory: MemoryWatch | None = None
        self._monitor: RankMonitor | None = None
        self._tally = StepTally()
        self._busy = 0
        self._is_told_to_end = False

    # -- what a training loop uses ------------------------------------------------------------

    def __enter__(self) -> Profiler:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._finish(error)

    def start(self) -> None:
        """Begin the capture: make the run's directory and open step 0.

        Raises:
            NestedProfilerError: Another profiler is recording in this process.
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
            with self._contain("starting the capture"):
                self._open()
        except BaseException:
            ProcessClaim.give_back(self)
            raise
        if self._journal is None:
            ProcessClaim.give_back(self)
            return
        with self._contain("opening the first step"):
            if self._windows is not None:
                self._windows.enter(0)
            self._attach_device()
            if self._recorder is not None:
                self._recorder.begin()

    def stop(self) -> None:
        """End the capture: save the window that is open and close the files."""
        self._finish(None)

    def step(self, *, tokens: int | None = None, samples: int | None = None) -> None:
        """End the step that is going on and begin the next one.

        Args:
            tokens: Tokens processed in the step that ends.
            samples: Samples processed in the step that ends.
        """
        self._stepped_in_watch = True
        if not self._is_on:
            self._step += 1
            return
        with self._contain("ending a step"):
            self.count(tokens=tokens, samples=samples)
            self._advance()

    def watch(self, loader: Iterable[_Batch], *, batches_per_step: int = 1) -> Iterator[_Batch]:
        """Iterate over `loader`, timing the wait for each batch and ending a step with each.

        The wait for a batch belongs to the step that uses it. Time between two loops (an
        evaluation, say) belongs to no step. The iteration ends early at `max_steps`. From the
        first call of `step()` in a loop on, the loop ends its steps itself. A loop inside a loop
        is part of the outer one's step.

        Args:
            loader: Any iterable; a DataLoader as a rule.
            batches_per_step: Batches to a step, as with gradient accumulation; 0 where the loop
                calls `step()` itself from the start.

        Yields:
            The batches, unchanged.
        """
        if self._watch_depth:
            yield from loader
            return
        self._watch_depth += 1
        try:
            yield from self._watch(loader, batches_per_step)
        finally:
            self._watch_depth -= 1

    def _watch(self, loader: Iterable[_Batch], batches_per_step: int) -> Iterator[_Batch]:
        iterator: Iterator[_Batch] | None = None
        steps_itself = batches_per_step < 1
        batches = 0
        if self._is_on:
            with self._contain("beginning a loop"):
                self._begin_afresh()
        while not self.should_stop:
            self._stepped_in_watch = False
            started_ns = time.perf_counter_ns()
            with self._range(_DATA_WAIT_RANGE):
                try:
                    if iterator is None:
                        iterator = iter(loader)
                    batch = next(iterator)
                except StopIteration:
                    break
            if self._recorder is not None:
                self._recorder.add_wait(time.perf_counter_ns() - started_ns)
            try:
                yield batch
            except GeneratorExit:
                with self._contain("leaving the loop"):
                    self._break_off()
                raise
            batches += 1
            steps_itself = steps_itself or self._stepped_in_watch
            if not steps_itself and batches % batches_per_step == 0:
                if self._is_on:
                    with self._contain("ending a step"):
                        self._advance()
                else:
                    self._step += 1
        # The last batches may be too few for a whole step, and are one all the same.
        if self._is_on and not steps_itself and batches % batches_per_step:
            with self._contain("ending a step"):
                self._advance()
        if self._is_on:
            with self._contain("leaving the loop"):
                self._leave_loop()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name a part of the step: it is timed in the step record and marked in the trace.

        Phases may lie inside each other. Only the training thread's phases are timed.
        """
        recorder = self._recorder if self._is_on else None
        is_timed = recorder is not None and recorder.enter_phase(name)
        try:
            with self._range(name):
                yield
        finally:
            if is_timed and recorder is not None:
                recorder.leave_phase()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside as waiting for the step's batch, if it ends without an error."""
        started_ns = time.perf_counter_ns()
        with self._range(_DATA_WAIT_RANGE):
            yield
        if self._is_on and self._recorder is not None:
            self._recorder.add_wait(time.perf_counter_ns() - started_ns)

    def restart_step(self) -> None:
        """Begin the step that is going on anew: what came before belongs to no step."""
        if self._is_on:
            with self._contain("beginning a step anew"):
                self._begin_afresh()

    def trigger(
        self, *, steps: int | None = None, ranks: str = "", with_memory: bool = False
    ) -> None:
        """Ask for a window as soon as it can be, on all ranks alike. Returns at once.

        Args:
            steps: Steps to record; None for as many as the option `active`.
            ranks: Which ranks record it, as the option `ranks`; empty for those that record the
                schedule's windows.
            with_memory: Take a memory snapshot as well.
        """
        if self._is_on and self._requests is not None:
            with self._contain("asking for a window"):
                self._requests.ask("code", steps or 0, ranks, with_memory=with_memory)

    def snapshot(self, reason: str = "code") -> Path | None:
        """Write the CUDA allocator's state and history now.

        Returns:
            The file, or None where there is no CUDA, or it could not be written.
        """
        path: Path | None = None
        if self._is_on and self._memory is not None:
            with self._contain("taking a memory snapshot"):
                path = self._memory.snapshot(reason)
        return path

    def count(self, *, tokens: int | None = None, samples: int | None = None) -> None:
        """Add to the work done in the step that is going on."""
        if self._is_on and self._recorder is not None:
            with self._contain("counting work"):
                self._recorder.count(tokens, samples)

    def mark(self, kind: str) -> None:
        """Say of what kind the step that is going on is, such as "evaluation" or "checkpoint"."""
        if self._is_on and self._recorder is not None:
            self._recorder.mark(kind)

    @property
    def should_stop(self) -> bool:
        """Whether `max_steps` steps have ended."""
        return 0 < self.config.max_steps <= self._step

    @property
    def step_number(self) -> int:
        """Number of the step that is going on, counted from 0."""
        return self._step

    @property
    def run_path(self) -> Path | None:
        """The run's directory, once the capture has started; None if it could not be made."""
        return self._journal.layout.root if self._journal is not None else None

    @property
    def rank_path(self) -> Path | None:
        """This rank's folder in the run's directory; None as for `run_path`."""
        path = self.run_path
        return RunLayout(path).rank(self._identity.rank).root if path is not None else None

    # -- steps --------------------------------------------------------------------------------

    @property
    def _is_on(self) -> bool:
        return self._journal is not None and not self._is_stopped

    def _open(self) -> None:
        clock = Clock.start()
        self._identity = identify()
        self._journal = Journal.open(self.config, self._identity, clock)
        self._recorder = StepRecorder(clock, self._journal.write_step)
        self._probe = DeviceProbe()
        layout = self._journal.layout.rank(self._identity.rank)
        self._memory = MemoryWatch(
            self.config, layout, self._identity.rank, self._journal.add_snapshot
        )
        self._memory.start()
        self._windows = WindowKeeper(
            self.config, self._journal, layout, self._identity, self._memory.snapshot
        )
        self._requests = RequestSources(self.config, self._identity, self._journal, self._windows)
        self._requests.start()
        self._signals = SignalWatch(
            self._on_terminate if self.config.flush_on_sigterm else None,
            self._requests.on_signal if self.config.triggers else None,
        )
        self._signals.install()
        if self.config.monitor:
            with self._contain("starting the monitor"):
                self._monitor = RankMonitor(self.config, layout, self._identity)
        # Held until the end, so that a profiler that nobody holds any more still ends properly.
        atexit.register(self._stop_at_exit)

    def _advance(self) -> None:
        """End the step that is going on; begin the next."""
        recorder = self._recorder
        if recorder is None or self._journal is None:
            self._step += 1
            return
        if not recorder.is_open:
            recorder.begin()
            return
        windows = self._windows
        ended = self._step
        index = windows.recording_index if windows is not None else None
        record = recorder.end(ended, window=index)
        self._journal.count_step()
        if record is not None:
            self._tally.add(record)
        if self._requests is not None:
            self._requests.step_ended(record)
        if self._memory is not None and self._memory.is_available:
            self._memory.step_ended(ended)
        if self._monitor is not None:
            self._monitor.step_ended()
        self._step += 1
        if windows is not None and windows.advance(ended):
            # What opening or saving a window takes is the profiler's time and no step's.
            recorder.begin()
        if self._probe is not None:
            self._attach_device()

    def _begin_afresh(self) -> None:
        """A loop begins: what came before it is no part of its first step."""
        if self._windows is not None:
            self._windows.restart_step(self._step)
        if self._recorder is not None:
            self._recorder.begin()

    def _leave_loop(self) -> None:
        """The loader is exhausted: the step that was opened for the next batch is none."""
        if self._windows is not None:
            self._windows.leave_step()
        if self._recorder is not None:
            self._recorder.cancel()

    def _break_off(self) -> None:
        """The loop was left from inside: its last step counts as partial."""
        recorder = self._recorder
        if not self._is_on or recorder is None or self._stepped_in_watch:
            return
        if self._windows is not None:
            self._windows.leave_step()
        if recorder.is_open:
            windows = self._windows
            index = windows.recording_index if windows is not None else None
            recorder.end(self._step, window=index, is_partial=True)
        recorder.cancel()

    def _attach_device(self) -> None:
        """Time and measure the GPU from the first step on that finds it in use."""
        if self._probe is not None and self._recorder is not None and self._probe.is_ready:
            self._recorder.attach_device(self._probe.timer(), self._probe.peak_memory)
            self._probe = None

    @contextlib.contextmanager
    def _range(self, name: str) -> Iterator[None]:
        """A range in the trace, where one is being recorded; nothing otherwise."""
        if self._windows is None or self._windows.recording_index is None:
            yield
            return
        import torch

        with torch.profiler.record_function(name):
            yield

    # -- the end ------------------------------------------------------------------------------

    def _finish(self, error: BaseException | None, note: str = "") -> None:
        """End everything once, whatever happened. Never raises an `Exception`."""
        if self._is_stopped or not self._is_started or os.getpid() != self._process_id:
            return
        self._busy += 1
        try:
            if self._journal is not None:
                self._close(self._journal, error, note)
        finally:
            self._busy -= 1
            self._is_stopped = True
            ProcessClaim.give_back(self)
            atexit.unregister(self._stop_at_exit)
            if self._signals is not None:
                self._signals.resume()
                self._signals.remove()

    def _close(self, journal: Journal, error: BaseException | None, note: str) -> None:
        with self._contain("closing the last step"):
            self._close_last_step(error)
        windows = self._windows
        if windows is not None:
            with self._contain("saving the last window"):
                cause = f"{_name_of(error)} ended the loop" if error else "the loop ended"
                windows.flush(cause, self._step)
        if self._requests is not None:
            with self._contain("leaving the triggers"):
                self._requests.close()
        if self._memory is not None:
            with self._contain("closing the memory watch"):
                self._memory.close()
        # The manifest tells the end before the files are waited for: a kill may come meanwhile.
        with self._contain("closing the run"):
            if self._recorder is not None:
                self._recorder.close()
                if self._recorder.problem:
                    journal.note("timing steps", self._recorder.problem, self._step)
            journal.close(error, self._ending(error, note), self._tally.verdict())
        if self._monitor is not None:
            with self._contain("ending the monitor"):
                problem = self._monitor.close()
                if problem:
                    journal.note("the monitor", problem, self._step)
        if windows is not None:
            is_hurried = isinstance(error, TerminationSignalError)
            with self._contain("waiting for the files"):
                windows.wait_for_files(lambda: self._patience_s(is_hurried))
                journal.end(self._ending(error, note))
        self._say_where()

    def _patience_s(self, is_hurried: bool) -> float:
        """How long the end waits for files: less once the process has been told to end."""
        if is_hurried or self._is_told_to_end:
            return min(self.config.grace_s, self.config.export_timeout_s)
        return self.config.export_timeout_s

    # -- signals ------------------------------------------------------------------------------

    def _on_terminate(self, is_fatal: bool) -> bool:
        """SIGTERM: save what was recorded; False if our own code must come to its end first."""
        if self._busy:
            self._is_told_to_end = True
            return False
        if is_fatal:
            self._finish(TerminationSignalError())
        elif self._windows is not None and self._is_on:
            with self._contain("saving on SIGTERM"):
                self._windows.flush("SIGTERM came", self._step)
        return True

    def _close_last_step(self, error: BaseException | None) -> None:
        recorder = self._recorder
        if recorder is None or not recorder.is_open:
            return
        # After a clean loop the open step is only the time since the last boundary: no step.
        if error is not None or self._step == 0:
            index = self._windows.recording_index if self._windows is not None else None
            recorder.end(self._step, window=index, is_partial=True)
        recorder.cancel()

    def _stop_at_exit(self) -> None:
        self._finish(None, note="the process ended before stop() was called")

    def _ending(self, error: BaseException | None, note: str) -> str:
        """What happened, in a sentence."""
        if error is not None:
            text = f"{_name_of(error)} in step {self._step}"
            message = str(error).strip().split("\n")[0]
            text += f": {message}" if message else ""
        elif self._step == 0:
            text = "step() was never called: call it at the end of each iteration, or use watch()"
        else:
            text = f"finished after {self._step} steps"
        # Where a window did not come to its end for another reason, the window says so itself.
        missed = {"abandoned", "empty"}
        windows = self._journal.windows if self._journal is not None else ()
        follows = self._windows is not None and self._windows.follows_schedule
        if follows and all(window.state in missed for window in windows):
            first = self.config.schedule.recorded_steps(0)
            text += (
                f"; no window was recorded, since the first would have been steps {first.start} "
                f"to {first.stop - 1}: train longer, or lower skip_first, wait or warmup"
            )
        return f"{text}; {note}" if note else text

    def _say_where(self) -> None:
        """One line at the end, from the job's first rank, that says what to do next."""
        if self._journal is None or self._identity.rank != 0:
            return
        path = self._journal.layout.root
        if self._journal.windows or self._step:
            with contextlib.suppress(OSError, ValueError):
                verdict = self._tally.verdict() or "recorded"
                print(f"stepscope: {verdict}; next: stepscope report {path}", file=sys.stderr)  # noqa: T201

    @contextlib.contextmanager
    def _contain(self, where: str) -> Iterator[None]:
        """Keep the capture's own failures from the training: they are noted instead."""
        self._busy += 1
        try:
            yield
        except Exception as error:
            log.warning("stepscope: %s failed: %s: %s", where, type(error).__name__, error)
            log.debug("stepscope: %s failed", where, exc_info=True)
            if self._journal is not None:
                with contextlib.suppress(Exception):
                    self._journal.note(where, f"{type(error).__name__}: {error}", self._step)
        finally:
            self._busy -= 1
            if self._is_told_to_end and not self._busy and self._signals is not None:
                self._signals.resume()


def _name_of(error: BaseException) -> str:
    return "SIGTERM" if isinstance(error, TerminationSignalError) else type(error).__name__


def _config_of(options: dict[str, Any]) -> CaptureConfig:
    try:
        return CaptureConfig(**options)
    except TypeError as error:
        unknown = [name for name in options if name not in CaptureConfig.__dataclass_fields__]
        if not unknown:
            raise
        known = ", ".join(CaptureConfig.__dataclass_fields__)
        raise UsageError(f"unknown option {unknown[0]!r}: the options are {known}") from error
